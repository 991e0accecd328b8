"""The steps of a relocation.

All but the last belong to the target, also the one that quiesces the origin: so no other rule
orders them. The first that touches a stream checks that it is as planning found it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.plan_types import Op
from jsplan.planning.decide import table_of
from jsplan.planning.drafts import Draft, Part
from jsplan.planning.merge import build_create
from jsplan.planning.preserve.capacity import with_required_max_bytes
from jsplan.planning.preserve.staging import (
    REPLACEMENT_ID_KEY,
    REPLACES_KEY,
    parking_subject,
    quiesced_config,
)
from jsplan.planning.relocation.consumers import origin_consumer
from jsplan.planning.relocation.decisions import RELOCATION_ROLLED_BACK
from jsplan.planning.relocation.progress import Relocation
from jsplan.resources.fields import Config
from jsplan.topology.routes import external_of
from jsplan.units import DURATIONS

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs, ResourceDecision

#: The steps in order, by the last part of their keys. The last one has the key of an update: steps
#: that wait for the stream wait for it.
STEP_ORDER: Final[tuple[Part, ...]] = (
    "mirror",
    "precompare",
    "stop",
    "rest",
    "compare",
    "update",
    "recompare",
)
#: The steps that only copy. Publishers, consumers and the origin notice nothing.
PREPARE_KINDS: Final = ("mirror", "precompare")
_STEP_OPS: Final[Mapping[Part, Op]] = {
    "mirror": "relocate.mirror",
    "precompare": "relocate.compare",
    "stop": "relocate.quiesce",
    "rest": "relocate.promote",
    "compare": "relocate.compare",
    "update": "relocate.activate",
    "recompare": "relocate.compare",
}
#: Deleted messages of the origin that are deleted in the copy too. More are a sign of a mistake.
MAX_EXTRA: Final = 10_000
#: What the mirror has from the beginning: what no update can set, and where the messages are.
_INITIAL_FIELDS: Final = (
    "storage",
    "persist_mode",
    "compression",
    "num_replicas",
    "placement",
    "max_consumers",
    "allow_msg_ttl",
)


def draft_relocation(
    inputs: PlanInputs, decision: ResourceDecision, final: Draft
) -> Iterable[Draft]:
    """Draft the steps of one side or of a consumer; `final` is its create, update or delete."""
    relocation = decision.relocation
    assert relocation is not None
    if decision.address.kind == "consumer":
        yield _draft_consumer(inputs, decision, relocation, final)
    elif decision.reason == RELOCATION_ROLLED_BACK:
        yield _draft_restore(inputs, relocation, final)
    elif decision.address == relocation.origin:
        if relocation.is_activated:
            yield _draft_comparison(inputs, relocation)
        yield _draft_delete(inputs, relocation, final)
    else:
        yield from _draft_chain(inputs, relocation, final)


def _draft_comparison(inputs: PlanInputs, relocation: Relocation) -> Draft:
    """Draft the comparison before the origin is deleted, where the target is activated already."""
    return Draft(
        (relocation.target, "recompare"),
        "relocate.compare",
        _title(relocation, "recompare"),
        None,
        "",
        params=relocation_params(inputs, relocation),
    )


def _draft_chain(inputs: PlanInputs, relocation: Relocation, final: Draft) -> Iterable[Draft]:
    """Draft consecutive steps from the next one on."""
    kinds, before = STEP_ORDER[STEP_ORDER.index(relocation.next_step) :], None
    if inputs.options.stage == "prepare" and relocation.is_prepared:
        return
    if relocation.is_snapshot:
        kinds = tuple(kind for kind in kinds if kind not in PREPARE_KINDS)
    for kind in kinds:
        draft = _draft_step(inputs, relocation, final, kind)
        draft.depends_on |= {before.key} if before is not None else set()
        if before is None and kind != "stop":
            now = relocation.target_now
            draft.precondition = now.fingerprint if now is not None else "absent"
        before = draft
        yield draft


def _draft_step(inputs: PlanInputs, relocation: Relocation, final: Draft, kind: Part) -> Draft:
    origin = _origin(inputs, relocation)
    draft = Draft(
        (relocation.target, kind),
        "relocate.copy" if kind == "rest" and relocation.is_snapshot else _STEP_OPS[kind],
        _title(relocation, kind, is_sealed=bool(origin.raw.get("sealed"))),
        _request(inputs, relocation, final, kind),
        "",
        object_address=relocation.origin if kind == "stop" else None,
        params=relocation_params(inputs, relocation),
    )
    if kind == ("stop" if relocation.is_snapshot else "mirror"):
        assert draft.params is not None
        draft.params["relocation"] = {
            "id": relocation.id,
            "old": {"config": origin.raw, "created": origin.created},
            "strategy": "snapshot" if relocation.is_snapshot else "mirror",
        }
    if kind == "stop":
        draft.precondition = origin.fingerprint
        if _is_local(relocation):
            draft.freed_subjects = list(origin.compact.get("subjects", []))
    if kind == "update":
        draft.expect, draft.record = final.expect, final.record
        draft.taken_subjects = final.taken_subjects
    return draft


def _origin(inputs: PlanInputs, relocation: Relocation) -> LiveObject:
    """Return the origin as it was before."""
    found = inputs.live.get(relocation.origin)
    assert found is not None
    return found


def relocation_params(inputs: PlanInputs, relocation: Relocation) -> dict[str, Any]:
    """Return the parameters of every step. `relocated` is the origin."""
    found = {
        "state_address": str(relocation.target),
        "relocated": str(relocation.origin),
        "target": str(relocation.target),
        "api_level": inputs.level(relocation.target),
        "origin_level": inputs.level(relocation.origin),
    }
    return found | ({"origin_lost": True} if relocation.is_origin_lost else {})


def label_of(address: Address) -> str:
    """Return the kind, name and domain of a stream, for a title."""
    return f"{address.kind} {address.name} in {address.domain}"


def _title(relocation: Relocation, kind: str, *, is_sealed: bool = False) -> str:
    origin, target = label_of(relocation.origin), label_of(relocation.target)
    if is_sealed and kind == "stop":
        return f"require that {origin} is sealed: no message is added or removed"
    return {
        "mirror": f"copy {origin} into {target}: a mirror, until it has caught up",
        "precompare": f"compare {target} with {origin}, while messages still arrive",
        "stop": f"quiesce {origin}: no message is added or removed",
        "rest": f"copy {origin} into {target}: a snapshot"
        + ("" if is_sealed else ", while publishers wait")
        if relocation.is_snapshot
        else f"copy the rest of {origin}, and turn {target} into a stream",
        "compare": f"compare the newest messages and the counts of {target} with {origin}",
        "recompare": f"compare what is left of {target} with {origin}",
        "update": f"activate {target}: set its subjects and limits",
    }[kind]


def _request(inputs: PlanInputs, relocation: Relocation, final: Draft, kind: Part) -> Config | None:
    name, origin = relocation.target.stream, _origin(inputs, relocation)
    match kind:
        case "mirror":
            return {
                "api": f"STREAM.CREATE.{name}",
                "payload": mirror_config(inputs, relocation, origin),
            }
        case "stop":
            quiesced = quiesced_config(relocation.origin, origin, inputs.level(relocation.origin))
            if quiesced is None:
                return None
            # Messages are compared several times faster with direct reads.
            payload = quiesced | {"allow_direct": True, "no_ack": False}
            return {"api": f"STREAM.UPDATE.{relocation.origin.stream}", "payload": payload}
        case "rest" if relocation.is_snapshot:
            config = restored_config(inputs, relocation, origin)
            return {"api": f"STREAM.RESTORE.{name}", "payload": {"config": config}}
        case "rest":
            return {
                "api": f"STREAM.UPDATE.{name}",
                "payload": promoted_config(inputs, relocation, origin),
            }
        case "update":
            assert final.request is not None
            return {"api": f"STREAM.UPDATE.{name}", "payload": final.request["payload"]}
        case _:
            return None


def mirror_config(inputs: PlanInputs, relocation: Relocation, origin: LiveObject) -> Config:
    """Return the target while it is a mirror: without subjects and limits of its own.

    It keeps as many messages per subject as the origin, whose server deletes the others too.
    """
    target, level = relocation.target, inputs.level(relocation.target)
    creation = build_create(table_of(target), inputs.creation_body(target), level)
    out: Config = {"name": target.stream} | {
        key: creation[key] for key in _INITIAL_FIELDS if key in creation
    }
    out |= {"retention": "limits", "allow_rollup_hdrs": True, "allow_direct": True}
    if creation.get("subject_delete_marker_ttl"):
        out["allow_msg_ttl"] = True
    if int(origin.raw.get("max_msgs_per_subject") or 0) > 0:
        out["max_msgs_per_subject"] = origin.raw["max_msgs_per_subject"]
    out |= _wider_limits(origin.raw, out)
    out["mirror"] = {"name": relocation.origin.stream} | mirror_external(inputs, relocation)
    out["metadata"] = {REPLACES_KEY: str(relocation.origin), REPLACEMENT_ID_KEY: relocation.id}
    limits = inputs.live.domains[target.domain].info.get("limits") or {}
    return with_required_max_bytes(out, origin, limits)


def mirror_external(inputs: PlanInputs, relocation: Relocation) -> dict[str, dict[str, str]]:
    """Return the `external` of the mirror by which the target reads the origin, if it needs one."""
    route = inputs.topology.routes.find_route(relocation.target.domain, relocation.origin.domain)
    return {"external": external_of(route, relocation.target)} if route.api else {}


def _wider_limits(origin: Config, copy: Config) -> Config:
    """Return limits that keep a copy of days from growing, a little wider than the origin's.

    What the origin deletes stays in a mirror. With the same limits the mirror would delete messages
    that the origin still has: it counts others too, and clocks differ.
    """
    found: Config = {}
    if int(origin.get("max_age") or 0) > 0:
        found["max_age"] = int(origin["max_age"]) + DURATIONS["h"]
    if int(origin.get("max_msgs") or 0) > 0:
        found["max_msgs"] = int(origin["max_msgs"]) + MAX_EXTRA
    same = origin.get("storage", "file") == copy.get("storage", "file")  # else sizes differ
    if int(origin.get("max_bytes") or 0) > 0 and same and origin.get("discard") != "new":
        found["max_bytes"] = int(origin["max_bytes"]) * 5 // 4
    return found


def promoted_config(inputs: PlanInputs, relocation: Relocation, origin: LiveObject) -> Config:
    """Return the target as a stream of its own that no client writes to yet."""
    mirror = mirror_config(inputs, relocation, origin)
    limits = _wider_limits(origin.raw, mirror)
    out = {name: value for name, value in mirror.items() if name not in ("mirror", *limits)}
    info = inputs.live.domains[relocation.target.domain].info.get("limits") or {}
    out = with_required_max_bytes(out, origin, info)
    return out | {"subjects": [parking_subject(relocation.target.stream, relocation.id)]}


def restored_config(inputs: PlanInputs, relocation: Relocation, origin: LiveObject) -> Config:
    """Return the target that a snapshot is restored as: without limits, and with no writer."""
    target = relocation.target
    creation = build_create(table_of(target), inputs.creation_body(target), inputs.level(target))
    kept = "workqueue" if creation.get("retention") == "workqueue" else "limits"
    out: Config = {"name": target.stream, "retention": kept} | {
        key: creation[key] for key in (*_INITIAL_FIELDS, "allow_msg_counter") if key in creation
    }
    if creation.get("subject_delete_marker_ttl"):
        out["allow_msg_ttl"] = True
    out["allow_direct"] = True
    out["subjects"] = [parking_subject(target.stream, relocation.id)]
    out["metadata"] = {REPLACES_KEY: str(relocation.origin), REPLACEMENT_ID_KEY: relocation.id}
    limits = inputs.live.domains[target.domain].info.get("limits") or {}
    return with_required_max_bytes(out, origin, limits)


def _draft_consumer(
    inputs: PlanInputs, decision: ResourceDecision, relocation: Relocation, create: Draft
) -> Draft:
    """Draft the creation of a consumer at the position of the one that it continues."""
    old = origin_consumer(inputs.workspace, relocation, decision.address)
    assert old is not None
    return replace(
        create,
        op="relocate.consumer",
        title=f"{create.title}, at the position of {old}",
        precondition="",
        params=relocation_params(inputs, relocation) | {"continues": str(old)},
    )


def _draft_delete(inputs: PlanInputs, relocation: Relocation, delete: Draft) -> Draft:
    """Draft the deletion of the origin, after everything else of the relocation."""
    quiesced_before = relocation.is_activated or relocation.next_step == "rest"
    now = relocation.origin_now
    return replace(
        delete,
        op="relocate.delete",
        title=f"delete {label_of(relocation.origin)}, which is complete in {relocation.target}",
        precondition=now.fingerprint if now is not None and quiesced_before else "",
        params=relocation_params(inputs, relocation),
        freed_subjects=[] if _is_local(relocation) else delete.freed_subjects,
    )


def _is_local(relocation: Relocation) -> bool:
    """Check whether both sides are in one domain: the target then takes the freed subjects."""
    return relocation.origin.domain == relocation.target.domain


def _draft_restore(inputs: PlanInputs, relocation: Relocation, update: Draft) -> Draft:
    """Draft the way back: the origin gets its subjects, and the target is deleted."""
    now = relocation.origin_now
    return replace(
        update,
        op="relocate.restore",
        title=f"restore {label_of(relocation.origin)}, and delete its copy {relocation.target}",
        precondition=now.fingerprint if now is not None else "",
        params=relocation_params(inputs, relocation),
    )


def draft_release(relocation: Relocation) -> Draft:
    """Draft that the origin gets its subjects back while the target is offline."""
    assert relocation.origin_now is not None
    payload = relocation.record["old"]["config"]
    return Draft(
        (relocation.origin, "update"),
        "relocate.release",
        f"give {label_of(relocation.origin)} its subjects back, as {relocation.target.domain} is "
        "offline",
        {"api": f"STREAM.UPDATE.{relocation.origin.stream}", "payload": payload},
        relocation.origin_now.fingerprint,
        params={"state_address": str(relocation.target)},
    )
