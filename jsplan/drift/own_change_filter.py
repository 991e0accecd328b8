"""Which findings cannot be trusted yet, because an apply of this workspace was at work meanwhile, and when to look again. Pure.

An apply journals each step before it writes and again afterwards. A look between two equal states without a step under way has seen
nothing of an apply that state does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from jsplan.address import Address
from jsplan.state import State

#: Seconds without a change of state after which an apply that has no step under way is over.
QUIET_TIME: Final = 1.0
#: Seconds after which an apply that does not move has died, for what it was not at and for what it was.
DEAD_AFTER: Final = 15.0
STUCK_AFTER: Final = 60.0
#: Seconds until something in doubt is looked at again: at first, and at most.
RECHECK_INTERVALS: Final = (0.25, 2.0)


class OwnChangeFilter:
    """What has to be looked at again, and when."""

    def __init__(self) -> None:
        self._rechecks: dict[
            Address, tuple[float, float]
        ] = {}  # when, and how long to wait the time after
        self._changed_at = float("-inf")
        self._own_changes: set[str] = set()

    def recheck_now(self, addresses: Iterable[Address], now: float) -> None:
        """Look at these at once."""
        for address in addresses:
            self._rechecks[address] = (now, RECHECK_INTERVALS[0])

    def postpone(self, addresses: Iterable[Address], now: float) -> None:
        """Look at these again, less often with each time."""
        for address in addresses:
            _, pause = self._rechecks.get(address, (now, RECHECK_INTERVALS[0]))
            self._rechecks[address] = (now + pause, min(2 * pause, RECHECK_INTERVALS[1]))

    def clear(self, addresses: Iterable[Address]) -> None:
        """These are known."""
        for address in addresses:
            self._rechecks.pop(address, None)

    def due(self, now: float) -> set[Address]:
        """What is to be looked at now."""
        return {address for address, (when, _) in self._rechecks.items() if when <= now}

    def seconds_until_due(self, now: float) -> float:
        """Seconds until something is due."""
        return min((when - now for when, _ in self._rechecks.values()), default=float("inf"))

    def take_own_change(self, address: Address) -> bool:
        """Whether state moved at this address in the last look, or in those before it that were in doubt."""
        found = str(address) in self._own_changes
        self._own_changes.discard(str(address))
        return found

    def untrusted_between(self, before: State, after: State, now: float) -> Callable[[str], bool]:
        """Whether a look that was taken between two states cannot be trusted about an address."""
        moved = _changed_addresses(before, after)
        if moved or before.serial != after.serial:
            self._changed_at = now
        self._own_changes = {
            a for a in self._own_changes if a in moved or len(self._own_changes) < 10_000
        } | moved
        still = now - self._changed_at
        busy = set(after.pending) | set(after.replacements)
        everything = still < QUIET_TIME or (bool(busy) and still < DEAD_AFTER)
        doubtful = moved | (busy if still < STUCK_AFTER else set())

        def doubted(address: str) -> bool:
            return everything or address in doubtful or _parent_address(address) in doubtful

        return doubted


def has_changed_between(before: State, after: State) -> bool:
    """Whether an apply did anything between two states, or was under way."""
    return (
        before.serial != after.serial
        or bool(_changed_addresses(before, after))
        or bool(after.pending)
    )


def _parent_address(address: str) -> str:
    try:
        return str(Address.parse(address).parent)
    except ValueError:
        return ""


def _changed_addresses(before: State, after: State) -> set[str]:
    """Addresses that state says something else about."""
    moved = {
        str(a)
        for a in before.resources.keys() | after.resources.keys()
        if before.resources.get(a) != after.resources.get(a)
    }
    for one, other in ((before.pending, after.pending), (before.replacements, after.replacements)):
        moved |= {a for a in one.keys() | other.keys() if one.get(a) != other.get(a)}
    return moved
