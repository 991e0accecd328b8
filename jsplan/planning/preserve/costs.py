"""What a replacement costs although it keeps the messages, as hazards of the closed list; and what is worth knowing of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from jsplan.address import OWN_CONSUMERS, Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.facts.live import LiveObject
from jsplan.planning.following import copies
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
    theirs = [c for c in consumers_of(inputs, verdict.address) if not _we_made_it_start(inputs, c)]
    return obstacle(verdict.live, verdict.after or {}, level, theirs, copied)


def _we_made_it_start(inputs: Inputs, consumer: LiveObject) -> bool:
    """Whether an earlier replacement let it begin by a sequence, in place of what the files say."""
    entry = inputs.entries.get(consumer.address)
    return entry is not None and consumer.address.consumer in entry.starts


def hazards(inputs: Inputs, verdict: Verdict) -> Iterable[Hazard]:
    """What publishers, workers and readers will notice."""
    live, after = verdict.live, verdict.after or {}
    assert live is not None
    way, consumers = way_of(inputs.level(verdict.address)), consumers_of(inputs, verdict.address)
    yield from _unheard(live)
    yield from _again(consumers, keeps_acks=way == "archive" and not live.clustered)
    yield from _renumbered(live, way)
    if becomes_queue(live.compact, after):
        yield from _finished(live, consumers)


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
        f"{text}; nothing is stored meanwhile, so whoever repeats what was not acknowledged loses nothing",
        causes=list(subjects),
    )


def _again(consumers: Iterable[LiveObject], *, keeps_acks: bool) -> Iterable[Hazard]:
    """Messages that were given to workers, and what was acknowledged behind the floor where only the floor is kept.

    Archives keep it, but those of a cluster: there a consumer with anything unacknowledged goes on at its floor (measured on 2.15).
    """
    out, above, names = 0, 0, list[str]()
    for consumer in consumers:
        state = consumer.state
        pending = int(state.get("num_ack_pending") or 0)
        given, floor = (int((state.get(name) or {}).get("consumer_seq") or 0) for name in ("delivered", "ack_floor"))
        acked = max(0, given - floor - pending) if not keeps_acks and consumer.compact.get("ack_policy", "none") != "none" else 0
        out, above = out + pending, above + acked
        names += [consumer.address.consumer] if pending or acked else []
    if not out + above:
        return
    parts = [f"{out:,} that workers have now, unless they acknowledge them before or after"] if out else []
    parts += [f"{above:,} acknowledged out of order"] if above else []
    yield Hazard(
        "DUPLICATES_MESSAGES", f"up to {out + above:,} messages of {', '.join(names)} may be delivered again: {' and '.join(parts)}",
        messages=out + above, exact=False, at_least=0, at_most=out + above, causes=names,
    )  # fmt: skip


def _renumbered(live: LiveObject, way: Way) -> Iterable[Hazard]:
    if way == "source" and live.state.get("messages"):
        age = ", so max_age starts anew for them" if live.compact.get("max_age") else ""
        text = f"{live.state['messages']:,} messages get new sequences and new times{age}, and a header Nats-Stream-Source"
        yield Hazard("IRREVERSIBLE", f"{text}: only nats-server 2.12 and later can keep them", messages=live.state["messages"], exact=True)


def _finished(live: LiveObject, consumers: list[LiveObject]) -> Iterable[Hazard]:
    """In a work queue what is there is unfinished: what a consumer has acknowledged does not stay."""
    total = int(live.state.get("messages") or 0)
    left = sum(int(c.state.get("num_pending") or 0) + int(c.state.get("num_ack_pending") or 0) for c in consumers)
    gone = max(0, total - left)
    if not consumers or not gone or not any((c.state.get("ack_floor") or {}).get("stream_seq") for c in consumers):
        return
    exact = len(consumers) == 1 and not _filters(consumers[0].compact)
    yield Hazard(
        "DELETES_MESSAGES", f"{'' if exact else 'up to '}{gone:,} of {total:,} messages are acknowledged and do not stay in a work queue",
        messages=gone, exact=exact, at_least=None if exact else 0, at_most=None if exact else gone, causes=["retention"],
        as_of={"last_seq": live.state.get("last_seq", 0), "time": live.state.get("last_ts")},
    )  # fmt: skip


def _filters(config: Config) -> bool:
    return bool(config.get("filter_subject") or config.get("filter_subjects"))


def findings(inputs: Inputs, verdict: Verdict) -> Iterable[Diagnostic]:
    """What is worth knowing and stops nothing."""
    live, declared = verdict.live, inputs.declared(verdict.address)
    if live is None or not live.compact.get("duplicate_window") or not live.state.get("messages"):
        return
    text = "a message that is published again with the id of one from before the replacement is stored again"
    detail = "The server remembers ids of what was published to this very stream only; it matters for as long as duplicate_window."
    yield Diagnostic("info", "JS425", text, detail, str(verdict.address), declared.range if declared else None)
