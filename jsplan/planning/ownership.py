"""The optional owner in metadata: who may change an object, and who is written into it. Pure.

`ownership: {marker: true}` in the files. The key is in nobody's diff: it is no part of a compact configuration, so it neither
differs nor drifts, and the files cannot set it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.plan import FieldChange, Op, config_of_payload
from jsplan.resources.fields import OWNER_KEY, Config

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.order import Drafts

#: The reason of an update that only writes the owner, or takes it away.
OWNER_CHANGED: Final = "update_because_owner"
#: Calls whose configuration is what the object will have.
_CONFIG_OPS: Final[tuple[Op, ...]] = (
    "stream.create", "stream.update", "stream.activate", "origin.create", "sources.attach",
    "consumer.create", "consumer.update", "consumer.replace",
)  # fmt: skip


def owner_of(live: LiveObject) -> str | None:
    """Who is written into an object."""
    found = (live.raw.get("metadata") or {}).get(OWNER_KEY)
    return str(found) if found else None


def decide_owners(inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]) -> None:
    """Refuse to touch what another workspace marked, and plan to write our own mark where it is missing or not wanted any more."""
    for verdict in verdicts.values():
        live = verdict.live
        if live is None or inputs.request.refresh_only or verdict.actions == ["forget"]:
            continue
        theirs = owner_of(live)
        if (
            theirs is not None
            and not _is_same_owner(theirs, inputs.owner_tag)
            and not (verdict.adopts and inputs.request.adopt)
        ):
            if verdict.adopts or verdict.actions != ["no-op"]:
                verdict.diagnostics.append(_other_owner_error(inputs, verdict, theirs))
            continue
        _plan_owner_tag(inputs, verdict, theirs)


def _is_same_owner(theirs: str, ours: str) -> bool:
    """Whether two marks are of one workspace, whatever it was called: by the id behind the name."""
    return theirs.rpartition("/")[2] == ours.rpartition("/")[2]


def _plan_owner_tag(inputs: PlanInputs, verdict: ResourceDecision, current: str | None) -> None:
    wanted = inputs.owner_tag if inputs.workspace.ownership_marker else None
    managed = verdict.adopts or (
        verdict.entry is not None and inputs.declared(verdict.address) is not None
    )
    if (
        not managed
        or current == wanted
        or verdict.actions != ["no-op"]
        or inputs.request.imports
        or verdict.after is None
    ):
        return
    verdict.actions, verdict.reason = ["update"], OWNER_CHANGED
    verdict.fields = [
        *verdict.fields,
        FieldChange(f'metadata["{OWNER_KEY}"]', current, wanted, "in_place"),
    ]


def _other_owner_error(inputs: PlanInputs, verdict: ResourceDecision, theirs: str) -> Diagnostic:
    declared = inputs.workspace.resources.get(verdict.address)
    who = theirs.partition("/")[0]
    text = f"belongs to workspace {who}, whose mark it carries ({theirs})"
    if who == _workspace_name(inputs):
        text = f"carries the mark of this workspace, {who}, by a state that is not the one in use ({theirs})"
        detail = _other_state_hint(verdict)
    elif verdict.adopts:
        detail = "If that one has given it up, take it over with --adopt: its own plans refuse from then on. Else leave it out here."
    else:
        give_up = f"removed: [{{address: {json.dumps(str(verdict.address))}, destroy: false}}]"
        detail = f"To leave it to {who}: {give_up}. To take it back: jsplan state rm {quote_shell(verdict.address)}, then apply --adopt."
    return Diagnostic(
        "error", "JS306", text, detail, str(verdict.address), declared.range if declared else None
    )


def _workspace_name(inputs: PlanInputs) -> str:
    """What this workspace is called in its marks."""
    workspace = inputs.workspace
    return f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name


def _other_state_hint(verdict: ResourceDecision) -> str:
    """What to do about a mark of one's own name and another id: the id is in state, so that was lost, or there are two."""
    again = (
        "--adopt"
        if verdict.adopts
        else f"jsplan state rm {quote_shell(verdict.address)}, then apply --adopt"
    )
    return (
        f"If that state was lost, take the object over: {again}. If it exists, use it: put it back, or look at `backend` in the files. "
        "If it is another workspace of the same name, give one of them another name."
    )


def tag_drafts(inputs: PlanInputs, drafts: Drafts) -> None:
    """Write our mark into everything that is made or updated, or take it out where it is not wanted."""
    for draft in drafts.values():
        if draft.op in _CONFIG_OPS and draft.request is not None and draft.request.get("payload"):
            draft.request = draft.request | {
                "payload": with_owner_tag(inputs, draft.request["payload"])
            }


def with_owner_tag(inputs: PlanInputs, payload: dict[str, Any]) -> Config:
    """A configuration, or what a consumer's is sent in, with our mark or without it."""
    config = config_of_payload(payload)
    is_held = config is not payload
    if is_held:
        return payload | {"config": with_owner_tag(inputs, config)}
    wanted = inputs.owner_tag if inputs.workspace.ownership_marker else None
    rest = {
        key: value for key, value in (payload.get("metadata") or {}).items() if key != OWNER_KEY
    }
    ours = rest | ({OWNER_KEY: wanted} if wanted else {})
    if ours or "metadata" in payload:
        return payload | {"metadata": ours}
    return payload
