"""Splits an update that the server takes only in parts into steps that it takes one after the other.

A cluster refuses to move and to scale a stream at once (10123), and takes neither while it is at the other (10124, 10226; up
to 2.12 it does not even answer). Which steps wait for others is left to `steps`.
"""

from __future__ import annotations

from typing import Any

from jsplan.planning.merge import patched
from jsplan.planning.verdict import Verdict, table_of
from jsplan.resources.fields import Config

#: What makes a cluster reorganise a stream.
MOVES, SCALES = "placement", "num_replicas"


def reorganises(before: Config, after: Config) -> bool:
    """Whether the cluster goes on working after it has taken the update."""
    return before.get(SCALES, 1) != after.get(SCALES, 1) or _moves(before, after)


def _moves(before: Config, after: Config) -> bool:
    """A placement that is only taken away moves nothing."""
    return bool(after.get(MOVES)) and before.get(MOVES) != after.get(MOVES)


def first_part(verdict: Verdict, body: dict[str, Any]) -> tuple[str, Config, Config] | None:
    """What has to be done before the update itself: a title, the configuration to send and what to expect of it.

    None where the server takes all at once. The copies that are not wanted go before a move, those that are wanted
    come after it, so that as little as possible is moved.
    """
    live, after = verdict.live, verdict.after
    if live is None or after is None or verdict.address.kind == "consumer":
        return None
    before = live.compact
    copies, now = after.get(SCALES, 1), before.get(SCALES, 1)
    if copies == now or not _moves(before, after):
        return None
    field = SCALES if copies < now else MOVES
    part = {name: value for name, value in before.items() if name != field} | ({field: after[field]} if field in after else {})
    title = f"scale it to {copies} {'copy' if copies == 1 else 'copies'}" if field == SCALES else "move it"
    return title, patched(table_of(verdict.address), live.raw, body, before, part), {field: after.get(field)}
