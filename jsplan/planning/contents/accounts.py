"""Hazards of a change of an account of an operator."""

from __future__ import annotations

from jsplan.documents.plan import Hazard
from jsplan.planning.hazards import with_permissions
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.resources.account import EXPORTS, IMPORTS, JETSTREAM, ROLES

#: Lines that a hazard names before it only counts them.
_SHOWN = 3


def assess_account(inputs: PlanInputs, decision: ResourceDecision) -> list[Hazard]:
    """Return the hazard of an account that is deleted, or that loses a permission."""
    live, after = decision.live, decision.after or {}
    if live is None or decision.actions not in (["update"], ["delete"]):
        return []
    if decision.deletes:
        text = "cuts off every user of the account, and nothing reaches its streams any more"
    else:
        lost = [
            f"{name.removesuffix('s')} {line}"
            for name in (EXPORTS, IMPORTS, ROLES)
            for line in live.raw.get(name) or ()
            if line not in (after.get(name) or ())
        ]
        had, has = live.raw.get(JETSTREAM) or {}, after.get(JETSTREAM) or {}
        stores = (store for store in ("memory", "disk") if had.get(store) and not has.get(store))
        lost += [f"streams in its {store}" for store in stores]
        if not lost:
            return []
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        text = f"removes {'; '.join(lost[:_SHOWN])}{more}"
    return with_permissions(inputs, decision.address, [Hazard("REVOKES_ACCESS", text)])
