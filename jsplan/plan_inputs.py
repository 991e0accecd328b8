"""Builds the inputs of planning from the opened workspace, before the servers are read."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from jsplan.address import Address, matches
from jsplan.context import Context
from jsplan.diagnostics import Diagnostic, did_you_mean
from jsplan.errors import PlanError
from jsplan.facts.live import Live
from jsplan.planning.build import candidate_addresses
from jsplan.planning.forgotten_entries import find_forgotten
from jsplan.planning.model import (
    InterruptedWork,
    PlanInputs,
    apply_moves,
    apply_moves_to_records,
    select_addresses,
)
from jsplan.planning.options import PlanningOptions
from jsplan.planning.transfer.contents import move_contents
from jsplan.planning.transfer.entries import find_relocations, select_together

#: The operation of a lock under which nothing is replaced.
BACKFILL: Final = "backfill"


def build_inputs(context: Context, options: PlanningOptions = PlanningOptions()) -> PlanInputs:  # noqa: B008 - it is immutable
    """Build the inputs of planning with an empty live side."""
    workspace, state = context.workspace, context.state
    entries, moved = apply_moves(workspace, state.resources)
    pending, pending_moved = apply_moves_to_records(workspace, state.pending)
    replacements, _ = apply_moves_to_records(workspace, state.replacements)
    inputs = PlanInputs(
        workspace,
        context.topology,
        state,
        Live(),
        options,
        entries,
        pending_moved | moved,
        interrupted=InterruptedWork(steps=pending, replacements=replacements),
        owner_tag=_owner_tag(context),
    )
    inputs = move_contents(replace(inputs, relocations=find_relocations(inputs)))
    candidates = candidate_addresses(inputs)
    selected = select_addresses(inputs, candidates)
    return replace(inputs, selected=select_together(inputs, selected, candidates))


async def look_for_holder(context: Context, inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with whether a running process works on what looks interrupted.

    Raises StateError.
    """
    if not inputs.interrupted.replacements:
        return inputs
    running = await is_being_applied(context)
    return replace(inputs, interrupted=replace(inputs.interrupted, is_running=running))


async def is_being_applied(context: Context) -> bool:
    """Check whether a running process holds the lock to change resources. Raises StateError."""
    holder = await context.backend.read_holder()
    return holder is not None and holder.operation != BACKFILL


def _owner_tag(context: Context) -> str:
    """Return the owner tag of this workspace. Its id is made at the first use."""
    workspace, known = context.workspace, context.state.ownership.get("id")
    if known is None and not workspace.ownership_marker:
        return ""
    name = f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name
    return f"{name}/{known or uuid.uuid4()}"


def require_matching(inputs: PlanInputs) -> None:
    """Raise PlanError for a glob of an option that matches nothing: it may be misspelt."""
    options = inputs.options
    # Addresses to import were checked before.
    named = {
        "--target": () if options.imports else options.targets,
        "--exclude": options.excludes,
        "--replace": options.replace,
    }
    if not any(named.values()):
        return
    known = candidate_addresses(inputs) | find_forgotten(inputs)
    for option, globs in named.items():
        # Contents are never replaced: they are written again.
        named_by = {a for a in known if option != "--replace" or not a.is_content}
        _require_matching(option, globs, named_by)


def _require_matching(option: str, globs: Collection[str], known: Collection[Address]) -> None:
    found = [
        Diagnostic(
            "error",
            "JS417",
            f"{option} {glob} names nothing in the files or in state",
            did_you_mean(glob, map(str, known)).strip()
            or "`jsplan plan` and `jsplan state list` show what there is.",
        )
        for glob in globs
        if not any(matches(glob, address) for address in known)
    ]
    if found:
        raise PlanError(found, found[0].summary)
