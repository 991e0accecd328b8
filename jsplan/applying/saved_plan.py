"""A saved plan: its checks against workspace and state, and what state keeps of it.

State has the deferred steps by the plan's id, so neither the plan's serial nor the file's age
matters. What makes a step safe is its fingerprint, which is checked before every write. Op,
address, request and payload of each step must name the same object; `STEP_KINDS` has the API verb
that an operation may send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from jsplan.address import STAGING_PREFIX, Address
from jsplan.applying.contents import find_content
from jsplan.config.model import ContentFile, Domain, Workspace
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan, Step
from jsplan.documents.step_kinds import StepKind
from jsplan.errors import JsplanError, RefusedError, StalePlanError, UsageError
from jsplan.planning.guards import is_guarded
from jsplan.planning.hazard_permissions import is_permitted
from jsplan.planning.interest import is_placeholder
from jsplan.planning.pauses import PAUSE
from jsplan.resources.kv_entry import VALUE
from jsplan.state import Backend, State
from jsplan.state.document import former_names
from jsplan.units import count_text


def require_same_workspace(
    plan: Plan, workspace: Workspace, state: State, name: str, *, resumed: bool
) -> None:
    """Raise if the plan is for another workspace or state. `resumed`: it was applied in part."""
    if (plan.workspace, plan.environment) != (workspace.name, workspace.environment):
        planned = f"{plan.workspace}, environment {plan.environment or 'none'}"
        raise UsageError(
            f"{name} was planned for workspace {planned}",
            hint="Run it in that workspace, with its -e.",
        )
    if not resumed and (plan.state["lineage"], plan.state["serial"]) != (
        state.lineage or None,
        state.serial,
    ):
        raise StalePlanError(
            f"{name} is stale: it was made from serial {plan.state['serial']} of the state,"
            f" which has serial {state.serial} now. It was applied before, or another apply ran. "
            "Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )


def require_unguarded(plan: Plan, workspace: Workspace, state: State) -> None:
    """Raise RefusedError if the plan deletes what files or state guard now."""
    for step in plan.steps:
        address = Address.parse(step.address)
        recorded = Address.parse(str((step.record or {}).get("previous_address") or step.address))
        entry = state.resources.get(recorded)
        if step.kind.deletes and is_guarded(
            workspace, address, guarded=entry is not None and entry.prevent_destroy
        ):
            raise RefusedError(
                f"refused, nothing was changed: {address} is guarded by prevent_destroy,"
                " and the plan deletes it",
                hint="To lift the guard write prevent_destroy: false in its lifecycle,"
                " or in a removed entry. Then plan again.",
            )


def contents_of(workspace: Workspace) -> Mapping[Address, bytes | ContentFile]:
    """Return the values of entries and the files of objects that the files have."""
    found = {
        address: one.content if one.content is not None else one.file
        for address, one in workspace.resources.items()
    }
    return {address: one for address, one in found.items() if one is not None}


def require_planned_contents(plan: Plan, workspace: Workspace) -> None:
    """Raise StalePlanError if the files no longer have a value that the plan only names."""
    contents = contents_of(workspace)
    changed = [
        step.address
        for step in plan.steps
        if (
            step.op in ("kv_entry.create", "kv_entry.update", "schedule.create", "schedule.update")
            and find_content(step, contents) is None
        )
        or (step.op in ("object.create", "object.update") and not _has_object(step, workspace))
    ]
    if changed:
        more = f" and {len(changed) - 10:,} more" if len(changed) > 10 else ""
        raise StalePlanError(
            f"the files have other values now than were planned: {', '.join(changed[:10])}{more}. "
            "Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )


def _has_object(step: Step, workspace: Workspace) -> bool:
    """Check whether the file of an object has the planned content."""
    declared = workspace.resources.get(Address.parse(step.address))
    return declared is not None and declared.body[VALUE] == (step.expect or {}).get(VALUE)


def mark_allowed(plan: Plan, flags: tuple[str, ...]) -> None:
    """Mark the hazards of the plan that `--allow` permits too."""
    for change in plan.resource_changes:
        for hazard in change.hazards:
            hazard.allowed = hazard.allowed or is_permitted(flags, hazard.code, change.address)


# --- deferred steps (`apply PLANFILE --deferred`) -------------------------------------------------


def deferred_steps(
    plan: Plan, results: Iterable[StepResult], offline: Collection[str]
) -> list[str]:
    """Return the ids of steps that wait only for offline domains.

    A step that uses the result of another one is included only together with that one: otherwise
    nothing says what it should find.
    """
    ended = {result.id: result.status for result in results}
    deferred: set[str] = set()
    for step in plan.steps:
        waits = [other for other in step.depends_on if ended.get(other) != "done"]
        is_waiting = step.domain in offline or bool(waits)
        known = (
            "fingerprint" in step.precondition
            or step.precondition.get("after_step") in deferred
            or step.op == "state.forget"
        )
        skipped = ended.get(step.id) == "skipped"
        if skipped and is_waiting and known and deferred.issuperset(waits):
            deferred.add(step.id)
    return [step.id for step in plan.steps if step.id in deferred]


def resume_plan(plan: Plan, state: State, name: str) -> Plan:
    """Return the plan with only its deferred steps.

    Raises UsageError for a plan that was not applied yet, StalePlanError if nothing is deferred.
    """
    found = next((entry["steps"] for entry in state.deferred if entry["plan"] == plan.id), None)
    if found is None and plan.state["serial"] == state.serial:
        raise UsageError(
            f"{name} was not applied yet, so nothing of it is deferred",
            hint="Apply it without --deferred.",
        )
    if found is None or plan.state["lineage"] not in (None, state.lineage):
        raise StalePlanError(
            f"nothing of {name} is deferred (any more). Nothing was changed",
            hint="Plan again: jsplan plan -o FILE",
        )
    deferred = frozenset(found)
    return replace(
        plan,
        steps=[_without_done(step, deferred) for step in plan.steps if step.id in deferred],
        deferred=[],
    )


def _without_done(step: Step, deferred: frozenset[str]) -> Step:
    """Return the step without dependencies that are done."""
    depends_on, optional = (
        [other for other in others if other in deferred]
        for others in (step.depends_on, step.optional_if_offline)
    )
    return replace(step, depends_on=depends_on, optional_if_offline=optional)


def unplanned_note(plan: Plan) -> str:
    """Return a note about resources that the plan has no steps for, since they were offline."""
    if not plan.deferred:
        return ""
    domains = {item.address.partition("/")[0] for item in plan.deferred}
    resources = count_text(len(plan.deferred), "resource")
    return (
        f"{resources} in {count_text(len(domains), 'domain')}"
        " were offline already when this was planned, so it has no steps for them:"
        " they need a new plan"
    )


def require_consistent_steps(plan: Plan) -> None:
    """Raise JsplanError for a plan with an inconsistent step, before anything is sent."""
    changes = {
        change.address: "delete" in change.change.actions for change in plan.resource_changes
    }
    known: set[str] = set()
    for step in plan.steps:
        for flaw in (*_check_order(step, known), *_check_step(step, changes)):
            raise JsplanError(
                f"step {step.id} of the plan file ({step.op} of {step.address}) is invalid: "
                f"{flaw}. Nothing was changed",
                hint="The plan was edited, or written by another release. "
                "Plan again: jsplan plan -o FILE",
            )
        known.add(step.id)


def _check_order(step: Step, known: set[str]) -> Iterator[str]:
    """Return flaws in the order: a step waits for earlier ones only."""
    if step.id in known:
        yield "another step has the same id"
    if not known.issuperset(step.depends_on):
        yield "it waits for a step that is not before it"


def _check_step(step: Step, changes: Mapping[str, bool]) -> Iterator[str]:
    rule, address, touched = step.kind, Address.parse(step.address), step.target_address
    if rule.on not in ("any", "stream" if address.is_stream else address.kind):
        yield "the address is of another kind"
        return
    params = step.params or {}
    is_origin = rule.relocated and params.get("from") == str(touched)
    if touched != address and not (is_origin or (rule.staging and _is_staging(address, touched))):
        yield f"it touches {touched}"
        return
    if rule.deletes and not changes.get(step.address):
        yield "no resource change of the plan deletes it"
    if missing := [name for name in rule.params if name not in params]:
        yield f"params lack {', '.join(missing)}"
        return
    removes = rule.does == "delete" or step.op == "state.forget"
    if step.record is not None and not removes and "declared" not in step.record:
        yield "record has no declared fields for state"
    yield from _check_request(step, rule, touched)
    yield from _check_params(step, address)
    yield from _check_transfer(step, address, changes)


def _is_staging(address: Address, touched: Address) -> bool:
    """Return True for a staging stream or placeholder consumer of the address.

    It has a reserved name and is in the same domain.
    """
    if address.kind == "consumer":
        return is_placeholder(touched) and touched.parent == address.parent
    is_ours = touched.kind == "stream" and touched.stream.startswith(STAGING_PREFIX)
    return is_ours and touched.domain == address.domain


def _check_request(step: Step, rule: StepKind, touched: Address) -> Iterator[str]:
    if not rule.verb or step.request is None:
        if step.request is not None or (rule.verb and not rule.optional):
            yield "it has a request" if step.request is not None else "it has no request"
        return
    name = f"{touched.stream}.{touched.consumer}" if touched.kind == "consumer" else touched.stream
    if step.request["api"] != f"{rule.verb}.{name}":
        yield f"its request is not {rule.verb}.{name}"
    elif not _matches_payload(step.request["payload"], rule, touched):
        yield "its payload is of another object, or is none for this request"


def _matches_payload(payload: dict[str, Any] | None, rule: StepKind, touched: Address) -> bool:
    """Check that the payload is of the request's kind and names the same object."""
    match rule.payload:
        case "nothing":
            return payload is None
        case "pause":
            return payload is None or payload.keys() == {PAUSE}
        case "stream":
            return payload is not None and payload.get("name") == touched.stream
        case "restore":
            config = (payload or {}).get("config")
            return isinstance(config, dict) and config.get("name") == touched.stream
        case "consumer":
            found = payload or {}
            config = found.get("config")
            if (found.get("stream_name"), found.get("action")) != (touched.stream, rule.action):
                return False
            return isinstance(config, dict) and _config_names(config) == {touched.consumer}


def _config_names(config: Mapping[str, Any]) -> set[Any]:
    return {config[name] for name in ("name", "durable_name") if config.get(name)}


def _check_transfer(step: Step, address: Address, changes: Mapping[str, bool]) -> Iterator[str]:
    """Return flaws in the sides of a transfer: its stream, and one that the plan changes.

    That is the origin, which it deletes, or the target. A staging stream is in no change.
    """
    params, stream = step.params or {}, address.parent or address
    if "from" not in params:
        return
    sides = [Address.parse(params[side]) for side in ("from", "to")]
    others = [s for s in sides if s != stream and not _is_staging(stream, s)]
    only_copies = step.op in ("transfer.mirror", "transfer.compare") and others[:1] == sides[:1]
    may_stay = step.op == "transfer.undo" or "origin_lost" in params or only_copies
    if len(others) > 1 or (others and str(others[0]) not in changes and not may_stay):
        yield f"it copies {sides[0]} to {sides[1]}"
    begun = params.get("transfer") or {}
    if begun and begun["origin"] != params["from"]:
        yield f"it would record {begun['origin']}"
    if "staging" in begun and not _is_staging(address, Address.parse(begun["staging"])):
        yield f"its messages would be copied into {begun['staging']}"
    if "continues" in params and Address.parse(params["continues"]).parent != sides[0]:
        yield f"{params['continues']} is no consumer of {sides[0]}"
    if others[:1] == sides[:1] and not (may_stay or changes.get(str(sides[0]))):
        yield f"it moves {sides[0]}, which no resource change of the plan deletes"


def _check_params(step: Step, address: Address) -> Iterator[str]:
    """Return flaws in names from which operations build requests."""
    params = step.params or {}
    created = params.get("initial_config")
    if created is not None and created.get("name") != step.target_address.stream:
        yield f"it would create stream {created.get('name')}"
    for name, restored in (params.get("consumers") or {}).items():
        if restored is not None and (
            _config_names(restored["config"]) != {name}
            or Address.parse(restored["address"]).parent != address
        ):
            yield f"consumer {name} would be restored under another name"


def record_owner(backend: Backend, state: State, plan: Plan) -> None:
    """Store the id that the steps write into metadata, before the first step."""
    owner = str(plan.options.get("owner") or "").rpartition("/")[2]
    if owner and state.ownership.get("id") != owner:
        backend.append(state, {"ownership": {"id": owner}})


def record_servers(
    backend: Backend, state: State, plan: Plan, domains: Mapping[str, Domain]
) -> None:
    """Store which server answered, and when (`seen`), for the limits of offline domains.

    Store the last sequences of its managed streams too, which show what a server loses.
    """
    for key, facts in plan.domains.items():
        domain = domains.get(key)
        if domain is None:  # no step touches it, and the files no longer declare it
            continue
        known = state.domains.get(key, {})
        server = (facts["server"] or known) | {"js_domain": domain.js_domain}
        former = [n for n in former_names(known) if n != domain.js_domain]
        server |= {"former": former} if former else {}
        server["seen"] = max(plan.timestamp if facts["reachable"] else "", known.get("seen", ""))
        if server != known and server["seen"]:
            backend.append(state, {"domain": {"key": key, "server": server}})
        if facts.get("last_seqs"):
            backend.append(state, {"last_seqs": facts["last_seqs"]})


def record_deferred(
    backend: Backend,
    state: State,
    plan: Plan,
    results: list[StepResult],
    offline: Collection[str],
) -> None:
    """Store the steps that `apply --deferred` will run, also if there are none any more."""
    deferred = deferred_steps(plan, results, offline)
    if deferred or any(entry["plan"] == plan.id for entry in state.deferred):
        backend.append(state, {"deferred": {"plan": plan.id, "steps": deferred}})
