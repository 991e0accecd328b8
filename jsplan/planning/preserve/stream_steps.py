"""The steps of a replacement that keeps a stream's messages.

At every moment one stream has all messages: the old one, the staging stream or the new one. It has
been compared with the one before. Before the old stream is changed, a probe without messages tests
whether the server accepts the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.documents.plan_types import Op
from jsplan.planning.decide import table_of
from jsplan.planning.drafts import Draft, Part
from jsplan.planning.merge import build_create
from jsplan.planning.model import ResourceDecision
from jsplan.planning.preserve.capacity import (
    additional_bytes,
    sized_staging_config,
    with_required_max_bytes,
)
from jsplan.planning.preserve.methods import choose_preserve_method
from jsplan.planning.preserve.staging import (
    initial_config,
    probe_address,
    probe_config,
    quiesced_config,
    replacement_id,
    staging_address,
)

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.resources.fields import Config

#: The steps in order, by the last part of their keys. The last one has the key of an update: steps
#: that wait for the stream wait for it.
STEP_ORDER: Final[tuple[Part, ...]] = (
    "probe",
    "stop",
    "positions",
    "copy",
    "compare",
    "retire",
    "refill",
    "recompare",
    "resume",
    "update",
    "clear",
)
STEP_OPS: Final[Mapping[Part, Op]] = {
    "probe": "stream.probe", "stop": "stream.quiesce", "positions": "stream.pause_consumers",
    "copy": "stream.copy", "compare": "stream.compare", "retire": "stream.delete_old",
    "refill": "stream.copy", "recompare": "stream.compare", "resume": "stream.resume_consumers",
    "update": "stream.activate", "clear": "stream.delete_staging",
}  # fmt: skip
#: The steps of a replacement that the files no longer want, while the old stream still exists.
ROLLBACK_ORDER: Final[tuple[Part, ...]] = ("update", "resume", "clear")


def draft_replacement(
    inputs: PlanInputs, decision: ResourceDecision, final: Draft, consumers: Mapping[str, Any]
) -> Iterable[Draft]:
    """Draft the steps of one stream; `final` is the create, with the record for state.

    `consumers` has by name how declared consumers come back: `{address, config, record}`, or None.
    """
    address, old = decision.address, decision.live
    assert old is not None
    interrupted = inputs.interrupted.streams.get(address)
    kinds = (
        STEP_ORDER
        if interrupted is None or interrupted.next_step == "clear"
        else STEP_ORDER[STEP_ORDER.index(interrupted.next_step) :]
    )
    yield from _draft_chain(inputs, decision, final, kinds, consumers)


def draft_rollback(
    inputs: PlanInputs, decision: ResourceDecision, final: Draft, consumers: Mapping[str, Any]
) -> Iterable[Draft]:
    """Draft the steps that restore a quiesced old stream; `final` is the update to the files."""
    yield from _draft_chain(inputs, decision, final, ROLLBACK_ORDER, consumers)


def draft_staging_cleanup(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> Iterable[Draft]:
    """Draft the deletion of staging streams that an interrupted apply left after it was done."""
    for address, found in inputs.interrupted.streams.items():
        if (
            found.next_step != "clear"
            or address not in decisions
            or inputs.options.refresh_only
            or inputs.options.imports
        ):
            continue
        staging = Address.parse(found.record["staging"])
        request = {"api": f"STREAM.DELETE.{staging.stream}", "payload": None}
        params = {"state_address": found.record["address"]}
        yield Draft(
            (address, "cleared"),
            "stream.delete_staging",
            f"delete {staging.stream}",
            request,
            "",
            object_address=staging,
            params=params,
        )


def _draft_chain(
    inputs: PlanInputs,
    decision: ResourceDecision,
    final: Draft,
    kinds: tuple[Part, ...],
    consumers: Mapping[str, Any],
) -> Iterable[Draft]:
    """Draft consecutive steps. The first one checks that the stream is as planning found it."""
    interrupted, before = inputs.interrupted.streams.get(decision.address), None
    if interrupted is not None and interrupted.next_step == "clear":
        interrupted = None  # that one is finished; its staging stream is deleted before
    first_check = next(kind for kind in kinds if kind != "probe")
    for kind in kinds:
        draft = _draft_step(inputs, decision, final, kind)
        if kind == "resume":
            draft.params = (draft.params or {}) | {"consumers": dict(consumers)}
        draft.depends_on |= {before.key} if before is not None else set()
        if kind == first_check and interrupted is not None:
            draft.precondition = interrupted.fingerprint_of(
                draft.object_address or decision.address
            )
        before = draft
        yield draft


def _draft_step(inputs: PlanInputs, decision: ResourceDecision, final: Draft, kind: Part) -> Draft:
    address, old = decision.address, decision.live
    assert old is not None
    staging = staging_address(address, old.created)
    touched = {
        "probe": probe_address(staging),
        "copy": staging,
        "compare": staging,
        "clear": staging,
    }.get(kind, address)
    draft = Draft(
        (address, kind),
        STEP_OPS[kind],
        _title(decision, kind, staging),
        _request(inputs, decision, final, kind),
        "",
        object_address=touched,
        params=_params(inputs, decision, kind, staging),
    )
    if kind == "stop":
        draft.precondition, draft.freed_subjects = (
            old.fingerprint,
            list(old.compact.get("subjects", [])),
        )
    if kind == "update":
        draft.expect, draft.record, draft.taken_subjects, draft.object_address = (
            final.expect,
            final.record,
            final.taken_subjects,
            None,
        )
    return draft


def _title(decision: ResourceDecision, kind: str, staging: Address) -> str:
    label, staging_name = (
        f"{decision.address.kind} {decision.address.name} in {decision.address.domain}",
        staging.stream,
    )
    return {
        "probe": f"try the new configuration of {label} on {probe_address(staging).stream}",
        "stop": f"quiesce {label}: no message is added or removed",
        "positions": f"pause the consumers of {label} and record their positions",
        "copy": f"copy {label} into {staging_name}",
        "compare": f"compare {staging_name} with {label}",
        "retire": f"delete the old {label}",
        "refill": f"recreate {label} with the messages of {staging_name}",
        "recompare": f"compare {label} with {staging_name}",
        "resume": f"resume the consumers of {label}",
        "update": f"activate {label}: set its subjects and limits",
        "clear": f"delete {staging_name}",
    }[kind]


def _request(
    inputs: PlanInputs, decision: ResourceDecision, final: Draft, kind: str
) -> Config | None:
    address, old = decision.address, decision.live
    assert old is not None
    match kind:
        case "probe":
            assert final.request is not None
            name = probe_address(staging_address(address, old.created)).stream
            most = additional_bytes(old, final.request["payload"], _account_info(inputs, address))
            config = probe_config(
                name,
                replacement_id(address, old.created),
                final.request["payload"],
                most_bytes=most,
            )
            return {"api": f"STREAM.UPDATE.{name}", "payload": config}
        case "stop":
            quiesced = quiesced_config(address, old, inputs.level(address))
            return (
                {"api": f"STREAM.UPDATE.{address.stream}", "payload": quiesced}
                if quiesced
                else None
            )
        case "copy":
            return {
                "api": f"STREAM.RESTORE.{staging_address(address, old.created).stream}",
                "payload": sized_staging_config(inputs, address, old),
            }
        case "refill":
            return {
                "api": f"STREAM.RESTORE.{address.stream}",
                "payload": _sized_initial_config(inputs, address, old),
            }
        case "update":
            assert final.request is not None
            return {"api": f"STREAM.UPDATE.{address.stream}", "payload": final.request["payload"]}
        case "retire":
            return {"api": f"STREAM.DELETE.{address.stream}", "payload": None}
        case "clear":
            return {
                "api": f"STREAM.DELETE.{staging_address(address, old.created).stream}",
                "payload": None,
            }
        case _:
            return None


def _account_info(inputs: PlanInputs, address: Address) -> Mapping[str, Any]:
    """Return the usage and the limits of the domain's account, as in `API.INFO`."""
    return inputs.live.domains[address.domain].info


def _sized_initial_config(inputs: PlanInputs, address: Address, old: LiveObject) -> Config:
    return with_required_max_bytes(
        planned_initial_config(inputs, address, old),
        old,
        _account_info(inputs, address).get("limits") or {},
    )


def planned_initial_config(inputs: PlanInputs, address: Address, old: LiveObject) -> Config:
    """Return the initial configuration of the new stream, for the current files."""
    level = inputs.level(address)
    creation = build_create(table_of(address), inputs.creation_body(address), level)
    return initial_config(
        address, old, creation, can_mirror=choose_preserve_method(level) == "snapshot"
    )


def _params(
    inputs: PlanInputs, decision: ResourceDecision, kind: str, staging: Address
) -> dict[str, Any]:
    """Return the parameters of a step; `state_address` is the address in state."""
    address, old = decision.address, decision.live
    assert old is not None
    out: dict[str, Any] = {
        "state_address": str(inputs.moved_from.get(address, address)),
        "api_level": inputs.level(address),
    }
    method = choose_preserve_method(inputs.level(address))
    if kind in ("probe", "stop"):
        ident = replacement_id(address, old.created)
        out["replacement"] = {
            "id": ident,
            "staging": str(staging),
            "method": method,
            "old": {"config": old.raw, "created": old.created},
        }
    if kind == "probe":
        config = planned_initial_config(inputs, address, old)
        required = bool(
            (_account_info(inputs, address).get("limits") or {}).get("max_bytes_required")
        )
        out["initial_config"] = probe_config(
            probe_address(staging).stream, ident, config, most_bytes=int(required)
        )
    if kind in ("copy", "compare", "refill", "recompare"):
        new = kind in ("refill", "recompare")
        out |= {"from": str(staging if new else address), "method": method, "into_new": new}
        out["may_grow"] = (
            new and method == "snapshot" and bool((decision.after or {}).get("mirror"))
        )
        out["consumers"] = method == "snapshot" and not (new and decision.recreates_consumers)
        out["may_shrink"] = bool(
            not new and (old.raw.get("allow_msg_ttl") or old.raw.get("retention") == "workqueue")
        )
    return out
