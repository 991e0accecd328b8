"""Where a consumer stands, and how a new one is brought to the same place. Pure arithmetic: reading and writing are left to others.

Rests on CONSUMER.RESET (2.14): it takes a consumer to a sequence, but not one whose deliver_policy is new, last or
last_per_subject, and none to before its own start (10204, measured). Whatever cannot be reset is made by_start_sequence;
so are push consumers, since one that was made paused pushes nothing after it is resumed until the next message comes (measured).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from jsplan.resources.fields import Config

#: What only the creation of a consumer reads.
START_FIELDS: Final = ("deliver_policy", "opt_start_seq", "opt_start_time")
#: API levels that know CONSUMER.PAUSE (2.11) and CONSUMER.RESET (2.14).
PAUSE_LEVEL, RESET_LEVEL = 1, 4
#: `plain`: as the files say, which is the same place; `reset`: as the files say, then taken there; `start`: begins there.
PositionMethod = Literal["plain", "reset", "start"]


def position_of(config: Mapping[str, Any], state: Mapping[str, Any]) -> int | None:
    """The first sequence of the stream that the consumer has not finished: behind its ack floor, without acks behind what it was given.

    None where nobody knows it. Up to 2.12 the floor is 0 until something is acknowledged, wherever the consumer began: nobody remembers
    that of a deliver_policy new, last, or by_start_time that was given something. And see `has_pending_below_floor`.
    """
    given, floor = (state.get(name) or {} for name in ("delivered", "ack_floor"))
    if (
        not given.get("consumer_seq") and config.get("deliver_policy", "all") == "all"
    ):  # `delivered` is how far it has looked
        return int(floor.get("stream_seq") or 0) + 1
    if config.get("ack_policy", "none") == "none" or not given.get("consumer_seq"):
        return int(given.get("stream_seq") or 0) + 1
    if has_pending_below_floor(config, state):
        return None
    if floor.get("stream_seq"):
        return int(floor["stream_seq"]) + 1
    policy = config.get("deliver_policy", "all")
    if policy in (
        "all",
        "last_per_subject",
    ):  # of the latter it is not known either; no message is before the first
        return 1
    return int(config["opt_start_seq"]) if policy == "by_start_sequence" else None


def has_pending_below_floor(config: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether messages may be out below the ack floor: more are out than were delivered behind it.

    After a purge by filter of messages that were out the server takes those before them for finished (measured on 2.10 to 2.15).
    """
    given, floor = (state.get(name) or {} for name in ("delivered", "ack_floor"))
    behind = int(given.get("consumer_seq") or 0) - int(floor.get("consumer_seq") or 0)
    tracked = config.get("ack_policy", "none") != "none" and bool(floor.get("stream_seq"))
    return tracked and int(state.get("num_ack_pending") or 0) > behind


def choose_position_method(
    position: int, config: Mapping[str, Any], level: int, *, retention: str, first_seq: int
) -> PositionMethod:
    """How a consumer that is made with `config` comes to `position` in a stream whose first message is `first_seq`.

    In a work queue everything that is there is unfinished, and nothing but `all` may be said (10101).
    """
    policy = config.get("deliver_policy", "all")
    if retention == "workqueue" or (policy == "all" and position <= max(first_seq, 1)):
        return "plain"
    later = policy == "by_start_sequence" and int(config.get("opt_start_seq") or 0) > position
    if (
        level >= RESET_LEVEL
        and policy in ("all", "by_start_time", "by_start_sequence")
        and not (later or config.get("deliver_subject"))
    ):
        return "reset"
    return "start"


def with_start_sequence(position: int, config: Mapping[str, Any]) -> Config:
    """The configuration with a start at `position` in place of its own."""
    rest = {name: value for name, value in config.items() if name not in START_FIELDS}
    return rest | {"deliver_policy": "by_start_sequence", "opt_start_seq": position}
