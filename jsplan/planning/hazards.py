"""What a change would cost, as hazards of the closed list. Measuring is left to `facts`; allowing is decided here.

Message counts come from the stream's own state and are exact only where it says enough; elsewhere they are
bounds (`exact: false`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jsplan.address import Address, matches
from jsplan.config.model import AllowedHazard
from jsplan.documents.plan import Hazard
from jsplan.planning.inputs import Inputs
from jsplan.planning.verdict import Verdict
from jsplan.subjects import covered
from jsplan.units import SECOND

#: The closed list (contract, section 4); True blocks by default.
CODES = {
    "DELETES_STREAM": True, "DELETES_MESSAGES": True, "LOSES_CONSUMER_POSITION": True, "DELETES_CONSUMER": True,
    "BREAKS_REPLICATION": True, "REMOVES_SUBJECTS": True, "IRREVERSIBLE": True, "DUPLICATES_MESSAGES": True,
    "REDUCES_REPLICAS": False, "MOVES_DATA": False,
}  # fmt: skip


def assess(inputs: Inputs, verdict: Verdict, verdicts: dict[Address, Verdict]) -> list[Hazard]:
    """Every hazard of one decided resource, with whether it is allowed."""
    if verdict.follows is not None or verdict.live is None:
        return []
    found = list(_of_consumer(verdict) if verdict.address.kind == "consumer" else _of_stream(inputs, verdict, verdicts))
    found = [h for h in found if not _is_safe(h, inputs.request.safe_below)]
    for hazard in found:
        _decide(inputs, verdict.address, hazard)
    return found


def _is_safe(hazard: Hazard, safe_below: int) -> bool:
    counted = hazard.code in ("DELETES_MESSAGES", "DELETES_STREAM") and not hazard.consumers
    return counted and safe_below > 0 and (hazard.messages or 0) <= safe_below


def _decide(inputs: Inputs, address: Address, hazard: Hazard) -> None:
    hazard.flag = f"--allow-hazard {hazard.code}:{address}"
    declared = inputs.declared(address)
    in_review = declared.lifecycle.allow_hazards if declared else ()
    hazard.allowed = permits(inputs.request.allow_hazards, hazard.code, address) or _permitted_in_review(
        in_review, hazard.code, inputs.request.now
    )


def permits(flags: Iterable[str], code: str, address: Address | str) -> bool:
    """Whether one of `CODE` or `CODE:ADDR` (ADDR may be a glob) allows the hazard there."""
    for flag in flags:
        name, mark, glob = flag.partition(":")
        if name == code and (not mark or matches(glob, address)):
            return True
    return False


def _permitted_in_review(allowed: Iterable[AllowedHazard], code: str, now: datetime) -> bool:
    today = now.date().isoformat()
    return any(a.code == code and (a.until is None or today <= a.until) for a in allowed)


# --- streams -------------------------------------------------------------------------------------------------


def _of_stream(inputs: Inputs, verdict: Verdict, verdicts: dict[Address, Verdict]) -> Iterable[Hazard]:
    if verdict.deletes:
        yield _deletes_stream(verdict)
        yield from _breaks_replication(inputs, verdict, verdicts)
        return
    if verdict.actions != ["update"]:
        return
    yield from _irreversible(verdict)
    yield from _deletes_messages(verdict, inputs.request.now)
    yield from _removes_subjects(verdict, verdicts)
    yield from _moves(verdict)


def _deletes_stream(verdict: Verdict) -> Hazard:
    assert verdict.live is not None
    state = verdict.live.state
    messages, size, consumers = state.get("messages", 0), state.get("bytes", 0), state.get("consumer_count", 0)
    with_them = f" and {_count(consumers, 'consumer')}" if consumers else ""
    return Hazard(
        "DELETES_STREAM", f"deletes the stream with {_count(messages, 'message')} ({size:,} bytes){with_them}",
        messages=messages, bytes=size, consumers=consumers, exact=True, as_of=_as_of(verdict),
    )  # fmt: skip


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _as_of(verdict: Verdict) -> dict[str, Any]:
    state = verdict.live.state if verdict.live else {}
    return {"last_seq": state.get("last_seq", 0), "time": state.get("last_ts")}


def _breaks_replication(inputs: Inputs, verdict: Verdict, verdicts: dict[Address, Verdict]) -> Iterable[Hazard]:
    """Copies that stay behind when their origin goes. Copies that go in the same plan are no reason."""
    copies = sorted({e.copy for e in inputs.topology.edges if e.origin == verdict.address} | _recorded_copies(inputs, verdict.address))
    staying = [c for c in copies if inputs.live.get(c) is not None and not (c in verdicts and verdicts[c].actions == ["delete"])]
    if staying:
        names = ", ".join(map(str, staying))
        yield Hazard(
            "BREAKS_REPLICATION", f"{names} cop{'ies' if len(staying) == 1 else 'y'} this stream", causes=[str(c) for c in staying]
        )


def _recorded_copies(inputs: Inputs, origin: Address) -> set[Address]:
    return {a for a, entry in inputs.entries.items() if a.kind != "consumer" and str(origin) in entry.depends_on}


def _irreversible(verdict: Verdict) -> Iterable[Hazard]:
    paths = [f.path for f in verdict.fields if f.effect == "one_way"]
    if paths:
        yield Hazard("IRREVERSIBLE", f"{', '.join(paths)} can never be turned off again", causes=paths)


def _removes_subjects(verdict: Verdict, verdicts: dict[Address, Verdict]) -> Iterable[Hazard]:
    """Subjects that no stream of the domain stores once the plan is carried out."""
    assert verdict.live is not None
    assert verdict.after is not None
    if not any(f.path == "subjects" for f in verdict.fields):
        return
    takers = [v.after.get("subjects", []) for v in verdicts.values() if v.after and v.address.domain == verdict.address.domain]
    stored = [subject for subjects in takers for subject in subjects]
    orphans = [s for s in verdict.live.compact.get("subjects", []) if not covered(s, stored)]
    if orphans:
        yield Hazard("REMOVES_SUBJECTS", f"publishers to {', '.join(orphans)} will get no acknowledgement", causes=orphans)


def _moves(verdict: Verdict) -> Iterable[Hazard]:
    for change in verdict.fields:
        if change.path == "num_replicas" and (change.after or 1) < (change.before or 1):
            yield Hazard("REDUCES_REPLICAS", f"from {change.before} copies to {change.after}", blocking=False)
        if change.path.startswith("placement"):
            yield Hazard("MOVES_DATA", "the stream moves to other servers", blocking=False)
            return


def _deletes_messages(verdict: Verdict, now: datetime) -> Iterable[Hazard]:
    """The combined effect of everything in the update that makes the server trim, as bounds (server_semantics 4)."""
    assert verdict.live is not None
    assert verdict.after is not None
    state, messages = verdict.live.state, verdict.live.state.get("messages", 0)
    causes: dict[str, tuple[int, int]] = {}
    for change in verdict.fields:
        bounds = _trimmed(change.path, change.after, verdict.after, state, now)
        if bounds is not None and bounds[1] > 0:
            causes[change.path] = bounds
    if not causes:
        return
    least = max(low for low, _ in causes.values())
    most = min(messages, sum(high for _, high in causes.values()))
    exact = least == most
    count = f"{most:,}" if exact else f"between {least:,} and {most:,}" if least else f"up to {most:,}"
    yield Hazard(
        "DELETES_MESSAGES", f"the server deletes {count} of {_count(messages, 'message')} at once", messages=most, exact=exact,
        bytes=state.get("bytes", 0) if most == messages else None,
        at_least=None if exact else least, at_most=None if exact else most, as_of=_as_of(verdict), causes=list(causes),
    )  # fmt: skip


def _trimmed(path: str, limit: Any, after: dict[str, Any], state: dict[str, Any], now: datetime) -> tuple[int, int] | None:
    """(at least, at most) messages that lowering one limit deletes now."""
    messages, subjects = state.get("messages", 0), state.get("num_subjects", 0)
    drops_old = after.get("discard", "old") == "old"
    if path == "max_msgs" and drops_old and limit is not None and 0 < limit < messages:
        return messages - limit, messages - limit
    if path == "max_bytes" and drops_old and limit is not None and 0 < limit < state.get("bytes", 0):
        return 1, messages
    if path == "max_age" and limit and _age(state.get("first_ts"), now) > limit:
        return 1, messages
    if path == "max_msgs_per_subject" and limit is not None and 0 < limit < messages:
        return max(0, messages - subjects * limit), max(0, messages - max(subjects, limit))
    if path == "retention" and limit == "interest":
        return 0, messages
    return None


def _age(first: str | None, now: datetime) -> int:
    """Ns since an RFC 3339 instant; 0 for none and for the zero time of an empty stream."""
    if not first or first.startswith("0001-"):
        return 0
    return int((now - datetime.fromisoformat(first[:19] + "+00:00")).total_seconds() * SECOND)


# --- consumers -----------------------------------------------------------------------------------------------


def _of_consumer(verdict: Verdict) -> Iterable[Hazard]:
    assert verdict.live is not None
    state = verdict.live.state
    pending = (state.get("num_pending") or 0) + (state.get("num_ack_pending") or 0)
    delivered = (state.get("delivered") or {}).get("consumer_seq", 0)
    if verdict.actions == ["delete"]:
        text = f"deletes the consumer with {_count(pending, 'message')} it has not finished" if pending else "deletes the consumer"
        yield Hazard("DELETES_CONSUMER", text, blocking=pending > 0, messages=pending, exact=True)
    elif verdict.replaces and delivered:
        text = f"the new consumer starts over, after {delivered:,} deliveries"
        yield Hazard("LOSES_CONSUMER_POSITION", text, messages=pending, exact=True)
