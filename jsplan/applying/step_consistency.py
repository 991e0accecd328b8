"""Check that op, address, request and payload of each step name the same object.

`STEP_KINDS` has the API verb that an operation may send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsplan.address import STAGING_PREFIX, Address
from jsplan.documents.plan import Plan, Step
from jsplan.documents.step_kinds import StepKind
from jsplan.errors import JsplanError
from jsplan.planning.interest import is_placeholder
from jsplan.planning.pauses import PAUSE


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
