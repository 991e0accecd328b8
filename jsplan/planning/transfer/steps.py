"""The steps of a transfer.

At every moment one stream has all messages: the origin, the staging stream of a replacement, or the
target. It has been compared with the one before. All steps but the deletion of a relocated origin
belong to the target, also the one that quiesces the origin: so no other rule orders them. The first
that touches a stream checks that it is as planning found it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.step_kinds import Op
from jsplan.planning.drafts import Draft, Drafts, Key, Part
from jsplan.planning.model import is_state_only
from jsplan.planning.order import RELOCATION_END
from jsplan.planning.transfer.configs import (
    probe_address,
    probe_config,
    quiesced_config,
    staging_address,
)
from jsplan.planning.transfer.consumers import origin_consumer, request_with_pause
from jsplan.planning.transfer.copies import copy_config, mirror_config, new_config, restored_config
from jsplan.planning.transfer.decisions import RELOCATION_ROLLED_BACK
from jsplan.planning.transfer.estimate import additional_bytes
from jsplan.planning.transfer.methods import second_method
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision


#: The steps in order, by the last part of their keys. `update` has the key of an update: steps that
#: wait for the stream wait for it. The first hop is up to `compare`, the second from `refill` on.
STEP_ORDER: Final[Mapping[Part, Op]] = {
    "probe": "transfer.probe",
    "mirror": "transfer.mirror",
    "precompare": "transfer.compare",
    "stop": "transfer.quiesce",
    "rest": "transfer.promote",
    "compare": "transfer.compare",
    "retire": "transfer.retire",
    "refill": "transfer.promote",
    "match": "transfer.compare",
    "resume": "transfer.consumers",
    "update": "transfer.activate",
    "recompare": "transfer.compare",
    "clear": "transfer.clear",
}
#: The steps that only copy. Publishers, consumers and the origin notice nothing.
PREPARE_KINDS: Final[tuple[Part, ...]] = ("mirror", "precompare")
#: The steps that only a replacement at the same address has.
_REPLACEMENT_KINDS: Final[tuple[Part, ...]] = (
    "probe",
    "retire",
    "refill",
    "match",
    "resume",
    "clear",
)
#: The steps out of the staging stream.
_SECOND_HOP: Final[tuple[Part, ...]] = ("refill", "match", "resume", "update", "recompare", "clear")


def draft_transfer(
    inputs: PlanInputs, decision: ResourceDecision, final: Draft, consumers: Mapping[str, Any]
) -> Iterable[Draft]:
    """Draft the steps of one side or of a consumer; `final` is its create, update or delete.

    `consumers` has by name how declared consumers of a replaced stream come back: `{address,
    config, record}`, or None.
    """
    if (transfer := decision.replacement) is not None:
        yield from _draft_chain(inputs, transfer, final, consumers)
        return
    transfer = decision.relocation
    assert transfer is not None
    if decision.address.kind == "consumer":
        yield _draft_consumer(inputs, decision, transfer, final)
    elif decision.reason == RELOCATION_ROLLED_BACK:
        yield draft_undo(inputs, transfer, final)
    elif decision.address == transfer.origin:
        if transfer.is_activated:
            yield _draft_step(inputs, transfer, final, "recompare")
        yield _draft_delete(inputs, transfer, final)
    elif inputs.options.stage != "prepare" or not transfer.is_prepared:
        for draft in _draft_chain(inputs, transfer, final, consumers):
            if draft.key[1] == "update" and decision.relocated_sources:
                assert draft.params is not None
                draft.params["relocated_sources"] = decision.relocated_sources
            yield draft


def _draft_chain(
    inputs: PlanInputs, transfer: Transfer, final: Draft, consumers: Mapping[str, Any]
) -> Iterable[Draft]:
    """Draft consecutive steps from the next one on."""
    kinds = _list_kinds(transfer)
    first_check = next(kind for kind in kinds if kind != "probe")
    begins, before = not transfer.record, None
    for kind in kinds:
        draft = _draft_step(inputs, transfer, final, kind)
        if kind == "stop" and not transfer.is_relocation and transfer.places_consumers:
            assert draft.params is not None
            leaving = [name for name, coming in consumers.items() if coming is None]
            draft.params["leaving"] = sorted(leaving)
        if kind == "resume":
            assert draft.params is not None
            draft.params["consumers"] = dict(consumers)
        if before is None:
            _begin(inputs, transfer, draft)
        else:
            draft.depends_on |= {before.key}
        if kind == first_check and kind != "stop" and (transfer.is_relocation or not begins):
            touched = draft.object_address or draft.key[0]
            draft.precondition = transfer.fingerprint_of(touched)
        before = draft
        yield draft


def _list_kinds(transfer: Transfer) -> tuple[Part, ...]:
    """Return the parts from the next one on that this transfer has."""
    kinds = tuple(STEP_ORDER)
    left_out: tuple[Part, ...] = () if transfer.method == "mirror" else PREPARE_KINDS
    if transfer.is_relocation:
        left_out += _REPLACEMENT_KINDS
    rest = kinds[kinds.index(cast("Part", transfer.next_step)) :]
    return tuple(kind for kind in rest if kind not in left_out)


def _begin(inputs: PlanInputs, transfer: Transfer, draft: Draft) -> None:
    """Let the first step record the transfer, before anything is created."""
    if draft.key[1] not in ("probe", "mirror", "stop"):
        return
    origin = _origin(inputs, transfer)
    begun: dict[str, Any] = {
        "id": transfer.id,
        "origin": str(transfer.origin),
        "method": transfer.method,
        "old": {"config": origin.raw, "created": origin.created},
    }
    if not transfer.is_relocation:
        begun["staging"] = str(_staging(inputs, transfer))
    if transfer.promotes:
        begun["promotes"] = True
    assert draft.params is not None
    draft.params["transfer"] = begun


def _draft_step(inputs: PlanInputs, transfer: Transfer, final: Draft, kind: Part) -> Draft:
    op = STEP_ORDER[kind]
    if op == "transfer.promote" and _method_of(inputs, transfer, kind) == "snapshot":
        op = "transfer.copy"
    origin = _origin(inputs, transfer)
    draft = Draft(
        (transfer.target, kind),
        op,
        _title(inputs, transfer, kind),
        _request(inputs, transfer, final, kind),
        "",
        object_address=_touched(inputs, transfer, kind),
        params=transfer_params(inputs, transfer, kind),
    )
    if kind == "probe":
        assert draft.params is not None
        config = new_config(inputs, transfer.target, origin)
        draft.params["initial_config"] = _probe_config(inputs, transfer, config, required=True)
    if kind == "stop":
        draft.precondition = origin.fingerprint
    is_local = transfer.origin.domain == transfer.target.domain
    # Nothing but its deletion takes the subjects of a sealed stream.
    if kind == ("retire" if origin.raw.get("sealed") else "stop") and is_local:
        draft.freed_subjects = list(origin.compact.get("subjects", []))
    if kind == "update":
        draft.expect, draft.record = final.expect, final.record
        draft.taken_subjects = final.taken_subjects
    return draft


def _method_of(inputs: PlanInputs, transfer: Transfer, kind: Part) -> str:
    if kind in _SECOND_HOP:
        return second_method(inputs.level(transfer.target))
    return transfer.method


def _origin(inputs: PlanInputs, transfer: Transfer) -> LiveObject:
    """Return the origin as it was before."""
    found = inputs.live.get(transfer.origin)
    assert found is not None
    return found


def _staging(inputs: PlanInputs, transfer: Transfer) -> Address:
    return staging_address(transfer.origin, _origin(inputs, transfer).created)


def _touched(inputs: PlanInputs, transfer: Transfer, kind: Part) -> Address | None:
    """Return the stream that a step changes; None for the target."""
    if kind == "stop":
        return transfer.origin if transfer.is_relocation else None
    if transfer.is_relocation:
        return None
    staging = _staging(inputs, transfer)
    if kind == "probe":
        return probe_address(staging)
    return staging if kind in (*PREPARE_KINDS, "rest", "compare", "clear") else None


def transfer_params(
    inputs: PlanInputs, transfer: Transfer, kind: Part = "update"
) -> dict[str, Any]:
    """Return the parameters of a step: both streams of its hop, and the address in state."""
    sides = [transfer.origin, transfer.target]
    if not transfer.is_relocation:
        hop = _staging(inputs, transfer)
        sides = [hop, transfer.target] if kind in _SECOND_HOP else [transfer.origin, hop]
    found: dict[str, Any] = {
        "state_address": inputs.state_name(transfer.target),
        "from": str(sides[0]),
        "to": str(sides[1]),
        "api_level": inputs.level(sides[1]),
        "origin_level": inputs.level(sides[0]),
    }
    if kind in ("rest", "refill") and _method_of(inputs, transfer, kind) == "snapshot":
        found["with_consumers"] = not transfer.is_relocation and not transfer.places_consumers
    return found | ({"origin_lost": True} if transfer.is_origin_lost else {})


def label_of(address: Address) -> str:
    """Return the kind, name and domain of a stream, for a title."""
    return f"{address.kind} {address.name} in {address.domain}"


def _title(inputs: PlanInputs, transfer: Transfer, kind: Part) -> str:
    origin, target = label_of(transfer.origin), label_of(transfer.target)
    copy = target if transfer.is_relocation else _staging(inputs, transfer).stream
    is_sealed = bool(_origin(inputs, transfer).raw.get("sealed"))
    if is_sealed and kind == "stop":
        return f"require that {origin} is sealed: no message is added or removed"
    whole = transfer.method != "mirror"
    noun = "snapshot" if transfer.method == "snapshot" else "mirror"
    waiting = "" if is_sealed else ", while publishers wait"
    return {
        "probe": f"try the new configuration of {target} on a probe",
        "mirror": f"copy {origin} into {copy}: a mirror, until it has caught up",
        "precompare": f"compare {copy} with {origin}, while messages still arrive",
        "stop": f"quiesce {origin}: no message is added or removed"
        + ("" if transfer.is_relocation else ", and pause its consumers"),
        "rest": f"copy {origin} into {copy}: a {noun}{waiting}"
        if whole
        else f"copy the rest of {origin}, and turn {copy} into a stream",
        "compare": f"compare the newest messages and the counts of {copy} with {origin}"
        if transfer.is_relocation
        else f"compare what is left of {copy} with {origin}, and the counts",
        "retire": f"delete the old {origin}",
        "refill": f"recreate {target} with the messages of {copy}",
        "match": f"compare the newest messages and the counts of {target} with {copy}",
        "resume": f"resume the consumers of {target}",
        "update": f"activate {target}: set its subjects and limits",
        "recompare": f"compare what is left of {target} with "
        + (origin if transfer.is_relocation else copy),
        "clear": f"delete {copy}",
    }[kind]


def _request(inputs: PlanInputs, transfer: Transfer, final: Draft, kind: Part) -> Config | None:
    origin, name = _origin(inputs, transfer), transfer.target.stream
    copy = name if transfer.is_relocation else _staging(inputs, transfer).stream
    restores = _method_of(inputs, transfer, kind) == "snapshot"
    payload: Config | None = None
    match kind:
        case "probe":
            assert final.request is not None
            payload = _probe_config(inputs, transfer, final.request["payload"])
            verb = f"STREAM.UPDATE.{payload['name']}"
        case "mirror":
            verb, payload = f"STREAM.CREATE.{copy}", mirror_config(inputs, transfer, origin)
        case "stop":
            verb = f"STREAM.UPDATE.{transfer.origin.stream}"
            payload = quiesced_config(transfer.origin, origin, inputs.level(transfer.origin))
            if payload is None:
                return None
        case "rest" if restores:
            config = restored_config(inputs, transfer, origin)
            verb, payload = f"STREAM.RESTORE.{copy}", {"config": config}
        case "rest":
            verb, payload = f"STREAM.UPDATE.{copy}", copy_config(inputs, transfer, origin)
        case "refill":
            config = new_config(inputs, transfer.target, origin)
            verb = f"STREAM.{'RESTORE' if restores else 'UPDATE'}.{name}"
            payload = {"config": config} if restores else config
        case "update":
            assert final.request is not None
            verb, payload = f"STREAM.UPDATE.{name}", final.request["payload"]
        case "retire" | "clear":
            verb = f"STREAM.DELETE.{name if kind == 'retire' else copy}"
        case _:
            return None
    return {"api": verb, "payload": payload}


def _probe_config(
    inputs: PlanInputs, transfer: Transfer, config: Config, *, required: bool = False
) -> Config:
    """Return a configuration for the probe: as of the beginning (`required`), or the final one."""
    info = inputs.live.domains[transfer.target.domain].info
    if required:
        most = int(bool((info.get("limits") or {}).get("max_bytes_required")))
    else:
        most = additional_bytes(_origin(inputs, transfer), config, info)
    name = probe_address(_staging(inputs, transfer)).stream
    return probe_config(name, transfer.id, config, most_bytes=most)


# --- beside the chain ----------------------------------------------------------------------------


def _draft_consumer(
    inputs: PlanInputs, decision: ResourceDecision, transfer: Transfer, create: Draft
) -> Draft:
    """Draft the creation of a consumer at the position of the one that it continues."""
    old = origin_consumer(inputs.workspace, transfer, decision.address)
    assert old is not None
    return replace(
        create,
        op="transfer.consumer",
        request=request_with_pause(create.request, decision),
        title=f"{create.title}, at the position of {old}",
        precondition="",
        params=transfer_params(inputs, transfer) | {"continues": str(old)},
    )


def _draft_delete(inputs: PlanInputs, transfer: Transfer, delete: Draft) -> Draft:
    """Draft the deletion of a relocated origin, after everything else of the relocation."""
    quiesced_before = transfer.is_activated or transfer.next_step == "rest"
    now = transfer.origin_now
    is_local = transfer.origin.domain == transfer.target.domain
    return replace(
        delete,
        op="transfer.delete",
        title=f"delete {label_of(transfer.origin)}, which is complete in {transfer.target}",
        precondition=now.fingerprint if now is not None and quiesced_before else "",
        params=transfer_params(inputs, transfer),
        freed_subjects=[] if is_local else delete.freed_subjects,
    )


def draft_undo(inputs: PlanInputs, transfer: Transfer, update: Draft) -> Draft:
    """Draft the way back: the origin gets its subjects, and the copy is deleted."""
    now = transfer.origin_now
    copy = str(transfer.target if transfer.is_relocation else _staging(inputs, transfer).stream)
    return replace(
        update,
        op="transfer.undo",
        title=f"restore {label_of(transfer.origin)}, and delete its copy {copy}",
        precondition=now.fingerprint if now is not None else "",
        params=transfer_params(inputs, transfer, "stop"),
    )


def draft_release(transfer: Transfer) -> Draft:
    """Draft that the origin gets its subjects back while the target is offline."""
    origin, now = transfer.origin, transfer.origin_now
    assert now is not None
    title = f"give {label_of(origin)} its subjects back, as {transfer.target.domain} is offline"
    request = {"api": f"STREAM.UPDATE.{origin.stream}", "payload": dict(transfer.old_config)}
    draft = Draft((origin, "update"), "transfer.release", title, request, now.fingerprint)
    return replace(draft, params={"state_address": str(transfer.target)})


def draft_staging_cleanup(inputs: PlanInputs, decisions: Decisions) -> Iterable[Draft]:
    """Draft the end of replacements that an apply left after their stream was activated."""
    for address, found in inputs.interrupted.streams.items():
        staging, ends = found.staging, found.next_step in ("clear", "recompare")
        if staging is None or not ends or address not in decisions or is_state_only(inputs):
            continue
        params = {
            "state_address": found.record["address"],
            "from": str(staging),
            "to": str(address),
            "api_level": inputs.level(address),
            "origin_level": inputs.level(address),
        }
        text = f"compare what is left of {label_of(address)} with {staging.stream}"
        compare = Draft((address, "checked"), "transfer.compare", text, None, "", params=params)
        request = {"api": f"STREAM.DELETE.{staging.stream}", "payload": None}
        title = f"delete {staging.stream}"
        clear = Draft((address, "cleared"), "transfer.clear", title, request, "", params=params)
        clear.object_address = staging
        if found.next_step == "recompare":
            clear.depends_on.add(compare.key)
            yield compare
        yield clear


# --- their order ----------------------------------------------------------------------------------


def _draft_end(inputs: PlanInputs, relocation: Transfer) -> Draft:
    """Draft the end of a relocation whose origin is gone: only the record is left."""
    return Draft(
        (relocation.target, RELOCATION_END),
        "transfer.end",
        f"end the relocation to {label_of(relocation.target)}, as {relocation.origin} is gone",
        None,
        "",
        params=transfer_params(inputs, relocation),
    )


def order_relocations(inputs: PlanInputs, decisions: Decisions, drafts: Drafts) -> None:
    """Let the deletion of each origin wait for everything that the target needs.

    So does the end of a relocation whose origin is gone. State forgets that one afterwards: its
    consumers are known to have had positions.
    """
    for relocation in inputs.relocations.values():
        last = drafts.get((relocation.origin, "delete"))
        is_planned = relocation.target in decisions and not inputs.options.refresh_only
        if relocation.is_origin_lost and is_planned:
            last = _draft_end(inputs, relocation)
        if last is None or last.op not in ("transfer.delete", "transfer.end"):
            continue
        edges = inputs.topology.edges_from(relocation.target)
        downstream = {edge.downstream for edge in edges} - {relocation.origin}
        mirrors = {edge.downstream for edge in edges if edge.kind == "mirror"}
        for key in drafts:
            if relocation.target in (key[0], key[0].parent) or key[0] in downstream:
                last.depends_on.add(key)
        activate: Key = (relocation.target, "update")
        active = {activate} & drafts.keys()
        for (address, kind), draft in drafts.items():
            # A source is detached, and a mirror replaced, when the target has the subjects.
            is_first = all(before != address for before, _ in draft.depends_on)
            if (address in mirrors and is_first) or (address in downstream and kind == "leave"):
                draft.depends_on |= active
            is_forgotten = kind == "forget" and relocation.origin in (address, address.parent)
            if relocation.is_origin_lost and is_forgotten:
                draft.depends_on.add(last.key)
        if relocation.is_origin_lost and (gone := drafts.get((relocation.target, "delete"))):
            last.depends_on = set()  # it is ended first: afterwards nothing shows how far it was
            gone.depends_on.add(last.key)
        drafts[last.key] = last
