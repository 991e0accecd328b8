"""Messages that an interest stream deletes when its consumers or its retention change.

A message stays while a consumer wants it: one whose filter matches and that has not acknowledged
it. The server reports the sequence up to which a consumer has acknowledged everything, and the last
one that it delivered; the part between is not known. Neither is how far a consumer has searched for
messages of its filter beyond its last delivery: after an update of the filter it continues from
there, and the server counts what it has passed as not wanted (server_semantics, section 3).

Up to 2.12 only a consumer with ack policy `explicit` does not want what is before its start. Others
keep it although they never deliver it (measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.facts.consumer_position import position_of
from jsplan.facts.limit_trimming import DeletionTally
from jsplan.facts.stored_message import StoredMessage
from jsplan.resources.consumer import filters_of
from jsplan.resources.server_features import (
    ACKS_ABOVE_FLOOR_LEVEL,
    PENDING_FROM_START_LEVEL,
    STARTS_COUNT_LEVEL,
)
from jsplan.subjects import is_subset

MAX_SEQUENCE = 2**64 - 1


class ConsumerChange(Struct, frozen=True):
    """One consumer of a stream after a plan: its filters (none: every subject) and its position.

    `position`: `gone`; `same`, updated in place; `floor`, replaced, continues behind its ack floor;
    `start`, new and starts by `policy`, with `opt_start_seq` where that is `by_start_sequence`.
    `acks_each`: its ack policy will be `explicit`.
    """

    name: str
    position: Literal["gone", "same", "floor", "start"]
    filters: tuple[str, ...] = ()
    policy: str = "all"
    opt_start_seq: int = 0
    acks_each: bool = True


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
    each = config.get("ack_policy") == "explicit"
    return ConsumerChange(name, position, filters_of(config), policy, first, each)


class InterestSnapshot(Struct, frozen=True):
    """An interest stream when its placeholder consumer was created.

    It has the last sequence and, by name, the ack floor, the last delivered sequence and the number
    of unacknowledged messages of each consumer.
    """

    last_seq: int
    consumers: Mapping[str, tuple[int, int, int]]


class ConsumerInterest(Struct, frozen=True):
    """One consumer: filters (none: everything), ack floor, last delivered sequence.

    `pending` is the number of unacknowledged messages, `waiting` of those not delivered yet.
    `filters_before` are those that an update in place replaces. `start_known` is False for a new
    consumer whose first message is not known yet. `acks_each`: its ack policy is `explicit`. Such a
    consumer does not want what is before its start, nor what it passed when it searched beyond its
    last delivery. Others want everything behind their floor. `position` is where a consumer that
    replaces it resumes, None if unknown. `waiting_known`: `waiting` is what the server counts for
    these filters behind this last delivery.
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
    acks_each: bool = True
    position: int | None = None
    waiting_known: bool = False

    def matches(self, subject: str) -> bool:
        """Return True if the consumer receives messages of this subject."""
        return _matches_filters(self.filters, subject)

    def gains(self, subject: str) -> bool:
        """Return True if only the updated filter matches the subject."""
        return self.filters_before is not None and not _matches_filters(
            self.filters_before, subject
        )

    @property
    def unfinished(self) -> int:
        """Number of messages of the stream that it wants."""
        return self.pending + self.waiting


def _shows_passed(consumer: ConsumerInterest) -> bool:
    """Return True if INFO shows what the consumer passed and does not want for that."""
    return consumer.acks_each and consumer.waiting_known and consumer.filters_before is None


def _matches_filters(filters: tuple[str, ...], subject: str) -> bool:
    return not filters or any(is_subset(subject, other) for other in filters)


def parse_interest(info: Mapping[str, Any]) -> ConsumerInterest:
    """Parse an element of CONSUMER.LIST."""
    config = info["config"]
    floor = (info.get("ack_floor") or {}).get("stream_seq", 0)
    delivered = (info.get("delivered") or {}).get("stream_seq", 0)
    whole = config.get("deliver_policy", "all") == "all"
    delivered = max(floor, delivered)
    out, waiting = info.get("num_ack_pending") or 0, info.get("num_pending") or 0
    return ConsumerInterest(
        info["name"],
        filters_of(config),
        floor,
        delivered,
        out,
        whole,
        waiting,
        acks_each=config.get("ack_policy") == "explicit",
    )


def parse_reader(info: Mapping[str, Any], level: int) -> ConsumerInterest:
    """Parse an element of CONSUMER.LIST, with all that a measurement needs."""
    consumer = parse_interest(info)
    counts = level >= PENDING_FROM_START_LEVEL or consumer.from_the_start
    return replace(
        consumer,
        waiting=consumer.waiting if counts else 0,
        waiting_known=counts,
        position=position_of(info["config"], info, level),
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
    """Return the consumers that a plan leaves. `recreated`: each is recreated at its ack floor."""
    consumers = {consumer.name: _at_snapshot(consumer, since) for consumer in now}
    if recreated:
        consumers = {
            name: _recreate_at_position(
                consumer,
                ConsumerChange(
                    name,
                    "floor",
                    consumer.filters,
                    "all" if consumer.from_the_start else "",
                    acks_each=consumer.acks_each,
                ),
                level,
            )
            for name, consumer in consumers.items()
        }
    for change in changes:
        old = consumers.pop(change.name, None)
        if change.position == "start" or (change.position != "gone" and old is None):
            consumers[change.name] = _new_consumer(change, last_seq, level)
        elif old is not None and change.position == "same":
            consumers[change.name] = replace(
                old,
                filters=change.filters,
                filters_before=None if old.filters == change.filters else old.filters,
            )
        elif old is not None and change.position == "floor":
            consumers[change.name] = _recreate_at_position(old, change, level)
    return list(consumers.values())


def empties_stream(
    now: Iterable[ConsumerInterest], changes: Iterable[ConsumerChange], last_seq: int
) -> bool:
    """Return True if the server deletes everything (measured on 2.14 and 2.15).

    It does, whatever other consumers want, when a consumer whose ack floor is behind the end of the
    stream gets another filter, or is deleted while there is another such consumer.
    """
    behind = {consumer.name: consumer for consumer in now if consumer.floor > last_seq}
    for change in changes:
        consumer = behind.get(change.name)
        if consumer is not None and (
            len(behind) > 1
            if change.position != "same"
            else sorted(consumer.filters) != sorted(change.filters)
        ):
            return True
    return False


def _at_snapshot(consumer: ConsumerInterest, since: InterestSnapshot | None) -> ConsumerInterest:
    if since is None or consumer.name not in since.consumers:
        return consumer
    floor, delivered, pending = since.consumers[consumer.name]
    return replace(
        consumer,
        floor=min(floor, consumer.floor),
        delivered=min(delivered, consumer.delivered),
        pending=pending,
        waiting_known=False,
    )


def _recreate_at_position(
    old: ConsumerInterest, change: ConsumerChange, level: int
) -> ConsumerInterest:
    """Recreate a consumer at its position."""
    waiting = old.unfinished if sorted(old.filters) == sorted(change.filters) else 0
    new = ConsumerInterest(
        old.name, change.filters, 0, 0, waiting=waiting, acks_each=change.acks_each
    )
    starts_count = level >= STARTS_COUNT_LEVEL
    if old.position is None:
        return replace(new, delivered=old.delivered, from_the_start=False, start_known=False)
    whole = change.policy == "all" and (starts_count or old.position <= 1)
    if not (starts_count or change.acks_each):
        return replace(new, from_the_start=whole)
    return replace(new, floor=old.position - 1, delivered=old.position - 1, from_the_start=whole)


def _new_consumer(change: ConsumerChange, last_seq: int, level: int) -> ConsumerInterest:
    """Build a new consumer. Where the start is not known here, it may want all or nothing."""
    new = ConsumerInterest(
        change.name,
        change.filters,
        0,
        0,
        from_the_start=change.policy == "all",
        acks_each=change.acks_each,
    )
    if level < STARTS_COUNT_LEVEL and not change.acks_each:
        return new
    match change.policy:
        case "all":
            return new
        case "new":
            return replace(new, floor=last_seq, delivered=last_seq)
        case "by_start_sequence":
            before = max(0, change.opt_start_seq - 1)
            return replace(new, floor=before, delivered=before)
        case _:
            return replace(new, delivered=last_seq, start_known=False)


class UnwantedMessages(Struct):
    """Counts unwanted messages up to the last one that a consumer has seen, one by one.

    `becomes_interest`: the stream changes from limits to interest; then a message that no filter
    matches stays, and one that all have acknowledged is deleted. Else consumers are deleted or
    changed, and messages that no consumer wants any more are deleted; `unsure_below` is the floor
    of a deleted one, below which the server does not always look. `sure` are deleted. `doubtful`
    depend on acknowledgements. `passed` depend on how far a consumer with an updated filter has
    searched, or a downstream stream (`has_downstream`) has read. `acknowledged_gone`: there are no
    doubtful ones (see `MeasurementRequest`).
    """

    consumers: tuple[ConsumerInterest, ...]
    level: int
    becomes_interest: bool
    last_seq: int
    unsure_below: int = 0
    has_downstream: bool = False
    acknowledged_gone: bool = False
    sure: DeletionTally = field(default_factory=DeletionTally)
    doubtful: DeletionTally = field(default_factory=DeletionTally)
    passed: DeletionTally = field(default_factory=DeletionTally)
    _seen: dict[str, int] = field(default_factory=dict)
    _stopped: set[str] = field(default_factory=set)
    #: How many messages each consumer matched, and of them those behind its last delivery.
    _matched: dict[str, int] = field(default_factory=dict)
    _behind: dict[str, int] = field(default_factory=dict)
    #: Messages that go if each of these consumers passed so many behind its last delivery.
    _undecided: list[tuple[StoredMessage, dict[str, int]]] = field(default_factory=list)

    @property
    def horizon(self) -> int:
        """The last sequence that must be read."""
        if self.becomes_interest and self.has_downstream:
            return MAX_SEQUENCE
        if not self.becomes_interest and any(
            c.filters_before is not None and c.acks_each for c in self.consumers
        ):
            return MAX_SEQUENCE
        return max((*(c.delivered for c in self.consumers), self.unsure_below), default=0)

    def visit(self, message: StoredMessage) -> bool:
        """Visit the next message, which is not beyond the horizon."""
        self._seen[message.subject] = self._seen.get(message.subject, 0) + 1
        self._mark_stopped(message)
        wanting = [c for c in self.consumers if c.matches(message.subject)]
        for consumer in wanting:
            behind = message.seq > consumer.delivered
            self._matched[consumer.name] = self._matched.get(consumer.name, 0) + 1
            self._behind[consumer.name] = self._behind.get(consumer.name, 0) + behind
        if self.becomes_interest and not self._is_examined(message, wanting):
            # The server deletes it when its own consumer goes, unless another one may want it.
            if self.has_downstream and all(
                message.seq <= self._possible_done_seq(c) for c in wanting
            ):
                self.passed.add(message)
            return True
        if (
            all(message.seq <= self._certain_done_seq(c) for c in wanting)
            and message.seq > self.unsure_below
        ):
            self.sure.add(message)
        elif all(message.seq <= self._possible_done_seq(c) for c in wanting):
            if not self.acknowledged_gone:
                self.doubtful.add(message)
        else:
            self._note_passed(message, wanting)
        return True

    def _note_passed(self, message: StoredMessage, wanting: list[ConsumerInterest]) -> None:
        """Note a message that consumers may have passed without its delivery."""
        undelivered = [c for c in wanting if message.seq > self._possible_done_seq(c)]
        blocking = [c for c in undelivered if not self._may_have_passed(c, message)]
        if not blocking:
            self.passed.add(message)
        elif all(_shows_passed(c) for c in blocking):
            places = {c.name: self._behind[c.name] for c in blocking}
            self._undecided.append((message, places))

    def decide_passed(self, counts: Mapping[str, int] | None, *, whole: bool) -> int:
        """Decide what consumers passed with an earlier filter; return how many beyond the horizon.

        The server searches forward, so a consumer passed the first messages behind its last
        delivery, as many as it does not count as pending. `counts` are the messages by subject,
        None if unknown. They are not needed where the walk has read the `whole` stream.
        """
        passed = {c.name: self._count_passed(c, counts, whole=whole) for c in self.consumers}
        for message, places in self._undecided:
            if all(place <= passed[name] for name, place in places.items()):
                self.passed.add(message)
        if whole or self.becomes_interest:
            return 0
        return sum(max(0, n - self._behind.get(name, 0)) for name, n in passed.items())

    def _count_passed(
        self, consumer: ConsumerInterest, counts: Mapping[str, int] | None, *, whole: bool
    ) -> int:
        if not _shows_passed(consumer):
            return 0
        behind = self._behind.get(consumer.name, 0)
        if counts is None and not whole:
            return behind
        if counts is not None and not whole:
            matching = sum(n for subject, n in counts.items() if consumer.matches(subject))
            behind += max(0, matching - self._matched.get(consumer.name, 0))
        return max(0, behind - consumer.waiting)

    def _mark_stopped(self, message: StoredMessage) -> None:
        """Mark consumers that searched no further than the first undelivered message."""
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
        """Return True if the consumer may have passed the message while its old filter applied."""
        possible = consumer.acks_each and consumer.name not in self._stopped
        return possible and consumer.gains(message.subject)

    def count_beyond(self, counts: Mapping[str, int]) -> int:
        """Count the deletions beyond the horizon: messages of subjects that no consumer wants."""
        if self.becomes_interest:
            return 0
        unwanted = (s for s in counts if not any(c.matches(s) for c in self.consumers))
        return sum(max(0, counts[s] - self._seen.get(s, 0)) for s in unwanted)

    @property
    def at_least(self) -> int:
        """Least deletions below the horizon: delivered, not pending anywhere, so acknowledged."""
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
        """Most deletions below the horizon."""
        return self.sure.messages + self.doubtful.messages + self.passed.messages

    def _counts_acks(self, consumer: ConsumerInterest) -> bool:
        """Return True if single acknowledgements count when the stream becomes interest."""
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
        by_floor = consumer.start_known and not (consumer.acks_each or self.becomes_interest)
        return consumer.floor if by_floor else consumer.delivered

    def _is_examined(self, message: StoredMessage, wanting: list[ConsumerInterest]) -> bool:
        """Return True if a stream that becomes interest checks the message.

        It checks only what a consumer has done, and ignores consumers that start behind its end.
        Servers before 2.12 use ack floors alone.
        """
        for consumer in wanting:
            by_floor = consumer.from_the_start and self.level < ACKS_ABOVE_FLOOR_LEVEL
            if consumer.floor <= self.last_seq and message.seq <= (
                consumer.floor if by_floor else consumer.delivered
            ):
                return True
        return False
