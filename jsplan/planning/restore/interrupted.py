"""Restores that were interrupted: a killed one leaves the part of its stream that was sent.

nats-server 2.15 activates that part after five seconds, with its subjects (measured).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.units import count_text, parse_instant

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.restore.selection import RestoreTarget

_COUNTS = ("messages", "first_seq", "last_seq")
HOW_TO_FINISH = (
    "Run the same jsplan restore again: it deletes that part and begins again. "
    "To keep what is there: jsplan apply --adopt."
)


def count_saved(state: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of a saved stream that state keeps while it is restored."""
    return {name: int(state.get(name) or 0) for name in _COUNTS}


def describe_part(begun: Mapping[str, Any] | None, live: LiveObject | None) -> str:
    """Describe a stream that an unfinished restore may have left incomplete; else empty."""
    if begun is None or begun.get("op") != "stream.restore" or live is None:
        return ""
    saved, now = begun.get("saved") or {}, count_saved(live.state)
    is_empty = saved.get("messages") == now["messages"] == 0
    if saved == now or (is_empty and saved["last_seq"] == now["last_seq"]):
        return ""
    many = (
        f"{now['messages']:,} of {count_text(saved['messages'], 'message')}" if saved else "a part"
    )
    return f"its restore was interrupted: it has {many}"


def list_cut_restores(inputs: PlanInputs) -> Iterator[tuple[Address, str]]:
    """Yield the streams that unfinished restores may have left incomplete, with what is known."""
    for address, begun in sorted(inputs.interrupted.steps.items()):
        if text := describe_part(begun, inputs.live.get(address)):
            yield address, text


def is_part_of(live: LiveObject, target: RestoreTarget) -> bool:
    """Check whether all messages of a stream are in the backup, as far as its state shows.

    The server keeps their times, so what clients published since is newer.
    """
    now, saved = live.state, target.saved.before
    if int(now.get("last_seq") or 0) > int(saved["last_seq"]):
        return False
    if not now.get("messages"):
        return True
    return int(now["messages"]) <= target.saved.messages and (
        parse_instant(now["last_ts"]) <= parse_instant(saved["last_ts"])
    )
