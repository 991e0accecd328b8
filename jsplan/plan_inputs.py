"""Builds the inputs of planning from the opened workspace, before the servers are read."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from jsplan.address import CONTENT_PARENTS, matches, matches_any, names_content
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
from jsplan.planning.relocation.contents import move_entries
from jsplan.planning.relocation.entries import find_relocations, select_together
from jsplan.topology import Topology

#: The operation of a lock under which nothing is replaced.
BACKFILL: Final = "backfill"


def build_inputs(context: Context, options: PlanningOptions = PlanningOptions()) -> PlanInputs:  # noqa: B008 - it is immutable
    """Build the inputs of planning with an empty live side."""
    resources = {a: e for a, e in context.state.resources.items() if not a.is_content}
    steps = {text: step for text, step in context.state.pending.items() if not _is_entry(text)}
    entries, moved = apply_moves(context.workspace, resources)
    pending, pending_moved = apply_moves_to_records(context.workspace, steps)
    replacements, _ = apply_moves_to_records(context.workspace, context.state.replacements)
    inputs = PlanInputs(
        context.workspace,
        context.topology,
        context.state,
        Live(),
        options,
        entries,
        pending_moved | moved,
        interrupted=InterruptedWork(steps=pending, replacements=replacements),
        owner_tag=_owner_tag(context),
    )
    inputs = replace(inputs, relocations=find_relocations(inputs))
    candidates = candidate_addresses(inputs)
    selected = select_addresses(inputs, candidates)
    return replace(inputs, selected=select_together(inputs, selected, candidates))


async def look_for_holder(context: Context, inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with whether a running process works on what looks interrupted.

    Raises StateError.
    """
    if not inputs.interrupted.replacements:
        return inputs
    holder = await context.backend.read_holder()
    running = holder is not None and holder.operation != BACKFILL
    return replace(inputs, interrupted=replace(inputs.interrupted, is_running=running))


def build_entry_inputs(context: Context, options: PlanningOptions) -> PlanInputs:
    """Build the inputs that hold the entries of buckets, objects and schedules, nothing else.

    An import takes those that it names.
    """
    workspace = replace(context.workspace, resources=context.workspace.contents)
    resources = {a: e for a, e in context.state.resources.items() if a.is_content}
    steps = {text: step for text, step in context.state.pending.items() if _is_entry(text)}
    entries, moved = apply_moves(workspace, resources)
    if context.workspace.relocate or context.state.replacements:
        buckets = build_inputs(context, options)
        entries, relocated = move_entries(
            context.workspace, buckets.relocations, buckets.entries, entries
        )
        moved |= {new: moved.get(old, old) for new, old in relocated.items()}
    pending, pending_moved = apply_moves_to_records(workspace, steps)
    topology = Topology(
        context.topology.routes,
        bodies={address: dict(found.body) for address, found in workspace.resources.items()},
        dependencies={
            address: {context.topology.find_declared(address.parent)}
            for address in workspace.resources
            if address.parent is not None
        },
    )
    inputs = PlanInputs(
        workspace,
        topology,
        context.state,
        Live(),
        dataclasses.replace(options, replace=()),
        entries,
        pending_moved | moved,
        interrupted=InterruptedWork(steps=pending),
    )
    chosen = candidate_addresses(inputs)
    if options.imports:
        named = [glob for glob in options.imports if names_content(glob)]
        chosen = frozenset(address for address in chosen if matches_any(named, address))
    return replace(inputs, selected=select_addresses(inputs, chosen))


def select_buckets(inputs: PlanInputs, entries: PlanInputs) -> PlanInputs:
    """Select the buckets of targeted entries too: these depend on them."""
    options = inputs.options
    if not options.targets or options.destroy or options.imports:
        return inputs
    after = entries.topology.dependencies
    wanted = {bucket for a in entries.selected for bucket in after.get(a, ())}
    known = wanted & candidate_addresses(inputs)
    known = {a for a in known if not matches_any(options.excludes, a)}
    candidates = candidate_addresses(inputs)
    return replace(inputs, selected=select_together(inputs, inputs.selected | known, candidates))


def _is_entry(address: str) -> bool:
    return address.split("/", 2)[1] in CONTENT_PARENTS


def _owner_tag(context: Context) -> str:
    """Return the owner tag of this workspace. Its id is made at the first use."""
    workspace, known = context.workspace, context.state.ownership.get("id")
    if known is None and not workspace.ownership_marker:
        return ""
    name = f"{workspace.name}.{workspace.environment}" if workspace.environment else workspace.name
    return f"{name}/{known or uuid.uuid4()}"


def require_matching(globs: Collection[str], option: str, *inputs: PlanInputs) -> None:
    """Raise PlanError for a glob that matches nothing in any of the inputs: it may be misspelt."""
    if not globs:
        return
    known = {a for each in inputs for a in candidate_addresses(each) | find_forgotten(each)}
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
