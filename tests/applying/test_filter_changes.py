"""Hazards and warnings of changed filters, compared with the deliveries of real consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.resources.consumer import filters_of
from tests.applying.consumer_helpers import pull, stream_sequence
from tests.support.raw import Raw
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

Consumer = dict[str, Any]


def consumer(name: str, *subjects: str, **more: Any) -> Consumer:
    """Build a consumer of these subjects."""
    filters = (
        {"filter_subject": f"q.{subjects[0]}"}
        if len(subjects) == 1
        else {"filter_subjects": [f"q.{s}" for s in subjects]}
    )
    return {"name": name, "ack_policy": "explicit", **(filters if subjects else {}), **more}


def write(space: Space, retention: str, *consumers: Consumer) -> Space:
    """Write a stream with these consumers."""
    return space.write(
        streams=[
            {"name": "Q", "subjects": ["q.*"], "retention": retention, "consumers": list(consumers)}
        ]
    )


def publish(raw: Raw, subjects: str) -> None:
    """Publish one message for each letter."""
    for letter in subjects:
        raw.request(f"q.{letter}")


def stranded_counts(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return how many messages of a work queue each consumer strands: at least, at most."""
    found = {}
    for change in plan.resource_changes:
        for hazard in change.hazards:
            if hazard.code == "LOSES_CONSUMER_POSITION":
                most = hazard.messages or 0
                found[change.name.rsplit("/")[-1]] = (
                    most if hazard.exact else hazard.at_least or 0,
                    most,
                )
    return found


def filter_findings(plan: Plan) -> list[str]:
    """Return the findings about filters."""
    return [d.summary for d in plan.diagnostics if d.code == "JS422"]


A_AND_B, ALL_THREE = consumer("C", "a", "b"), consumer("C", "a", "b", "c")
#: By case: consumers before, messages that C acknowledges, consumers after, messages stranded.
QUEUES: dict[str, tuple[list[Consumer], int, list[Consumer], dict[str, tuple[int, int]]]] = {
    "narrowed": ([A_AND_B], 0, [consumer("C", "a")], {"C": (4, 4)}),
    "narrowed by a list": ([ALL_THREE], 3, [consumer("C", "a", "c")], {"C": (3, 3)}),
    "narrowed and replaced": ([A_AND_B], 0, [consumer("C", "a", max_waiting=9)], {"C": (4, 4)}),
    "narrowed and created again": (
        [A_AND_B],
        2,
        [consumer("C", "a", max_waiting=9, lifecycle={"on_replace": "recreate"})],
        {"C": (3, 3)},
    ),
    "another takes it": ([A_AND_B], 2, [consumer("C", "a"), consumer("D", "b")], {}),
    "another that is there takes it": (
        [A_AND_B, consumer("D", "c")],
        0,
        [consumer("C", "a"), consumer("D", "b", "c")],
        {"D": (0, 1)},
    ),
    "swapped": (
        [consumer("C", "a"), consumer("D", "b")],
        0,
        [consumer("C", "b"), consumer("D", "a")],
        {"C": (0, 4), "D": (0, 4)},
    ),
    "swapped and replaced": (
        [consumer("C", "a"), consumer("D", "b")],
        2,
        [consumer("C", "b", max_waiting=9), consumer("D", "a", max_waiting=9)],
        {},
    ),
    "shifted": ([consumer("C", "a")], 0, [consumer("C", "b"), consumer("D", "a")], {}),
    "moved behind what it was given": (
        [consumer("C", "a")],
        3,
        [consumer("C", "b")],
        {"C": (3, 4)},
    ),
    "widened": ([consumer("C", "a")], 4, [consumer("C", "a", "b")], {"C": (3, 4)}),
    "widened and replaced": ([consumer("C", "a")], 4, [consumer("C", "a", "b", max_waiting=9)], {}),
    "the same in another order": ([A_AND_B], 2, [consumer("C", "b", "a")], {}),
}


@pytest.mark.since_2_12
@pytest.mark.parametrize("case", QUEUES)
def test_stranded_messages_of_a_work_queue(case: str, space: Space, raw: Raw) -> None:
    """The number of messages that no consumer receives is within the bounds of the plan."""
    before, taken, after, expected = QUEUES[case]
    write(space, "workqueue", *before).apply()
    publish(raw, "abcabcabcabc")
    if taken:
        pull(raw, "Q", "C", taken, None)
    wanted = {
        subject
        for c in (*before, *after)
        for subject in [c.get("filter_subject"), *c.get("filter_subjects", ())]
    } - {None}
    plan = write(space, "workqueue", *after).plan()
    found = stranded_counts(plan)
    result = space.apply(allow_hazards=("LOSES_CONSUMER_POSITION",))[1]

    assert result.exit_code == 0
    assert {name: count for name, count in found.items() if count[1]} == {
        name: count for name, count in expected.items() if count[1]
    }
    delivered = [seq for c in after for seq in pull(raw, "Q", c["name"], 100)]
    assert len(delivered) == len(set(delivered))
    left = {seq for seq in range(1, 13) if subject_of(raw, seq) in wanted} - set(delivered)
    assert (
        sum(least for least, _ in found.values())
        <= len(left)
        <= sum(most for _, most in found.values())
    )


def test_a_worker_that_waits_while_filters_are_swapped(space: Space, raw: Raw) -> None:
    """The hazard includes messages that a consumer passes while filters are swapped."""
    slow = {"max_ack_pending": 1}
    write(space, "workqueue", consumer("C", "a", **slow), consumer("D", "b", **slow)).apply()
    publish(raw, "ababababab")
    raw.subscribe("worker.*")
    for name in "CD":
        raw.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.Q.{name}",
            b'{"batch": 100, "expires": 600000000000}',
            reply=f"worker.{name}",
        )
    given = {stream_sequence(raw.next_reply()) for _ in range(2)}
    plan, result = write(space, "workqueue", consumer("C", "b"), consumer("D", "a")).apply(
        allow_hazards=("LOSES_CONSUMER_POSITION", "DUPLICATES_MESSAGES")
    )

    assert (given, result.exit_code) == ({1, 2}, 0)
    waiting = sum(raw.api_ok(f"$JS.API.CONSUMER.INFO.Q.{name}")["num_pending"] for name in "CD")
    delivered = sum(
        raw.api_ok(f"$JS.API.CONSUMER.INFO.Q.{name}")["delivered"]["consumer_seq"] for name in "CD"
    )
    assert 10 - waiting - delivered <= sum(most for _, most in stranded_counts(plan).values())


def test_unacknowledged_messages_are_not_stranded(space: Space, raw: Raw) -> None:
    """Messages that await an acknowledgement are not stranded, because they are redelivered."""
    write(space, "workqueue", A_AND_B).apply()
    publish(raw, "abab")
    assert pull(raw, "Q", "C", 4) == [1, 2, 3, 4]
    plan = write(space, "workqueue", consumer("C", "a")).plan()

    assert stranded_counts(plan) == {}


def test_a_work_queue_of_another_team(space: Space, raw: Raw) -> None:
    """Planning asks the server about unmanaged consumers of a work queue."""
    raw.create("Q", subjects=["q.*"], retention="workqueue")
    other = {"durable_name": "D", "filter_subject": "q.c", "ack_policy": "explicit"}
    raw.api_ok("$JS.API.CONSUMER.CREATE.Q.D", {"stream_name": "Q", "config": other})
    space.write(consumers=[A_AND_B | {"stream": "Q"}]).apply()
    publish(raw, "abcabc")

    assert stranded_counts(space.write(consumers=[consumer("C", "a", stream="Q")]).plan()) == {
        "C": (2, 2)
    }


def test_a_narrower_filter_on_a_limits_stream_is_a_warning(space: Space, raw: Raw) -> None:
    """A narrower filter on a limits stream is a warning with the number, and no hazard."""
    write(space, "limits", A_AND_B).apply()
    publish(raw, "abababab")
    pull(raw, "Q", "C", 3, None)
    plan = write(space, "limits", consumer("C", "a")).plan()

    assert [h for c in plan.resource_changes for h in c.hazards] == []
    assert filter_findings(plan) == [
        "3 messages pending for it will not be delivered: the new filter does not match them"
    ]
    assert space.apply()[1].exit_code == 0
    assert pull(raw, "Q", "C", 100) == [5, 7]


def test_a_changed_filter_skips_earlier_messages(space: Space, raw: Raw) -> None:
    """A warning bounds the earlier messages that only the new filter matches."""
    write(space, "limits", consumer("C", "a")).apply()
    publish(raw, "bbabbabb")
    pull(raw, "Q", "C", 1, None)
    plan = write(space, "limits", consumer("C", "a", "b")).plan()

    passed = "that the new filter matches will not be delivered: a changed filter never goes back"
    assert filter_findings(plan) == [f"between 2 and 4 messages {passed}"]
    assert space.apply()[1].exit_code == 0
    assert 8 - 1 - 4 <= len(pull(raw, "Q", "C", 100)) <= 8 - 1 - 2


@pytest.mark.since_2_12
def test_a_replaced_consumer_begins_at_its_position(space: Space, raw: Raw) -> None:
    """A warning counts the messages before the position that only the new filter matches."""
    write(space, "limits", consumer("C", "a")).apply()
    publish(raw, "bbabbabb")
    pull(raw, "Q", "C", 1, None)
    plan = write(space, "limits", consumer("C", "a", "b", max_waiting=9)).plan()

    assert filter_findings(plan) == [
        "2 messages that the new filter matches will not be delivered: they lie before its position, which is kept"
    ]
    assert space.apply()[1].exit_code == 0
    assert pull(raw, "Q", "C", 100) == [4, 5, 6, 7, 8]


def test_a_new_filter_without_earlier_messages_has_no_finding(space: Space, raw: Raw) -> None:
    """A new filter of a consumer that has received everything has no finding."""
    write(space, "limits", A_AND_B).apply()
    publish(raw, "abab")
    pull(raw, "Q", "C", 4, None)

    assert filter_findings(write(space, "limits", consumer("C", "a", "c")).plan()) == []


@pytest.mark.since_2_12
def test_a_pin_outlives_its_policy(space: Space, raw: Raw) -> None:
    """The plan says how long a client stays pinned after its policy is removed."""
    pinned = {
        "priority_groups": ["g"],
        "priority_policy": "pinned_client",
        "priority_timeout": "1m",
    }
    write(space, "limits", consumer("C", "a", **pinned)).apply()
    publish(raw, "aa")
    raw.subscribe("client")
    raw.publish("$JS.API.CONSUMER.MSG.NEXT.Q.C", b'{"batch": 1, "group": "g"}', reply="client")
    raw.next_reply()
    raw.unsubscribe()
    plan, _ = write(space, "limits", consumer("C", "a")).apply()

    text = "a pinned client stays pinned for up to 1m. Until then the consumer delivers to no other client"
    assert [d.summary for d in plan.diagnostics if d.code == "JS473"] == [text]
    assert raw.pull("Q", "C", 5, wait=False) == []


# --- subjects ------------------------------------------------------------------------------------------------------


def stream(*subjects: str, **more: Any) -> dict[str, Any]:
    """Build a stream with a consumer of jobs."""
    worker = {"name": "W", "ack_policy": "explicit", "filter_subject": "jobs.*"}
    return {"name": "Q", "subjects": list(subjects), "consumers": [worker]} | more


def consumers_without_messages(plan: Plan) -> list[tuple[str, str | None]]:
    """Return the consumers that receive no more messages, as warnings."""
    return [
        (d.code, d.address)
        for d in plan.diagnostics
        if d.code in ("JS241", "JS474") and d.severity == "warning"
    ]


STARVED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "subjects": (stream("jobs.*", "x"), stream("jobz.*", "x")),
    "subject_transform": (
        stream("jobs.*"),
        stream("jobs.*", subject_transform={"src": "jobs.*", "dest": "done.{{wildcard(1)}}"}),
    ),
}


@pytest.mark.parametrize("case", STARVED)
def test_an_unchanged_consumer_without_messages_is_named(case: str, space: Space, raw: Raw) -> None:
    """The warning names a managed consumer at itself and an unmanaged one at the stream."""
    before, after = STARVED[case]
    space.write(streams=[before]).apply()
    for name, filters in (("THEIRS", ["jobs.a"]), ("REST", ["jobs.a", "x", "done.*"]), ("ALL", [])):
        config = {"durable_name": name, "ack_policy": "explicit", "filter_subjects": filters}
        raw.api_ok(f"$JS.API.CONSUMER.CREATE.Q.{name}", {"stream_name": "Q", "config": config})
    plan = space.write(streams=[after]).plan()

    assert consumers_without_messages(plan) == [
        ("JS474", "main/stream/Q"),
        ("JS241", "main/consumer/Q/W"),
    ]
    assert [d.summary.split(",")[0] for d in plan.diagnostics if d.code == "JS474"] == [
        "consumer THEIRS"
    ]


def test_a_work_queue_is_split(space: Space, raw: Raw) -> None:
    """A consumer that goes with its part is not named, and what stays stored is excepted."""
    workers = {
        part: {"name": part, "ack_policy": "explicit", "filter_subject": f"pay.{part}.>"}
        for part in ("eu", "us", "apac")
    }
    queue = {"name": "Q", "retention": "workqueue"}
    before = queue | {"subjects": ["pay.>"], "consumers": [*workers.values()]}
    space.write(streams=[before]).apply()
    after = queue | {
        "subjects": ["pay.eu.>", "pay.us.>"],
        "consumers": [workers["eu"], workers["us"]],
    }
    other = queue | {"name": "Q2", "subjects": ["pay.apac.>"], "consumers": [workers["apac"]]}
    plan = space.write(streams=[after, other]).plan()

    assert consumers_without_messages(plan) == []
    (changed,) = [c for c in plan.resource_changes if c.address == "main/stream/Q"]
    assert [h.message for h in changed.hazards] == [
        (
            "publishers to pay.> will get no acknowledgement, except to pay.apac.>, pay.eu.>, pay.us.>; "
            "publishers to pay.apac.> will get no acknowledgement until a later step lets another "
            "stream store them"
        )
    ]


def test_a_consumer_with_messages_is_not_named(space: Space) -> None:
    """A consumer that still receives messages of changed subjects has no warning."""
    space.write(streams=[stream("jobs.*")]).apply()

    assert consumers_without_messages(space.write(streams=[stream("jobs.1", "y")]).plan()) == []
    assert (
        consumers_without_messages(space.write(streams=[stream("jobs.>", description="d")]).plan())
        == []
    )


def test_a_consumer_of_a_mirror_is_named_too(space: Space) -> None:
    """A consumer of a mirror is named when its origin stores no matching subject."""
    mirror = {
        "name": "M",
        "mirror": {"name": "Q"},
        "consumers": [{"name": "W", "ack_policy": "explicit", "filter_subject": "jobs.*"}],
    }
    space.write(streams=[stream("jobs.*", consumers=[]), mirror]).apply()

    assert consumers_without_messages(
        space.write(streams=[stream("jobz.*", consumers=[]), mirror]).plan()
    ) == [("JS241", "main/consumer/M/W")]


def test_an_ignored_finding_is_not_reported(space: Space) -> None:
    """A finding that the files ignore is not reported."""
    quiet = {
        "name": "W",
        "ack_policy": "explicit",
        "filter_subject": "jobs.*",
        "lint": {"ignore": [{"code": "JS241", "reason": "old ones"}]},
    }
    space.write(streams=[stream("jobs.*", consumers=[quiet])]).apply()

    assert (
        consumers_without_messages(
            space.write(streams=[stream("jobz.*", consumers=[quiet])]).plan()
        )
        == []
    )


def subject_of(raw: Raw, seq: int) -> str | None:
    """Return the subject of a message, or None if it is deleted."""
    answer = raw.api("$JS.API.STREAM.MSG.GET.Q", {"seq": seq})
    return None if "error" in answer else str(answer["message"]["subject"])


@pytest.mark.since_2_12
@pytest.mark.parametrize("retention", ["limits", "interest"])
@pytest.mark.parametrize(("subjects", "after"), [("a", "b"), ("a", "bc"), ("ab", "b")])
def test_a_consumer_without_its_filters_is_notified_of_new_messages(
    retention: str, subjects: str, after: str, space: Space, raw: Raw, server: Server
) -> None:
    """The server has the filter `>` then, which is no difference to the files.

    A server does not notify a consumer that loses its filters (`facts/test_filter_removed.py`).
    """
    other = consumer("D", "a")
    write(space, retention, consumer("C", *subjects), other).apply()
    publish(raw, "aa")

    plan, result = write(space, retention, consumer("C"), other).apply()
    publish(raw, "bc")

    server.wait_until(lambda: raw.consumer_info("Q", "C")["num_pending"] == 4, "count what is new")
    assert result.exit_code == 0
    assert [(f.path, f.after) for c in plan.resource_changes for f in c.change.fields] == [
        ("filter_subject" if subjects == "a" else "filter_subjects", "" if subjects == "a" else [])
    ]
    assert pull(raw, "Q", "C", 9) == [1, 2, 3, 4]
    replaced = len(plan.resource_changes[0].change.actions) > 1
    assert replaced or raw.consumer_info("Q", "C")["config"]["filter_subject"] == ">"
    assert not space.plan().has_changes
    for same in (consumer("C") | {"filter_subject": ">"}, consumer("C", filter_subjects=[">"])):
        assert not write(space, retention, same, other).plan().has_changes
    # from here to other filters as from none
    _, result = write(space, retention, consumer("C", *after), other).apply(
        allow_hazards=("DELETES_MESSAGES",)
    )
    assert result.exit_code == 0
    assert filters_of(raw.consumer_info("Q", "C")["config"]) == tuple(f"q.{s}" for s in after)


@pytest.mark.since_2_12
def test_last_per_subject_keeps_its_filter(space: Space, raw: Raw) -> None:
    """The server requires a filter with it, also `>`, so a file that lacks it is refused."""
    last = consumer("C", deliver_policy="last_per_subject") | {"filter_subject": ">"}
    write(space, "limits", last).apply()

    assert not space.plan().has_changes
    assert raw.consumer_info("Q", "C")["config"]["filter_subject"] == ">"
    forced = last | {"max_waiting": 7}
    _, result = write(space, "limits", forced).apply(allow_hazards=("LOSES_CONSUMER_POSITION",))
    assert ([s.error for s in result.steps if s.error], space.plan().has_changes) == ([], False)


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_lower_max_deliver_is_final_for_messages_of_workers(
    retention: str, space: Space, raw: Raw, server: Server
) -> None:
    """The plan counts the messages that were delivered so often, and none of them comes again."""
    short = {"ack_wait": "1s"}
    write(space, retention, consumer("C", "a", **short)).apply()
    publish(raw, "aaa")
    assert pull(raw, "Q", "C", 2) == [1, 2]

    for most, warning in (
        (2, []),  # each was delivered once
        (1, ["up to 2 messages that workers have now will not be delivered again"]),
    ):
        plan, result = write(
            space, retention, consumer("C", "a", max_deliver=most, **short)
        ).apply()
        assert [text.partition(":")[0] for text in filter_findings(plan)] == warning
        assert result.exit_code == 0

    server.wait_until(
        lambda: raw.consumer_info("Q", "C")["num_ack_pending"] == 0, "end the deliveries", 30
    )
    assert pull(raw, "Q", "C", 9) == [3]
    assert filter_findings(space.plan()) == []
