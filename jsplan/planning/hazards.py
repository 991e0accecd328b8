"""Assess the hazards of each change, and check which of them the user allows.

`list_measurements` requests the counts of deleted messages, and `facts.measure` counts them. Here
they become the one `DELETES_MESSAGES` of a resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from jsplan.address import Address, is_parked
from jsplan.config.model import AllowedHazard
from jsplan.diagnostics import quote_shell
from jsplan.documents.plan import Hazard
from jsplan.documents.step_kinds import RESTORED
from jsplan.facts.live import get_retention
from jsplan.facts.measurement import Measurement
from jsplan.planning.decide import planned_config
from jsplan.planning.hazard_numbers import counted, merge_hazards
from jsplan.planning.hazard_permissions import is_permitted, messages_begun
from jsplan.planning.interest import PLACEHOLDER_ORPHANED
from jsplan.planning.model import Decisions, Hazards, PlanInputs, ResourceDecision
from jsplan.planning.replication.affected_readers import (
    assess_drained,
    assess_left_behind,
    assess_markers,
    assess_read_through,
    assess_republished,
    assess_unfilled,
)
from jsplan.planning.replication.arriving_messages import assess_arrivals, count_arrivals
from jsplan.planning.replication.checks import find_readers
from jsplan.planning.replication.closed_streams import assess_closed
from jsplan.planning.replication.impact import mirrors_relocated
from jsplan.planning.replication.lost_origins import assess_unread_readers
from jsplan.planning.replication.removed_sources import assess_removed_sources
from jsplan.planning.split_updates import is_moved
from jsplan.planning.stranded import (
    add_stranded_messages,
    assess_held_messages,
    assess_shorter_wait,
    is_filter_measurement,
)
from jsplan.planning.transfer.consumers import assess_replaced, assess_restored
from jsplan.planning.transfer.decisions import ORIGIN_RELOCATED, POSITION_LOST, TARGET_RELOCATED
from jsplan.planning.transfer.hazards import (
    assess_lost_position,
    assess_origin,
    assess_preserved,
    assess_target,
)
from jsplan.planning.transfer.positions import assess_reset, is_reset_measurement
from jsplan.planning.unreadable_origins import add_unreadable_origins, find_unreadable_origins
from jsplan.resources.buckets import Nouns, nouns_of
from jsplan.subjects import SubjectTree, is_covered
from jsplan.units import bounds_text, count_text


def assess_hazards(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> list[Hazard]:
    """Assess the hazards of one decided resource, and set whether each is allowed."""
    if decision.is_untouched and not inputs.measured.concern(decision.address):
        return []
    if decision.deleted_with is not None and not decisions[decision.deleted_with].preserves:
        found = list(_refilled_consumer_hazards(inputs, decision, decisions))
        return with_permissions(inputs, decision.address, found, decisions)
    measured = [
        answer
        for answer in inputs.measured.counts(decision.address)
        if not is_filter_measurement(answer) and not is_reset_measurement(answer)
    ]
    found = list(
        _deletes_messages(measured, nouns_of(decision.address), _left_origin(inputs, decision))
    )
    found += assess_left_behind(inputs, decision, decisions, list(found))
    if decision.address.kind == "consumer":
        found += assess_replaced(inputs, decision)
    found += assess_reset(decision, inputs.measured.counts(decision.address))
    found = add_unreadable_origins(found, list(find_unreadable_origins(inputs, decision)))
    found += assess_removed_sources(inputs.measured.uncopied.get(decision.address, ()))
    if decision.reason == TARGET_RELOCATED and decision.address.is_stream:
        found += assess_target(inputs, decision, decisions)
    if decision.reason == POSITION_LOST:
        found.append(assess_lost_position(inputs, decision))
    found += _lost_consumer_hazards(inputs, decision, decisions)
    if decision.live is not None:
        found += _loses_outstanding(measured)
        found += assess_held_messages(inputs, decision, decisions)
        found += (
            [
                *_consumer_hazards(decision),
                *assess_shorter_wait(decision),
                *assess_read_through(inputs, decision, decisions),
            ]
            if decision.address.kind == "consumer"
            else _stream_hazards(inputs, decision, decisions)
        )
        counts = inputs.measured.counts(decision.address)
        found = add_stranded_messages(decision.address, found, counts)
    if decision.reason == RESTORED and decision.address.parent is not None:
        found += assess_restored(inputs.backup[decision.address.parent], decision.address)
    found += assess_closed(inputs, decision)
    found += assess_republished(inputs, decision, decisions)
    found += assess_unread_readers(inputs, decision)
    found += assess_unfilled(inputs, decision, decisions)
    found += assess_arrivals(inputs, decision, decisions)
    found += assess_drained(inputs, decision, decisions)
    found += assess_markers(inputs, decision, decisions)
    return with_permissions(inputs, decision.address, merge_hazards(found, _MERGED), decisions)


#: Hazards of which a resource has one, for all that causes it.
_MERGED: Final = ("DUPLICATES_MESSAGES", "DELETES_MESSAGES")


def with_permissions(
    inputs: PlanInputs,
    address: Address,
    found: Iterable[Hazard],
    decisions: Decisions | None = None,
) -> list[Hazard]:
    """Return the hazards beyond `--safe-below`, each with whether it is allowed."""
    kept = [hazard for hazard in found if not _is_safe(hazard, inputs.options.safe_below)]
    for hazard in kept:
        _set_permission(inputs, decisions or {}, address, hazard)
    return kept


def _is_safe(hazard: Hazard, safe_below: int) -> bool:
    """Check whether a deletion is within `safe_below`. A stream with consumers never is."""
    counted = hazard.code in ("DELETES_MESSAGES", "DELETES_STREAM") and not hazard.consumers
    return counted and hazard.messages is not None and hazard.messages <= safe_below


def _set_permission(
    inputs: PlanInputs, decisions: Decisions, address: Address, hazard: Hazard
) -> None:
    hazard.flag = "--allow-hazard " + quote_shell(f"{hazard.code}:{address}")
    declared = inputs.declared(address)
    in_review = declared.lifecycle.allow_hazards if declared else ()
    flags, now = inputs.options.allow_hazards, inputs.now
    hazard.allowed = is_permitted(flags, hazard.code, address) or _permitted_in_review(
        in_review, hazard.code, now
    )
    hazard.allowed = hazard.allowed or _permitted_before(inputs, decisions, address, hazard)


def _permitted_before(
    inputs: PlanInputs, decisions: Decisions, address: Address, hazard: Hazard
) -> bool:
    """Check whether the apply that began this and did not finish allowed as many messages.

    What an interest stream deletes when its consumers change is reported at one of them, or at the
    stream, by the steps that are left at another one.
    """
    if address.parent is not None and hazard.code == "DELETES_MESSAGES":
        many = hazard.messages
        return many is not None and many <= messages_begun(inputs, decisions, address.parent)
    interrupted = inputs.interrupted.streams.get(address)
    record: Mapping[str, Any] = interrupted.record if interrupted is not None else {}
    relocation = inputs.relocations.get(address)
    if relocation is not None and relocation.is_quiesced:
        record = relocation.record
    allowed = record.get("allowed", {}).get(hazard.code)
    return allowed is not None and (
        hazard.code != "DELETES_MESSAGES" or (hazard.messages or 0) <= allowed
    )


def _permitted_in_review(allowed: Iterable[AllowedHazard], code: str, now: datetime) -> bool:
    today = now.date().isoformat()
    return any(a.code == code and (a.until is None or today <= a.until) for a in allowed)


# --- streams ---


def _stream_hazards(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    if decision.preserves:
        yield from assess_preserved(inputs, decision, decisions)
        yield from _breaks_replication(inputs, decision, decisions)
        return
    if decision.reason == ORIGIN_RELOCATED:
        yield from assess_origin(inputs, decision, decisions)
        yield from _breaks_replication(inputs, decision, decisions)
        return
    if decision.deletes:
        yield _deletes_stream(decision)
        yield from _breaks_replication(inputs, decision, decisions)
        return
    if decision.actions != ["update"]:
        return
    yield from _irreversible(decision)
    yield from _removes_subjects(inputs, decision, decisions)
    yield from _moves_data(decision)


def _deletes_stream(decision: ResourceDecision) -> Hazard:
    assert decision.live is not None
    messages, size, consumers = (
        decision.live.state.get(name, 0) for name in ("messages", "bytes", "consumer_count")
    )
    nouns = nouns_of(decision.address)
    content = f"{count_text(messages, nouns.message)} ({size:,} bytes)"
    with_them = f" and {count_text(consumers, 'consumer')}" if consumers else ""
    return Hazard(
        "DELETES_STREAM",
        f"deletes the {nouns.object} with {content}{with_them}",
        messages=messages,
        bytes=size,
        consumers=consumers,
        exact=True,
        as_of=decision.live.as_of,
    )


def _breaks_replication(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Report mirrors and sources that keep reading a stream that the plan deletes.

    Those that the same plan deletes or detaches do not count, nor those that will mirror the target
    of its relocation.
    """
    declared = {edge.downstream for edge in inputs.topology.edges_from(decision.address)}
    readers = {stream for stream, _, _ in find_readers(inputs, decisions, decision.address)}
    staying: list[str] = []
    for address in sorted(declared | readers):
        live, reader = inputs.live.get(address), decisions.get(address)
        is_absent = live is None and address not in readers
        goes = is_absent or (reader is not None and reader.actions == ["delete"])
        if live is not None and reader is not None and decision.relocation is not None:
            goes = goes or mirrors_relocated(inputs, live, reader.planned)
        staying += [] if goes else [str(address)]
    if staying:
        is_one, what = len(staying) == 1, nouns_of(decision.address).object
        reads = "mirrors or sources" if is_one else "mirror or source"
        text = f"{', '.join(staying)} {reads} this {what}"
        if decision.replaces:
            have, follow = ("it has", "it follows") if is_one else ("they have", "they follow")
            text += f": what {have} of it stays, and apply checks that {follow} the new one"
        yield Hazard("BREAKS_REPLICATION", text, causes=staying)


def _irreversible(decision: ResourceDecision) -> Hazards:
    paths = [f.path for f in decision.fields if f.effect == "one_way"]
    if paths:
        yield Hazard(
            "IRREVERSIBLE", f"{', '.join(paths)} can never be turned off again", causes=paths
        )


def _planned_subjects(decisions: Decisions) -> dict[str, SubjectTree[str]]:
    """Return by domain the subjects that its planned streams will store."""
    found: dict[str, SubjectTree[str]] = {}
    for address, decision in decisions.items():
        tree = found.setdefault(address.domain, SubjectTree())
        for subject in decision.planned.get("subjects", ()):
            tree.add(subject, subject)
    return found


def _removes_subjects(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Report subjects that no stream of the domain stores after the plan, or between two steps."""
    if not any(f.path == "subjects" for f in decision.fields):
        return
    stored = inputs.index("subjects", (decisions,), lambda: _planned_subjects(decisions))
    near, kept = stored[decision.address.domain], decision.planned.get("subjects", [])
    before = [s for s in decision.before.get("subjects", []) if not is_parked(s)]
    removed = [s for s in before if not is_covered(s, kept)]
    lost = [s for s in removed if not is_covered(s, near.find_overlapping(s))]
    passed_on = [s for s in removed if s not in lost]
    texts = []
    if lost:
        parts = sorted({part for s in lost for part in near.find_overlapping(s)})
        passed_on += [s for s in parts if not is_covered(s, kept)]
        more = f" and {len(parts) - 5} more" if len(parts) > 5 else ""
        but = f", except to {', '.join(parts[:5])}{more}" if parts else ""
        texts = [f"publishers to {', '.join(lost)} will get no acknowledgement{but}"]
    if passed_on:
        texts.append(
            f"publishers to {', '.join(passed_on)} will get no acknowledgement until a later step "
            "lets another stream store them"
        )
    if texts:
        yield Hazard("REMOVES_SUBJECTS", "; ".join(texts), causes=removed)


def _moves_data(decision: ResourceDecision) -> Hazards:
    """Report fewer replicas, and what the servers of a cluster copy to each other."""
    assert decision.live is not None
    replicas = int(decision.planned.get("num_replicas") or 1)
    added = replicas - int(decision.before.get("num_replicas") or 1)
    messages, size = (int(decision.live.state.get(name) or 0) for name in ("messages", "bytes"))
    for change in decision.fields:
        if change.path == "num_replicas" and (change.after or 1) < (change.before or 1):
            text = f"from {change.before} replicas to {change.after}"
            yield Hazard("REDUCES_REPLICAS", text, blocking=False)
    if is_moved(decision.before, decision.planned):
        servers = "another server" if replicas == 1 else f"up to {replicas} other servers"
        text, copies = f"the stream moves to {servers}", replicas
    elif added > 0 and messages:
        text, copies = f"the messages are copied to {count_text(added, 'more server')}", added
    else:
        return
    yield Hazard("MOVES_DATA", text, blocking=False, messages=messages, bytes=size * copies)


# --- messages that an update deletes ---


def _left_origin(inputs: PlanInputs, decision: ResourceDecision) -> str:
    """Return ` of ADDRESS` for the interest stream that a stream does not read any more."""
    answers = inputs.measured.answers.get(decision.address, ())
    others = (one.stream for one, answer in answers if answer and one.stream != decision.address)
    origin = next(others, None) if decision.address.kind != "consumer" else None
    return f" of {origin}" if origin is not None else ""


def _deletes_messages(answers: Sequence[Measurement], nouns: Nouns, origin: str) -> Hazards:
    """Combine the measurements of one resource into one hazard. Different streams add up."""
    if not answers:
        return
    at_least, at_most = sum(a.at_least for a in answers), sum(a.at_most for a in answers)
    exact = all(a.is_exact for a in answers)
    known = (cause for answer in answers for cause in answer.causes)
    causes = dict.fromkeys("retention" if cause == "finished" else cause for cause in known)
    yield Hazard(
        "DELETES_MESSAGES",
        _describe_deletions(answers, nouns, origin),
        messages=at_most,
        bytes=sum(a.most_bytes for a in answers),
        exact=exact,
        at_least=None if exact else at_least,
        at_most=None if exact else at_most,
        as_of=answers[0].as_of,
        causes=list(causes),
    )


def _describe_deletions(answers: Iterable[Measurement], nouns: Nouns, origin: str) -> str:
    """Describe each way in which messages are deleted, with the numbers of that."""
    each = "key" if nouns.object == "bucket" else "subject"
    later = f"when the next {nouns.message} of each {each} arrives or it restarts"
    ways: dict[tuple[str, str], list[Measurement]] = {}
    for answer in answers:
        match answer.causes:
            case ("origin",):
                way = "copying removes messages from its origin: ", ", as they are copied"
            case ("interest",):
                way = "the server deletes ", f"{origin} that no consumer wants after this plan"
            case ("finished",):
                way = "", " are acknowledged and do not stay in a work queue"
            case _:
                way = "the server deletes ", f" {later if answer.deletes_later else 'at once'}"
        ways.setdefault(way, []).append(answer)
    found = ((way, _count_deleted(some, nouns)) for way, some in ways.items())
    return "; ".join(f"{before}{many}{after}" for (before, after), many in found)


def _count_deleted(answers: Sequence[Measurement], nouns: Nouns) -> str:
    """Return `10 of 20 messages (200 bytes)`, with a period where it is known."""
    many = bounds_text(sum(a.at_least for a in answers), sum(a.at_most for a in answers))
    total = count_text(sum(a.total for a in answers), nouns.message)
    bound = "" if all(a.is_exact for a in answers) else "up to "
    size = sum(a.most_bytes for a in answers)
    return f"{many} of {total} ({bound}{size:,} bytes{_describe_period(answers)})"


def _describe_period(answers: Sequence[Measurement]) -> str:
    """Describe when the messages were stored, to the second; empty if the newest is not known."""
    first = answers[0]
    if len(answers) > 1 or not first.until or not first.since:
        return ""
    since, until = (text[:19] + "Z" for text in (first.since, first.until))
    return f", stored {since}" if since == until else f", stored {since} to {until}"


def _loses_outstanding(answers: Iterable[Measurement]) -> Hazards:
    """Report delivered messages that the server acknowledges when it deletes a later one."""
    found = {name: many for answer in answers for name, many in answer.acknowledged}
    if found:
        most, names = sum(found.values()), ", ".join(sorted(found))
        text = (
            f"{names} may not redeliver up to {count_text(most, 'unacknowledged message')}: "
            "with ack_policy all, the server takes the deletion of a message for the "
            "acknowledgement of all before it"
        )
        yield counted("LOSES_CONSUMER_POSITION", text, most, causes=["ack_policy"])


# --- consumers ---


def _consumer_hazards(decision: ResourceDecision) -> Hazards:
    assert decision.live is not None
    state = decision.live.state
    pending = (state.get("num_pending") or 0) + (state.get("num_ack_pending") or 0)
    delivered = (state.get("delivered") or {}).get("consumer_seq", 0)
    if decision.reason == PLACEHOLDER_ORPHANED:
        return
    if decision.actions == ["delete"]:
        verb = "is" if pending == 1 else "are"
        text = "deletes the consumer" + (
            f"; {count_text(pending, 'message')} {verb} not processed yet" if pending else ""
        )
        yield Hazard("DELETES_CONSUMER", text, blocking=pending > 0, messages=pending, exact=True)
    elif decision.actions == ["delete", "create"] and (
        delivered or (pending and decision.planned.get("deliver_policy", "all") != "all")
    ):
        text = (
            f"the new consumer starts over, after {delivered:,} deliveries"
            if delivered
            else "the new consumer starts elsewhere"
        )
        yield Hazard("LOSES_CONSUMER_POSITION", text, messages=pending, exact=True)


def _lost_consumer_hazards(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Report what a consumer that is gone, with its position, delivers again or skips.

    It is created with its start in the files. A work queue has only what no consumer has finished,
    and what comes again to a queue is a hazard of the queue. Nothing is to be allowed: its position
    was lost outside jsplan.
    """
    parent, is_lost = decision.address.parent, decision.reason == "create_because_missing"
    if parent is None or not is_lost or decision.after is None or decision.reset is not None:
        return
    config = planned_config(inputs, decisions, parent)
    stream, planned = inputs.live.get(parent), decisions.get(parent)
    if config is None or get_retention(config) == "workqueue":
        return
    is_emptied = stream is None or (planned is not None and planned.loses_content)
    has = int(stream.state.get("messages") or 0) if stream is not None and not is_emptied else 0
    comes = count_arrivals(inputs, decisions, parent)
    most = None if comes is None else has + comes
    if most == 0:
        return
    again = decision.after.get("deliver_policy", "all") in _POLICIES_FROM_A_START
    many = f"up to {count_text(most, 'message')}" if most is not None else "messages"
    lost = "the consumer is gone, and its position with it"
    text = f"{lost}: it may deliver {many} again" if again else f"{lost}: it may skip {many}"
    code = "DUPLICATES_MESSAGES" if again else "LOSES_CONSUMER_POSITION"
    yield counted(code, text, most, blocking=False)


def _refilled_consumer_hazards(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Report what a consumer delivers again because mirror or sources fill its new stream again.

    What comes again to a work queue is a hazard of the queue.
    """
    live, parent = decision.live, decision.address.parent
    if live is None or parent is None or decision.after is None:
        return
    config = planned_config(inputs, decisions, parent)
    had = int((live.state.get("delivered") or {}).get("consumer_seq") or 0)
    comes = count_arrivals(inputs, decisions, parent)
    most = had if comes is None else min(had, comes)
    if most and get_retention(config or {}) != "workqueue":
        many = count_text(most, "message")
        text = f"it starts over, and may deliver up to {many} again, as its stream is filled again"
        yield counted("DUPLICATES_MESSAGES", text, most)


#: Policies of consumers that begin before the newest messages.
_POLICIES_FROM_A_START: Final = ("all", "by_start_sequence", "by_start_time")
