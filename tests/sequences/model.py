"""Pure functions for what JetStream owes: the messages of a consumer and of a stream.

Nothing of jsplan is used here. The functions know a message as `Message`, a consumer by its configuration in API names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Config = dict[str, Any]


@dataclass(frozen=True, order=True)
class Message:
    """One stored message; `body` is unique in a world and identifies it in every stream."""

    seq: int
    subject: str
    body: bytes


def passes(pattern: str, subject: str) -> bool:
    """Return True if a subject matches one pattern."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or token not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


def filters_of(config: Mapping[str, Any]) -> list[str]:
    """The filters of a consumer; none of them: it wants everything."""
    one = config.get("filter_subject")
    return [one] if one else list(config.get("filter_subjects") or ())


def wants(config: Mapping[str, Any], subject: str) -> bool:
    """Return True if a consumer is given messages of this subject."""
    filters = filters_of(config)
    return not filters or any(passes(pattern, subject) for pattern in filters)


def first_delivery(config: Mapping[str, Any], messages: Iterable[Message]) -> set[Message]:
    """The messages that a consumer made now is given, by its deliver policy."""
    wanted = sorted(m for m in messages if wants(config, m.subject))
    policy = config.get("deliver_policy", "all")
    if policy == "new":
        return set()
    if policy == "last":
        return set(wanted[-1:])
    if policy == "last_per_subject":
        return set({m.subject: m for m in wanted}.values())
    if policy == "by_start_sequence":
        return {m for m in wanted if m.seq >= int(config["opt_start_seq"])}
    return set(wanted)


@dataclass
class ConsumerPosition:
    """Position of a consumer: sequences given, those not acknowledged, and its start.

    `passed_or_not`: an earlier filter did not match them, and the server may have passed them or not.
    `acked_or_not`: a limit removed a later one that was outstanding, and the server may take that for the
    acknowledgement of all before it (ack_policy all).
    """

    delivered: set[int]
    outstanding: set[int]
    start: int = 0
    passed_or_not: set[int] = field(default_factory=set)
    acked_or_not: set[int] = field(default_factory=set)

    def unfinished(self, config: Mapping[str, Any], messages: Iterable[Message]) -> set[Message]:
        """Return what is pending: never given and wanted, or given and not acknowledged."""
        behind = {m for m in messages if m.seq not in self.delivered and m.seq >= self.start}
        return {m for m in behind if wants(config, m.subject)} | {
            m for m in messages if m.seq in self.outstanding
        }

    @property
    def floor(self) -> int:
        """The sequence up to which nothing is owed."""
        before = [seq for seq in self.delivered if seq < min(self.outstanding, default=seq + 1)]
        return max(before, default=0)


def kept_by_interest(
    messages: Iterable[Message], consumers: Collection[tuple[Mapping[str, Any], ConsumerPosition]]
) -> set[Message]:
    """Return the published messages that a stream with interest retention keeps.

    Messages before the start of a consumer count as well: the server looks at filters alone, and none ever takes them.
    `removed_before_start` says otherwise since 2.14.
    """
    return {
        m
        for m in messages
        for config, stands in consumers
        if m.seq in stands.outstanding
        or (m.seq not in stands.delivered and wants(config, m.subject))
    }


def removed_before_start(
    messages: Iterable[Message],
    consumers: Collection[tuple[Mapping[str, Any], ConsumerPosition]],
    copied: Iterable[Message],
) -> set[Message]:
    """Return what an interest stream of 2.14 and newer removes before the start of others.

    A source is such a reader: it acknowledges what it has copied, some time later.
    """
    taken = set(copied)
    return {
        m
        for m in messages
        if (
            m in taken
            or any(m.seq in s.delivered and m.seq not in s.outstanding for _, s in consumers)
        )
        and not any(m in stands.unfinished(config, [m]) for config, stands in consumers)
    }


@dataclass(frozen=True)
class DueMessages:
    """Messages that a consumer must be given, and those that it may be given besides.

    `stranded` are messages of a work queue that pass its filter now and did not before: no other consumer can ever be
    given them, so where they do not come a hazard has to say so.
    """

    must: frozenset[Message]
    may: frozenset[Message]
    stranded: frozenset[Message] = frozenset()


def due_messages(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    position: ConsumerPosition,
    messages: Collection[Message],
) -> DueMessages:
    """Return what a consumer that keeps its position is given of the current messages.

    It owes what was pending and passes its filters now. A message out with a worker stays out although the filter lost it.
    What only the new filter lets through comes if it lies behind the position.
    """
    pending = position.unfinished(before, messages)
    uncertain = (position.passed_or_not - position.outstanding) | position.acked_or_not
    if after.get("max_deliver"):  # what was delivered that often is not delivered again
        uncertain |= position.outstanding
    must = {m for m in pending if wants(after, m.subject) and m.seq not in uncertain}
    new = {m for m in messages if wants(after, m.subject) and not wants(before, m.subject)}
    may = pending | {m for m in new if m.seq > position.floor}
    return DueMessages(frozenset(must), frozenset(may), frozenset(new))
