"""Splits an update that the server takes only in parts into steps that it takes one after the other.

A cluster refuses to move and to scale a stream at once (10123), and takes neither while it is at the other (10124, 10226; up
to 2.14 it does not even answer). Limits for consumers bind what exists at every moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jsplan.planning.decide import REPLACEMENT_INTERRUPTED, ResourceDecision, table_of
from jsplan.planning.merge import build_update
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.order import Drafts

#: What makes a cluster reorganise a stream.
PLACEMENT, REPLICAS = "placement", "num_replicas"
#: What decides whether messages stay that no consumer wants.
RETENTION = "retention"
#: What a stream says of its consumers: how large what they have may be, and how many there may be.
CONSUMER_LIMITS, MAX_CONSUMERS = "consumer_limits", "max_consumers"
#: What a consumer without a value of its own takes over from `consumer_limits`.
INHERITED_LIMITS: Final = ("max_ack_pending", "inactive_threshold")


def is_reorganised(before: Config, after: Config) -> bool:
    """Whether the cluster goes on working after it has taken the update."""
    return before.get(REPLICAS, 1) != after.get(REPLICAS, 1) or _is_moved(before, after)


def _is_moved(before: Config, after: Config) -> bool:
    """A placement that is only taken away moves nothing."""
    return bool(after.get(PLACEMENT)) and before.get(PLACEMENT) != after.get(PLACEMENT)


def split_reorganisation(
    verdict: ResourceDecision, body: dict[str, Any]
) -> tuple[str, Config, Config] | None:
    """What has to be done before the update itself: a title, the configuration to send and what to expect of it.

    None where the server takes all at once.
    """
    live, after = verdict.live, verdict.after
    if live is None or after is None or verdict.address.kind == "consumer":
        return None
    found = _first_change(live.compact, after)
    if found is None:
        return None
    title, expect = found
    return (
        title,
        build_update(
            table_of(verdict.address),
            live.raw,
            body,
            live.compact,
            _with_fields(live.compact, expect),
        ),
        expect,
    )


def _with_fields(config: Config, fields: Config) -> Config:
    """The configuration with these fields; None takes one out."""
    return {name: value for name, value in (config | fields).items() if value is not None}


def _first_change(before: Config, after: Config) -> tuple[str, Config] | None:
    """Copies that are not wanted go before a move, those that are wanted come after it: as little as possible is moved."""
    copies, now = after.get(REPLICAS, 1), before.get(REPLICAS, 1)
    if copies == now or not _is_moved(before, after):
        return None
    if copies > now:
        return "move it", {PLACEMENT: after[PLACEMENT]}
    return f"scale it to {copies} {'copy' if copies == 1 else 'copies'}", {
        REPLICAS: after.get(REPLICAS)
    }


# --- limits for consumers --------------------------------------------------------------------------------------


def delayed_limits(before: Config, after: Config) -> Config:
    """The limits for consumers that become tighter, each with the widest value until the consumers have changed; and the retention.

    The server refuses limits that a consumer exceeds (10069), and a consumer that exceeds limits (10121, 10153, 10026). So
    limits grow before the consumers change and shrink after it. A stream that becomes an interest stream deletes what its consumers
    do not want at that moment.
    """
    found: Config = {}
    old, new = before.get(CONSUMER_LIMITS) or {}, after.get(CONSUMER_LIMITS) or {}
    numbers = [
        name
        for name in {**old, **new}
        if isinstance(old.get(name, 0), int) and isinstance(new.get(name, 0), int)
    ]
    shrinks = [name for name in numbers if _is_lower(new.get(name), old.get(name))]
    if shrinks:
        wide = {name: value for name, value in new.items() if name not in shrinks}
        found[CONSUMER_LIMITS] = wide | {name: old[name] for name in shrinks if name in old} or None
    if _is_lower(after.get(MAX_CONSUMERS), before.get(MAX_CONSUMERS)):
        found[MAX_CONSUMERS] = before.get(MAX_CONSUMERS)
    if _becomes_interest(before, after):
        found[RETENTION] = before.get(RETENTION)
    return found


def _becomes_interest(before: Config, after: Config) -> bool:
    return after.get(RETENTION) == "interest" and before.get(RETENTION) != "interest"


def _is_lower(new: int | None, old: int | None) -> bool:
    return (new or 0) > 0 and ((old or 0) <= 0 or (new or 0) < (old or 0))


def streams_with_delayed_limits(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> set[Address]:
    """The streams that shrink their limits while consumers that exist change, or become interest streams while any change: that waits."""
    consumers = [verdict for verdict in verdicts.values() if verdict.address.parent is not None]
    busy = {
        stream_of(inputs, verdicts, verdict.address)
        for verdict in consumers
        if is_consumer_changed(verdict)
    }
    any_busy = busy | {
        stream_of(inputs, verdicts, verdict.address)
        for verdict in consumers
        if verdict.actions == ["create"]
    }
    found = {address for address in busy & verdicts.keys() if _delayed_limits_of(verdicts[address])}
    return found | {
        address
        for address in any_busy & verdicts.keys()
        if RETENTION in _delayed_limits_of(verdicts[address])
    }


def _delayed_limits_of(verdict: ResourceDecision) -> Config:
    live, after = verdict.live, verdict.after
    return (
        delayed_limits(live.compact, after)
        if verdict.actions == ["update"] and live is not None and after is not None
        else {}
    )


def stream_of(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], consumer: Address
) -> Address:
    """The stream of a consumer as the plan calls it: it may be declared by another way to its domain."""
    parent = consumer.parent
    assert parent is not None
    known = parent in verdicts or parent.domain not in inputs.workspace.domains
    return parent if known else inputs.topology.find_declared(parent)


def is_consumer_changed(verdict: ResourceDecision) -> bool:
    """Whether a consumer that exists is updated, replaced or deleted; also one of which a replacement has deleted the old object."""
    if verdict.live is None:
        return verdict.reason == REPLACEMENT_INTERRUPTED and verdict.actions == ["create"]
    return verdict.deletes or verdict.actions == ["update"]


def split_update(
    verdict: ResourceDecision, *, delays_limits: bool
) -> tuple[ResourceDecision | None, ResourceDecision | None, Config]:
    """The update of a stream as what is done at once and what waits for its consumers, with the fields that do.

    Either is None where there is nothing of it. Sources that are put back are put back once, by what waits.
    """
    live, after = verdict.live, verdict.after
    if not delays_limits or live is None or after is None:
        return verdict, None, {}
    waiting = delayed_limits(live.compact, after)
    middle = replace(verdict, after=_with_fields(after, waiting))
    differs = middle.after != live.compact and not verdict.sources_to_attach
    return middle if differs else None, verdict, {name: after.get(name) for name in waiting}


def delay_limit_updates(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], drafts: Drafts
) -> None:
    """Let limits that shrink wait for the consumers, and let those that are made before keep the new limits already."""
    waiting = {address for address, kind in drafts if kind == "last"}
    for key, draft in drafts.items() if waiting else ():
        if key[0].parent is None or (stream := stream_of(inputs, verdicts, key[0])) not in waiting:
            continue
        drafts[stream, "last"].depends_on.add(key)
        if draft.op in ("consumer.create", "consumer.replace") and draft.request is not None:
            after = verdicts[key[0]].after or {}
            draft.request = draft.request | {
                "payload": _with_limits(draft.request["payload"], after)
            }


def _with_limits(payload: Config, after: Config) -> Config:
    return payload | {"config": with_inherited_limits(payload["config"], after)}


def with_inherited_limits(config: Config, after: Config) -> Config:
    """The configuration of a request with what a consumer takes over from the limits of its stream, which hold only later."""
    return config | {
        name: after[name] for name in INHERITED_LIMITS if name in after and not config.get(name)
    }
