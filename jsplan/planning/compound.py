"""Splits an update that the server takes only in parts into steps that it takes one after the other.

A cluster refuses to move and to scale a stream at once (10123), and takes neither while it is at the other (10124, 10226; up
to 2.14 it does not even answer). Limits for consumers bind what exists at every moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jsplan.planning.merge import patched
from jsplan.planning.verdict import UNDER_WAY, Verdict, table_of
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.inputs import Inputs
    from jsplan.planning.order import Drafts

#: What makes a cluster reorganise a stream.
MOVES, SCALES = "placement", "num_replicas"
#: What decides whether messages stay that no consumer wants.
KEEPS = "retention"
#: What a stream says of its consumers: how large what they have may be, and how many there may be.
LIMITS, MOST = "consumer_limits", "max_consumers"
#: What a consumer without a value of its own takes over from `consumer_limits`.
INHERITED: Final = ("max_ack_pending", "inactive_threshold")


def reorganises(before: Config, after: Config) -> bool:
    """Whether the cluster goes on working after it has taken the update."""
    return before.get(SCALES, 1) != after.get(SCALES, 1) or _moves(before, after)


def _moves(before: Config, after: Config) -> bool:
    """A placement that is only taken away moves nothing."""
    return bool(after.get(MOVES)) and before.get(MOVES) != after.get(MOVES)


def first_part(verdict: Verdict, body: dict[str, Any]) -> tuple[str, Config, Config] | None:
    """What has to be done before the update itself: a title, the configuration to send and what to expect of it.

    None where the server takes all at once.
    """
    live, after = verdict.live, verdict.after
    if live is None or after is None or verdict.address.kind == "consumer":
        return None
    found = _reorganised(live.compact, after)
    if found is None:
        return None
    title, expect = found
    return title, patched(table_of(verdict.address), live.raw, body, live.compact, _with(live.compact, expect)), expect


def _with(config: Config, fields: Config) -> Config:
    """The configuration with these fields; None takes one out."""
    return {name: value for name, value in (config | fields).items() if value is not None}


def _reorganised(before: Config, after: Config) -> tuple[str, Config] | None:
    """Copies that are not wanted go before a move, those that are wanted come after it: as little as possible is moved."""
    copies, now = after.get(SCALES, 1), before.get(SCALES, 1)
    if copies == now or not _moves(before, after):
        return None
    if copies > now:
        return "move it", {MOVES: after[MOVES]}
    return f"scale it to {copies} {'copy' if copies == 1 else 'copies'}", {SCALES: after.get(SCALES)}


# --- limits for consumers --------------------------------------------------------------------------------------


def held_back(before: Config, after: Config) -> Config:
    """The limits for consumers that become tighter, each with the widest value until the consumers have changed; and the retention.

    The server refuses limits that a consumer exceeds (10069), and a consumer that exceeds limits (10121, 10153, 10026). So
    limits grow before the consumers change and shrink after it. A stream that becomes an interest stream deletes what its consumers
    do not want at that moment.
    """
    found: Config = {}
    old, new = before.get(LIMITS) or {}, after.get(LIMITS) or {}
    numbers = [name for name in {**old, **new} if isinstance(old.get(name, 0), int) and isinstance(new.get(name, 0), int)]
    shrinks = [name for name in numbers if _is_lower(new.get(name), old.get(name))]
    if shrinks:
        wide = {name: value for name, value in new.items() if name not in shrinks}
        found[LIMITS] = wide | {name: old[name] for name in shrinks if name in old} or None
    if _is_lower(after.get(MOST), before.get(MOST)):
        found[MOST] = before.get(MOST)
    if _becomes_interest(before, after):
        found[KEEPS] = before.get(KEEPS)
    return found


def _becomes_interest(before: Config, after: Config) -> bool:
    return after.get(KEEPS) == "interest" and before.get(KEEPS) != "interest"


def _is_lower(new: int | None, old: int | None) -> bool:
    return (new or 0) > 0 and ((old or 0) <= 0 or (new or 0) < (old or 0))


def streams_in_wait(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> set[Address]:
    """The streams that shrink their limits while consumers that exist change, or become interest streams while any change: that waits."""
    consumers = [verdict for verdict in verdicts.values() if verdict.address.parent is not None]
    busy = {stream_of(inputs, verdicts, verdict.address) for verdict in consumers if changes(verdict)}
    any_busy = busy | {stream_of(inputs, verdicts, verdict.address) for verdict in consumers if verdict.actions == ["create"]}
    found = {address for address in busy & verdicts.keys() if _holds_back(verdicts[address])}
    return found | {address for address in any_busy & verdicts.keys() if KEEPS in _holds_back(verdicts[address])}


def _holds_back(verdict: Verdict) -> Config:
    live, after = verdict.live, verdict.after
    return held_back(live.compact, after) if verdict.actions == ["update"] and live is not None and after is not None else {}


def stream_of(inputs: Inputs, verdicts: Mapping[Address, Verdict], consumer: Address) -> Address:
    """The stream of a consumer as the plan calls it: it may be declared by another way to its domain."""
    parent = consumer.parent
    assert parent is not None
    known = parent in verdicts or parent.domain not in inputs.workspace.domains
    return parent if known else inputs.topology.called(parent)


def changes(verdict: Verdict) -> bool:
    """Whether a consumer that exists is updated, replaced or deleted; also one of which a replacement has deleted the old object."""
    if verdict.live is None:
        return verdict.reason == UNDER_WAY and verdict.actions == ["create"]
    return verdict.deletes or verdict.actions == ["update"]


def in_parts(verdict: Verdict, *, waits: bool) -> tuple[Verdict | None, Verdict | None, Config]:
    """The update of a stream as what is done at once and what waits for its consumers, with the fields that do.

    Either is None where there is nothing of it. Sources that are put back are put back once, by what waits.
    """
    live, after = verdict.live, verdict.after
    if not waits or live is None or after is None:
        return verdict, None, {}
    waiting = held_back(live.compact, after)
    middle = replace(verdict, after=_with(after, waiting))
    differs = middle.after != live.compact and not verdict.rejoins
    return middle if differs else None, verdict, {name: after.get(name) for name in waiting}


def wait_for_consumers(inputs: Inputs, verdicts: Mapping[Address, Verdict], drafts: Drafts) -> None:
    """Let limits that shrink wait for the consumers, and let those that are made before keep the new limits already."""
    waiting = {address for address, kind in drafts if kind == "last"}
    for key, draft in drafts.items() if waiting else ():
        if key[0].parent is None or (stream := stream_of(inputs, verdicts, key[0])) not in waiting:
            continue
        drafts[stream, "last"].after.add(key)
        if draft.op in ("consumer.create", "consumer.replace") and draft.request is not None:
            after = verdicts[key[0]].after or {}
            draft.request = draft.request | {"payload": _within(draft.request["payload"], after)}


def _within(payload: Config, after: Config) -> Config:
    return payload | {"config": inheriting(payload["config"], after)}


def inheriting(config: Config, after: Config) -> Config:
    """The configuration of a request with what a consumer takes over from the limits of its stream, which hold only later."""
    return config | {name: after[name] for name in INHERITED if name in after and not config.get(name)}
