"""The relocations of a workspace, by the `relocate` entries and in state, and their stages.

A stage (`--stage`) plans relocations only, and chooses which of their steps run: `prepare` copies,
and `cutover` does the rest. What a stage leaves is what an interrupted apply leaves, so the other
one resumes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address, is_glob, matches, matches_any, move_address
from jsplan.documents.plan import ResourceChange
from jsplan.documents.step_kinds import TARGET_PREPARED
from jsplan.facts.live import LiveObject
from jsplan.planning.drafts import Drafts
from jsplan.planning.pauses import is_held
from jsplan.planning.replication.impact import reads_origin
from jsplan.planning.transfer.consumers import origin_consumer, target_consumer
from jsplan.planning.transfer.copies import mirror_config
from jsplan.planning.transfer.decisions import TARGET_RELOCATED
from jsplan.planning.transfer.progress import Transfer, determine_progress, is_transfer
from jsplan.planning.transfer.steps import PREPARE_KINDS
from jsplan.resources import TABLES
from jsplan.state.document import Entry

if TYPE_CHECKING:
    from jsplan.config.model import Workspace
    from jsplan.planning.model import Decisions, PlanInputs


def find_relocations(inputs: PlanInputs) -> dict[Address, Transfer]:
    """Find the relocations by target, before anything is read. One without origin is done.

    A plan that destroys all, or only updates state, begins none. A glob covers what state has. A
    literal address counts although state does not have it: such a stream must not be left behind
    while an empty one is created.
    """
    found = {
        target: replace(Transfer.of_record(record), target=target)
        for target, record in inputs.interrupted.replacements.items()
        if is_transfer(record) and "staging" not in record
    }
    options = inputs.options
    only_interrupted = options.destroy or options.refresh_only or options.imports
    for entry in () if only_interrupted else inputs.workspace.relocate:
        if entry.names_consumers:
            continue
        managed = (a for a in inputs.entries if a.is_stream)
        origins = {a for a in managed if matches(entry.old_address, a)}
        if not is_glob(entry.old_address):
            origins.add(Address.parse(entry.old_address))
        for origin in sorted(origins):
            target = move_address(entry.old_address, entry.new_address, origin)
            if target not in inputs.workspace.resources:
                continue  # it left the files too, and is deleted where it is
            known = found.get(target)
            record = known.record if known is not None else {}
            if record.get("origin", str(origin)) != str(origin):
                continue
            base = known if known is not None else Transfer(origin, target, next_step="mirror")
            both = base.origin != origin and {base.origin, origin} <= inputs.entries.keys()
            conflict = f"{base.origin} would move there too" if both else ""
            found[target] = replace(base, origin=origin, range=entry.range, conflict=conflict)
    return found


def members(inputs: PlanInputs, relocation: Transfer) -> set[Address]:
    """Return both streams, their consumers, and the managed streams that will read the target."""
    sides = {relocation.origin, relocation.target}
    known = (*inputs.workspace.resources, *inputs.entries)
    downstream = {edge.downstream for edge in inputs.topology.edges_from(relocation.target)}
    consumers = {a for a in known if a.kind == "consumer" and a.parent in sides}
    return sides | consumers | (downstream & inputs.entries.keys())


def select_together(
    inputs: PlanInputs, selected: frozenset[Address], candidates: frozenset[Address]
) -> frozenset[Address]:
    """Select all of a relocation, or nothing of it: half of it would lose messages."""
    for relocation in inputs.relocations.values():
        together = members(inputs, relocation)
        if any(matches_any(inputs.options.excludes, address) for address in together):
            selected -= together
        elif selected & together:
            selected |= together & candidates
    return selected


def relocation_reads(inputs: PlanInputs) -> set[Address]:
    """Return what must be read for the relocations: both sides, and consumers that continue."""
    found: set[Address] = set()
    for relocation in inputs.relocations.values():
        if relocation.target in inputs.selected or relocation.origin in inputs.selected:
            together = members(inputs, relocation)
            coming = (a for a in together if a.parent == relocation.target)
            continued = {origin_consumer(inputs.workspace, relocation, a) for a in coming}
            found |= together | {address for address in continued if address is not None}
            found |= {target for _, target in _recorded_consumers(relocation)}
    return {address for address in found if address.domain in inputs.workspace.domains}


def deferral_reasons(inputs: PlanInputs) -> dict[Address, str]:
    """Return what waits for an offline side of its relocation, with the reason.

    Streams that will read a target wait too: they would copy it from its start.
    """
    found: dict[Address, str] = {}
    for relocation in inputs.relocations.values():
        together, live = members(inputs, relocation), inputs.live
        known = {address.domain for address in together} & live.domains.keys()
        offline = sorted(key for key in known if not live.is_reachable(key))
        if not offline:
            continue
        why = inputs.live.domains[offline[0]].offline_text
        downstream = {edge.downstream for edge in inputs.topology.edges_from(relocation.target)}
        if relocation.must_release:
            together = together - {relocation.origin}
        text = f"{relocation.target} is relocated from {relocation.origin}, and {why}"
        found |= dict.fromkeys(together | downstream, text)
    return found


def recover_relocations(inputs: PlanInputs) -> PlanInputs:
    """Determine the progress of each relocation, and restore the previous view of its streams.

    Until the target is activated it counts as absent, and the origin as it was: so the next plan
    decides as the first one did. What is done already is left out.
    """
    found: dict[Address, Transfer] = {}
    objects, entries = dict(inputs.live.objects), dict(inputs.entries)
    recovered, selected = set[Address](), set(inputs.selected)
    for target, relocation in inputs.relocations.items():
        sides = (relocation.origin, target)
        if not all(inputs.live.is_reachable(side.domain) for side in sides):
            now = relocation.with_origin_alone(inputs.live.get(relocation.origin))
            if now.record and target.domain not in inputs.workspace.domains:
                now = replace(now, conflict=f"{target.domain} is no longer declared")
            found[target] = now
            if now.must_release and (previous := now.previous):
                objects[relocation.origin] = previous
            continue
        sides_now = (inputs.live.get(side) for side in sides)
        now = determine_progress(relocation, *sides_now)
        was_moved = relocation.origin not in entries and target in inputs.entries
        is_done = now.origin_now is None or was_moved
        if not now.record and (is_done or _mirrors_all(inputs, now.origin_now, target)):
            continue
        if not now.record and _is_managed_mirror(inputs, now):
            now = replace(now, promotes=True)
            objects.pop(target)
        found[target] = now
        if previous := now.previous:
            objects[relocation.origin] = previous
            objects.pop(target, None)
        if now.is_activated and now.target_now is not None:
            recovered |= recover_target(now, entries)
            given_up = _hide_unfinished_consumers(inputs.workspace, now, objects, entries)
            recovered |= given_up
            selected |= given_up if target in inputs.selected else set()
    work = inputs.interrupted
    return replace(
        inputs,
        relocations=found,
        selected=frozenset(selected),
        entries=entries,
        live=replace(inputs.live, objects=objects),
        interrupted=replace(work, recovered=work.recovered | recovered),
    )


def _is_managed_mirror(inputs: PlanInputs, relocation: Transfer) -> bool:
    """Check whether the target is a mirror of all that the origin has, and in state."""
    live, entry = relocation.target_now, inputs.entries.get(relocation.target)
    is_ours = live is not None and entry is not None and entry.created == live.created
    return is_ours and _mirrors_all(inputs, live, relocation.origin)


def _mirrors_all(inputs: PlanInputs, live: LiveObject | None, origin: Address) -> bool:
    """Check whether a stream is a mirror of all messages of another one."""
    mirror = (live.compact.get("mirror") if live is not None else None) or {}
    if live is None or not mirror or mirror.keys() & {"filter_subject", "subject_transforms"}:
        return False
    return reads_origin(inputs, live.address, mirror, origin)


def recover_target(relocation: Transfer, entries: dict[Address, Entry]) -> set[Address]:
    """Record the target where the apply ended between its activation and the record of it."""
    live, target = relocation.target_now, relocation.target
    record = relocation.record.get("record")
    known = entries.get(target)
    if live is None or record is None or (known is not None and known.created == live.created):
        return set()
    entries[target] = Entry.of_record(record, live.config, live.created, live.answered_at)
    return {target}


def _hide_unfinished_consumers(
    workspace: Workspace,
    relocation: Transfer,
    objects: dict[Address, LiveObject],
    entries: dict[Address, Entry],
) -> set[Address]:
    """Let consumers of the target count as absent that are still paused since their creation.

    Return those that the files no longer want there: they are ours, and recorded as such.
    """
    given_up: set[Address] = set()
    for old, address in _recorded_consumers(relocation):
        live = objects.get(address)
        if live is None or not is_held(live.raw):
            continue
        if target_consumer(workspace, relocation, old) == address:
            del objects[address]
            entries.pop(address, None)
        elif address not in entries:
            entries[address] = Entry.of_unfinished(live.config, live.created)
            given_up.add(address)
    return given_up


def _recorded_consumers(relocation: Transfer) -> Iterator[tuple[Address, Address]]:
    """Yield each consumer whose position is recorded, and the one that gets it."""
    origin = relocation.origin
    for name, position in (relocation.record.get("consumers") or {}).items():
        old = Address(origin.domain, "consumer", f"{origin.stream}/{name}")
        yield old, Address.parse(position["target"])


def relocated_to(inputs: PlanInputs, address: Address) -> Address | None:
    """Return the target of an origin, or of its consumer, if it is activated already.

    What the relocation changed at the old address is no drift.
    """
    done = (one for one in inputs.relocations.values() if one.is_activated)
    return next((one.target for one in done if one.origin in (address, address.parent)), None)


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
