"""The order of the steps of a relocation among those of everything else, and its last step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.planning.drafts import Draft, Drafts, Key
from jsplan.planning.order import RELOCATION_END
from jsplan.planning.transfer.progress import Transfer
from jsplan.planning.transfer.steps import label_of, transfer_params

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, PlanInputs


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
