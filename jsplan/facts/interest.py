"""Messages that an interest stream may delete when its consumers or its retention change.

A message stays while a consumer wants it: one whose filters match and that has not finished it. So
the deletions are bounded twice, by what the server counts for each consumer:

- at most all messages but those that the consumers after the plan still want;
- in a stream that has interest retention already, at most those that the changed consumers want
  now, and those that no consumer wants: nothing else is there.

Consumers whose filters have no subject in common want different messages. Of others only the one
that wants most counts, since the server does not report which messages they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct, field

from jsplan.address import STAGING_PREFIX
from jsplan.documents.deletions import ConsumerChange, HeldMessages
from jsplan.facts.consumer_position import position_of
from jsplan.resources.consumer import filters_of
from jsplan.resources.server_features import PENDING_FROM_START_LEVEL
from jsplan.subjects import is_covered, overlaps, passes_filters

#: The positions after a plan at which a consumer wants all that it wants now.
_KEPT: Final = ("same", "floor")
#: Subjects, of which a message must match one; none: every message does.
Filters = tuple[str, ...]


def build_change(
    name: str,
    position: Literal["same", "floor", "start"],
    config: Mapping[str, Any],
    resumes_at: int | None = None,
) -> ConsumerChange:
    """Build the change to a configuration. `resumes_at` is in place of its start."""
    policy, first = str(config.get("deliver_policy", "all")), int(config.get("opt_start_seq") or 0)
    if resumes_at:
        policy, first = "by_start_sequence", resumes_at
    return ConsumerChange(name, position, filters_of(config), policy, first)


class ConsumerInterest(Struct, frozen=True):
    """One consumer as its server reports it: filters (none: everything) and its counts.

    `floor` and `delivered` are sequences: its ack floor, and its last delivery. `pending` is the
    number of messages that it was given and has not acknowledged, `waiting` of those that it was
    not given yet, None if the server may count others too. `position` is its first unfinished
    sequence, None if that is unknown. `acks_each`: its ack policy is `explicit`.
    `from_the_start`: its deliver policy is `all`.
    """

    name: str
    filters: Filters
    floor: int
    delivered: int
    pending: int = 0
    waiting: int | None = 0
    position: int | None = None
    acks_each: bool = True
    from_the_start: bool = True


_ANY: Final = ConsumerInterest("", (), 0, 0)


def parse_interest(info: Mapping[str, Any], level: int) -> ConsumerInterest:
    """Parse an element of CONSUMER.LIST. `level` is the API level of its server.

    One that began behind the end of the stream is said to wait for what came before its start.
    """
    config = info["config"]
    floor = (info.get("ack_floor") or {}).get("stream_seq", 0)
    delivered = (info.get("delivered") or {}).get("stream_seq", 0)
    policy = config.get("deliver_policy", "all")
    counts = policy == "all" or (
        level >= PENDING_FROM_START_LEVEL and policy not in ("by_start_sequence", "by_start_time")
    )
    return ConsumerInterest(
        info["name"],
        filters_of(config),
        floor,
        max(floor, delivered),
        info.get("num_ack_pending") or 0,
        (info.get("num_pending") or 0) if counts else None,
        position_of(config, info, level),
        acks_each=config.get("ack_policy") == "explicit",
        from_the_start=policy == "all",
    )


class StoredCounts(Struct, frozen=True):
    """The messages of a stream as the server reports them.

    `subjects` are the counts by subject, `gaps` the deleted sequences from `first_seq` to
    `last_seq` in order; None where there are too many to ask for.
    """

    messages: int
    first_seq: int
    last_seq: int
    subjects: Mapping[str, int] | None = None
    gaps: tuple[int, ...] | None = ()
    _counted: dict[Filters, int] = field(default_factory=dict)

    def matching(self, filters: Filters) -> tuple[int, int]:
        """Return the least and the most messages whose subjects pass the filters."""
        if not filters:
            return self.messages, self.messages
        if self.subjects is None:
            return 0, self.messages
        if filters not in self._counted:
            self._counted[filters] = sum(
                n for subject, n in self.subjects.items() if passes_filters(subject, filters)
            )
        return self._counted[filters], self._counted[filters]

    def between(self, first: int, last: int) -> int:
        """Return the most messages with sequences from `first` to `last`."""
        first, last = max(first, self.first_seq), min(last, self.last_seq)
        gaps = self.gaps or ()
        deleted = bisect_right(gaps, last) - bisect_left(gaps, first)
        return min(self.messages, max(0, last - first + 1 - max(0, deleted)))

    def lost_by(self, before: Filters, after: Filters) -> int:
        """Return the most messages that pass the filters `before` and not those `after`."""
        if not after or (before and all(is_covered(one, after) for one in before)):
            return 0
        if self.subjects is None:
            return self.messages
        return sum(
            n
            for subject, n in self.subjects.items()
            if passes_filters(subject, before) and not passes_filters(subject, after)
        )


def bound_unwanted(
    stored: StoredCounts,
    now: Iterable[ConsumerInterest],
    changes: Iterable[ConsumerChange],
    *,
    was_interest: bool,
    keeps_others: bool = False,
    held: HeldMessages | None = None,
) -> tuple[int, int] | None:
    """Return the least and the most messages that are deleted since no consumer wants them.

    None if no consumer stays. `was_interest`: the stream has or had interest retention, so there is
    nothing but what consumers want now. `keeps_others`: messages of subjects that no consumer has
    stay, as when a stream becomes an interest stream. `held` is that of an existing placeholder.
    """
    consumers = {c.name: c for c in now if not c.name.startswith(STAGING_PREFIX)}
    changed = {c.name: c for c in changes if not c.name.startswith(STAGING_PREFIX)}
    stay = [
        (consumers.get(name), changed.get(name))
        for name in sorted({*consumers, *changed})
        if name not in changed or changed[name].position != "gone"
    ]
    if not stay:
        return None
    wanted = [one for pair in stay for one in _wanted_after(stored, *pair)]
    every = _union((change or consumer or _ANY).filters for consumer, change in stay)
    examined = stored.matching(every)[1] if keeps_others else stored.messages
    most = examined - _wanted_together(stored, wanted)
    if not was_interest:
        return 0, most
    known = frozenset(held.consumers) if held is not None else frozenset[str]()
    lost = sum(
        _released(stored, consumers[name], change)
        for name, change in changed.items()
        if name in consumers and name not in known
    )
    unwanted = _unwanted_now(stored, consumers.values())
    if held is not None:
        return 0, min(most, lost + held.at_most)
    # The server need not look for what no consumer wants now.
    least = 0 if keeps_others else max(0, stored.messages - stored.matching(every)[1] - unwanted)
    return min(least, most), min(most, lost + unwanted)


def count_finished(stored: StoredCounts, consumers: Iterable[ConsumerInterest]) -> tuple[int, int]:
    """Return the least and the most messages before the position of one of the consumers.

    Those of a consumer without filters are known.
    """
    least = most = 0
    for consumer in consumers:
        last = consumer.delivered if consumer.position is None else consumer.position - 1
        passed = stored.between(1, last)
        if consumer.filters:
            finished = stored.matching(consumer.filters)[1] - _least_wanted(stored, consumer)
            passed = min(passed, finished)
        elif consumer.position is not None and stored.gaps is not None:
            least = max(least, passed)
        most += passed
    return least, min(stored.messages, most)


def empties_stream(
    now: Iterable[ConsumerInterest], changes: Iterable[ConsumerChange], last_seq: int
) -> bool:
    """Return True if the server deletes everything (measured on 2.14 and 2.15).

    It does, whatever other consumers want, when a consumer whose ack floor is behind the end of the
    stream gets another filter, or is deleted while there is another such consumer. Where several
    change at once, the other one may be a new one.
    """
    behind = {consumer.name: consumer for consumer in now if consumer.floor > last_seq}
    changes = [c for c in changes if not c.name.startswith(STAGING_PREFIX)]
    for change in changes:
        consumer = behind.get(change.name)
        if consumer is not None and (
            len(behind) > 1 or len(changes) > 1
            if change.position != "same"
            else sorted(consumer.filters) != sorted(change.filters)
        ):
            return True
    return False


def _most_wanted(stored: StoredCounts, consumer: ConsumerInterest) -> int:
    """Return the most stored messages that a consumer has not finished.

    `num_pending` may be too low: a server that is asked for INFO while it deletes a message counts
    that twice (measured on 2.15, in a cluster).
    """
    waiting = stored.between(consumer.delivered + 1, stored.last_seq)
    return min(consumer.pending + waiting, stored.matching(consumer.filters)[1])


def _least_wanted(stored: StoredCounts, consumer: ConsumerInterest) -> int:
    """Return the least stored messages that a consumer has not finished.

    The server may count messages as pending that a purge has deleted (measured on 2.10 to 2.15).
    """
    passed = stored.between(1, consumer.delivered)
    waiting = consumer.waiting
    if waiting is None:
        waiting = max(0, stored.matching(consumer.filters)[0] - passed)
    waiting = min(waiting, stored.between(consumer.delivered + 1, stored.last_seq))
    pending = min(consumer.pending, passed)
    return min(waiting + pending, stored.matching(consumer.filters)[1])


def _wanted_after(
    stored: StoredCounts, consumer: ConsumerInterest | None, change: ConsumerChange | None
) -> Iterable[tuple[Filters, int]]:
    """Yield filters and the least messages that pass them and that a consumer will want."""
    if change is None:
        assert consumer is not None
        yield consumer.filters, _least_wanted(stored, consumer)
        return
    first = {"all": 1, "by_start_sequence": change.opt_start_seq or 1}.get(change.policy)
    if change.position in _KEPT and consumer is not None:
        fewer = stored.lost_by(consumer.filters, change.filters)
        narrow = all(is_covered(one, consumer.filters) for one in change.filters or (">",))
        filters = change.filters if narrow or not consumer.filters else consumer.filters
        yield filters, max(0, _least_wanted(stored, consumer) - fewer)
        first = consumer.position if change.position == "floor" else None
    if first is not None:
        matching = stored.matching(change.filters)[0]
        yield change.filters, max(0, matching - stored.between(1, first - 1))


def _wanted_together(stored: StoredCounts, wanted: list[tuple[Filters, int]]) -> int:
    """Return the least messages that consumers want, each with its filters and its least number.

    Consumers that share no subject add up. So do those that want all messages of their subjects.
    """
    whole = _union(f for f, least in wanted if least and least >= stored.matching(f)[1])
    candidates = [*wanted, (whole, stored.matching(whole)[0])] if whole else wanted
    ordered = (
        sorted(candidates, key=lambda one: -one[1]),
        sorted(candidates, key=lambda one: sum(_share(one[0], other) for other, _ in candidates)),
    )
    return max(_add_up(one) for one in ordered)


def _add_up(wanted: Iterable[tuple[Filters, int]]) -> int:
    """Add up the numbers of consumers that share no subject with one before them."""
    taken, total = list[Filters](), 0
    for filters, least in wanted:
        if not any(_share(filters, other) for other in taken):
            taken.append(filters)
            total += least
    return total


def _share(one: Filters, other: Filters) -> bool:
    return any(overlaps(a, b) for a in one or (">",) for b in other or (">",))


def _union(filters: Iterable[Filters]) -> Filters:
    """Return filters that let pass what one of these lets pass. They are not empty."""
    return tuple(dict.fromkeys(one for several in filters for one in several or (">",)))


def _released(stored: StoredCounts, consumer: ConsumerInterest, change: ConsumerChange) -> int:
    """Return the most messages that a consumer wants now, and may not want after its change."""
    wanted = _most_wanted(stored, consumer)
    if change.position not in _KEPT:
        return wanted
    return min(wanted, stored.lost_by(consumer.filters, change.filters))


def _unwanted_now(stored: StoredCounts, consumers: Iterable[ConsumerInterest]) -> int:
    """Return how many messages no consumer wants now: the server has not looked for them.

    No consumer matches them, or they are before the positions of all that do, one of which began
    later. What consumers that began with the first message have finished is looked for at once.
    """
    listed = list(consumers)
    wanted = [(consumer.filters, _least_wanted(stored, consumer)) for consumer in listed]
    most, counts = stored.messages - _wanted_together(stored, wanted), stored.subjects
    if counts is None:
        if any(consumer.filters for consumer in listed):
            return most
        counts = {"": stored.messages}  # it matches them all
    groups = Counter[tuple[ConsumerInterest, ...]]()
    for subject, count in counts.items():
        groups[tuple(c for c in listed if passes_filters(subject, c.filters))] += count
    return min(most, sum(min(n, _kept_for(stored, group)) for group, n in groups.items()))


def _kept_for(stored: StoredCounts, consumers: tuple[ConsumerInterest, ...]) -> int:
    """Return the most messages that the server keeps although all consumers of them are behind."""
    if not consumers:
        return stored.messages
    if all(consumer.from_the_start for consumer in consumers):
        return 0
    positions = (c.delivered if c.position is None else c.position - 1 for c in consumers)
    return stored.between(1, min(positions))
