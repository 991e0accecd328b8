"""What a replacement costs although it keeps the messages, as hazards of the closed list; and what is worth knowing of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.facts.interest import filters_of
from jsplan.facts.live import LiveObject
from jsplan.facts.measurement import FinishedConsumer, Measurement
from jsplan.facts.redelivery import Redelivery, build_redelivery, max_by_state
from jsplan.planning.preserve.capacity import capacity_problem, sized_staging_config
from jsplan.planning.preserve.consumer_position import position_of
from jsplan.planning.preserve.methods import (
    PreserveMethod,
    becomes_workqueue,
    choose_preserve_method,
    find_preserve_obstacle,
)
from jsplan.planning.preserve.start_override import start_sequence
from jsplan.planning.replication.checks import find_downstream
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs

#: Bytes and messages that pass through a client or a server in a second, cautiously; both ways are taken twice.
BYTES_PER_SECOND, MESSAGES_PER_SECOND = 20_000_000, 40_000
#: Seconds for everything but the messages.
MIN_SECONDS: Final = 1


def list_consumers(inputs: PlanInputs, stream: Address) -> list[LiveObject]:
    """Every consumer of the stream that was read, other people's included, without the server's own."""
    found = (
        o for a, o in inputs.live.objects.items() if a.kind == "consumer" and a.parent == stream
    )
    return sorted(
        (o for o in found if not o.address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)),
        key=lambda o: o.address,
    )


def preserve_obstacle(inputs: PlanInputs, verdict: ResourceDecision) -> str | None:
    """Why the messages cannot be carried over, in words; None where they can, or are on their way already."""
    if verdict.live is None or verdict.address in inputs.interrupted:
        return None
    copied = {edge.kind for edge in inputs.topology.edges if edge.origin == verdict.address}
    copied |= {kind for _, kind, _ in find_downstream(inputs, {}, verdict.address)}
    level = inputs.level(verdict.address)
    consumers, after = list_consumers(inputs, verdict.address), verdict.after or {}
    theirs = [c for c in consumers if not _has_start_override(inputs, c)]
    why = find_preserve_obstacle(verdict.live, after, level, consumers, theirs, copied)
    info = inputs.live.domains[verdict.address.domain].info
    return why or capacity_problem(
        verdict.live, after, sized_staging_config(inputs, verdict.address, verdict.live), info
    )


def _has_start_override(inputs: PlanInputs, consumer: LiveObject) -> bool:
    """Whether an earlier replacement let it begin by a sequence, in place of what the files say."""
    entry = inputs.entries.get(consumer.address)
    return entry is not None and consumer.address.consumer in entry.starts


def restored_consumers(
    inputs: PlanInputs, verdict: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> list[tuple[LiveObject, Config]]:
    """The consumers that the new stream gets, as they are, each with its compact configuration afterwards."""
    found = [
        (consumer, verdicts.get(consumer.address))
        for consumer in list_consumers(inputs, verdict.address)
    ]
    return [
        (c, v.after if v is not None and v.after is not None else c.compact)
        for c, v in found
        if v is None or v.deleted_with is None
    ]


def finished_ranges(
    inputs: PlanInputs, verdict: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> tuple[FinishedConsumer, ...]:
    """What consumers have finished of a stream that becomes a work queue: none of that stays."""
    live = verdict.live
    if live is None or not becomes_workqueue(live.compact, verdict.after or {}):
        return ()
    coming = [
        (c, position_of(c.compact, c.state))
        for c, _ in restored_consumers(inputs, verdict, verdicts)
    ]
    return tuple(
        FinishedConsumer(filters_of(c.compact), _last_delivered(c), position)
        for c, position in coming
        if position is None or position > 1
    )


def redelivery_spans(
    inputs: PlanInputs, verdict: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> list[Redelivery]:
    """What consumers are given again that resume at their floor, as `redelivered` measures it; nothing where archives keep all they had.

    Those of a cluster keep no more than the floor of a consumer with anything unacknowledged (measured on 2.15).
    """
    live = verdict.live
    if live is None or live.compact.get("retention") == "workqueue":
        return []
    if not verdict.recreates_consumers and not live.is_clustered:
        return []
    coming = restored_consumers(inputs, verdict, verdicts)
    spans = (
        build_redelivery(
            c.address.consumer, c.compact, c.state, to, position_of(c.compact, c.state)
        )
        for c, to in coming
    )
    return [span for span in spans if span is not None]


def assess_preserved(
    inputs: PlanInputs,
    verdict: ResourceDecision,
    verdicts: Mapping[Address, ResourceDecision],
    redeliveries: Iterable[Measurement],
) -> Iterable[Hazard]:
    """What publishers, workers and readers will notice. `again` are the answers about its consumers."""
    live = verdict.live
    assert live is not None
    coming = [consumer for consumer, _ in restored_consumers(inputs, verdict, verdicts)]
    counts = {answer.causes[-1]: answer.at_most for answer in redeliveries}
    begun = inputs.interrupted.get(verdict.address)
    if begun is None or not begun.rejected_subjects:
        yield from _assess_rejected_publishes(live)
    if begun is not None:  # the old stream may be gone: its consumers were measured before
        counts = {
            span.consumer: max_by_state(span, live.state)
            for span in redelivery_spans(inputs, verdict, verdicts)
        }
        yield from (
            _assess_finished(live, finished_ranges(inputs, verdict, verdicts))
            if begun.has_moved_messages
            else ()
        )
    if (
        begun is None
        or begun.has_old_stream
        or "DUPLICATES_MESSAGES" in begun.record.get("allowed", {})
    ):
        yield from _assess_redelivery(coming, counts)
    yield from _assess_new_sequences(live, choose_preserve_method(inputs.level(verdict.address)))


def estimate_seconds(live: LiveObject) -> int:
    """How long the messages take twice over, in whole seconds."""
    size, count = int(live.state.get("bytes") or 0), int(live.state.get("messages") or 0)
    return MIN_SECONDS + round(2 * max(size / BYTES_PER_SECOND, count / MESSAGES_PER_SECOND))


def _assess_rejected_publishes(live: LiveObject) -> Iterable[Hazard]:
    subjects = live.compact.get("subjects") or []
    if not subjects or live.compact.get("sealed"):
        return
    count = int(live.state.get("messages") or 0)
    messages = f"{count:,} message{'' if count == 1 else 's'}"
    text = f"publishers to {', '.join(subjects)} get no acknowledgement while {messages} are carried over, for about {estimate_seconds(live)} s"
    yield Hazard(
        "REMOVES_SUBJECTS",
        f"{text}; publishers that retry unacknowledged messages lose nothing",
        causes=list(subjects),
    )


def _assess_redelivery(
    consumers: Iterable[LiveObject], finished: Mapping[str, int]
) -> Iterable[Hazard]:
    """Messages that were given to workers, and at most how many that each consumer has acknowledged out of order."""
    given = {c.address.consumer: int(c.state.get("num_ack_pending") or 0) for c in consumers}
    out, above = sum(given.values()), sum(finished.values())
    if not out + above:
        return
    names = [name for name in given if given[name] or finished.get(name)]
    parts = (
        [f"{out:,} that workers have now, unless they acknowledge them before or after"]
        if out
        else []
    )
    parts += [f"{above:,} acknowledged out of order"] if above else []
    many = "1 message" if out + above == 1 else f"{out + above:,} messages"
    yield Hazard(
        "DUPLICATES_MESSAGES",
        f"up to {many} of {', '.join(names)} may be delivered again: {' and '.join(parts)}",
        messages=out + above,
        exact=False,
        at_least=0,
        at_most=out + above,
        causes=names,
    )


def _assess_new_sequences(live: LiveObject, way: PreserveMethod) -> Iterable[Hazard]:
    if way == "source" and live.state.get("messages"):
        age = ", so max_age starts anew for them" if live.compact.get("max_age") else ""
        text = f"{live.state['messages']:,} messages get new sequences and new times{age}, and a header Nats-Stream-Source"
        yield Hazard(
            "IRREVERSIBLE",
            f"{text}: only nats-server 2.12 and later can keep them",
            messages=live.state["messages"],
            exact=True,
        )


def _assess_finished(live: LiveObject, finished: Iterable[FinishedConsumer]) -> Iterable[Hazard]:
    """The upper bound of what does not stay in a work queue, by positions alone."""
    total = int(live.state.get("messages") or 0)
    gone = min(total, sum((one.position or one.delivered + 1) - 1 for one in finished))
    if gone:
        yield Hazard(
            "DELETES_MESSAGES",
            f"up to {gone:,} of {total:,} messages are acknowledged and do not stay in a work queue",
            messages=gone,
            exact=False,
            at_least=0,
            at_most=gone,
            causes=["retention"],
            as_of={"last_seq": live.state.get("last_seq", 0), "time": live.state.get("last_ts")},
        )


def _last_delivered(consumer: LiveObject) -> int:
    return int((consumer.state.get("delivered") or {}).get("stream_seq") or 0)


def _check_start_overrides(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """Consumers that keep their position only with another start than they were made with."""
    level, declared = inputs.level(verdict.address), inputs.declared(verdict.address)
    consumers = list_consumers(inputs, verdict.address)
    names = [
        c.address.consumer
        for c in consumers
        if start_sequence(c, c.compact, verdict, level) is not None
    ]
    if names:
        text = f"{', '.join(names)} will have deliver_policy by_start_sequence: this server takes no consumer to a position that it had"
        detail = "That is neither drift nor a change, as long as the files say the same of where it starts."
        yield Diagnostic(
            "info",
            "JS425",
            text,
            detail,
            str(verdict.address),
            declared.range if declared else None,
        )


def check_stream_replacement(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Diagnostic]:
    """What is worth knowing and stops nothing."""
    live, declared = verdict.live, inputs.declared(verdict.address)
    yield from _check_start_overrides(inputs, verdict)
    if live is None or not live.compact.get("duplicate_window") or not live.state.get("messages"):
        return
    text = "deduplication is reset: a retry of a message that was published before the replacement is stored twice"
    detail = "The server remembers ids of what was published to this very stream only; it matters for as long as duplicate_window."
    yield Diagnostic(
        "info", "JS425", text, detail, str(verdict.address), declared.range if declared else None
    )
