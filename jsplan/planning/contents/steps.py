"""The calls for contents of buckets and streams. Each comes after the steps of its bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.documents.step_kinds import Op
from jsplan.facts.live import LiveObject
from jsplan.planning.contents.changes import shown_text
from jsplan.planning.contents.decide import bucket_decision
from jsplan.planning.contents.kinds import CONTENT_KINDS
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED
from jsplan.planning.drafts import Draft, Part
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.planning.state_records import (
    build_state_record,
    is_state_outdated,
    previous_address,
    provenance_of,
)


def draft_contents(
    inputs: PlanInputs,
    contents: Mapping[Address, ResourceDecision],
    decisions: Mapping[Address, ResourceDecision],
) -> Iterable[Draft]:
    """Draft the call for each content, or the step that only records it.

    `decisions` are those about their buckets.
    """
    for address, decision in contents.items():
        bucket = bucket_decision(inputs, decisions, address)
        match decision.actions:
            case ["create"] | ["update"] | ["delete", "create"]:
                yield _draft_write(inputs, decision, bucket)
            case ["delete"] | ["forget"]:
                yield _draft_removal(inputs, decision, bucket)
            case _ if decision.adopts and not inputs.options.refresh_only:
                record = build_state_record(inputs, decision, "imported")
                yield _draft_state_step(decision, bucket, "state.import", "import", record, {})
            case _ if is_state_outdated(inputs, decision):
                record = build_state_record(inputs, decision, provenance_of(decision))
                left = _leftovers(inputs, address, decision.live)
                op: Op = "object.clean" if left else "state.update"
                yield _draft_state_step(decision, bucket, op, "record", record, left)


def draft_closing(inputs: PlanInputs, address: Address) -> Draft:
    """Draft the end of an interrupted step. The uploads that it left are removed."""
    live = inputs.live.get(address)
    left = _leftovers(inputs, address, live)
    return Draft(
        (address, "settle"),
        "object.clean" if left else "state.update",
        f"record {_label(address)}",
        None,
        live.fingerprint if live is not None else "absent",
        params=left or {"state_address": str(inputs.moved_from.get(address, address))},
    )


def _draft_write(
    inputs: PlanInputs, decision: ResourceDecision, bucket: ResourceDecision | None
) -> Draft:
    assert decision.after is not None
    address, live, text = decision.address, decision.live, shown_text(inputs, decision.address)
    kind, part = CONTENT_KINDS[address.kind], _part_of(decision)
    kept = live.value if live is not None and decision.deleted_with is None else ""
    provenance = "imported" if decision.adopts else provenance_of(decision)
    draft = Draft(
        (address, part),
        kind.create if decision.creates else kind.update,
        f"{part} {_label(address)}",
        None,
        "",
        expect=dict(decision.after),
        record=build_state_record(inputs, decision, "created" if decision.creates else provenance),
        params={"before": kept}
        | ({"text": text} if text is not None else {})
        | _leftovers(inputs, address, live),
    )
    return _with_precondition(draft, decision, bucket)


def _part_of(decision: ResourceDecision) -> Part:
    return "create" if decision.creates else "update"


def _draft_removal(
    inputs: PlanInputs, decision: ResourceDecision, bucket: ResourceDecision | None
) -> Draft:
    """Draft the deletion of a content, or the step that forgets it."""
    address, live = decision.address, decision.live
    record = previous_address(inputs, address)
    if decision.deletes and decision.deleted_with is None:
        assert live is not None
        draft = Draft(
            (address, "delete"),
            CONTENT_KINDS[address.kind].delete,
            f"delete {_label(address)}",
            None,
            "",
            record=record,
            params={"before": live.value} | _leftovers(inputs, address, live),
        )
    else:
        title = f"forget {_label(address)}"
        draft = Draft((address, "forget"), "state.forget", title, None, "", record=record)
    # What goes with its bucket must be what the plan showed.
    return _with_precondition(draft, decision, bucket) if decision.deletes else draft


def _draft_state_step(
    decision: ResourceDecision,
    bucket: ResourceDecision | None,
    op: Op,
    verb: str,
    record: dict[str, Any],
    params: dict[str, Any],
) -> Draft:
    """Draft a step that writes only state. Without a fingerprint it has the value to find."""
    address, live = decision.address, decision.live
    title = f"{verb} {_label(address)}"
    draft = Draft((address, "state"), op, title, None, "", record=record)
    draft = _with_precondition(draft, decision, bucket)
    if not draft.precondition and live is not None:
        params = params | {"before": live.value}
    draft.params = params or None
    return draft


def _with_precondition(
    draft: Draft, decision: ResourceDecision, bucket: ResourceDecision | None
) -> Draft:
    """Add the fingerprint; where an earlier step gives it another one, that before it.

    It has none where its bucket was relocated, or is in the middle of a replacement.
    """
    now = decision.live.fingerprint if decision.live is not None else "absent"
    if bucket is None or not (bucket.deletes or bucket.relocation is not None):
        draft.precondition = now
    elif bucket.relocation is None and bucket.reason != REPLACEMENT_INTERRUPTED:
        draft.before_apply = now
    return draft


def _leftovers(inputs: PlanInputs, address: Address, live: LiveObject | None) -> dict[str, Any]:
    """Return the uploads that an interrupted apply began or replaced, but the live one."""
    begun = inputs.interrupted.steps.get(address, {})
    now = live.state.get("upload") if live is not None else None
    found = [upload for upload in begun.get("uploads", ()) if upload != now]
    return {"leftovers": found} if found else {}


def _label(address: Address) -> str:
    bucket, _, key = address.name.partition("/")
    kind = CONTENT_KINDS[address.kind]
    if address.parent is None:
        return f"{kind.noun} {bucket} in {address.domain}"
    return f"{kind.noun} {key} of {kind.parent} {bucket} in {address.domain}"
