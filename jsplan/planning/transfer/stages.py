"""The stages of relocations: `prepare` copies, and `cutover` does the rest (`--stage`).

A stage plans relocations only, and chooses which of their steps run. What a stage leaves is what an
interrupted apply leaves, so the other one resumes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.plan import ResourceChange
from jsplan.documents.step_kinds import TARGET_PREPARED
from jsplan.planning.drafts import Drafts
from jsplan.planning.transfer.copies import mirror_config
from jsplan.planning.transfer.decisions import TARGET_RELOCATED
from jsplan.planning.transfer.entries import members
from jsplan.planning.transfer.steps import PREPARE_KINDS
from jsplan.resources import TABLES

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, PlanInputs


def select_stage(inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with the relocations only, if the plan is one stage of them.

    To prepare copies a bucket without its contents; the cutover plans those too.
    """
    if not inputs.options.stage:
        return inputs
    together = (members(inputs, relocation) for relocation in inputs.relocations.values())
    planned = inputs.selected & set[Address]().union(*together)
    if inputs.options.stage == "cutover":
        planned |= {a for a in inputs.selected if a.is_content and a.parent in planned}
    return replace(inputs, selected=planned, forgotten=frozenset())


def limit_drafts(inputs: PlanInputs, drafts: Drafts) -> Drafts:
    """Return the drafts of the stage. Preparing neither touches an origin nor anything else."""
    if inputs.options.stage != "prepare":
        return drafts
    found = {
        key: draft
        for key, draft in drafts.items()
        if key[1] in PREPARE_KINDS and draft.op in ("transfer.mirror", "transfer.compare")
    }
    for draft in found.values():
        draft.depends_on &= found.keys()
    return found


def limit_changes(
    inputs: PlanInputs, decisions: Decisions, changes: list[ResourceChange]
) -> list[ResourceChange]:
    """Return the changes of the stage: to prepare creates copies, which have no hazard."""
    if inputs.options.stage != "prepare":
        return changes
    found = []
    for change in changes:
        decision = decisions[Address.parse(change.address)]
        relocation = decision.relocation
        if decision.reason != TARGET_RELOCATED or decision.address.kind == "consumer":
            continue
        if relocation is None or relocation.is_prepared or relocation.next_step != "mirror":
            continue
        if relocation.method == "snapshot":
            continue
        origin = inputs.live.get(relocation.origin)
        assert origin is not None
        table, level = TABLES["stream"], inputs.level(relocation.target)
        copy = table.with_defaults(mirror_config(inputs, relocation, origin), level)
        change.change.after = copy
        change.action_reason, change.hazards = TARGET_PREPARED, []
        found.append(change)
    return found
