"""Hazards of a change of an account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from jsplan.config.model import AccountFiles
from jsplan.documents.plan import Hazard
from jsplan.planning.hazards import with_permissions
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.resources.account import EXPORTS, IMPORTS, JETSTREAM, ROLES
from jsplan.resources.account_file import variable_of
from jsplan.resources.fields import Config
from jsplan.units import count_text


def assess_account(inputs: PlanInputs, decision: ResourceDecision) -> list[Hazard]:
    """Return the hazard of an account that is deleted, or that loses a permission."""
    live = decision.live
    if live is None or decision.actions not in (["update"], ["delete"]):
        return []
    place = inputs.workspace.domains[decision.address.domain].accounts
    in_file = isinstance(place, AccountFiles)
    if decision.deletes and in_file:
        text = "servers whose configuration includes the file neither reload nor start without it"
    elif decision.deletes:
        text = "cuts off every user of the account, and nothing reaches its streams any more"
    else:
        after = decision.after or {}
        text = ", ".join(_list_losses(live.raw, after))
        if in_file and (gone := sorted(_list_apps(live.raw) - _list_apps(after))):
            names = ", ".join(f"${variable_of(app)}" for app in gone)
            text += f"; servers neither reload nor start while a user has {names}"
    found = [Hazard("REVOKES_ACCESS", text)] if text else []
    return with_permissions(inputs, decision.address, found)


def _list_apps(config: Config) -> set[str]:
    return {line.split(" ", 1)[0] for line in config.get(ROLES) or ()}


def _list_losses(before: Config, after: Config) -> Iterator[str]:
    """Yield who loses how much; the changed lines show what."""
    lost = {
        name: [line for line in before.get(name) or () if line not in (after.get(name) or ())]
        for name in (ROLES, EXPORTS, IMPORTS)
    }
    for app, count in Counter(line.split(" ", 1)[0] for line in lost[ROLES]).items():
        yield f"{app} loses {count_text(count, 'permission')}"
    if lost[EXPORTS]:
        yield f"other accounts lose {count_text(len(lost[EXPORTS]), 'export')} of it"
    if lost[IMPORTS]:
        yield f"it loses {count_text(len(lost[IMPORTS]), 'import')}"
    had: dict[str, Any] = before.get(JETSTREAM) or {}
    has: dict[str, Any] = after.get(JETSTREAM) or {}
    for store in ("memory", "disk"):
        if had.get(store) and not has.get(store):
            yield f"it may have no streams in {store} any more"
