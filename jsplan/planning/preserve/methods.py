"""How the messages of a stream can be carried over to a new one, and where they cannot. Pure; measured on 2.10 to 2.15.

`archive` (2.15): a snapshot is restored under another name and configuration: messages, sequences, times and consumers as they
were. `mirror` (2.12): a mirror of the old stream, promoted, then the new stream as a mirror of that: messages, sequences and times.
`source` (before): the messages alone, numbered and timed anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal

from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.staging import (
    CONSUMER_LIMITS,
    REMOVABLE_LIMITS_LEVEL,
    limits_copy_consumers,
)
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key

PreserveMethod = Literal["snapshot", "mirror", "source"]
#: API levels that restore an archive under another name (2.15), and that promote mirrors (2.12).
ARCHIVE_LEVEL, PROMOTE_LEVEL = 5, 2
RECREATE_HINT: Final = (
    "To delete and recreate it without its messages: lifecycle: {on_replace: recreate}."
)


def choose_preserve_method(level: int) -> PreserveMethod:
    """The best way that servers of the level have."""
    return (
        "snapshot" if level >= ARCHIVE_LEVEL else "mirror" if level >= PROMOTE_LEVEL else "source"
    )


def recreates_consumers(before: Config, after: Config, level: int) -> bool:
    """Whether consumers are made anew where they stood, instead of coming out of the archive as they were."""
    return choose_preserve_method(level) != "snapshot" or becomes_workqueue(before, after)


def becomes_workqueue(before: Config, after: Config) -> bool:
    """Whether it becomes a work queue, which may refuse its consumers as they were."""
    return (
        before.get("retention", "limits") != "workqueue" and after.get("retention") == "workqueue"
    )


def tightens_consumer_limits(before: Config, after: Config) -> bool:
    """Check whether the new stream limits its consumers more than the old one, which would refuse those that come as they were (10069)."""
    old, new = before.get("consumer_limits") or {}, after.get("consumer_limits") or {}
    return any(
        value > 0 and not 0 < int(old.get(name) or 0) <= value
        for name, value in new.items()
        if isinstance(value, int)
    )


def find_preserve_obstacle(
    live: LiveObject,
    after: Config,
    level: int,
    consumers: Collection[LiveObject],
    renumbered: Collection[LiveObject],
    downstream_kinds: Collection[str],
) -> str | None:
    """Why the messages of `live` cannot be carried over to a stream that is `after` (compact), or None where they can.

    `consumers` are all that it has, `renumbered` those for which sequences matter. `copied`: by what somebody else copies it, `mirror`
    and `source`.
    """
    way, before = choose_preserve_method(level), live.compact
    found = (
        _mirror_obstacle(before, after, way)
        or _counter_obstacle(live, after, way)
        or _limits_obstacle(before, level, consumers)
    )
    if found is None and way == "source":
        found = _renumbering_obstacle(live, renumbered, downstream_kinds)
    return found


def _limits_obstacle(before: Config, level: int, consumers: Iterable[LiveObject]) -> str | None:
    """Limits that bind the server's own consumers too, by which it copies, and that stay while consumers have such values."""
    limits = before.get("consumer_limits") or {}
    if level >= REMOVABLE_LIMITS_LEVEL or not limits_copy_consumers(limits):
        return None
    names = (
        c.address.consumer
        for c in consumers
        if any(c.compact.get(name, 0) > 0 for name in CONSUMER_LIMITS)
    )
    held = sorted(names)
    shown = ", ".join(name for name in CONSUMER_LIMITS if limits.get(name))
    text = f"its consumer_limits ({shown}) also bind the consumers by which servers before 2.14 copy, and stay while consumer"
    return f"{text} {held[0]} is there" if held else None


def _mirror_obstacle(before: Config, after: Config, method: PreserveMethod) -> str | None:
    old, new = before.get("mirror"), after.get("mirror")
    if new and not old:
        return "a mirror has its origin's messages, not those that the stream has now"
    if new and old and origin_key(old).split("#")[0] != origin_key(new).split("#")[0]:
        return "a mirror of another origin has that one's messages, not those that it has now"
    if new and method != "snapshot":
        return "a mirror can keep what it has only where archives can be restored into mirrors (nats-server 2.15)"
    if old and method == "source":
        return "a mirror cannot be stopped before nats-server 2.12"
    return None


def _counter_obstacle(live: LiveObject, after: Config, method: PreserveMethod) -> str | None:
    if not after.get("allow_msg_counter"):
        return None
    if not live.compact.get("allow_msg_counter") and live.state.get("messages"):
        return "its messages are no counters: the server would refuse every increment of their subjects (10172)"
    if method != "snapshot":
        return "a counter's messages can be carried over from nats-server 2.15 on"
    if after.get("allow_msg_ttl"):
        return "a counter stream with delete markers can be made, but never updated (10052)"
    return None


def _renumbering_obstacle(
    live: LiveObject, consumers: Iterable[LiveObject], downstream_kinds: Collection[str]
) -> str | None:
    """What new sequences would break.

    A source goes on behind the sequence that it has. Where the new stream ends before that (it has no gaps), all that is published until
    the server of the copy looks, ten seconds and more, is passed over (measured on 2.11).
    """
    if live.compact.get("sources"):
        return "its messages would forget which of its sources they came from, and those would be copied again (before nats-server 2.12)"
    if "source" in downstream_kinds and live.state.get("messages") != live.state.get("last_seq"):
        return "it has gaps and is sourced: its messages would get lower sequences than its copies know (before nats-server 2.12)"
    if "mirror" in downstream_kinds:
        return "it is mirrored, and its messages would get new sequences (before nats-server 2.12)"
    by_sequence = sorted(c.address.consumer for c in consumers if c.compact.get("opt_start_seq"))
    if by_sequence:
        return f"consumer {by_sequence[0]} starts by a sequence, and its messages would get new ones (before nats-server 2.12)"
    return None
