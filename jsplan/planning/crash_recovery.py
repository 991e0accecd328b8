"""Recover the writes that an interrupted apply made but did not record.

An object that equals the result that its step expected counts as created by this workspace. It
does not need `--adopt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address, matches_any
from jsplan.documents.step_kinds import recorded_effect
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.diff import differing_fields
from jsplan.planning.merge import build_create
from jsplan.planning.model import PlanInputs
from jsplan.planning.pauses import is_held
from jsplan.planning.replication.reattach import restore_detached_view
from jsplan.planning.restore.interrupted import describe_part
from jsplan.planning.transfer.configs import (
    belongs_to_replacement,
    initial_config,
    needs_recreation,
)
from jsplan.planning.transfer.entries import recover_relocations, recover_target, relocated_to
from jsplan.planning.transfer.methods import second_method
from jsplan.planning.transfer.progress import Transfer, determine_progress
from jsplan.resources.buckets import BACKING_TABLES
from jsplan.state.document import Entry


def recover_interrupted(inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with the results of unfinished steps. `inputs.live` must cover them.

    A step counts as done only if the object equals its expected result. Before its request the
    step saw the object absent (or managed), and no other client knows that exact configuration.
    """
    inputs = _recover_deletions(inputs)
    inputs = _recover_replacements(inputs)
    inputs = _load_interrupted(inputs)
    inputs = _recover_steps(inputs)
    return recover_relocations(restore_detached_view(inputs))


def recover_contents(inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with the results of unfinished steps of contents, once these are read.

    `inputs` are of `recover_interrupted`, to which the contents count as not read.
    """
    return _recover_steps(_recover_deletions(inputs, contents=True), contents=True)


def _recover_deletions(inputs: PlanInputs, *, contents: bool = False) -> PlanInputs:
    """Remove the entries of resources that the apply deleted, and those of their consumers."""
    work = inputs.interrupted
    begun = {a for a, one in work.steps.items() if recorded_effect(one) == "delete"}
    deleted = {a for a in begun if a.is_content == contents and inputs.live.is_absent(a)}
    if not deleted:
        return inputs
    gone = deleted | {a for a in inputs.entries if a.kind == "consumer" and a.parent in deleted}
    gone &= inputs.entries.keys()
    entries = {a: entry for a, entry in inputs.entries.items() if a not in gone}
    work = replace(work, recovered_deletions=work.recovered_deletions | gone)
    return replace(inputs, entries=entries, interrupted=work)


def _recover_steps(inputs: PlanInputs, *, contents: bool = False) -> PlanInputs:
    """Record what the unfinished steps wrote."""
    found: dict[Address, Entry] = {}
    for address, begun in inputs.interrupted.steps.items():
        live = inputs.live.get(address) if address.is_content == contents else None
        if live is None or not _was_written(inputs, address, begun, live):
            continue
        if (record := begun["record"]) is None:
            found[address] = inputs.entries[address].with_fields(begun["expect"], live.config)
        else:
            found[address] = Entry.of_record(record, live.config, live.created, live.answered_at)
    work = inputs.interrupted
    work = replace(work, recovered=work.recovered | found.keys())
    return replace(inputs, entries={**inputs.entries, **found}, interrupted=work)


def describe_interruption(inputs: PlanInputs, address: Address) -> str:
    """Describe the progress of an interrupted replacement; empty if there is none."""
    stream = inputs.interrupted.streams.get(address.parent or address)
    if stream is not None:
        return f"its messages are in {stream.messages_location}"
    if (target := relocated_to(inputs, address)) is not None:
        return f"it is relocated to {target}"
    if any(r.origin == address and r.is_quiesced for r in inputs.relocations.values()):
        return "its messages are copied"
    begun, live = inputs.interrupted.replacements.get(address), inputs.live.get(address)
    if begun is None or address.kind != "consumer":
        return ""
    return "its position is kept" if live is None or is_held(live.compact) else ""


def _recover_replacements(inputs: PlanInputs) -> PlanInputs:
    """Record new consumers of replacements that are still held since their creation, as unready."""
    found: dict[Address, Entry] = {}
    for address, begun in inputs.interrupted.replacements.items():
        live, entry = inputs.live.get(address), inputs.entries.get(address)
        if address.kind != "consumer" or live is None or not is_held(live.compact):
            continue
        if live.created != begun.get("created"):
            entry = entry or Entry.of_unfinished(live.config, live.created)
            found[address] = replace(entry, config=live.config, created=live.created)
    work = inputs.interrupted
    work = replace(work, unready=work.unready | found.keys())
    return replace(inputs, entries={**inputs.entries, **found}, interrupted=work)


def _was_written(
    inputs: PlanInputs, address: Address, begun: dict[str, Any], live: LiveObject
) -> bool:
    effect = recorded_effect(begun)
    if effect not in ("create", "update", "write") or describe_part(begun, live):
        return False  # its last request does not leave the expected object
    entry = inputs.entries.get(address)
    known = entry is not None and entry.created == live.created
    if not begun.get("record") and not (known and begun.get("expect")):
        return False
    is_other = entry is not None and not known
    if (effect == "create" and known) or (effect != "create" and is_other):
        return False
    return not differing_fields(table_of(address), live.compact, begun.get("expect") or {})


# --- interrupted replacements of streams ---


def staging_streams(inputs: PlanInputs) -> set[Address]:
    """Return the streams that show the progress of replacements and relocations."""
    records = [r for a, r in inputs.interrupted.replacements.items() if a.is_stream]
    staged = {Address.parse(record["staging"]) for record in records if "staging" in record}
    sides = {side for r in inputs.relocations.values() for side in (r.origin, r.target)}
    return staged | {side for side in sides if side.domain in inputs.workspace.domains}


def _load_interrupted(inputs: PlanInputs) -> PlanInputs:
    """Determine the progress of each replacement; restore the previous view of its resources.

    `inputs.live` must include the staging streams.
    """
    streams: dict[Address, Transfer] = {}
    previous: list[LiveObject] = []
    domains, entries = dict(inputs.live.domains), dict(inputs.entries)
    recovered = set[Address]()
    for address, record in inputs.interrupted.replacements.items():
        known = inputs.interrupted.streams.get(address)
        if known is not None and known.is_lost:
            streams[address] = known
        if "staging" not in record or not inputs.live.is_reachable(address.domain):
            continue
        found = _inspect_replacement(inputs, address, record)
        if found.is_lost and _is_emptied(inputs, address.domain):
            if matches_any(inputs.options.reinstalled, address.domain):
                continue
            facts = domains[address.domain]
            domains[address.domain] = replace(facts, reachable=False, reason=found.describe_loss())
        elif (before := found.previous) is not None:
            previous += [before, *_previous_consumers(inputs, address, found)]
        if found.is_activated:
            recovered |= recover_target(found, entries)
        streams[address] = found
    work = inputs.interrupted
    return replace(
        inputs,
        entries=entries | dict(_previous_entries(inputs, previous)),
        live=replace(inputs.live.with_objects(previous), domains=domains),
        interrupted=replace(work, streams=streams, recovered=work.recovered | recovered),
    )


def _is_emptied(inputs: PlanInputs, domain: str) -> bool:
    """Check whether a domain that answers has none of the streams of the state."""
    return not any(
        (entry := inputs.entries.get(live.address)) and entry.created == live.created
        for live in inputs.live.streams(domain)
    )


def _inspect_replacement(inputs: PlanInputs, address: Address, record: dict[str, Any]) -> Transfer:
    here = record | {"address": str(address), "origin": str(address)}
    known = Transfer.of_record(here)
    staging = inputs.live.get(known.staging) if known.staging is not None else None
    now = inputs.live.get(address)
    found = replace(determine_progress(known, now, now, staging), record=record)
    is_new = found.next_step in ("match", "resume", "update") and found.target_now is not None
    if is_new and inputs.declared(address) is not None and _needs_refill(inputs, address, found):
        return replace(found, next_step="refill")
    return found


def _needs_refill(inputs: PlanInputs, address: Address, found: Transfer) -> bool:
    """Check whether the new stream was created for older files and must be created again."""
    assert found.target_now is not None
    level = inputs.level(address)
    old = LiveObject(address, dict(found.old_config), found.record["old"]["created"], {})
    creation = build_create(BACKING_TABLES[address.kind], inputs.creation_body(address), level)
    wanted = initial_config(
        address, old, creation, level, can_mirror=second_method(level) == "snapshot"
    )
    raw = found.target_now.raw
    return belongs_to_replacement(raw, found.record["id"]) and needs_recreation(raw, wanted)


def _previous_consumers(
    inputs: PlanInputs, address: Address, found: Transfer
) -> Iterator[LiveObject]:
    """Yield the consumers of a replaced stream as they were before.

    Those that do not come back with it are left out once the others have: steps create them.
    """
    are_back = found.next_step == "update"
    for name, one in found.record.get("consumers", {}).items():
        at = Address(address.domain, "consumer", f"{address.stream}/{name}")
        begun = inputs.interrupted.steps.get(at)
        is_new = begun is not None and recorded_effect(begun) == "create"
        if not are_back or not (is_new or inputs.live.is_absent(at)):
            yield LiveObject(at, one["config"], one["created"], one["state"])


def _previous_entries(
    inputs: PlanInputs, previous: Iterable[LiveObject]
) -> Iterator[tuple[Address, Entry]]:
    """Yield the entries of these objects: if the new one was managed, so is the previous one."""
    for before in previous:
        now, entry = inputs.live.get(before.address), inputs.entries.get(before.address)
        if now is not None and entry is not None and entry.created == now.created:
            yield before.address, replace(entry, created=before.created)
