"""The entries of relocated buckets: they move with their bucket, in state and in no write."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address, matches, move_address
from jsplan.facts.live import Live
from jsplan.planning.transfer.entries import members

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs


def move_contents(inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with the contents of relocated buckets under their new addresses.

    The relocations are planned, begun or done. An entry that an apply did not rename any more
    follows the `relocate` block, as one follows `moved`.
    """
    if not (inputs.workspace.relocate or inputs.interrupted.replacements):
        return inputs
    renamed, moved = dict(inputs.entries), dict(inputs.moved_from)
    places: dict[Address, Address | None] = {}
    for old in inputs.entries:
        bucket = old.parent
        if bucket is None or not old.is_content:
            continue
        if bucket not in places:
            places[bucket] = _find_place(inputs, bucket)
        place = places[bucket]
        new = at_bucket(old, place) if place is not None else old
        if new != old and new not in renamed:
            renamed[new] = renamed.pop(old)
            moved[new] = moved.get(old, old)
    return replace(inputs, entries=renamed, moved_from=moved)


def _find_place(inputs: PlanInputs, bucket: Address) -> Address | None:
    """Return where a bucket moves, or has moved; None if it stays."""
    for target, relocation in inputs.relocations.items():
        if relocation.origin == bucket and target in inputs.workspace.resources:
            return target
    if bucket in inputs.entries:
        return None
    for block in inputs.workspace.relocate:
        if matches(block.old_address, bucket):
            target = move_address(block.old_address, block.new_address, bucket)
            if target in inputs.entries:
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


def without_unplanned(inputs: PlanInputs) -> PlanInputs:
    """Leave the contents of a bucket alone whose relocation is not planned, in both places."""
    left: set[Address] = set()
    for relocation in inputs.relocations.values():
        if not inputs.selected & members(inputs, relocation):
            left |= {relocation.origin, relocation.target}
    if not left:
        return inputs
    kept = (a for a in inputs.selected if not a.is_content or a.parent not in left)
    return replace(inputs, selected=frozenset(kept))


def rename_live(live: Live, places: Mapping[Address, Address]) -> Live:
    """Return entries that were read at an origin under the address of the target, by `places`.

    `places` are the targets by origin.
    """
    if not places:
        return live

    def name(address: Address) -> Address:
        place = places.get(address.parent) if address.parent is not None else None
        return address if place is None else at_bucket(address, place)

    renamed = {name(a): found for a, found in live.objects.items()}
    objects = {a: dataclasses.replace(found, address=a) for a, found in renamed.items()}
    unreadable = {name(a): why for a, why in live.unreadable.items()}
    requested = {name(a) for a in live.requested}
    return replace(live, objects=objects, unreadable=unreadable, requested=requested)
