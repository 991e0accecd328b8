"""Messages that servers lost since the last apply, and paused consumers, in plan and state."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.drift import LOST_KEY
from jsplan.facts.live import LiveObject
from jsplan.health import SINCE_CHECK, LastApplied, find_breaches, find_losses
from jsplan.health.thresholds import OWN_PREFIX, Breach
from jsplan.planning.model import Findings, PlanInputs
from jsplan.planning.pauses import PAUSE
from jsplan.units import instant_of

#: The finding about an object that needs attention whatever the files say.
LOSS = "JS476"
_DETAIL = (
    "The plan does not change that. What other streams or backups still have: jsplan status. After "
    "an apply the sequence of today is what the next one is compared with."
)
_RESUME_DETAIL = "The plan does not change that. To resume it: nats consumer resume."


def last_applied(inputs: PlanInputs, live: LiveObject) -> LastApplied:
    """Return what state and drift know of the object; nothing of another one, or one in memory.

    A stream in memory begins again when its server restarts.
    """
    entry = inputs.entries.get(live.address)
    if entry is None or entry.created != live.created:
        return LastApplied()
    pause = entry.declared.get(PAUSE)
    if live.raw.get("storage") == "memory":
        return LastApplied(pause=pause)
    mark = inputs.watermarks.get(live.address)
    if mark is None or mark.created != live.created:
        return LastApplied(entry.last_seq, pause)
    newest = max(entry.last_seq, mark.last_seq)
    return LastApplied(newest, pause, mark.at, mark.first_seq, mark.deleted)


def find_health(
    inputs: PlanInputs, live: LiveObject, now: int, interrupted: Collection[Address]
) -> list[Breach]:
    """Return what is wrong with a live object; `now` is ns since 1970.

    What is in the middle of a replacement may be paused, or have fewer messages than before. It has
    its own finding (`interrupted`), or a running process works on it.
    """
    stream, address = _source_of(inputs, live.address), live.address
    found = find_breaches(live, now, stream, last_applied(inputs, live))
    busy = not {address, address.parent}.isdisjoint(interrupted)
    if busy or _is_interrupted(inputs, address):
        found = [breach for breach in found if not breach.key.startswith(OWN_PREFIX)]
    return [_with_copy(inputs, address, breach) for breach in found]


def _with_copy(inputs: PlanInputs, address: Address, breach: Breach) -> Breach:
    """Add to a loss which other stream may still have the messages, and how to see that."""
    if not breach.key.startswith(LOST_KEY):
        return breach
    topology = inputs.topology
    others = [edge.downstream for edge in topology.edges_from(address)]
    others += [edge.origin for edge in topology.edges_into(address)]
    if not others:
        return breach
    command = f"jsplan compare {quote_shell(str(address))} {quote_shell(str(others[0]))}"
    return replace(breach, cause=f"{breach.cause}. {others[0]} may still have them: {command}")


def _source_of(inputs: PlanInputs, address: Address) -> LiveObject | None:
    """Return the live stream of a consumer, or the only origin of a stream."""
    if address.parent is not None:
        return inputs.stream_of(address)
    live = inputs.live.get(address)
    return find_only_origin(inputs, live) if live is not None else None


def find_only_origin(inputs: PlanInputs, stream: LiveObject) -> LiveObject | None:
    """Return the live origin in the files of a stream that stores nothing but one flow."""
    edges = inputs.topology.edges_into(stream.address)
    is_only = len(edges) == 1 and not stream.compact.get("subjects")
    return inputs.live.get(edges[0].origin) if is_only else None


def has_lost_since(inputs: PlanInputs, stream: LiveObject) -> bool:
    """Check whether a stream lost or missed messages since the last check or apply."""
    origin, now = _source_of(inputs, stream.address), instant_of(inputs.now)
    found = find_losses(stream, now, origin, last_applied(inputs, stream))
    return any(breach.key in SINCE_CHECK for breach in found)


def changed_last_seqs(inputs: PlanInputs, domain: str) -> dict[str, int]:
    """Return the last sequence of each managed stream of a domain that differs from state."""
    found: dict[str, int] = {}
    for address, entry in inputs.entries.items():
        live = inputs.live.get(address) if address.domain == domain else None
        if live is None or not address.is_stream or live.created != entry.created:
            continue
        last = int(live.state.get("last_seq") or 0)
        if last != entry.last_seq:
            found[str(address)] = last
    return found


def note_losses(inputs: PlanInputs) -> Findings:
    """Yield a warning for each selected stream that lost messages, and each paused consumer.

    Consumers that are paused by the files, or by an interrupted replacement, are left out.
    """
    now = instant_of(inputs.now)
    managed = (a for a in inputs.entries if a in inputs.selected and not a.is_content)
    for address in sorted(managed):
        live = inputs.live.get(address)
        if live is None or _is_interrupted(inputs, address):
            continue
        for breach in find_losses(live, now, None, last_applied(inputs, live)):
            if breach.level == "critical":
                detail = _RESUME_DETAIL if address.kind == "consumer" else _DETAIL
                cause = _with_copy(inputs, address, breach).cause
                yield Diagnostic("warning", LOSS, cause, detail, str(address))


def _is_interrupted(inputs: PlanInputs, address: Address) -> bool:
    known = inputs.interrupted
    return address in known.replacements or (address.parent or address) in known.streams
