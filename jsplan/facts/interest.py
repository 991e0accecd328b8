"""Which messages an interest stream deletes when its consumers change, or when it becomes one. Pure arithmetic.

A message stays while a consumer wants it: one whose filter matches and that has not acknowledged it. The server reports
of a consumer up to where everything is acknowledged and up to where it has delivered; what lies between is not known.
Nor is how far a consumer has looked for messages of its filter beyond what it delivered: after an update of the filter it
looks on from there, and the server counts what it has passed as not wanted (server_semantics, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jsplan.facts.limit_trimming import DeletionTally
from jsplan.facts.stored_message import StoredMessage
from jsplan.subjects import is_subset

#: Levels with which server behaviour changed: 2.12 counts acks above the floor, 2.14 starts, 2.15 streams without consumers.
ACKS_ABOVE_FLOOR_LEVEL, STARTS_COUNT_LEVEL, NO_CONSUMERS_LEVEL = 2, 4, 5
#: From this level on a stream may be emptied by consumers whose ack floor is behind its end: see `empties_stream`.
PURGE_LEVEL = 4
MAX_SEQUENCE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ConsumerChange:
    """One consumer of a stream after a plan: its filters (none: every subject) and its position.

    `position`: `gone`; `same`, updated in place; `floor`, replaced and continues behind its ack floor; `start`, new and
    starts by `policy`, with `opt_start_seq` where that is `by_start_sequence`.
    """

    name: str
    position: Literal["gone", "same", "floor", "start"]
    filters: tuple[str, ...] = ()
    policy: str = "all"
    opt_start_seq: int = 0


@dataclass(frozen=True, slots=True)
class InterestSnapshot:
    """An interest stream when its placeholder consumer was made: its last sequence, and up to where each consumer had come.

    `consumers` are the ack floor, the last delivered sequence and the number of unacknowledged messages, by name.
    """

    last_seq: int
    consumers: Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class ConsumerInterest:
    """One consumer: its filters (none: everything), up to where all is acknowledged, up to where it has delivered.

    `pending` are messages that it has out, `waiting` those that it has not delivered yet. `filters_before` are those that an
    update in place replaces. `start_known` is False of a new consumer whose first message is not known yet. `may_be_ahead`: it may have looked
    for messages beyond what it delivered, and a message that it passed counts as one that it does not want. `acks_all`: it wants
    everything behind its floor.
    """

    name: str
    filters: tuple[str, ...]
    floor: int
    delivered: int
    pending: int = 0
    from_the_start: bool = True
    waiting: int = 0
    filters_before: tuple[str, ...] | None = None
    start_known: bool = True
    may_be_ahead: bool = False
    acks_all: bool = False

    def matches(self, subject: str) -> bool:
        """Check whether the consumer would be given messages of this subject."""
        return _matches_filters(self.filters, subject)

    def gains(self, subject: str) -> bool:
        """Check whether only the updated filter matches the subject."""
        return self.filters_before is not None and not _matches_filters(
            self.filters_before, subject
        )

    @property
    def unfinished(self) -> int:
        """How many messages of the stream it wants."""
        return self.pending + self.waiting


def _matches_filters(filters: tuple[str, ...], subject: str) -> bool:
    return not filters or any(is_subset(subject, other) for other in filters)


def filters_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The filters of a consumer's configuration, raw or compact."""
    one, several = config.get("filter_subject"), config.get("filter_subjects") or ()
    return (one,) if one else tuple(several)


def with_start_floor(
    one: ConsumerInterest, config: Mapping[str, Any], last_seq: int
) -> ConsumerInterest:
    """The consumer as a server up to 2.12 knows it: INFO shows no floor before the first acknowledgement, wherever it started.

    Only one that acknowledges each message does not want what is before its start.
    """
    policy = config.get("deliver_policy", "all")
    if policy == "all" or one.floor or config.get("ack_policy", "none") != "explicit":
        return one
    if policy == "by_start_sequence":
        before = int(config.get("opt_start_seq") or 1) - 1
        return replace(one, floor=before, delivered=max(before, one.delivered))
    return replace(one, delivered=last_seq, start_known=False)


def parse_interest(info: Mapping[str, Any]) -> ConsumerInterest:
    """From an element of CONSUMER.LIST."""
    config = info["config"]
    floor = (info.get("ack_floor") or {}).get("stream_seq", 0)
    delivered = (info.get("delivered") or {}).get("stream_seq", 0)
    whole = config.get("deliver_policy", "all") == "all"
    delivered = max(floor, delivered)
    out, waiting = info.get("num_ack_pending") or 0, info.get("num_pending") or 0
    acks = config.get("ack_policy", "none")
    return ConsumerInterest(
        info["name"],
        filters_of(config),
        floor,
        delivered,
        out,
        whole,
        waiting,
        may_be_ahead=acks == "explicit",
        acks_all=acks == "all",
    )


def apply_consumer_changes(
    now: Iterable[ConsumerInterest],
    changes: Iterable[ConsumerChange],
    last_seq: int,
    level: int,
    since: InterestSnapshot | None = None,
    *,
    recreated: bool = False,
) -> list[ConsumerInterest]:
    """The consumers as a plan leaves them, from what they are now; `renewed`: each is made again at its ack floor."""
    found = {one.name: _at_snapshot(one, since) for one in now}
    if recreated:
        found = {
            name: _recreate_at_floor(one, one.filters, level, whole=one.from_the_start)
            for name, one in found.items()
        }
    for change in changes:
        old = found.pop(change.name, None)
        if change.position == "start" or (change.position != "gone" and old is None):
            found[change.name] = _new_consumer(change, last_seq)
        elif old is not None and change.position == "same":
            found[change.name] = replace(
                old,
                filters=change.filters,
                filters_before=None if old.filters == change.filters else old.filters,
            )
        elif old is not None and change.position == "floor":
            found[change.name] = _recreate_at_floor(
                old, change.filters, level, whole=change.policy == "all"
            )
    return list(found.values())


def empties_stream(
    now: Iterable[ConsumerInterest], changes: Iterable[ConsumerChange], last_seq: int
) -> bool:
    """Check whether the server deletes everything, whatever other consumers want (measured on 2.14 and 2.15).

    It does when a consumer whose ack floor is behind the end of the stream gets another filter, or goes while there is another such
    consumer.
    """
    behind = {one.name: one for one in now if one.floor > last_seq}
    for change in changes:
        one = behind.get(change.name)
        if one is not None and (
            len(behind) > 1
            if change.position != "same"
            else sorted(one.filters) != sorted(change.filters)
        ):
            return True
    return False


def _at_snapshot(one: ConsumerInterest, since: InterestSnapshot | None) -> ConsumerInterest:
    if since is None or one.name not in since.consumers:
        return one
    floor, delivered, pending = since.consumers[one.name]
    return replace(
        one, floor=min(floor, one.floor), delivered=min(delivered, one.delivered), pending=pending
    )


def _recreate_at_floor(
    old: ConsumerInterest, filters: tuple[str, ...], level: int, *, whole: bool
) -> ConsumerInterest:
    """A consumer that is made again at its ack floor. Up to 2.12 not each ack policy takes that for a start."""
    waiting = old.unfinished if sorted(old.filters) == sorted(filters) else 0
    counts = level >= STARTS_COUNT_LEVEL or not old.floor
    floor = old.floor if counts else 0
    return ConsumerInterest(
        old.name, filters, floor, old.floor, 0, whole and counts, waiting, start_known=counts
    )


def _new_consumer(change: ConsumerChange, last_seq: int) -> ConsumerInterest:
    """A new consumer. Where `by_start_time` and `last_per_subject` start is not known here: it may want everything or nothing."""
    match change.policy:
        case "all":
            return ConsumerInterest(change.name, change.filters, 0, 0)
        case "new":
            return ConsumerInterest(
                change.name, change.filters, last_seq, last_seq, from_the_start=False
            )
        case "by_start_sequence":
            before = max(0, change.opt_start_seq - 1)
            return ConsumerInterest(
                change.name, change.filters, before, before, from_the_start=False
            )
        case _:
            return ConsumerInterest(
                change.name, change.filters, 0, last_seq, from_the_start=False, start_known=False
            )


@dataclass
class UnwantedMessages:
    """Walks from the first message on to where every consumer has been; what follows is known from the counts.

    `becomes_interest`: the stream turns from limits to interest; then what no filter matches stays, and what is acknowledged
    by all goes. Else consumers go or change, and what none wants any more goes; `unsure_below` is the floor of one that goes, below
    which the server does not always look. `sure` go; `doubtful` may, depending on acknowledgements, and `passed`, depending on how far
    a consumer with an updated filter has looked, or a copy of the stream (`has_downstream`) has read.
    """

    consumers: tuple[ConsumerInterest, ...]
    level: int
    becomes_interest: bool
    last_seq: int
    unsure_below: int = 0
    has_downstream: bool = False
    sure: DeletionTally = field(default_factory=DeletionTally)
    doubtful: DeletionTally = field(default_factory=DeletionTally)
    passed: DeletionTally = field(default_factory=DeletionTally)
    _seen: dict[str, int] = field(default_factory=dict)
    _stopped: set[str] = field(default_factory=set)

    @property
    def horizon(self) -> int:
        """The last sequence that must be read."""
        if self.becomes_interest and self.has_downstream:
            return MAX_SEQUENCE
        if not self.becomes_interest and any(
            c.filters_before is not None and c.may_be_ahead for c in self.consumers
        ):
            return MAX_SEQUENCE
        return max((*(c.delivered for c in self.consumers), self.unsure_below), default=0)

    def visit(self, message: StoredMessage) -> bool:
        """Look at the next message, which is not beyond the horizon."""
        self._seen[message.subject] = self._seen.get(message.subject, 0) + 1
        self._mark_stopped(message)
        wanting = [c for c in self.consumers if c.matches(message.subject)]
        if self.becomes_interest and not self._is_examined(message, wanting):
            if self.has_downstream and not wanting:
                self.passed.add(message)
            return True
        if (
            all(message.seq <= self._certain_done_seq(c) for c in wanting)
            and message.seq > self.unsure_below
        ):
            self.sure.add(message)
        elif all(message.seq <= self._possible_done_seq(c) for c in wanting):
            self.doubtful.add(message)
        elif all(
            message.seq <= self._possible_done_seq(c) or self._may_have_passed(c, message)
            for c in wanting
        ):
            self.passed.add(message)
        return True

    def _mark_stopped(self, message: StoredMessage) -> None:
        """A consumer has not looked beyond the first message that its old filter still had to deliver."""
        for consumer in self.consumers:
            before = consumer.filters_before
            if (
                before is not None
                and consumer.waiting
                and message.seq > consumer.delivered
                and _matches_filters(before, message.subject)
            ):
                self._stopped.add(consumer.name)

    def _may_have_passed(self, consumer: ConsumerInterest, message: StoredMessage) -> bool:
        """Check whether the consumer may have looked beyond the message while its old filter passed it over."""
        possible = (
            consumer.may_be_ahead
            and not self.becomes_interest
            and consumer.name not in self._stopped
        )
        return possible and consumer.gains(message.subject)

    def count_beyond(self, counts: Mapping[str, int]) -> int:
        """How many messages beyond the horizon go: those of subjects that nobody wants."""
        if self.becomes_interest:
            return 0
        unwanted = (s for s in counts if not any(c.matches(s) for c in self.consumers))
        return sum(max(0, counts[s] - self._seen.get(s, 0)) for s in unwanted)

    @property
    def at_least(self) -> int:
        """Below the horizon: what is delivered but neither acknowledged by all nor pending anywhere was acknowledged."""
        refiltered = self.becomes_interest and any(
            c.filters_before is not None for c in self.consumers
        )
        reliable = (
            all(self._counts_acks(c) and c.start_known for c in self.consumers)
            and not self.unsure_below
            and not refiltered
        )
        pending = sum(c.pending for c in self.consumers)
        return self.sure.messages + (max(0, self.doubtful.messages - pending) if reliable else 0)

    @property
    def at_most(self) -> int:
        """Below the horizon."""
        return self.sure.messages + self.doubtful.messages + self.passed.messages

    def _counts_acks(self, consumer: ConsumerInterest) -> bool:
        """Whether the server goes by single acknowledgements of this consumer when the stream becomes an interest stream."""
        return not self.becomes_interest or self.level >= (
            ACKS_ABOVE_FLOOR_LEVEL if consumer.from_the_start else STARTS_COUNT_LEVEL
        )

    def _certain_done_seq(self, consumer: ConsumerInterest) -> int:
        if (
            self.becomes_interest
            and not consumer.from_the_start
            and self.level < STARTS_COUNT_LEVEL
        ):
            return 0
        return consumer.floor

    def _possible_done_seq(self, consumer: ConsumerInterest) -> int:
        return (
            consumer.floor
            if consumer.acks_all and not self.becomes_interest
            else consumer.delivered
        )

    def _is_examined(self, message: StoredMessage, wanting: list[ConsumerInterest]) -> bool:
        """A stream that becomes one of interest looks only at what some consumer has done, and at no consumer that starts behind its end.

        Servers before 2.12 go by ack floors alone.
        """
        for consumer in wanting:
            by_floor = consumer.from_the_start and self.level < ACKS_ABOVE_FLOOR_LEVEL
            if consumer.floor <= self.last_seq and message.seq <= (
                consumer.floor if by_floor else consumer.delivered
            ):
                return True
        return False
