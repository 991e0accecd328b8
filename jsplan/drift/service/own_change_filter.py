"""Decides which findings of the drift job a running apply of this workspace may cause. Pure.

An apply journals each step before and after it writes. A check between two equal states without a
running step cannot have seen a part of an apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from jsplan.address import Address
from jsplan.state import State

#: Seconds without a change of state after which an apply without a running step is over.
QUIET_TIME: Final = 1.0
#: Seconds after which a silent apply counts as dead: for other addresses, and for its own step.
DEAD_AFTER: Final = 15.0
STUCK_AFTER: Final = 60.0
#: Seconds until a doubtful address is checked again: first and maximum.
RECHECK_INTERVALS: Final = (0.25, 2.0)


class OwnChangeFilter:
    """The addresses to check again, with times."""

    def __init__(self) -> None:
        # By address: when to check, and the pause after that.
        self._rechecks: dict[Address, tuple[float, float]] = {}
        self._changed_at = float("-inf")
        self._own_changes: set[str] = set()

    def recheck_now(self, addresses: Iterable[Address], now: float) -> None:
        """Make these due at once."""
        for address in addresses:
            self._rechecks[address] = (now, RECHECK_INTERVALS[0])

    def postpone(self, addresses: Iterable[Address], now: float) -> None:
        """Check these again later, with a growing pause."""
        for address in addresses:
            _, pause = self._rechecks.get(address, (now, RECHECK_INTERVALS[0]))
            self._rechecks[address] = (now + pause, min(2 * pause, RECHECK_INTERVALS[1]))

    def clear(self, addresses: Iterable[Address]) -> None:
        """Forget these: their findings are known."""
        for address in addresses:
            self._rechecks.pop(address, None)

    def due(self, now: float) -> set[Address]:
        """Return the addresses to check now."""
        return {address for address, (when, _) in self._rechecks.items() if when <= now}

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until an address is due."""
        return min((when - now for when, _ in self._rechecks.values()), default=float("inf"))

    def take_own_change(self, address: Address) -> bool:
        """Return True, once, if state changed at this address during the last check.

        Earlier checks that were in doubt count too.
        """
        found = str(address) in self._own_changes
        self._own_changes.discard(str(address))
        return found

    def untrusted_between(self, before: State, after: State, now: float) -> Callable[[str], bool]:
        """Return a predicate: True for an address that a check between two states may misjudge."""
        changed = _changed_addresses(before, after)
        if changed or before.serial != after.serial:
            self._changed_at = now
        self._own_changes = {
            a for a in self._own_changes if a in changed or len(self._own_changes) < 10_000
        } | changed
        unchanged_for = now - self._changed_at
        busy = set(after.pending) | set(after.replacements)
        everything = unchanged_for < QUIET_TIME or (bool(busy) and unchanged_for < DEAD_AFTER)
        doubtful = changed | (busy if unchanged_for < STUCK_AFTER else set())

        def is_untrusted(address: str) -> bool:
            return everything or address in doubtful or _parent_address(address) in doubtful

        return is_untrusted


def has_changed_between(before: State, after: State) -> bool:
    """Return True if an apply changed state between two reads, or was running."""
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
    """Return the addresses whose entries in state differ."""
    changed = {
        str(a)
        for a in before.resources.keys() | after.resources.keys()
        if before.resources.get(a) != after.resources.get(a)
    }
    for old, new in ((before.pending, after.pending), (before.replacements, after.replacements)):
        changed |= {a for a in old.keys() | new.keys() if old.get(a) != new.get(a)}
    return changed
