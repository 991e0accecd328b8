from __future__ import annotations

from datetime import datetime
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from tests.facts.conftest import MESSAGES, OLD, deletes_messages, lost, tried

if TYPE_CHECKING:
    from jsplan.documents.plan import Hazard
    from tests.facts.conftest import Lake, Trial

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]  # a slow machine pours and tries again

CAUSES = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
#: A limit per subject that nothing reaches: lowering it takes effect at once on every server.
MANY = {"max_msgs_per_subject": MESSAGES}
#: What the server says of itself: the answers it gave, and that a mirror which an earlier test deleted has left its origin, which
#: may be any stream. A consumer of ours would also be created.
NOT_OURS = ("$JS.EVENT.ADVISORY.API", "$JS.EVENT.ADVISORY.CONSUMER.DELETED.")
SETS = [causes for size in (1, 2, 3, 4) for causes in combinations(CAUSES, size)]
STORES: dict[str, dict[str, Any]] = {
    "file": {"storage": "file", "allow_direct": True, "compression": "s2"},
    "memory": {"storage": "memory", "allow_direct": True},
}


def limits(lake: Lake, causes: tuple[str, ...], *, much: bool = False) -> dict[str, int]:
    """Limits that each delete something of ORIGIN's copies on its own: `much` most of it, else less than half."""
    size = lake.state("ORIGIN")["bytes"]
    values = {
        "max_msgs": MESSAGES // 8 if much else MESSAGES * 3 // 4,
        "max_bytes": size // 10 if much else int(size * 0.7),
        "max_age": lake.age_of_the_border(),
        "max_msgs_per_subject": 2 if much else 60,
    }
    return {cause: values[cause] for cause in causes}


def check_exact(hazard: Hazard | None, gone: tuple[int, int], causes: tuple[str, ...], level: int = 1) -> None:
    assert hazard is not None
    if level == 0 and {"max_age", "max_msgs_per_subject"} <= set(causes):  # 2.10 may take its time to expire what is left
        assert (hazard.at_least or 0) <= gone[0] <= (hazard.at_most or 0)
        return
    assert hazard.exact, hazard
    assert (hazard.messages, hazard.bytes) == gone
    assert set(hazard.causes) == set(causes)
    assert gone[0] > 0


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("causes", SETS, ids="+".join)
def test_limits_delete_exactly_what_the_plan_says(lake: Lake, trial: Trial, store: str, causes: tuple[str, ...]) -> None:
    """Each limit, and all of them together, delete as many messages and bytes as planned: one number for the combined effect."""
    hazard, gone = tried(lake, trial, STORES[store] | MANY, lambda: limits(lake, causes))

    check_exact(hazard, gone, causes, lake.level)


@pytest.mark.parametrize("causes", [SETS[0], SETS[1], SETS[-1]], ids="+".join)
def test_messages_are_fetched_one_by_one_where_there_are_no_batches(lake: Lake, trial: Trial, causes: tuple[str, ...]) -> None:
    """Without `allow_direct` the numbers are the same."""
    hazard, gone = tried(lake, trial, {"storage": "file", "allow_direct": False} | MANY, lambda: limits(lake, causes))

    check_exact(hazard, gone, causes, lake.level)


@pytest.mark.parametrize("causes", [c for c in SETS if c != ("max_age",)], ids="+".join)
def test_what_stays_is_counted_where_it_is_less(lake: Lake, trial: Trial, causes: tuple[str, ...]) -> None:
    """Limits that delete nearly everything are measured from the newest message on, through gaps, and are as exact."""
    hazard, gone = tried(lake, trial, STORES["file"] | MANY, lambda: limits(lake, causes, much=True), "HOLED")

    check_exact(hazard, gone, causes, lake.level)


@pytest.mark.parametrize("store", STORES)
def test_gaps_in_the_sequences_do_not_mislead(lake: Lake, trial: Trial, store: str) -> None:
    """Deleted messages are not counted a second time, by age or by number."""
    causes = ("max_age", "max_msgs_per_subject")

    hazard, gone = tried(lake, trial, STORES[store] | MANY, lambda: limits(lake, causes), "HOLED")

    check_exact(hazard, gone, causes, lake.level)


@pytest.mark.parametrize("causes", SETS, ids="+".join)
def test_more_reads_than_allowed_give_bounds(lake: Lake, trial: Trial, causes: tuple[str, ...]) -> None:
    """With a measure limit that does not suffice the plan has bounds, and what is really gone lies between them."""
    hazard, gone = tried(lake, trial, STORES["file"] | MANY, lambda: limits(lake, causes), measure_limit=60)

    assert hazard is not None
    assert not hazard.exact
    assert hazard.at_least is not None
    assert hazard.at_most is not None
    assert hazard.at_least <= gone[0] <= hazard.at_most == hazard.messages
    assert hazard.bytes is not None
    assert gone[1] <= hazard.bytes


def test_no_reads_at_all_still_give_bounds(lake: Lake, trial: Trial) -> None:
    """With a measure limit of 0 the state of the stream alone bounds what goes."""
    hazard, gone = tried(lake, trial, STORES["file"] | MANY, lambda: limits(lake, CAUSES), measure_limit=0)

    assert hazard is not None
    assert (hazard.at_least or 0) <= gone[0] <= (hazard.at_most or 0)


@pytest.mark.parametrize("store", STORES)
def test_a_first_limit_per_subject(lake: Lake, trial: Trial, store: str) -> None:
    """Where there was no limit per subject before, 2.14 and later trim at once and older servers later; it is counted either way."""
    stream = lake.copy(**STORES[store])
    before = lake.state(stream)

    _, hazard = trial.change(stream, body={"max_msgs_per_subject": 3})

    assert hazard is not None
    gone = lost(before, lake.state(stream))
    if lake.level < 4:
        assert "restarts" in hazard.message
        assert gone == (0, 0)
        if store == "memory":
            return
        lake.restart()
        gone = lost(before, lake.state(stream))
    check_exact(hazard, gone, ("max_msgs_per_subject",))


def test_streams_that_refuse_new_messages_keep_the_old_ones(lake: Lake, trial: Trial) -> None:
    """With `discard: new` lower limits delete nothing; turning to `discard: old` under such limits deletes what exceeds them."""
    stream = lake.copy(**STORES["file"], discard="new")
    before = lake.state(stream)

    _, hazard = trial.change(stream, body={"max_msgs": MESSAGES * 3 // 4, "max_bytes": before["bytes"] // 2})
    assert hazard is None
    assert lost(before, lake.state(stream)) == (0, 0)

    _, hazard = trial.change(stream, body={"discard": "old"})
    check_exact(hazard, lost(before, lake.state(stream)), ("max_msgs", "max_bytes"))


@pytest.mark.parametrize("body", [{"max_msgs": MESSAGES}, {"max_age": 10**18}, {"max_msg_size": 10}, {"description": "x"}], ids=str)
def test_what_deletes_nothing_is_no_hazard(lake: Lake, trial: Trial, body: dict[str, Any]) -> None:
    """A limit that nothing exceeds, and changes that keep what is stored, are no hazard."""
    stream = lake.copy(**STORES["file"])

    assert trial.change(stream, body=body)[1] is None
    assert lake.state(stream)["messages"] == MESSAGES


def test_messages_that_never_expire_are_not_counted(lake: Lake, trial: Trial) -> None:
    """`Nats-TTL: never` exempts a message from max_age, so the plan does not count it."""
    if lake.level < 1:
        return  # per-message life times begin with 2.11
    stream = lake.own(0, allow_msg_ttl=True, allow_direct=True)
    for number in range(300):
        lake.raw.request(f"{stream}.x", b"x", {"Nats-TTL": "never"} if number % 3 == 0 else None)
    lake.server.wait_until(lambda: lake.state(stream)["messages"] == 300, "300 messages", 10)
    before = lake.state(stream)
    first = lake.raw.done(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": 300})["message"]["time"]
    lake.server.wait_until(lambda: _age(lake, stream, first) > 0.3, "the last message to be old", 10)

    _, hazard = trial.change(stream, body={"max_age": 200_000_000})

    check_exact(hazard, lost(before, lake.state(stream)), ("max_age",))
    assert hazard is not None
    assert hazard.messages == 200


def _age(lake: Lake, stream: str, first: str) -> float:
    now = lake.raw.done(f"$JS.API.STREAM.INFO.{stream}")["ts"]
    return (_moment(now) - _moment(first)).total_seconds()


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text[:26].rstrip("Z") + "Z")


def test_the_plan_says_from_when_the_messages_are(lake: Lake, trial: Trial) -> None:
    """The hazard has the last sequence at the time, and its words the period of what goes and how to permit it."""
    hazard, _ = tried(lake, trial, STORES["file"], lambda: {"max_age": lake.age_of_the_border()})
    state = lake.state("ORIGIN")

    assert hazard is not None
    assert hazard.as_of == {"last_seq": MESSAGES, "time": state["last_ts"]}
    assert hazard.messages == OLD
    assert f"{OLD:,} of {MESSAGES:,} messages ({hazard.bytes:,} bytes, stored {state['first_ts'][:19]}Z" in hazard.message
    assert hazard.flag.startswith("--allow-hazard DELETES_MESSAGES:main/stream/COPY")


def test_measuring_leaves_no_trace(lake: Lake, trial: Trial) -> None:
    """While a plan measures, no consumer is created and nothing is written."""
    stream = lake.copy(**STORES["file"])
    kept = {"name": stream, "mirror": {"name": "ORIGIN"}, "allow_direct": True, "compression": "s2"}
    lake.raw.subscribe("$JS.EVENT.ADVISORY.>")
    trial.space.write(streams=[kept | {"max_bytes": 100_000, "max_msgs_per_subject": 7}])

    plan = trial.space.plan(adopt=True)

    lake.raw.publish("$JS.EVENT.ADVISORY.END", b"{}")
    seen = []
    while (message := lake.raw.next_message())[0] != "$JS.EVENT.ADVISORY.END":
        seen.append(message[0])
    lake.raw.unsubscribe()
    assert deletes_messages(plan) is not None
    assert [subject for subject in seen if not subject.startswith(NOT_OURS)] == []
    assert lake.state(stream)["consumer_count"] == 0
