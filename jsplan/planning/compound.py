"""Splits an update that the server takes only in parts into steps that it takes one after the other.

A cluster refuses to move and to scale a stream at once (10123), and takes neither while it is at the other (10124, 10226; up
to 2.14 it does not even answer). Limits for consumers bind what exists at every moment. Which steps wait for others is left to `steps`.
"""

from __future__ import annotations

from typing import Any

from jsplan.planning.merge import patched
from jsplan.planning.verdict import Verdict, table_of
from jsplan.resources.fields import Config

#: What makes a cluster reorganise a stream.
MOVES, SCALES = "placement", "num_replicas"
#: What decides whether messages stay that no consumer wants.
KEEPS = "retention"


def reorganises(before: Config, after: Config) -> bool:
    """Whether the cluster goes on working after it has taken the update."""
    return before.get(SCALES, 1) != after.get(SCALES, 1) or _moves(before, after)


def _moves(before: Config, after: Config) -> bool:
    """A placement that is only taken away moves nothing."""
    return bool(after.get(MOVES)) and before.get(MOVES) != after.get(MOVES)


def first_part(verdict: Verdict, body: dict[str, Any], *, keeps_more: bool = False) -> tuple[str, Config, Config] | None:
    """What has to be done before the update itself: a title, the configuration to send and what to expect of it.

    None where the server takes all at once. `keeps_more`: an interest stream keeps by limits before its consumers change.
    """
    live, after = verdict.live, verdict.after
    if live is None or after is None or verdict.address.kind == "consumer":
        return None
    parts = [_reorganised(live.compact, after), _relaxed(live.compact, after)]
    parts += [(f"retention {after.get(KEEPS, 'limits')}", {KEEPS: after.get(KEEPS)})] if keeps_more else []
    found = [part for part in parts if part is not None]
    if not found:
        return None
    expect = {name: value for _, fields in found for name, value in fields.items()}
    part = {name: value for name, value in (live.compact | expect).items() if value is not None}
    return " and ".join(title for title, _ in found), patched(table_of(verdict.address), live.raw, body, live.compact, part), expect


def without_interest(verdict: Verdict) -> Config:
    """The configuration of a stream that becomes an interest stream at last, while its consumers still change."""
    assert verdict.live is not None
    before = {KEEPS: verdict.live.compact[KEEPS]} if KEEPS in verdict.live.compact else {}
    return {name: value for name, value in (verdict.after or {}).items() if name != KEEPS} | before


def _reorganised(before: Config, after: Config) -> tuple[str, Config] | None:
    """Copies that are not wanted go before a move, those that are wanted come after it: as little as possible is moved."""
    copies, now = after.get(SCALES, 1), before.get(SCALES, 1)
    if copies == now or not _moves(before, after):
        return None
    if copies > now:
        return "move it", {MOVES: after[MOVES]}
    return f"scale it to {copies} {'copy' if copies == 1 else 'copies'}", {SCALES: after.get(SCALES)}


def _relaxed(before: Config, after: Config) -> tuple[str, Config] | None:
    """Limits for consumers of which one grows and another shrinks.

    Consumers may need the new one before they can take what the other asks of them (10121, 10153, 10069).
    """
    old, new = before.get("consumer_limits") or {}, after.get("consumer_limits") or {}
    numbers = [name for name in {**old, **new} if isinstance(old.get(name, 0), int) and isinstance(new.get(name, 0), int)]
    shrinks = [name for name in numbers if new.get(name, 0) > 0 and (old.get(name, 0) <= 0 or new[name] < old[name])]
    grows = [name for name in numbers if old.get(name, 0) > 0 and (new.get(name, 0) <= 0 or new[name] > old[name])]
    if not shrinks or not grows:
        return None
    wide = {name: new[name] if name in grows else value for name, value in old.items() if name not in grows or name in new}
    return "widen its limits for consumers", {"consumer_limits": wide or None}
