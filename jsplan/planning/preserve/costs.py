"""What a replacement costs although it keeps the messages, as hazards of the closed list; and what is worth knowing of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from jsplan.address import OWN_CONSUMERS, Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.facts.interest import filters_of
from jsplan.facts.live import LiveObject
from jsplan.facts.question import Finished, Measured
from jsplan.facts.redelivered import Redelivery, most_by_state, redelivery_of
from jsplan.planning.following import copies
from jsplan.planning.preserve.brought import start_of
from jsplan.planning.preserve.capacity import no_capacity, staging_of
from jsplan.planning.preserve.positions import position_of
from jsplan.planning.preserve.ways import Way, becomes_queue, obstacle, way_of
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.planning.inputs import Inputs
    from jsplan.planning.verdict import Verdict

#: Bytes and messages that pass through a client or a server in a second, cautiously; both ways are taken twice.
BYTES_A_SECOND, MESSAGES_A_SECOND = 20_000_000, 40_000
#: Seconds for everything but the messages.
AT_LEAST: Final = 1


def consumers_of(inputs: Inputs, stream: Address) -> list[LiveObject]:
    """Every consumer of the stream that was read, other people's included, without the server's own."""
    found = (o for a, o in inputs.live.objects.items() if a.kind == "consumer" and a.parent == stream)
    return sorted((o for o in found if not o.address.consumer.startswith(OWN_CONSUMERS)), key=lambda o: o.address)


def refused(inputs: Inputs, verdict: Verdict) -> str | None:
    """Why the messages cannot be carried over, in words; None where they can, or are on their way already."""
    if verdict.live is None or verdict.address in inputs.under_way:
        return None
    copied = {edge.kind for edge in inputs.topology.edges if edge.origin == verdict.address}
    copied |= {kind for _, kind, _ in copies(inputs, {}, verdict.address)}
    level = inputs.level(verdict.address)
    consumers, after = consumers_of(inputs, verdict.address), verdict.after or {}
    theirs = [c for c in consumers if not _we_made_it_start(inputs, c)]
    why = obstacle(verdict.live, after, level, consumers, theirs, copied)
    info = inputs.live.domains[verdict.address.domain].info
    return why or no_capacity(verdict.live, after, staging_of(inputs, verdict.address, verdict.live), info)


def _we_made_it_start(inputs: Inputs, consumer: LiveObject) -> bool:
    """Whether an earlier replacement let it begin by a sequence, in place of what the files say."""
    entry = inputs.entries.get(consumer.address)
    return entry is not None and consumer.address.consumer in entry.starts


def coming_back(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict]) -> list[tuple[LiveObject, Config]]:
    """The consumers that the new stream gets, as they are, each with its compact configuration afterwards."""
    found = [(consumer, verdicts.get(consumer.address)) for consumer in consumers_of(inputs, verdict.address)]
    return [(c, v.after if v is not None and v.after is not None else c.compact) for c, v in found if v is None or v.follows is None]


def about_stream(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict]) -> tuple[Finished, ...]:
    """What consumers have finished of a stream that becomes a work queue: none of that stays."""
    live = verdict.live
    if live is None or not becomes_queue(live.compact, verdict.after or {}):
        return ()
    coming = [(c, position_of(c.compact, c.state)) for c, _ in coming_back(inputs, verdict, verdicts)]
    return tuple(Finished(filters_of(c.compact), _given(c), position) for c, position in coming if position is None or position > 1)


def about_consumers(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict]) -> list[Redelivery]:
    """What consumers are given again that resume at their floor, as `redelivered` measures it; nothing where archives keep all they had.

    Those of a cluster keep no more than the floor of a consumer with anything unacknowledged (measured on 2.15).
    """
    live = verdict.live
    if live is None or live.compact.get("retention") == "workqueue":
        return []
    if not verdict.renews and not live.clustered:
        return []
    coming = coming_back(inputs, verdict, verdicts)
    spans = (redelivery_of(c.address.consumer, c.compact, c.state, to, position_of(c.compact, c.state)) for c, to in coming)
    return [span for span in spans if span is not None]


def hazards(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict], again: Iterable[Measured]) -> Iterable[Hazard]:
    """What publishers, workers and readers will notice. `again` are the answers about its consumers."""
    live = verdict.live
    assert live is not None
    coming = [consumer for consumer, _ in coming_back(inputs, verdict, verdicts)]
    counts = {answer.causes[-1]: answer.at_most for answer in again}
    begun = inputs.under_way.get(verdict.address)
    if begun is None or not begun.rejected:
        yield from _unheard(live)
    if begun is not None:  # the old stream may be gone: its consumers were measured before
        counts = {span.consumer: most_by_state(span, live.state) for span in about_consumers(inputs, verdict, verdicts)}
        yield from _finished(live, about_stream(inputs, verdict, verdicts)) if begun.only_copy else ()
    if begun is None or begun.old_is_there or "DUPLICATES_MESSAGES" in begun.record.get("allowed", {}):
        yield from _again(coming, counts)
    yield from _renumbered(live, way_of(inputs.level(verdict.address)))


def seconds(live: LiveObject) -> int:
    """How long the messages take twice over, in whole seconds."""
    size, count = int(live.state.get("bytes") or 0), int(live.state.get("messages") or 0)
    return AT_LEAST + round(2 * max(size / BYTES_A_SECOND, count / MESSAGES_A_SECOND))


def _unheard(live: LiveObject) -> Iterable[Hazard]:
    subjects = live.compact.get("subjects") or []
    if not subjects or live.compact.get("sealed"):
        return
    count = int(live.state.get("messages") or 0)
    messages = f"{count:,} message{'' if count == 1 else 's'}"
    text = f"publishers to {', '.join(subjects)} get no acknowledgement while {messages} are carried over, for about {seconds(live)} s"
    yield Hazard(
        "REMOVES_SUBJECTS",
        f"{text}; publishers that retry unacknowledged messages lose nothing",
        causes=list(subjects),
    )


def _again(consumers: Iterable[LiveObject], finished: Mapping[str, int]) -> Iterable[Hazard]:
    """Messages that were given to workers, and at most how many that each consumer has acknowledged out of order."""
    given = {c.address.consumer: int(c.state.get("num_ack_pending") or 0) for c in consumers}
    out, above = sum(given.values()), sum(finished.values())
    if not out + above:
        return
    names = [name for name in given if given[name] or finished.get(name)]
    parts = [f"{out:,} that workers have now, unless they acknowledge them before or after"] if out else []
    parts += [f"{above:,} acknowledged out of order"] if above else []
    many = "1 message" if out + above == 1 else f"{out + above:,} messages"
    yield Hazard(
        "DUPLICATES_MESSAGES", f"up to {many} of {', '.join(names)} may be delivered again: {' and '.join(parts)}",
        messages=out + above, exact=False, at_least=0, at_most=out + above, causes=names,
    )  # fmt: skip


def _renumbered(live: LiveObject, way: Way) -> Iterable[Hazard]:
    if way == "source" and live.state.get("messages"):
        age = ", so max_age starts anew for them" if live.compact.get("max_age") else ""
        text = f"{live.state['messages']:,} messages get new sequences and new times{age}, and a header Nats-Stream-Source"
        yield Hazard("IRREVERSIBLE", f"{text}: only nats-server 2.12 and later can keep them", messages=live.state["messages"], exact=True)


def _finished(live: LiveObject, finished: Iterable[Finished]) -> Iterable[Hazard]:
    """The upper bound of what does not stay in a work queue, by positions alone."""
    total = int(live.state.get("messages") or 0)
    gone = min(total, sum((one.position or one.given + 1) - 1 for one in finished))
    if gone:
        yield Hazard(
            "DELETES_MESSAGES", f"up to {gone:,} of {total:,} messages are acknowledged and do not stay in a work queue",
            messages=gone, exact=False, at_least=0, at_most=gone, causes=["retention"],
            as_of={"last_seq": live.state.get("last_seq", 0), "time": live.state.get("last_ts")},
        )  # fmt: skip


def _given(consumer: LiveObject) -> int:
    return int((consumer.state.get("delivered") or {}).get("stream_seq") or 0)


def _started(inputs: Inputs, verdict: Verdict) -> Iterable[Diagnostic]:
    """Consumers that keep their position only with another start than they were made with."""
    level, declared = inputs.level(verdict.address), inputs.declared(verdict.address)
    consumers = consumers_of(inputs, verdict.address)
    names = [c.address.consumer for c in consumers if start_of(c, c.compact, verdict, level) is not None]
    if names:
        text = f"{', '.join(names)} will have deliver_policy by_start_sequence: this server takes no consumer to a position that it had"
        detail = "That is neither drift nor a change, as long as the files say the same of where it starts."
        yield Diagnostic("info", "JS425", text, detail, str(verdict.address), declared.range if declared else None)


def findings(inputs: Inputs, verdict: Verdict) -> Iterable[Diagnostic]:
    """What is worth knowing and stops nothing."""
    live, declared = verdict.live, inputs.declared(verdict.address)
    yield from _started(inputs, verdict)
    if live is None or not live.compact.get("duplicate_window") or not live.state.get("messages"):
        return
    text = "deduplication is reset: a retry of a message that was published before the replacement is stored twice"
    detail = "The server remembers ids of what was published to this very stream only; it matters for as long as duplicate_window."
    yield Diagnostic("info", "JS425", text, detail, str(verdict.address), declared.range if declared else None)
