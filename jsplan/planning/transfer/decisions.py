"""Decisions about relocated streams, and what prevents a relocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, Severity
from jsplan.documents.step_kinds import Action
from jsplan.facts.live import get_retention
from jsplan.planning.field_levels import needs_newer_server, old_server
from jsplan.planning.model import Findings, Overrides, is_state_only
from jsplan.planning.pauses import PAUSE, is_expired, is_held
from jsplan.planning.replication.impact import reads_origin
from jsplan.planning.transfer.consumer_position import UNKNOWN_FIELDS
from jsplan.planning.transfer.consumers import has_unknown_start, origin_consumer
from jsplan.planning.transfer.estimate import compare_seconds, copy_seconds, duration_text
from jsplan.planning.transfer.hazards import note_new_window
from jsplan.planning.transfer.obstacles import (
    Obstacle,
    choose_method,
    find_moved_sources,
    find_old_source,
)
from jsplan.planning.transfer.progress import INSPECT_HINT, RELOCATION_HINT, Transfer
from jsplan.units import count_text, format_bytes

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision

#: The reasons of both sides, and of a consumer that comes along.
TARGET_RELOCATED: Final = "create_by_relocation"
ORIGIN_RELOCATED: Final = "delete_because_relocated"
RELOCATION_ROLLED_BACK: Final = "relocation_rolled_back"
RELOCATION_WAITS: Final = "relocation_waits"
RELOCATION_REFUSED: Final = "relocation_refused"
#: The reason of a consumer whose position was lost with the origin.
POSITION_LOST: Final = "create_without_position"
_BY_HAND: Final = "Or copy it: declare the target with a source, and delete the origin later."


def decide_relocations(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Return the decisions about both sides of each relocation, and about their consumers."""
    found: dict[Address, ResourceDecision] = {}
    if is_state_only(inputs):
        return found
    for relocation in inputs.relocations.values():
        if not {relocation.origin, relocation.target} & decisions.keys():
            continue
        if relocation.must_release and not inputs.options.destroy:
            found |= _decide_release(inputs, relocation, decisions)
            continue
        if inputs.options.destroy:
            text = f"{relocation.summary}, and the plan destroys all resources"
            error = _finding(inputs, relocation, "error", text, RELOCATION_HINT)
            found |= _refuse(relocation, decisions, error)
        elif relocation.range is None and not relocation.is_activated:
            found |= _decide_rollback(inputs, relocation, decisions)
        else:
            found |= _decide_relocation(inputs, relocation, decisions)
    return found


def _decide_relocation(inputs: PlanInputs, relocation: Transfer, decisions: Decisions) -> Overrides:
    found: dict[Address, ResourceDecision] = {}
    target, origin = decisions.get(relocation.target), decisions.get(relocation.origin)
    old, place = old_server(inputs, relocation.target, relocation.origin), relocation.range
    if old is not None and not relocation.record:
        error = needs_newer_server(relocation.target, "relocating it", old, _BY_HAND, place)
        return _refuse(relocation, decisions, error)
    problem = None
    if not relocation.is_activated:
        relocation, problem = choose_method(inputs, relocation, target)
    problem = _find_problem(inputs, relocation, decisions, problem)
    if problem is not None:
        return _refuse(relocation, decisions, _finding(inputs, relocation, "error", *problem))
    notes = list(_progress_notes(inputs, relocation))
    if target is not None and not relocation.is_activated:
        moved = find_moved_sources(inputs, relocation, target.after or {})
        found[target.address] = replace(
            target,
            reason=TARGET_RELOCATED,
            relocation=relocation,
            relocated_sources=moved,
            unknown=["sources"] if moved else [],
            diagnostics=notes,
        )
        notes = []
    if origin is not None and origin.live is not None and not relocation.is_origin_lost:
        actions: list[Action] = ["delete"] if origin.actions == ["delete"] else ["delete", "create"]
        origin = replace(origin, actions=actions, reason=ORIGIN_RELOCATED, diagnostics=notes)
        found[origin.address] = replace(origin, relocation=relocation)
    for address, decision in decisions.items():
        if address.parent == relocation.target and decision.actions == ["create"]:
            found[address] = _decide_consumer(inputs, relocation, decision)
    return found


def _find_problem(
    inputs: PlanInputs, relocation: Transfer, decisions: Decisions, found: Obstacle | None
) -> Obstacle | None:
    """Return why a relocation is not planned, and what to do: `found`, or what is found now."""
    origin = decisions.get(relocation.origin)
    stays = origin is not None and origin.live is not None and origin.actions != ["delete"]
    if origin is not None and stays and not relocation.is_origin_lost:
        mirror = origin.planned.get("mirror")  # both exchange their roles
        exchanges = mirror and reads_origin(inputs, origin.address, mirror, relocation.target)
        if not (relocation.promotes and exchanges):
            found = found or _kept_origin(inputs, relocation)
    found = found or _replaced_downstream(inputs, relocation, decisions)
    found = found or _unprepared(inputs, relocation)
    if relocation.conflict and not relocation.record:
        text = f"cannot be relocated from {relocation.origin}: {relocation.conflict}"
        return text, "Give each of them a target of its own."
    return _conflict(relocation) if relocation.conflict else found


def _kept_origin(inputs: PlanInputs, relocation: Transfer) -> tuple[str, str]:
    """Return why an origin that stays is a problem, and what to do."""
    if inputs.declared(relocation.origin) is not None:
        entry = f"relocate: [{{from: {relocation.target}, to: {relocation.origin}}}]"
        return (
            f"{relocation.summary}, and the files declare {relocation.origin} again",
            f"Declare {relocation.target} and apply, which finishes it. To go back then: {entry}.",
        )
    text = (
        f"cannot be relocated from {relocation.origin}: a `removed` entry leaves it on the server"
    )
    return text, "Remove one of the two entries."


def _conflict(relocation: Transfer) -> tuple[str, str]:
    """Return why a relocation that has begun cannot be resumed, and how to give it up."""
    text = f"{relocation.summary}. It cannot be resumed: {relocation.conflict}"
    return text, f"{INSPECT_HINT} {relocation.target}"


def _unprepared(inputs: PlanInputs, relocation: Transfer) -> tuple[str, str] | None:
    """Describe that the cut-over alone is asked for, and there is no copy yet."""
    copies = relocation.method != "snapshot" and relocation.next_step == "mirror"
    if inputs.options.stage != "cutover" or relocation.is_prepared or not copies:
        return None
    text = f"is not prepared, so its cut-over cannot begin (from {relocation.origin})"
    return text, "Prepare it first: jsplan apply --stage prepare. Or do both: jsplan apply."


def _replaced_downstream(
    inputs: PlanInputs, relocation: Transfer, decisions: Decisions
) -> tuple[str, str] | None:
    """Describe a stream that would copy the target from its start, since it is replaced too."""
    for edge in inputs.topology.edges_from(relocation.target):
        decision = decisions.get(edge.downstream)
        live = decision.live if decision is not None and decision.preserves else None
        if live and find_old_source(inputs, relocation, live, edge.config) is not None:
            text = (
                f"cannot be relocated from {relocation.origin}: {edge.downstream} sources it, and "
                "is replaced in the same plan"
            )
            return text, f"Replace {edge.downstream} in an earlier or a later plan."
    return None


def _decide_consumer(
    inputs: PlanInputs, relocation: Transfer, decision: ResourceDecision
) -> ResourceDecision:
    """Let a consumer of the target begin where the one of the origin is that it continues."""
    old = origin_consumer(inputs.workspace, relocation, decision.address)
    if old is None or decision.after is None:
        return decision
    is_there = inputs.live.get(old) is not None and not relocation.is_origin_lost
    if not is_there and old.consumer not in relocation.record.get("consumers", {}):
        lost = relocation.is_activated and old in inputs.entries
        return replace(decision, reason=POSITION_LOST) if lost else decision
    unknown = has_unknown_start(inputs, decision.address, decision.after)
    return replace(
        decision,
        reason=TARGET_RELOCATED,
        relocation=relocation,
        after=decision.after | _outside_pause(inputs, relocation, old, decision.address),
        unknown=[*UNKNOWN_FIELDS] if unknown else [],
    )


def _outside_pause(
    inputs: PlanInputs, relocation: Transfer, old: Address, new: Address
) -> dict[str, Any]:
    """Return the pause that another client set and no file ever named: it comes along."""
    entry, live = inputs.entries.get(old), inputs.live.get(old)
    is_named = PAUSE in inputs.body(new) or (entry is not None and PAUSE in entry.declared)
    recorded = relocation.record.get("consumers", {}).get(old.consumer)
    config = recorded["config"] if recorded else live.raw if live is not None else {}
    until = config.get(PAUSE)
    if is_named or is_held(config) or is_expired(until, inputs.now):
        return {}
    return {PAUSE: until}


def _decide_rollback(inputs: PlanInputs, relocation: Transfer, decisions: Decisions) -> Overrides:
    """Decide an interrupted relocation that the files no longer ask for."""
    side, target, origin = relocation.origin, relocation.target, decisions.get(relocation.origin)
    is_as_before = inputs.declared(side) is not None and inputs.declared(target) is None
    stays = origin is not None and origin.live and origin.actions in (["no-op"], ["update"])
    if origin is not None and stays and is_as_before and not relocation.conflict:
        notes = [*origin.diagnostics, _interrupted(inputs, relocation)]
        back = replace(origin, actions=["update"], adopts=False, diagnostics=notes)
        return {side: replace(back, reason=RELOCATION_ROLLED_BACK, relocation=relocation)}
    text = f"{relocation.summary}. The files no longer ask for it"
    detail = (
        f"To finish it, write: relocate: [{{from: {side}, to: {target}}}]. To go back, "
        f"declare {side} as it was and not {target}."
    )
    if relocation.conflict:
        text, detail = _conflict(relocation)
    error = _finding(inputs, relocation, "error", text, detail)
    return _refuse(relocation, decisions, error)


def _decide_release(inputs: PlanInputs, relocation: Transfer, decisions: Decisions) -> Overrides:
    """Decide that the origin gets its subjects back, as long as the target is offline."""
    origin = decisions.get(relocation.origin)
    if origin is None or origin.live is None:
        return {}
    return {
        origin.address: replace(
            origin,
            actions=["update"],
            reason=RELOCATION_WAITS,
            relocation=relocation,
            after=dict(origin.live.compact),
            fields=[],
            adopts=False,
            diagnostics=[_interrupted(inputs, relocation)],
        )
    }


def _refuse(relocation: Transfer, decisions: Decisions, error: Diagnostic) -> Overrides:
    """Decide that nothing happens to either side or its consumers, with one error for all."""
    sides = (relocation.target, relocation.origin)
    first = next(side for side in sides if side in decisions)
    found: dict[Address, ResourceDecision] = {}
    for address, decision in decisions.items():
        if address in sides or address.parent in sides:
            errors = [error] if address == first else []
            left = replace(decision, actions=["no-op"], fields=[], adopts=False, diagnostics=errors)
            found[address] = replace(left, reason=RELOCATION_REFUSED)
    return found


def _progress_notes(inputs: PlanInputs, relocation: Transfer) -> Findings:
    """Yield what is known of a relocation that has begun: interrupted, or prepared on purpose."""
    if relocation.is_prepared:
        text = (
            f"is prepared since {relocation.record['prepared']}: it follows {relocation.origin}, "
            f"{count_text(relocation.lag, 'message')} behind"
        )
        later = f"jsplan apply --exclude {relocation.target}."
        detail = (
            f"To leave the cut-over for later: {later}"
            if inputs.options.stage
            else "To finish the relocation: jsplan apply --stage cutover. To leave it for later: "
            f"{later}"
        )
        found = _finding(inputs, relocation, "info", text, detail)
        yield replace(found, code="JS497")
    elif relocation.record:
        yield _interrupted(inputs, relocation)
    elif relocation.origin_now is not None:
        yield _method_note(inputs, relocation, relocation.origin_now)
    if relocation.origin_now is not None and not relocation.is_quiesced:
        origin, target = relocation.origin_now, relocation.target
        yield from note_new_window(inputs, target, origin, "relocation")


def _method_note(inputs: PlanInputs, relocation: Transfer, origin: LiveObject) -> Diagnostic:
    """Say how the messages are copied, why so, and how long it will take."""
    size = format_bytes(int(origin.state.get("bytes") or 0))
    count = count_text(int(origin.state.get("messages") or 0), "message")
    copy = duration_text(copy_seconds(relocation.method, origin.state))
    level = inputs.level(relocation.origin)
    quiesced = relocation.method == "snapshot" and not origin.compact.get("sealed")
    compare = duration_text(compare_seconds(origin, level, quiesced=quiesced))
    if relocation.promotes:
        text = f"is a mirror of {relocation.origin} already, and becomes the stream"
        detail = (
            f"{count}, {size}. Compared before the cut-over, in about {compare}. What "
            f"{relocation.origin} has deleted, and the mirror not, stays."
        )
    elif origin.compact.get("sealed"):
        text = "is copied by a snapshot. No publisher waits: a sealed stream takes no messages"
        detail = f"{count}, {size}: about {copy}. Compared afterwards, in about {compare}."
    elif relocation.method == "snapshot":
        text = f"is copied by a snapshot while publishers wait, because {relocation.why}"
        when = "meanwhile too" if get_retention(origin.compact) == "workqueue" else "afterwards"
        detail = f"{count}, {size}: about {copy}. Compared {when}, in about {compare}."
    else:
        text = f"is copied by a mirror while publishers write: {count}, {size}, in about {copy}"
        detail = f"Compared before the cut-over, in about {compare}."
        if not inputs.options.stage:
            detail += " To do that today and the cut-over later: jsplan apply --stage prepare."
    return replace(_finding(inputs, relocation, "info", text, detail), code="JS498")


def _interrupted(inputs: PlanInputs, relocation: Transfer) -> Diagnostic:
    found = _finding(inputs, relocation, "warning", relocation.summary, relocation.detail)
    return replace(found, code="JS496")


def check_waiting_relocations(inputs: PlanInputs) -> Findings:
    """Yield a warning for each relocation of which no decision says how it is.

    Its publishers wait for a target that is offline, or its origin is gone.
    """
    for relocation in inputs.relocations.values():
        waits = relocation.is_target_offline and relocation.is_quiesced
        if (waits and not relocation.must_release) or relocation.is_origin_lost:
            yield _interrupted(inputs, relocation)


def _finding(
    inputs: PlanInputs, relocation: Transfer, severity: Severity, text: str, detail: str
) -> Diagnostic:
    place = relocation.range or inputs.place(relocation.target)
    code = "JS496" if relocation.range is None else "JS495"
    return Diagnostic(severity, code, text, detail, str(relocation.target), place)
