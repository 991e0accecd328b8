from __future__ import annotations

from datetime import datetime
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from tests.facts.conftest import MESSAGES, OLD, deletes_messages, lost_counts, try_change

if TYPE_CHECKING:
    from jsplan.documents.plan import Hazard
    from tests.facts.conftest import ChangeTrial, FilledServer

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]  # a slow machine fills the server again

CAUSES = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
#: A limit per subject that nothing reaches: lowering it takes effect at once on every server.
MANY = {"max_msgs_per_subject": MESSAGES}
#: Advisories of the server itself: its answers, and the deleted consumer of a mirror that an earlier test
#: deleted. A consumer of jsplan would have a CREATED advisory too.
SERVER_ADVISORIES = ("$JS.EVENT.ADVISORY.API", "$JS.EVENT.ADVISORY.CONSUMER.DELETED.")
SETS = [causes for size in (1, 2, 3, 4) for causes in combinations(CAUSES, size)]
STORES: dict[str, dict[str, Any]] = {
    "file": {"storage": "file", "allow_direct": True, "compression": "s2"},
    "memory": {"storage": "memory", "allow_direct": True},
}


def deleting_limits(
    filled_server: FilledServer, causes: tuple[str, ...], *, most: bool = False
) -> dict[str, int]:
    """Limits that each delete messages: `most` of them, or less than half."""
    size = filled_server.raw.state("ORIGIN")["bytes"]
    values = {
        "max_msgs": MESSAGES // 8 if most else MESSAGES * 3 // 4,
        "max_bytes": size // 10 if most else int(size * 0.7),
        "max_age": filled_server.max_age_for_old(),
        "max_msgs_per_subject": 2 if most else 60,
    }
    return {cause: values[cause] for cause in causes}


def check_exact(
    hazard: Hazard | None, lost: tuple[int, int], causes: tuple[str, ...], level: int = 1
) -> None:
    assert hazard is not None
    # 2.10 may expire messages late.
    if level == 0 and {"max_age", "max_msgs_per_subject"} <= set(causes):
        assert (hazard.at_least or 0) <= lost[0] <= (hazard.at_most or 0)
        return
    assert hazard.exact, hazard
    assert (hazard.messages, hazard.bytes) == lost
    assert set(hazard.causes) == set(causes)
    assert lost[0] > 0


#: Kinds of storage, streams, whether the limits delete nearly everything, and the sets of limits.
EXACT = [
    *((STORES[store], "ORIGIN", False, causes) for store in STORES for causes in SETS),
    # Without `allow_direct`, messages are read one by one.
    *(
        ({"storage": "file", "allow_direct": False}, "ORIGIN", False, causes)
        for causes in (SETS[0], SETS[1], SETS[-1])
    ),
    # What deletes nearly everything is measured from the last message.
    *((STORES["file"], "HOLED", True, causes) for causes in SETS if causes != ("max_age",)),
    # Deleted messages are not counted a second time, by age or by number.
    *((STORES[store], "HOLED", False, ("max_age", "max_msgs_per_subject")) for store in STORES),
]


@pytest.mark.parametrize(("store", "of", "most", "causes"), EXACT, ids=str)
def test_limits_delete_exactly_what_the_plan_says(
    filled_server: FilledServer,
    change_trial: ChangeTrial,
    store: dict[str, Any],
    of: str,
    most: bool,
    causes: tuple[str, ...],
) -> None:
    """Each limit, and any set of limits, deletes as many messages and bytes as planned."""
    hazard, lost = try_change(
        filled_server,
        change_trial,
        store | MANY,
        lambda: deleting_limits(filled_server, causes, most=most),
        of,
    )

    check_exact(hazard, lost, causes, filled_server.level)


@pytest.mark.parametrize("causes", SETS, ids="+".join)
def test_more_reads_than_allowed_give_bounds(
    filled_server: FilledServer, change_trial: ChangeTrial, causes: tuple[str, ...]
) -> None:
    """A measure limit that is too low gives bounds around the deletions."""
    hazard, lost = try_change(
        filled_server,
        change_trial,
        STORES["file"] | MANY,
        lambda: deleting_limits(filled_server, causes),
        measure_limit=60,
    )

    assert hazard is not None
    assert not hazard.exact
    assert hazard.at_least is not None
    assert hazard.at_most is not None
    assert hazard.at_least <= lost[0] <= hazard.at_most == hazard.messages
    assert hazard.bytes is not None
    assert lost[1] <= hazard.bytes


def test_no_reads_at_all_still_give_bounds(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """With a measure limit of 0, the state of the stream alone gives the bounds."""
    hazard, lost = try_change(
        filled_server,
        change_trial,
        STORES["file"] | MANY,
        lambda: deleting_limits(filled_server, CAUSES),
        measure_limit=0,
    )

    assert hazard is not None
    assert (hazard.at_least or 0) <= lost[0] <= (hazard.at_most or 0)


@pytest.mark.parametrize("store", STORES)
def test_a_first_limit_per_subject(
    filled_server: FilledServer, change_trial: ChangeTrial, store: str
) -> None:
    """A first limit per subject is counted; servers before 2.14 apply it after a restart."""
    stream = filled_server.new_mirror(**STORES[store])
    before = filled_server.raw.state(stream)

    _, hazard = change_trial.change(stream, body={"max_msgs_per_subject": 3})

    assert hazard is not None
    lost = lost_counts(before, filled_server.raw.state(stream))
    if filled_server.level < 4:
        assert "restarts" in hazard.message
        assert lost == (0, 0)
        if store == "memory":
            return
        filled_server.restart()
        lost = lost_counts(before, filled_server.raw.state(stream))
    check_exact(hazard, lost, ("max_msgs_per_subject",))


def test_streams_that_refuse_new_messages_keep_the_old_ones(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """Lower limits delete nothing with `discard: new`; a change to `discard: old` does."""
    stream = filled_server.new_mirror(**STORES["file"], discard="new")
    before = filled_server.raw.state(stream)

    _, hazard = change_trial.change(
        stream, body={"max_msgs": MESSAGES * 3 // 4, "max_bytes": before["bytes"] // 2}
    )
    assert hazard is None
    assert lost_counts(before, filled_server.raw.state(stream)) == (0, 0)

    _, hazard = change_trial.change(stream, body={"discard": "old"})
    check_exact(
        hazard, lost_counts(before, filled_server.raw.state(stream)), ("max_msgs", "max_bytes")
    )


@pytest.mark.parametrize(
    "body",
    [{"max_msgs": MESSAGES}, {"max_age": 10**18}, {"max_msg_size": 10}, {"description": "x"}],
    ids=str,
)
def test_changes_that_delete_nothing_are_no_hazard(
    filled_server: FilledServer, change_trial: ChangeTrial, body: dict[str, Any]
) -> None:
    """A limit that nothing exceeds, and changes that keep the messages, are no hazard."""
    stream = filled_server.new_mirror(**STORES["file"])

    assert change_trial.change(stream, body=body)[1] is None
    assert filled_server.raw.state(stream)["messages"] == MESSAGES


def test_messages_that_never_expire_are_not_counted(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """`Nats-TTL: never` exempts a message from max_age, so the plan does not count it."""
    if filled_server.level < 1:
        return  # messages have a TTL from 2.11 on
    stream = filled_server.new_stream(0, allow_msg_ttl=True, allow_direct=True)
    for number in range(300):
        filled_server.raw.request(
            f"{stream}.x", b"x", {"Nats-TTL": "never"} if number % 3 == 0 else None
        )
    filled_server.raw.wait_for(stream, 300)
    before = filled_server.raw.state(stream)
    first = filled_server.raw.api_ok(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": 300})["message"][
        "time"
    ]
    filled_server.server.wait_until(
        lambda: _age(filled_server, stream, first) > 0.3, "the last message to be old", 10
    )

    _, hazard = change_trial.change(stream, body={"max_age": 200_000_000})

    check_exact(hazard, lost_counts(before, filled_server.raw.state(stream)), ("max_age",))
    assert hazard is not None
    assert hazard.messages == 200


def _age(filled_server: FilledServer, stream: str, first: str) -> float:
    now = filled_server.raw.api_ok(f"$JS.API.STREAM.INFO.{stream}")["ts"]
    return (_parse_time(now) - _parse_time(first)).total_seconds()


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text[:26].rstrip("Z") + "Z")


def test_the_plan_shows_the_period_of_the_messages(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """The hazard has the last sequence, the period of the deleted messages and the flag."""
    hazard, _ = try_change(
        filled_server,
        change_trial,
        STORES["file"],
        lambda: {"max_age": filled_server.max_age_for_old()},
    )
    state = filled_server.raw.state("ORIGIN")

    assert hazard is not None
    assert hazard.as_of == {"last_seq": MESSAGES, "time": state["last_ts"]}
    assert hazard.messages == OLD
    assert (
        f"{OLD:,} of {MESSAGES:,} messages ({hazard.bytes:,} bytes, stored {state['first_ts'][:19]}Z"
        in hazard.message
    )
    assert hazard.flag.startswith("--allow-hazard DELETES_MESSAGES:main/stream/COPY")


def test_measuring_leaves_no_trace(filled_server: FilledServer, change_trial: ChangeTrial) -> None:
    """While a plan measures, no consumer is created and nothing is written."""
    stream = filled_server.new_mirror(**STORES["file"])
    current = {
        "name": stream,
        "mirror": {"name": "ORIGIN"},
        "allow_direct": True,
        "compression": "s2",
    }
    filled_server.raw.subscribe("$JS.EVENT.ADVISORY.>")
    change_trial.space.write(streams=[current | {"max_bytes": 100_000, "max_msgs_per_subject": 7}])

    plan = change_trial.space.plan(adopt=True)

    filled_server.raw.publish("$JS.EVENT.ADVISORY.END", b"{}")
    seen = []
    while (message := filled_server.raw.next_message())[0] != "$JS.EVENT.ADVISORY.END":
        seen.append(message[0])
    filled_server.raw.unsubscribe()
    assert deletes_messages(plan) is not None
    assert [subject for subject in seen if not subject.startswith(SERVER_ADVISORIES)] == []
    assert filled_server.raw.state(stream)["consumer_count"] == 0
