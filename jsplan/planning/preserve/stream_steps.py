"""The steps of a replacement that keeps a stream's messages. Carrying them out is left to `applying.preserve`.

At every moment all messages are in one stream that was compared with the one before: the old one, the stand-in, the new one.
Before the first of them is touched, a probe without messages shows whether the server accepts what the new one is to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.documents.plan import Op
from jsplan.planning.decide import ResourceDecision, table_of
from jsplan.planning.merge import build_create
from jsplan.planning.order import Draft
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

#: The steps in order, by the last part of their keys. The one that ends it has the key of an update: whoever waits for the
#: stream waits for that.
STEP_ORDER: Final = (
    "probe",
    "stop",
    "hold",
    "copy",
    "compare",
    "retire",
    "refill",
    "recompare",
    "resume",
    "update",
    "clear",
)
STEP_OPS: Final[Mapping[str, Op]] = {
    "probe": "stream.probe", "stop": "stream.quiesce", "hold": "stream.pause_consumers",
    "copy": "stream.copy", "compare": "stream.compare", "retire": "stream.delete_old",
    "refill": "stream.copy", "recompare": "stream.compare", "resume": "stream.resume_consumers",
    "update": "stream.activate", "clear": "stream.delete_staging",
}  # fmt: skip
#: What is left to do for a replacement that the files do not want any more, while the old stream is still there.
ROLLBACK_ORDER: Final = ("update", "resume", "clear")


def draft_replacement(
    inputs: PlanInputs, verdict: ResourceDecision, final: Draft, consumers: Mapping[str, Any]
) -> Iterable[Draft]:
    """The steps of one stream; `final` is the call that would create it, with what is to be recorded.

    `consumers` says of those that the files name how they come back: `{address, config, record}`, or None where they do not.
    """
    address, old = verdict.address, verdict.live
    assert old is not None
    under_way = inputs.interrupted.get(address)
    kinds = (
        STEP_ORDER
        if under_way is None or under_way.next_step == "clear"
        else STEP_ORDER[STEP_ORDER.index(under_way.next_step) :]
    )
    yield from _draft_chain(inputs, verdict, final, kinds, consumers)


def draft_rollback(
    inputs: PlanInputs, verdict: ResourceDecision, final: Draft, consumers: Mapping[str, Any]
) -> Iterable[Draft]:
    """The steps that give a stopped old stream back what it had; `final` is the update to what the files say."""
    yield from _draft_chain(inputs, verdict, final, ROLLBACK_ORDER, consumers)


def draft_staging_cleanup(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[Draft]:
    """Stand-ins of streams that are back whole: the apply that brought them back died just before it took those away."""
    for address, found in inputs.interrupted.items():
        if (
            found.next_step != "clear"
            or address not in verdicts
            or inputs.request.refresh_only
            or inputs.request.imports
        ):
            continue
        stand = Address.parse(found.record["staging"])
        request = {"api": f"STREAM.DELETE.{stand.stream}", "payload": None}
        params = {"state_address": found.record["address"]}
        yield Draft(
            (address, "cleared"),
            "stream.delete_staging",
            f"delete {stand.stream}",
            request,
            "",
            object_address=stand,
            params=params,
        )


def _draft_chain(
    inputs: PlanInputs,
    verdict: ResourceDecision,
    final: Draft,
    kinds: tuple[str, ...],
    consumers: Mapping[str, Any],
) -> Iterable[Draft]:
    """One after the other. What the first of them finds under the stream's name must be what planning found."""
    under_way, before = inputs.interrupted.get(verdict.address), None
    if under_way is not None and under_way.next_step == "clear":
        under_way = None  # that one is over; what is left of it is cleared before
    looks = next(kind for kind in kinds if kind != "probe")
    for kind in kinds:
        draft = _draft_step(inputs, verdict, final, kind)
        if kind == "resume":
            draft.params = (draft.params or {}) | {"consumers": dict(consumers)}
        draft.depends_on |= {before.key} if before is not None else set()
        if kind == looks and under_way is not None:
            draft.precondition = under_way.fingerprint_of(draft.object_address or verdict.address)
        before = draft
        yield draft


def _draft_step(inputs: PlanInputs, verdict: ResourceDecision, final: Draft, kind: str) -> Draft:
    address, old = verdict.address, verdict.live
    assert old is not None
    stand = staging_address(address, old.created)
    touches = {"probe": probe_address(stand), "copy": stand, "compare": stand, "clear": stand}.get(
        kind, address
    )
    draft = Draft(
        (address, kind),
        STEP_OPS[kind],
        _title(verdict, kind, stand),
        _request(inputs, verdict, final, kind),
        "",
        object_address=touches,
        params=_params(inputs, verdict, kind, stand),
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


def _title(verdict: ResourceDecision, kind: str, staging: Address) -> str:
    what, place = (
        f"{verdict.address.kind} {verdict.address.name} in {verdict.address.domain}",
        staging.stream,
    )
    return {
        "probe": f"try the new configuration of {what} on {probe_address(staging).stream}",
        "stop": f"quiesce {what}: no message is added or removed",
        "hold": f"pause the consumers of {what} and record their positions",
        "copy": f"copy {what} into {place}",
        "compare": f"compare {place} with {what}",
        "retire": f"delete the old {what}",
        "refill": f"recreate {what} with the messages of {place}",
        "recompare": f"compare {what} with {place}",
        "resume": f"resume the consumers of {what}",
        "update": f"activate {what}: set its subjects and limits",
        "clear": f"delete {place}",
    }[kind]


def _request(
    inputs: PlanInputs, verdict: ResourceDecision, final: Draft, kind: str
) -> Config | None:
    address, old = verdict.address, verdict.live
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
            calm = quiesced_config(address, old, inputs.level(address))
            return {"api": f"STREAM.UPDATE.{address.stream}", "payload": calm} if calm else None
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
    """What the account of the domain has and may have, as `API.INFO` shows it."""
    return inputs.live.domains[address.domain].info


def _sized_initial_config(inputs: PlanInputs, address: Address, old: LiveObject) -> Config:
    return with_required_max_bytes(
        planned_initial_config(inputs, address, old),
        old,
        _account_info(inputs, address).get("limits") or {},
    )


def planned_initial_config(inputs: PlanInputs, address: Address, old: LiveObject) -> Config:
    """The new stream as it is first, for what the files say now."""
    level = inputs.level(address)
    creation = build_create(table_of(address), inputs.creation_body(address), level)
    return initial_config(
        address, old, creation, can_mirror=choose_preserve_method(level) == "snapshot"
    )


def _params(
    inputs: PlanInputs, verdict: ResourceDecision, kind: str, staging: Address
) -> dict[str, Any]:
    """What the steps need besides the request. `state_address` is the address under which state has the replacement."""
    address, old = verdict.address, verdict.live
    assert old is not None
    out: dict[str, Any] = {
        "state_address": str(inputs.moved_from.get(address, address)),
        "api_level": inputs.level(address),
    }
    way = choose_preserve_method(inputs.level(address))
    if kind in ("probe", "stop"):
        ident = replacement_id(address, old.created)
        out["replacement"] = {
            "id": ident,
            "staging": str(staging),
            "method": way,
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
        out |= {"from": str(staging if new else address), "method": way, "into_new": new}
        out["may_grow"] = new and way == "snapshot" and bool((verdict.after or {}).get("mirror"))
        out["consumers"] = way == "snapshot" and not (new and verdict.recreates_consumers)
        out["may_shrink"] = bool(
            not new and (old.raw.get("allow_msg_ttl") or old.raw.get("retention") == "workqueue")
        )
    return out
