"""State entries in undeclared domains that a `removed` block forgets without a read. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address, is_selected
from jsplan.documents.plan import Change, ResourceChange, Step
from jsplan.planning.model import PlanInputs

FORGET_REASON = "forget_because_removed_block"


def find_forgotten(inputs: PlanInputs) -> frozenset[Address]:
    """Return the addresses in undeclared domains that a `destroy: false` block matches."""
    if not inputs.workspace.removed:
        return frozenset()
    lost = (
        a
        for a in {*inputs.entries, *inputs.interrupted.steps}
        if a.domain not in inputs.workspace.domains
    )
    return frozenset(filter(inputs.workspace.forgets, lost))


def select_forgotten(inputs: PlanInputs) -> frozenset[Address]:
    """Select the addresses to forget by `--target` and `--exclude`; none on import or refresh."""
    options = inputs.options
    if options.imports or options.refresh_only:
        return frozenset()
    return frozenset(
        a for a in find_forgotten(inputs) if is_selected(a, options.targets, options.excludes)
    )


def build_forgotten_changes(inputs: PlanInputs) -> Iterable[ResourceChange]:
    """Build the change of each forgotten address. `before` is the last applied configuration."""
    for address in sorted(inputs.forgotten):
        entry, moved = inputs.entries.get(address), inputs.moved_from.get(address)
        change = Change(["forget"], entry.config if entry else None, None)
        yield ResourceChange.of(
            address,
            change,
            FORGET_REASON,
            depends_on=entry.depends_on if entry else [],
            previous_address=str(moved) if moved else None,
        )


def build_forgotten_steps(inputs: PlanInputs, first: int) -> Iterable[Step]:
    """Build the step of each forgotten address, numbered from `first`."""
    for number, address in enumerate(sorted(inputs.forgotten), first):
        yield Step(f"s{number}", str(address), "state.forget", f"forget {address}", None, {})
