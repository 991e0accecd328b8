"""Check that op, address, request and payload of each step name the same object.

One table has the API verb that an op may send. Requests that an operation builds itself are not in
the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from jsplan.address import STAGING_PREFIX, Address
from jsplan.documents.plan import Plan, Step
from jsplan.documents.plan_types import DELETE_OPS, Op
from jsplan.errors import JsplanError
from jsplan.planning.interest import is_placeholder
from jsplan.planning.pauses import PAUSE

#: Payloads: a stream configuration, one inside a restore, a consumer configuration, a pause, the
#: server that is to lead, none.
PayloadKind = Literal["stream", "restore", "consumer", "pause", "nothing"]


class OpRule(Struct, frozen=True):
    """The request of an op: `verb` with this payload, or none; with `optional` either.

    `kind` is the kind of its address, `action` that of a consumer's request. `staging`: the step
    may touch a staging stream or a placeholder consumer of the resource. `params` are fields that
    it needs. `deletes`: it deletes the resource's object. `relocated`: it
    touches the origin of the relocated resource.
    """

    kind: Literal["stream", "consumer", "kv_entry", "object", "schedule", "any"]
    verb: str = ""
    payload: PayloadKind = "nothing"
    action: str = ""
    optional: bool = False
    staging: bool = False
    params: tuple[str, ...] = ()
    deletes: bool = False
    relocated: bool = False


_COPY_PARAMS: Final = (
    "state_address",
    "api_level",
    "from",
    "method",
    "into_new",
    "may_grow",
    "consumers",
    "may_shrink",
)
_RELOCATION_PARAMS: Final = (
    "state_address",
    "relocated",
    "target",
    "api_level",
    "origin_level",
)
OP_RULES: Final[Mapping[Op, OpRule]] = {
    "stream.create": OpRule("stream", "STREAM.CREATE", "stream"),
    "stream.update": OpRule("stream", "STREAM.UPDATE", "stream"),
    "stream.delete": OpRule("stream", "STREAM.DELETE", deletes=True),
    "stream.restore": OpRule("stream", "STREAM.RESTORE", "restore"),
    "stream.probe": OpRule(
        "stream",
        "STREAM.UPDATE",
        "stream",
        staging=True,
        params=("state_address", "api_level", "replacement", "initial_config"),
    ),
    "stream.quiesce": OpRule(
        "stream",
        "STREAM.UPDATE",
        "stream",
        optional=True,
        params=("state_address", "api_level", "replacement"),
    ),
    "stream.pause_consumers": OpRule("stream", params=("state_address", "api_level")),
    "stream.copy": OpRule("stream", "STREAM.RESTORE", "stream", staging=True, params=_COPY_PARAMS),
    "stream.compare": OpRule("stream", staging=True, params=_COPY_PARAMS),
    "stream.delete_old": OpRule(
        "stream", "STREAM.DELETE", params=("state_address", "api_level"), deletes=True
    ),
    "stream.resume_consumers": OpRule("stream", params=("state_address", "api_level", "consumers")),
    "stream.activate": OpRule(
        "stream", "STREAM.UPDATE", "stream", params=("state_address", "api_level")
    ),
    "stream.delete_staging": OpRule(
        "stream", "STREAM.DELETE", staging=True, params=("state_address",)
    ),
    "origin.delete": OpRule("stream", "STREAM.DELETE", params=("state_address",), deletes=True),
    "origin.create": OpRule("stream", "STREAM.CREATE", "stream", params=("state_address",)),
    "sources.detach": OpRule(
        "stream", "STREAM.UPDATE", "stream", params=("state_address", "sources")
    ),
    "sources.attach": OpRule(
        "stream", "STREAM.UPDATE", "stream", params=("state_address", "sources")
    ),
    "consumer.create": OpRule("consumer", "CONSUMER.CREATE", "consumer", "create"),
    "consumer.update": OpRule("consumer", "CONSUMER.CREATE", "consumer", "update"),
    "consumer.pause": OpRule("consumer", "CONSUMER.PAUSE", "pause"),
    "consumer.delete": OpRule("consumer", "CONSUMER.DELETE", deletes=True),
    "consumer.replace": OpRule(
        "consumer",
        "CONSUMER.CREATE",
        "consumer",
        "create",
        params=("state_address", "api_level", PAUSE),
    ),
    "consumer.cleanup": OpRule("consumer", params=("state_address",)),
    "consumer.reset": OpRule("consumer", params=("state_address", "api_level", "reset")),
    "consumer.create_placeholder": OpRule("consumer", "CONSUMER.CREATE", "consumer", staging=True),
    "consumer.delete_placeholder": OpRule("consumer", "CONSUMER.DELETE", staging=True),
    "consumer.verify": OpRule("consumer"),
    "replication.verify": OpRule("stream", params=("flows", "managed")),
    "relocate.mirror": OpRule(
        "stream", "STREAM.CREATE", "stream", params=(*_RELOCATION_PARAMS, "relocation")
    ),
    "relocate.compare": OpRule("stream", params=_RELOCATION_PARAMS),
    "relocate.quiesce": OpRule(
        "stream",
        "STREAM.UPDATE",
        "stream",
        optional=True,
        params=_RELOCATION_PARAMS,
        relocated=True,
    ),
    "relocate.promote": OpRule("stream", "STREAM.UPDATE", "stream", params=_RELOCATION_PARAMS),
    "relocate.copy": OpRule("stream", "STREAM.RESTORE", "restore", params=_RELOCATION_PARAMS),
    "relocate.activate": OpRule("stream", "STREAM.UPDATE", "stream", params=_RELOCATION_PARAMS),
    "relocate.consumer": OpRule(
        "consumer",
        "CONSUMER.CREATE",
        "consumer",
        "create",
        params=(*_RELOCATION_PARAMS, "continues"),
    ),
    "relocate.delete": OpRule("stream", "STREAM.DELETE", params=_RELOCATION_PARAMS, deletes=True),
    "relocate.clear": OpRule("stream", params=(*_RELOCATION_PARAMS, "origin_lost")),
    "relocate.restore": OpRule("stream", "STREAM.UPDATE", "stream", params=_RELOCATION_PARAMS),
    "relocate.release": OpRule("stream", "STREAM.UPDATE", "stream", params=("state_address",)),
    "kv_entry.create": OpRule("kv_entry", params=("before",)),
    "kv_entry.update": OpRule("kv_entry", params=("before",)),
    "kv_entry.delete": OpRule("kv_entry", params=("before",), deletes=True),
    "object.create": OpRule("object", params=("before",)),
    "object.update": OpRule("object", params=("before",)),
    "object.delete": OpRule("object", params=("before",), deletes=True),
    "schedule.create": OpRule("schedule", params=("before",)),
    "schedule.update": OpRule("schedule", params=("before",)),
    "schedule.delete": OpRule("schedule", params=("before",), deletes=True),
    "object.clean": OpRule("object", params=("leftovers",)),
    "state.import": OpRule("any"),
    "state.forget": OpRule("any"),
    "state.update": OpRule("any"),
}


def require_consistent_steps(plan: Plan) -> None:
    """Raise JsplanError for a plan with an inconsistent step, before anything is sent."""
    deleted = {
        change.address for change in plan.resource_changes if "delete" in change.change.actions
    }
    known: set[str] = set()
    for step in plan.steps:
        for flaw in (*_check_order(step, known), *_check_step(step, deleted)):
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


def _check_step(step: Step, deleted: Collection[str]) -> Iterator[str]:
    rule, address, touched = OP_RULES[step.op], Address.parse(step.address), step.target_address
    if rule.kind not in ("any", "stream" if address.parent is None else address.kind):
        yield "the address is of another kind"
        return
    params = step.params or {}
    is_origin = rule.relocated and params.get("relocated") == str(touched)
    if touched != address and not (is_origin or (rule.staging and _is_staging(address, touched))):
        yield f"it touches {touched}"
        return
    if rule.deletes and step.address not in deleted:
        yield "no resource change of the plan deletes it"
    if missing := [name for name in rule.params if name not in (step.params or {})]:
        yield f"params lack {', '.join(missing)}"
        return
    if (
        step.op not in (*DELETE_OPS, "state.forget")
        and step.record is not None
        and "declared" not in step.record
    ):
        yield "record has no declared fields for state"
    yield from _check_request(step, rule, touched)
    yield from _check_params(step, address)
    yield from _check_relocation(step, address, deleted)


def _is_staging(address: Address, touched: Address) -> bool:
    """Return True for a staging stream or placeholder consumer of the address.

    It has a reserved name and is in the same domain.
    """
    if address.kind == "consumer":
        return is_placeholder(touched) and touched.parent == address.parent
    return (touched.domain, touched.kind) == (
        address.domain,
        "stream",
    ) and touched.stream.startswith(STAGING_PREFIX)


def _check_request(step: Step, rule: OpRule, touched: Address) -> Iterator[str]:
    if not rule.verb or step.request is None:
        if step.request is not None or (rule.verb and not rule.optional):
            yield "it has a request" if step.request is not None else "it has no request"
        return
    name = f"{touched.stream}.{touched.consumer}" if touched.kind == "consumer" else touched.stream
    if step.request["api"] != f"{rule.verb}.{name}":
        yield f"its request is not {rule.verb}.{name}"
    elif not _matches_payload(step.request["payload"], rule, touched):
        yield "its payload is of another object, or is none for this request"


def _matches_payload(payload: dict[str, Any] | None, rule: OpRule, touched: Address) -> bool:
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
            config = (payload or {}).get("config")
            named = (payload or {}).get("stream_name") == touched.stream and (payload or {}).get(
                "action"
            ) == rule.action
            return (
                named and isinstance(config, dict) and _config_names(config) == {touched.consumer}
            )


def _config_names(config: Mapping[str, Any]) -> set[Any]:
    return {config[name] for name in ("name", "durable_name") if config.get(name)}


def _check_relocation(step: Step, address: Address, deleted: Collection[str]) -> Iterator[str]:
    """Return flaws in the sides of a relocation: the origin is deleted, and one is the step's."""
    params = step.params or {}
    if "relocated" not in params or step.op == "relocate.restore":
        return
    sides = [params["relocated"], params["target"]]
    if str(address.parent or address) not in sides or params["state_address"] != sides[1]:
        yield f"it relocates {sides[0]} to {sides[1]}"
    if "continues" in params and str(Address.parse(params["continues"]).parent) != sides[0]:
        yield f"{params['continues']} is no consumer of {sides[0]}"
    only_copies = step.op in ("relocate.mirror", "relocate.compare")
    if sides[0] not in deleted and not (only_copies or "origin_lost" in params):
        yield f"it relocates {sides[0]}, which no resource change of the plan deletes"


def _check_params(step: Step, address: Address) -> Iterator[str]:
    """Return flaws in names from which operations build requests."""
    params = step.params or {}
    origin, replacement, consumers = (
        params.get(name) for name in ("from", "replacement", "consumers")
    )
    if (
        origin is not None
        and Address.parse(origin) != address
        and not _is_staging(address, Address.parse(origin))
    ):
        yield f"it copies from {origin}"
    if replacement is not None and not _is_staging(address, Address.parse(replacement["staging"])):
        yield f"its messages would be copied into {replacement['staging']}"
    if (
        "initial_config" in params
        and params["initial_config"].get("name") != step.target_address.stream
    ):
        yield f"it would create stream {params['initial_config'].get('name')}"
    if step.op == "stream.resume_consumers" and not isinstance(consumers, dict):
        yield "params do not say how consumers are restored"
    for name, restored in consumers.items() if isinstance(consumers, dict) else ():
        if restored is not None and (
            _config_names(restored["config"]) != {name}
            or Address.parse(restored["address"]).parent != address
        ):
            yield f"consumer {name} would be restored under another name"
