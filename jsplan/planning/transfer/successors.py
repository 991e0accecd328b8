"""The consumers of a relocated stream: those of the origin, and those that continue them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jsplan.address import Address, matches, move_address

if TYPE_CHECKING:
    from jsplan.config.model import Relocate, Workspace
    from jsplan.planning.transfer.progress import Transfer


def origin_consumer(
    workspace: Workspace, relocation: Transfer, consumer: Address
) -> Address | None:
    """Return the consumer of the origin whose position a consumer of the target gets.

    That is the one that a `relocate` entry names, else that of the same name. Where an entry gives
    that one to another consumer, it is None: both would process the same messages.
    """
    for entry in _consumer_entries(workspace):
        if matches(entry.new_address, consumer):
            old = move_address(entry.new_address, entry.old_address, consumer)
            if old.parent == relocation.origin:
                return old
    same = _same_name(relocation.origin, consumer)
    return None if _renamed(workspace, relocation, same) is not None else same


def target_consumer(
    workspace: Workspace, relocation: Transfer, consumer: Address
) -> Address | None:
    """Return the consumer of the target that gets the position of one of the origin, or None."""
    renamed = _renamed(workspace, relocation, consumer)
    same = _same_name(relocation.target, consumer)
    if renamed is not None or same not in workspace.resources:
        return renamed
    return same if origin_consumer(workspace, relocation, same) == consumer else None


def _consumer_entries(workspace: Workspace) -> Iterator[Relocate]:
    """Yield the entries that name consumers. Those of streams keep the names of consumers."""
    return (entry for entry in workspace.relocate if entry.names_consumers)


def _same_name(stream: Address, consumer: Address) -> Address:
    return Address(stream.domain, "consumer", f"{stream.stream}/{consumer.consumer}")


def _renamed(workspace: Workspace, relocation: Transfer, old: Address) -> Address | None:
    """Return the declared consumer of the target to which an entry gives one of the origin."""
    for entry in _consumer_entries(workspace):
        if matches(entry.old_address, old):
            new = move_address(entry.old_address, entry.new_address, old)
            if new.parent == relocation.target and new in workspace.resources:
                return new
    return None
