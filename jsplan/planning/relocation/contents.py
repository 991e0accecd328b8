"""The entries of relocated buckets: they move with their bucket, in state and in no write."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address, matches, move_address
from jsplan.facts.live import Live
from jsplan.planning.relocation.entries import members
from jsplan.state.document import Entry

if TYPE_CHECKING:
    from jsplan.config.model import Workspace
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.relocation.progress import Relocation


def move_entries(
    workspace: Workspace,
    relocations: Mapping[Address, Relocation],
    buckets: Mapping[Address, Entry],
    entries: Mapping[Address, Entry],
) -> tuple[dict[Address, Entry], dict[Address, Address]]:
    """Rename the entries of relocated buckets. Also return the old address of each, by new one.

    `relocations` are those of the buckets, planned, begun or done. `buckets` are in state. An entry
    that an apply did not rename any more follows the `relocate` block, as one follows `moved`.
    """
    renamed, moved = dict(entries), dict[Address, Address]()
    places: dict[Address, Address | None] = {}
    for old in entries:
        bucket = old.parent
        if bucket is None:
            continue
        if bucket not in places:
            places[bucket] = _find_place(workspace, relocations, buckets, bucket)
        place = places[bucket]
        new = at_bucket(old, place) if place is not None else old
        if new != old and new not in renamed:
            renamed[new] = renamed.pop(old)
            moved[new] = old
    return renamed, moved


def _find_place(
    workspace: Workspace,
    relocations: Mapping[Address, Relocation],
    buckets: Mapping[Address, Entry],
    bucket: Address,
) -> Address | None:
    """Return where a bucket moves, or has moved; None if it stays."""
    for target, relocation in relocations.items():
        if relocation.origin == bucket and target in workspace.resources:
            return target
    if bucket in buckets:
        return None
    for block in workspace.relocate:
        if matches(block.old_address, bucket):
            target = move_address(block.old_address, block.new_address, bucket)
            if target in buckets:
                return target
    return None


def at_bucket(entry: Address, bucket: Address) -> Address:
    """Return the address of the same key in another bucket."""
    return Address(bucket.domain, entry.kind, f"{bucket.name}/{entry.key}")


def unmoved_buckets(inputs: PlanInputs) -> dict[Address, Address]:
    """Return by target the buckets whose values are still read at their origin."""
    return {
        target: relocation.origin
        for target, relocation in inputs.relocations.items()
        if target.kind != "stream"
        and target in inputs.workspace.resources
        and not relocation.is_activated
    }


def without_unplanned(entries: PlanInputs, inputs: PlanInputs) -> PlanInputs:
    """Leave the entries of a bucket alone whose relocation is not planned, in both places."""
    left = {
        side
        for relocation in inputs.relocations.values()
        if not inputs.selected & members(inputs, relocation)
        for side in (relocation.origin, relocation.target)
    }
    if not left:
        return entries
    return replace(entries, selected=frozenset(a for a in entries.selected if a.parent not in left))


def rename_live(live: Live, places: Mapping[Address, Address]) -> Live:
    """Return entries that were read at an origin under the address of the target, by `places`.

    `places` are the targets by origin.
    """
    if not places:
        return live

    def name(address: Address) -> Address:
        place = places.get(address.parent) if address.parent is not None else None
        return address if place is None else at_bucket(address, place)

    return replace(
        live,
        objects={
            name(a): dataclasses.replace(found, address=name(a))
            for a, found in live.objects.items()
        },
        unreadable={name(a): why for a, why in live.unreadable.items()},
        requested={name(a) for a in live.requested},
    )
