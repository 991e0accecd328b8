from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import OriginSample, ReplicationSample
from jsplan.health import assess
from jsplan.health.assessment import (
    MIN_SAMPLES,
    STALLED_AFTER,
    build_replication_element,
    is_in_sync,
)
from jsplan.units import SECOND

ORIGIN = OriginSample("2026-01-01T00:00:00Z", 1, 100, 100, "2026-01-01T00:00:01Z", workqueue=False)
SAMPLE = ReplicationSample(
    0.0,
    ORIGIN,
    "2026-01-01T00:00:00Z",
    100,
    1,
    100,
    "2026-01-01T00:00:01Z",
    0,
    SECOND // 2,
    100,
    answers=True,
    apart=False,
)


def flow(kind: str = "mirror", **config: Any) -> Flow:
    """Return a flow from hub to leaf."""
    origin, copy = Address("hub", "stream", "O"), Address("leaf", "stream", "C")
    return Flow(
        copy,
        kind,
        "O",
        "$JS.hub.API",
        "O",
        origin,
        bool(config.pop("imported", False)),
        {"name": "O", **config},
    )


def lagging_sample(at: float, **more: Any) -> ReplicationSample:
    """Return a sample of a mirror that lacks ten messages, or is at another `position`."""
    place = more.pop("position", 90)
    return replace(
        SAMPLE,
        **(
            {
                "at": at,
                "stored": place,
                "messages": place,
                "position": place,
                "waiting": True,
                "lag": 10,
            }
            | more
        ),
    )


def stalled_samples(
    seconds: float = STALLED_AFTER, looks: int = MIN_SAMPLES, **more: Any
) -> list[ReplicationSample]:
    """Return samples of a mirror that does not move, evenly over the time."""
    return [lagging_sample(seconds * i / (looks - 1), **more) for i in range(looks)]


def cause(found: Any) -> str | None:
    """Return the words of a cause."""
    return found.cause.partition(":")[0] or None


def test_a_flow_without_lag_is_healthy_at_once() -> None:
    """A flow with equal sequences and a recent heartbeat is healthy without a second sample."""
    assert assess(flow(), [SAMPLE]).healthy is True
    assert is_in_sync(flow(), SAMPLE)


def test_a_flow_that_moves_is_healthy() -> None:
    """A flow that moves between two samples is healthy, however large its lag."""
    first, second = lagging_sample(0, position=1), lagging_sample(0.6, position=2)

    assert not assess(flow(), [first]).is_conclusive
    assert assess(flow(), [first, second]).healthy is True


@pytest.mark.parametrize(
    ("seconds", "looks"),
    [(STALLED_AFTER - 1, MIN_SAMPLES), (STALLED_AFTER, MIN_SAMPLES - 1), (0.0, 2)],
)
def test_a_stall_needs_time_and_samples(seconds: float, looks: int) -> None:
    """A flow is stalled only after enough time and enough samples: a busy machine is slow."""
    found = assess(flow(imported=True), stalled_samples(seconds, looks))

    assert (found.healthy, found.is_conclusive) == (None, False)


def test_heartbeats_without_messages_are_flow_control() -> None:
    """A flow that hears heartbeats and does not move is stopped by flow control."""
    assert cause(assess(flow(imported=True), stalled_samples())) == "flow control stalled"


def test_silence_without_a_responder_is_the_link() -> None:
    """A flow that hears nothing, and whose origin does not answer its side, has no link."""
    looks = stalled_samples(active=9 * SECOND, answers=False, apart=True)

    assert cause(assess(flow(), looks)) == "link down"
    assert (
        cause(
            assess(
                flow(imported=True), stalled_samples(active=9 * SECOND, answers=None, apart=True)
            )
        )
        == "link down"
    )


@pytest.mark.parametrize("active", [-1, 9 * SECOND])
def test_silence_between_accounts_of_one_server_is_an_export(active: int) -> None:
    """A silent flow between accounts of one server lacks an export, since there is no link."""
    looks = stalled_samples(active=active, lag=0, position=0, answers=None)

    assert cause(assess(flow(imported=True), looks)) == "export missing"


def test_a_mirror_ahead_of_its_origin_is_sampled_twice() -> None:
    """A mirror ahead of its origin proves another origin only with an earlier sample.

    Both ends are read at once, so that the mirror may seem ahead.
    """
    ahead = replace(SAMPLE, position=101, stored=101, messages=101)
    later = replace(
        SAMPLE,
        at=0.6,
        position=103,
        stored=103,
        messages=103,
        origin=replace(ORIGIN, last=103, messages=103),
    )

    assert not assess(flow(), [ahead]).is_conclusive
    assert assess(flow(), [ahead, later]).healthy is True
    assert cause(assess(flow(), [ahead, replace(ahead, at=0.6)])) == "origin re-created"


def test_an_origin_that_lost_messages_is_not_recreated() -> None:
    """A mirror that is ahead has times after the creation of its origin: it is the only copy."""
    ahead = replace(SAMPLE, position=101, stored=101, messages=101, last_ts="2026-02-01T00:00:00Z")
    for created, expected in (
        ("2026-01-01", "origin went back"),
        ("2026-03-01", "origin re-created"),
    ):
        look = replace(ahead, origin=replace(ORIGIN, created=f"{created}T00:00:00Z"))
        assert cause(assess(flow(), [look, replace(look, at=0.6)])) == expected


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (replace(SAMPLE, messages=108), "origin went back"),
        (replace(SAMPLE, messages=108, first=2), "origin re-created"),
        (replace(SAMPLE, first_ts="2026-01-02T00:00:00Z"), "origin re-created"),
    ],
)
def test_a_mirror_with_messages_of_two_origins_is_known(
    look: ReplicationSample, expected: str
) -> None:
    """A mirror with other messages than its origin is known by its counts or its first message.

    With the same first message it counted back with its origin, and may have the only copy of the
    rest (servers before 2.14).
    """
    assert cause(assess(flow(), [look])) == expected


@pytest.mark.parametrize(
    ("look", "config"),
    [
        (lagging_sample(0, waiting=False), {}),
        (replace(SAMPLE, position=0, stored=0, messages=0, origin=replace(ORIGIN, messages=0)), {}),
        (replace(SAMPLE, position=199, stored=199, messages=0, first=200), {"opt_start_seq": 200}),
        (
            lagging_sample(0, waiting=False, origin=replace(ORIGIN, first=95)),
            {"filter_subject": "a"},
        ),
    ],
    ids=["gaps at the end", "purged", "begins later", "filtered"],
)
def test_nothing_to_copy_is_healthy(look: ReplicationSample, config: dict[str, Any]) -> None:
    """A flow without pending messages is healthy, although its sequences differ."""
    assert assess(flow(**config), [look]).healthy is True


def test_a_source_without_a_position_is_judged_by_its_heartbeat() -> None:
    """A source without a position is healthy with a heartbeat and no pending messages.

    Servers before 2.15 do not say how far a source is.
    """
    look = replace(SAMPLE, position=None)

    assert assess(flow("source"), [look]).healthy is True
    assert not assess(flow("source"), [replace(look, active=-1)]).is_conclusive
    assert is_in_sync(flow("source"), look)

    younger = replace(
        look, origin=replace(ORIGIN, created="2026-02-01T00:00:00Z", last=3, messages=3)
    )
    assert not is_in_sync(flow("source"), younger)
    assert not assess(flow("source"), [younger]).is_conclusive
    assert (
        assess(flow("source"), [younger, replace(younger, at=0.1, searched=True)]).healthy is True
    )
    held = [replace(younger, at=at, position=8, searched=True) for at in (0.1, 0.7)]
    assert cause(assess(flow("source"), [younger, *held])) == "origin re-created"


def test_a_queue_is_drained_unless_the_source_names_its_consumer() -> None:
    """A source drains a work queue unless it names the consumer that it reads with."""
    look = replace(SAMPLE, origin=replace(ORIGIN, workqueue=True, messages=0))

    assert cause(assess(flow("source"), [look])) == "draining a workqueue"
    assert assess(flow("source", consumer={"name": "worker"}), [look]).healthy is True


@pytest.mark.parametrize(("stored", "healthy"), [(0, None), (100, True)])
def test_a_mirror_of_an_unreadable_origin_that_has_nothing_is_unknown(
    stored: int, healthy: bool | None
) -> None:
    """Heartbeats alone do not show that messages arrive: nothing has, and it cannot be read."""
    mirror = dataclasses.replace(flow(imported=True), origin=None)
    sample = replace(SAMPLE, origin=None, unread="no responders", stored=stored, messages=stored)

    assert assess(mirror, [sample]).healthy is healthy


def test_a_flow_that_is_set_up_again_is_healthy() -> None:
    """A flow that has everything and is being set up again is healthy."""
    assert assess(flow(), [replace(SAMPLE, active=-1)]).healthy is True


def test_two_samples_in_a_row_prove_silence_only() -> None:
    """Two samples in a row prove ten seconds of silence, not a stalled flow."""
    still = [lagging_sample(0), lagging_sample(0.01)]
    silent = [
        lagging_sample(0, active=11 * SECOND, answers=False, apart=True),
        lagging_sample(0.01, active=11 * SECOND, answers=False, apart=True),
    ]

    assert assess(flow(), still, quick=True).healthy is None
    assert cause(assess(flow(), silent, quick=True)) == "link down"


FULL: dict[str, Any] = {
    "config": {"discard": "new", "max_msgs": 90},
    "next_seq": 91,
    "next_size": 8,
}


@pytest.mark.parametrize("active", [SECOND, 9 * SECOND], ids=["heard", "silent"])
def test_a_stream_that_takes_no_more_is_the_cause(active: int) -> None:
    """A full stream is the cause, whether its server hears of the origin just now or not."""
    assert cause(assess(flow(), stalled_samples(**FULL, active=active, lag=0))) == "refused"
    free = FULL | {"config": {"discard": "new", "max_msgs": 91}}
    assert cause(assess(flow(imported=True), stalled_samples(**free))) == "flow control stalled"
    cut = stalled_samples(**FULL, active=11 * SECOND, answers=False, apart=True)
    assert cause(assess(flow(), cut)) == "link down"


@pytest.mark.parametrize(
    ("retention", "healthy"), [("limits", False), ("workqueue", None), ("interest", None)]
)
def test_two_samples_prove_that_a_stream_takes_no_more(
    retention: str, healthy: bool | None
) -> None:
    """Two samples in a row do, unless consumers may make place in the next moment."""
    samples = [
        lagging_sample(at, **FULL | {"config": FULL["config"] | {"retention": retention}})
        for at in (0, 0.01)
    ]

    assert assess(flow(), samples, quick=True).healthy is healthy


def test_the_lag() -> None:
    """The lag counts from the position, or from the first message that is left.

    A filter that lets nothing pass leaves no lag.
    """
    dropped = replace(lagging_sample(0), origin=replace(ORIGIN, first=95, messages=6))
    looks = (SAMPLE, lagging_sample(0), dropped, lagging_sample(0, waiting=False))

    assert [
        build_replication_element(flow(), assess(flow(), [look]), look)["lag"] for look in looks
    ] == [0, 10, 6, 0]
