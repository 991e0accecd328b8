"""The methods to keep the messages of a stream that is replaced, and what prevents them.

Measured on 2.12 to 2.15. A mirror copies while publishers write, and is promoted in the end. A
snapshot (2.15) is restored under another name and configuration, with the consumers as they are. A
stream that no mirror can follow, on a server without such snapshots, is drained: by a mirror that
begins when publishers wait. Messages, sequences and times are unchanged in each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from jsplan.address import Address
from jsplan.documents.step_kinds import TransferMethod
from jsplan.facts.consumer_position import max_redelivered, position_of
from jsplan.facts.live import LiveObject, get_retention
from jsplan.planning.model import PlanInputs
from jsplan.planning.transfer.configs import CONSUMER_LIMITS, limits_copy_consumers
from jsplan.planning.transfer.consumer_position import choose_position_method
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources.fields import Config
from jsplan.resources.server_features import (
    REMOVABLE_LIMITS_LEVEL,
    RESTORE_ANY_NAME_LEVEL,
    ROLLUP_MIRROR_LEVEL,
)
from jsplan.resources.stream import max_consumers

RECREATE_HINT: Final = (
    "To delete and recreate it without its messages: lifecycle: {on_replace: recreate}."
)


def second_method(level: int) -> TransferMethod:
    """Return the method out of the staging stream, which does not change: the fastest one."""
    return "snapshot" if level >= RESTORE_ANY_NAME_LEVEL else "drain"


def first_method(live: LiveObject, level: int, consumers: Iterable[LiveObject]) -> TransferMethod:
    """Return the method into the staging stream.

    A mirror leaves publishers alone. A snapshot keeps what consumers have acknowledged out of
    order, and their configurations, which a consumer that is recreated may not.
    """
    if not _can_follow(live.compact, level):
        return second_method(level)
    if level < RESTORE_ANY_NAME_LEVEL:
        return "mirror"
    return "snapshot" if any(_has_own_state(live, c, level) for c in consumers) else "mirror"


def plan_replacement(inputs: PlanInputs, address: Address, live: LiveObject) -> Transfer:
    """Return the transfer of a stream that is replaced: the one that has begun, or a new one."""
    begun = inputs.interrupted.streams.get(address)
    if begun is not None and not begun.is_activated:
        return begun
    method = first_method(live, inputs.level(address), inputs.consumers_of(address))
    return Transfer(address, address, origin_now=live, method=method)


def _can_follow(before: Mapping[str, Any], level: int) -> bool:
    """Check whether a mirror can copy a stream while messages arrive and leave."""
    names = ["sealed", "mirror", "allow_msg_counter", "allow_msg_schedules"]
    if level < ROLLUP_MIRROR_LEVEL or may_not_have_rolled_up(before, level):
        names += ["allow_rollup_hdrs"]
    is_plain = get_retention(before) == "limits" and not any(map(before.get, names))
    return is_plain and not limits_copy_consumers(before.get("consumer_limits") or {})


def may_not_have_rolled_up(before: Mapping[str, Any], level: int) -> bool:
    """Check whether a source may have brought rollups while none were allowed.

    What these did not delete then they would delete in a mirror, and not in a snapshot.
    """
    known = before.get("sources") and before.get("allow_rollup_hdrs")
    return bool(known) and level >= RESTORE_ANY_NAME_LEVEL


def _has_own_state(stream: LiveObject, consumer: LiveObject, level: int) -> bool:
    """Check whether a consumer that is recreated at its position would not be the same one."""
    config, state = consumer.compact, consumer.state
    position = position_of(config, state, level)
    if position is None or state.get("num_ack_pending"):
        return True
    first = int(stream.state.get("first_seq") or 0)
    how = choose_position_method(position, config, level, retention="limits", first_seq=first)
    return how == "start" or max_redelivered(config, state, stream.state, position) > 0


def recreates_consumers(before: Config, after: Config, method: TransferMethod) -> bool:
    """Check whether consumers are recreated at their position, not restored from the snapshot."""
    return method != "snapshot" or becomes_workqueue(before, after)


def becomes_workqueue(before: Config, after: Config) -> bool:
    """Check whether it becomes a work queue, which may refuse its current consumers."""
    return (
        before.get("retention", "limits") != "workqueue" and after.get("retention") == "workqueue"
    )


def tightens_consumer_limits(before: Config, after: Config) -> bool:
    """Check whether the new limits for consumers would refuse the current consumers (10069)."""
    old, new = before.get("consumer_limits") or {}, after.get("consumer_limits") or {}
    return any(
        value > 0 and not 0 < int(old.get(name) or 0) <= value
        for name, value in new.items()
        if isinstance(value, int)
    )


def exceeds_max_consumers(live: LiveObject, after: Config) -> bool:
    """Check whether the stream has more consumers now than the new one accepts (10026)."""
    return 0 < max_consumers(after) < int(live.state.get("consumer_count") or 0)


def find_preserve_obstacle(
    live: LiveObject,
    after: Config,
    level: int,
    consumers: Collection[LiveObject],
    *,
    same_origin: bool,
) -> str | None:
    """Explain why `live` cannot keep its messages as `after` (compact); None if it can.

    `consumers` are all consumers. `same_origin`: the mirror that it will have reads the same
    messages as its mirror now.
    """
    method, before = second_method(level), live.compact
    return (
        _mirror_obstacle(before, after, method, same_origin=same_origin)
        or _counter_obstacle(live, after, method)
        or _limits_obstacle(before, level, consumers)
    )


def _limits_obstacle(before: Config, level: int, consumers: Iterable[LiveObject]) -> str | None:
    """Check limits that also bind the server's own consumers, and that consumers hold in place."""
    limits = before.get("consumer_limits") or {}
    if level >= REMOVABLE_LIMITS_LEVEL or not limits_copy_consumers(limits):
        return None
    limited = (c for c in consumers if any(c.compact.get(n, 0) > 0 for n in CONSUMER_LIMITS))
    blocking = sorted(consumer.address.consumer for consumer in limited)
    shown = ", ".join(name for name in CONSUMER_LIMITS if limits.get(name))
    text = (
        f"its consumer_limits ({shown}) also limit the consumers by which servers before 2.14 "
        "copy, and cannot be removed while consumer"
    )
    return f"{text} {blocking[0]} exists" if blocking else None


def _mirror_obstacle(
    before: Config, after: Config, method: TransferMethod, *, same_origin: bool
) -> str | None:
    old, new = before.get("mirror"), after.get("mirror")
    if new and not old:
        return "a mirror has its origin's messages, not those that the stream has now"
    if new and old and not same_origin:
        return "a mirror of another origin has that one's messages, not those that it has now"
    if new and method != "snapshot":
        where = "where archives can be restored into mirrors (nats-server 2.15)"
        return f"a mirror can keep what it has only {where}"
    return None


def _counter_obstacle(live: LiveObject, after: Config, method: TransferMethod) -> str | None:
    if not after.get("allow_msg_counter"):
        return None
    if not live.compact.get("allow_msg_counter") and live.state.get("messages"):
        why = "the server would refuse every increment of their subjects (10172)"
        return f"its messages are no counters: {why}"
    if method != "snapshot":
        return "the messages of a counter can be kept from nats-server 2.15 on"
    if after.get("allow_msg_ttl"):
        return "a counter stream with delete markers can be created, but never updated (10052)"
    return None
