"""import: take things that exist on the servers into state, without a write."""

from __future__ import annotations

from dataclasses import replace

from jsplan.address import Address, is_glob, matches
from jsplan.config.model import LoadOptions
from jsplan.diagnostics import Diagnostic
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import PlanError, UsageError
from jsplan.workflows.apply import apply_world
from jsplan.workflows.options import Approve, Observer, PlanOptions
from jsplan.workflows.running import run
from jsplan.workflows.world import open_world


def import_(
    load: LoadOptions, addresses: tuple[str, ...], options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Adopt what the addresses (or globs) name; each must be in the files and on its server.

    What differs from the files is refused without `options.adopt`; with it, it is taken as it is and shows as a
    change in the next plan. Raises PlanError for what is in no file, and what `apply` raises.
    """
    return run(_import(load, addresses, replace(options, targets=addresses, imports=addresses), approve, observer))


async def _import(
    load: LoadOptions, addresses: tuple[str, ...], options: PlanOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    async with open_world(load) as world:
        found = [d for text in addresses for d in _problems(text, set(world.workspace.resources), set(world.state.resources))]
        if found:
            raise PlanError(found, f"{found[0].address} {found[0].summary}" if len(found) == 1 else None)
        return await apply_world(world, options, approve, observer)


def _problems(text: str, declared: set[Address], managed: set[Address]) -> list[Diagnostic]:
    try:
        named = {text} if is_glob(text) else {str(Address.parse(text))}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not any(matches(glob, address) for glob in named for address in declared):
        return [Diagnostic("error", "JS418", "is in no file", "Declare it first; the plan shows what differs from what is live.", text)]
    if not is_glob(text) and Address.parse(text) in managed:
        return [Diagnostic("error", "JS419", "is managed already", "There is nothing to import.", text)]
    return []
