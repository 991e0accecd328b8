"""Split an update that the server accepts only in parts into consecutive steps.

A cluster refuses to move and to scale a stream at once (10123), and accepts neither during the
other (10124, 10226; up to 2.14 it does not even answer). Limits for consumers bind what exists at
every moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.planning.decide import REPLACEMENT_INTERRUPTED, table_of
from jsplan.planning.merge import build_update
from jsplan.planning.model import Decisions, ResourceDecision
from jsplan.resources.fields import Config
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.drafts import Drafts
    from jsplan.planning.model import PlanInputs

#: The fields that make a cluster reorganise a stream.
PLACEMENT, REPLICAS = "placement", "num_replicas"
#: The field that decides whether messages stay that no consumer wants.
RETENTION = "retention"
#: The fields of a stream that limit the values and the number of its consumers.
CONSUMER_LIMITS, MAX_CONSUMERS = "consumer_limits", "max_consumers"
#: The fields that a consumer without a value of its own inherits from `consumer_limits`.
INHERITED_LIMITS: Final = frozenset({"max_ack_pending", "inactive_threshold"})


def is_reorganised(before: Config, after: Config) -> bool:
    """Check whether the cluster is still busy after it has accepted the update."""
    return before.get(REPLICAS, 1) != after.get(REPLICAS, 1) or is_moved(before, after)


def is_moved(before: Config, after: Config) -> bool:
    """Check whether the placement changes; a placement that is only removed moves nothing."""
    return bool(after.get(PLACEMENT)) and before.get(PLACEMENT) != after.get(PLACEMENT)


def split_reorganisation(
    decision: ResourceDecision, body: dict[str, Any]
) -> tuple[str, Config, Config] | None:
    """Return the first part of an update: title, configuration, and expected fields.

    None if the server accepts all of it at once.
    """
    live, after = decision.live, decision.after
    if live is None or after is None or decision.address.kind == "consumer":
        return None
    found = _first_change(live.compact, after)
    if found is None:
        return None
    title, expect = found
    table, wanted = table_of(decision.address), _with_fields(live.compact, expect)
    return title, build_update(table, live.raw, body, live.compact, wanted), expect


def _with_fields(config: Config, fields: Config) -> Config:
    """Return the configuration with these fields; None removes one."""
    return {name: value for name, value in (config | fields).items() if value is not None}


def _first_change(before: Config, after: Config) -> tuple[str, Config] | None:
    """Return the first part of a move with scaling, or None.

    Replicas are removed before a move and added after it, so that as little as possible is moved.
    """
    replicas, now = after.get(REPLICAS, 1), before.get(REPLICAS, 1)
    if replicas == now or not is_moved(before, after):
        return None
    if replicas > now:
        return "move it", {PLACEMENT: after[PLACEMENT]}
    return f"scale it to {count_text(replicas, 'replica')}", {REPLICAS: after.get(REPLICAS)}


# --- limits for consumers ----


def delayed_limits(before: Config, after: Config) -> Config:
    """Return the limits for consumers that shrink, each with its wider value; and the retention.

    The server refuses limits that a consumer exceeds (10069), and a consumer that exceeds limits
    (10121, 10153, 10026). So limits grow before the consumers change and shrink after it. A stream
    that becomes an interest stream deletes what its consumers do not want at that moment.
    """
    found: Config = {}
    old, new = before.get(CONSUMER_LIMITS) or {}, after.get(CONSUMER_LIMITS) or {}
    pairs = {name: (new.get(name, 0), old.get(name, 0)) for name in {**old, **new}}
    numbers = {name: pair for name, pair in pairs.items() if all(isinstance(n, int) for n in pair)}
    shrinks = [name for name, pair in numbers.items() if _is_lower(*pair)]
    if shrinks:
        wide = {name: value for name, value in new.items() if name not in shrinks}
        found[CONSUMER_LIMITS] = wide | {name: old[name] for name in shrinks if name in old} or None
    if _is_lower(after.get(MAX_CONSUMERS), before.get(MAX_CONSUMERS)):
        found[MAX_CONSUMERS] = before.get(MAX_CONSUMERS)
    if after.get(RETENTION) == "interest" != before.get(RETENTION):
        found[RETENTION] = before.get(RETENTION)
    return found


def _is_lower(new: int | None, old: int | None) -> bool:
    return (new or 0) > 0 and ((old or 0) <= 0 or (new or 0) < (old or 0))


def streams_with_delayed_limits(inputs: PlanInputs, decisions: Decisions) -> set[Address]:
    """Return the streams whose update must wait for their consumers.

    They shrink limits while existing consumers change, or become interest streams while any
    consumer changes.
    """
    found: set[Address] = set()
    for decision in inputs.touched(decisions).values():
        changed = decision.address.parent is not None and is_consumer_changed(decision)
        if not changed and (decision.address.parent is None or decision.actions != ["create"]):
            continue
        address = stream_of(inputs, decisions, decision.address)
        stream = decisions.get(address)
        if stream is not None and stream.actions == ["update"]:
            waiting = delayed_limits(stream.before, stream.planned)
            if RETENTION in waiting or (changed and waiting):
                found.add(address)
    return found


def stream_of(inputs: PlanInputs, decisions: Decisions, consumer: Address) -> Address:
    """Return the stream of a consumer under the domain key that the plan uses for it."""
    parent = consumer.parent
    assert parent is not None
    return parent if parent in decisions else inputs.topology.find_declared(parent)


def is_consumer_changed(decision: ResourceDecision) -> bool:
    """Check whether an existing consumer is updated, replaced or deleted.

    Also True for one whose old object an interrupted replacement has deleted.
    """
    if decision.live is None:
        return decision.reason == REPLACEMENT_INTERRUPTED and decision.actions == ["create"]
    return decision.deletes or decision.actions == ["update"]


def split_update(
    decision: ResourceDecision, *, delays_limits: bool
) -> tuple[ResourceDecision | None, ResourceDecision | None, Config]:
    """Split the update of a stream: what is done at once, what waits, and the waiting fields.

    Either is None if it is empty. Sources are attached once, by the part that waits.
    """
    live, after = decision.live, decision.after
    if not delays_limits or live is None or after is None:
        return decision, None, {}
    waiting = delayed_limits(live.compact, after)
    middle = replace(decision, after=_with_fields(after, waiting))
    differs = middle.after != live.compact and not decision.sources_to_attach
    return middle if differs else None, decision, {name: after.get(name) for name in waiting}


def delay_limit_updates(inputs: PlanInputs, decisions: Decisions, drafts: Drafts) -> None:
    """Let shrinking limits wait for the consumers."""
    waiting = {address for address, kind in drafts if kind == "last"}
    for key in drafts if waiting else ():
        if key[0].parent is None or (stream := stream_of(inputs, decisions, key[0])) not in waiting:
            continue
        drafts[stream, "last"].depends_on.add(key)


def with_inherited_limits(config: Config, after: Config) -> Config:
    """Return a consumer's configuration with the values that it will inherit from its stream.

    The limits of the stream apply only later.
    """
    return config | {
        name: after[name]
        for name in sorted(INHERITED_LIMITS)
        if name in after and not config.get(name)
    }
