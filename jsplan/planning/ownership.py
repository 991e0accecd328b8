"""The optional owner tag in metadata: the workspace that may change an object.

`ownership: {marker: true}` in the files. The key is no part of a compact configuration. So it
appears in no diff, does not drift, and cannot be set in the files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.plan import FieldChange, config_of_payload
from jsplan.documents.step_kinds import STEP_KINDS
from jsplan.planning.model import Overrides
from jsplan.planning.revision import Revision
from jsplan.resources.fields import OWNER_KEY, Config

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.drafts import Drafts
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision

#: The reason of an update that only writes or removes the owner tag.
OWNER_CHANGED: Final = "update_because_owner"


def owner_of(live: LiveObject) -> str | None:
    """Return the owner tag of an object, or None."""
    found = (live.raw.get("metadata") or {}).get(OWNER_KEY)
    return str(found) if found else None


def decide_owners(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Refuse to change objects of another workspace, and plan the updates of our owner tag."""
    revision = Revision(decisions)
    for address, decision in decisions.items():
        live = decision.live
        if live is None or inputs.options.refresh_only or decision.actions == ["forget"]:
            continue
        theirs = owner_of(live)
        is_ours = theirs is None or _is_same_owner(theirs, inputs.owner_tag)
        if theirs and not is_ours and not (decision.adopts and inputs.options.adopt):
            if decision.adopts or decision.actions != ["no-op"]:
                error = _other_owner_error(inputs, decision, theirs)
                revision.change(address, diagnostics=[*decision.diagnostics, error])
            continue
        wanted = inputs.owner_tag if inputs.workspace.ownership_marker else None
        if theirs != wanted and _may_tag(inputs, decision):
            change = FieldChange(f'metadata["{OWNER_KEY}"]', theirs, wanted, "in_place")
            fields = [*decision.fields, change]
            revision.change(address, actions=["update"], reason=OWNER_CHANGED, fields=fields)
    return revision.overrides


def _is_same_owner(theirs: str, ours: str) -> bool:
    """Check whether two owner tags are of one workspace, by the id behind the name."""
    return theirs.rpartition("/")[2] == ours.rpartition("/")[2]


def _may_tag(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether the plan may write or remove our owner tag; nothing else is updated."""
    is_known = decision.entry is not None and inputs.declared(decision.address) is not None
    stays = decision.actions == ["no-op"] and decision.after is not None
    return (decision.adopts or is_known) and stays and not inputs.options.imports


def _other_owner_error(inputs: PlanInputs, decision: ResourceDecision, theirs: str) -> Diagnostic:
    owner = theirs.partition("/")[0]
    text = f"belongs to workspace {owner}: it has the owner tag {theirs}"
    if owner == _workspace_name(inputs):
        text = f"has the owner tag of this workspace, {owner}, but from another state ({theirs})"
        detail = _other_state_hint(decision)
    elif decision.adopts:
        detail = (
            "If that workspace has given it up, adopt it with --adopt. Plans of that workspace are "
            "refused from then on. Otherwise remove it from these files."
        )
    else:
        give_up = f"removed: [{{address: {json.dumps(str(decision.address))}, destroy: false}}]"
        again = f"jsplan state rm {quote_shell(decision.address)}, then apply --adopt"
        detail = f"To leave it to {owner}: {give_up}. To take it back: {again}."
    return inputs.finding("error", "JS306", text, detail, decision.address)


def _workspace_name(inputs: PlanInputs) -> str:
    """Return the name of this workspace in owner tags."""
    workspace = inputs.workspace
    return f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name


def _other_state_hint(decision: ResourceDecision) -> str:
    """Return the hint for an owner tag with our name and another id.

    The id is in state: that state was lost, or there are two of them.
    """
    remove = f"jsplan state rm {quote_shell(decision.address)}, then apply --adopt"
    again = "--adopt" if decision.adopts else remove
    return (
        f"If that state was lost, adopt the object: {again}. If it exists, use it: restore it, or "
        "check `backend` in the files. If it is another workspace of the same name, rename one of "
        "them."
    )


def tag_drafts(inputs: PlanInputs, drafts: Drafts) -> None:
    """Write our owner tag into all that is created or updated, or remove an unwanted one."""
    for draft in drafts.values():
        payload = (draft.request or {}).get("payload")
        if draft.request is not None and payload and STEP_KINDS[draft.op].is_marked:
            draft.request = draft.request | {"payload": with_owner_tag(inputs, payload)}


def with_owner_tag(inputs: PlanInputs, payload: dict[str, Any]) -> Config:
    """Return a configuration, or the payload of a consumer, with our owner tag or without it."""
    config = config_of_payload(payload)
    is_nested = config is not payload
    if is_nested:
        return payload | {"config": with_owner_tag(inputs, config)}
    wanted = inputs.owner_tag if inputs.workspace.ownership_marker else None
    known = payload.get("metadata") or {}
    rest = {key: value for key, value in known.items() if key != OWNER_KEY}
    ours = rest | ({OWNER_KEY: wanted} if wanted else {})
    if ours or "metadata" in payload:
        return payload | {"metadata": ours}
    return payload
