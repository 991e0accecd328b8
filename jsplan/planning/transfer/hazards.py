"""Hazards and notes of a replacement that keeps the messages of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.facts.consumer_position import position_of
from jsplan.facts.live import LiveObject
from jsplan.planning.bucket_aliases import nouns_of
from jsplan.planning.replication.impact import mirrors_relocated
from jsplan.planning.transfer.capacity import capacity_problem, sized_staging_config
from jsplan.planning.transfer.consumers import start_in_new_stream
from jsplan.planning.transfer.methods import (
    becomes_workqueue,
    find_preserve_obstacle,
)
from jsplan.planning.transfer.redelivery import assess_redelivery
from jsplan.planning.transfer.replacement import list_consumers
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision

#: Bytes and messages per second through a client or a server, cautiously. Each message moves twice.
BYTES_PER_SECOND, MESSAGES_PER_SECOND = 20_000_000, 40_000
#: The least seconds of a replacement.
MIN_SECONDS: Final = 1


def preserve_obstacle(inputs: PlanInputs, decision: ResourceDecision) -> str | None:
    """Explain why the messages cannot be kept; None if they can, or are being copied already."""
    if decision.live is None or decision.address in inputs.interrupted.streams:
        return None
    after = decision.after or {}
    why = find_preserve_obstacle(
        decision.live,
        after,
        inputs.level(decision.address),
        list_consumers(inputs, decision.address),
        same_origin=_has_same_origin(inputs, decision.live, after),
    )
    info = inputs.live.domains[decision.address.domain].info
    return why or capacity_problem(
        decision.live, after, sized_staging_config(inputs, decision.address, decision.live), info
    )


def _has_same_origin(inputs: PlanInputs, live: LiveObject, after: Config) -> bool:
    """Check whether a mirror will read the messages that it reads now."""
    old, new = live.compact.get("mirror"), after.get("mirror")
    if not (old and new):
        return False
    keys = {origin_key(one).split("#")[0] for one in (old, new)}
    return len(keys) == 1 or mirrors_relocated(inputs, live, after)


def restored_consumers(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> list[tuple[LiveObject, Config]]:
    """Return the consumers that the new stream gets, each with its new compact configuration."""
    found = [
        (consumer, decisions.get(consumer.address))
        for consumer in list_consumers(inputs, decision.address)
    ]
    return [
        (c, v.after if v is not None and v.after is not None else c.compact)
        for c, v in found
        if v is None or v.deleted_with is None
    ]


def finishing_consumers(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> list[tuple[LiveObject, int | None]]:
    """Return the consumers of a stream that becomes a work queue, which may finish messages.

    Each has its position, None if that is unknown.
    """
    live = decision.live
    if live is None or not becomes_workqueue(live.compact, decision.after or {}):
        return []
    return [
        (c, position_of(c.compact, c.state, inputs.level(c.address)))
        for c, _ in restored_consumers(inputs, decision, decisions)
    ]


def assess_preserved(
    inputs: PlanInputs,
    decision: ResourceDecision,
    decisions: Mapping[Address, ResourceDecision],
) -> Iterable[Hazard]:
    """Yield the hazards for publishers, workers and readers."""
    live = decision.live
    assert live is not None
    coming = [consumer for consumer, _ in restored_consumers(inputs, decision, decisions)]
    interrupted = inputs.interrupted.streams.get(decision.address)
    if interrupted is None or not interrupted.rejected_subjects:
        yield from _assess_rejected_publishes(live)
    if interrupted is not None:
        yield from (
            _assess_finished(live, finishing_consumers(inputs, decision, decisions))
            if interrupted.has_moved_messages or not interrupted.has_origin
            else ()
        )
    if (
        interrupted is None
        or interrupted.has_origin
        or "DUPLICATES_MESSAGES" in interrupted.record.get("allowed", {})
    ):
        # A snapshot keeps all, but that of a cluster keeps only the floor of a consumer with
        # unacknowledged messages (measured on 2.15).
        loses = decision.recreates_consumers or live.is_clustered
        yield from assess_redelivery(inputs, live, coming, with_finished=loses)


def estimate_seconds(live: LiveObject) -> int:
    """Return the whole seconds that copying the messages twice takes."""
    size, count = int(live.state.get("bytes") or 0), int(live.state.get("messages") or 0)
    return MIN_SECONDS + round(2 * max(size / BYTES_PER_SECOND, count / MESSAGES_PER_SECOND))


def _assess_rejected_publishes(live: LiveObject) -> Iterable[Hazard]:
    subjects = live.compact.get("subjects") or []
    if not subjects or live.compact.get("sealed"):
        return
    count, nouns = int(live.state.get("messages") or 0), nouns_of(live.address)
    messages = count_text(count, nouns.message)
    seconds = estimate_seconds(live)
    clients, writes = (
        f"publishers to {', '.join(subjects)}",
        "publishers that retry unacknowledged messages",
    )
    if nouns.object != "stream":
        clients, writes = (
            f"clients that write to the {nouns.object}",
            "clients that retry unacknowledged writes",
        )
    text = f"{clients} get no acknowledgement while {messages} are copied, for about {seconds} s"
    yield Hazard(
        "REMOVES_SUBJECTS",
        f"{text}; {writes} lose nothing",
        causes=list(subjects),
    )


def _assess_finished(
    live: LiveObject, finishing: Iterable[tuple[LiveObject, int | None]]
) -> Iterable[Hazard]:
    """Yield the upper bound of what does not stay in a work queue, by positions alone."""
    total = int(live.state.get("messages") or 0)
    finished_count = min(
        total, sum((at or _last_delivered(consumer) + 1) - 1 for consumer, at in finishing)
    )
    if finished_count:
        yield Hazard(
            "DELETES_MESSAGES",
            f"up to {finished_count:,} of {total:,} messages are acknowledged "
            "and do not stay in a work queue",
            messages=finished_count,
            exact=False,
            at_least=0,
            at_most=finished_count,
            causes=["retention"],
            as_of=live.as_of,
        )


def _last_delivered(consumer: LiveObject) -> int:
    return int((consumer.state.get("delivered") or {}).get("stream_seq") or 0)


def _check_start_overrides(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[Diagnostic]:
    """Note the consumers that keep their position only with another start than declared."""
    level, declared = inputs.level(decision.address), inputs.declared(decision.address)
    consumers = list_consumers(inputs, decision.address)
    names = [
        c.address.consumer
        for c in consumers
        if start_in_new_stream(c, c.compact, decision, level) is not None
    ]
    if names:
        text = (
            f"{', '.join(names)} will have deliver_policy by_start_sequence: "
            "this server cannot reset a consumer to its position"
        )
        detail = "That is neither drift nor a change while the files declare the same start."
        yield Diagnostic(
            "info",
            "JS425",
            text,
            detail,
            str(decision.address),
            declared.range if declared else None,
        )


def check_stream_replacement(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterable[Diagnostic]:
    """Note the effects of a stream replacement that stop nothing."""
    live, declared = decision.live, inputs.declared(decision.address)
    yield from _check_start_overrides(inputs, decision)
    if live is None or not live.compact.get("duplicate_window") or not live.state.get("messages"):
        return
    text = (
        "deduplication is reset: a retry of a message that was published before the replacement "
        "is stored twice"
    )
    detail = (
        "The server remembers only ids that were published to this very stream. "
        "It matters for as long as duplicate_window."
    )
    yield Diagnostic(
        "info", "JS425", text, detail, str(decision.address), declared.range if declared else None
    )
