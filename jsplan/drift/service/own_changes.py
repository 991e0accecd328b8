"""Finds addresses that a check may misjudge, since an apply of ours changes them. Pure.

An apply journals each step before and after it writes. A check between two equal states has seen no
part of a step, unless that was running all the time.
"""

from __future__ import annotations

from collections.abc import Callable

from jsplan.address import Address
from jsplan.state import State


def find_doubtful(before: State, after: State, *, is_running: bool) -> Callable[[str], bool]:
    """Return a predicate for addresses, from the states before and after a check.

    `is_running`: a process holds the lock. What it has begun is doubtful until it ends, or dies.
    """
    if has_changed_between(before, after):
        return lambda _: True
    busy = {*after.pending, *after.replacements} if is_running else set[str]()
    return lambda address: address in busy or _parent_address(address) in busy


def has_changed_between(before: State, after: State) -> bool:
    """Return True if an apply changed the state between two reads, or began a step."""
    return before.serial != after.serial or any(
        getattr(before, name) != getattr(after, name)
        for name in ("resources", "pending", "replacements")
    )


def _parent_address(address: str) -> str:
    try:
        return str(Address.parse(address).parent)
    except ValueError:
        return ""
