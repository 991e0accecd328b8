"""Messages that a changed filter leaves undelivered to a consumer, or in a work queue.

Measured on 2.10 to 2.15: a changed filter never rewinds a consumer. The consumer may have searched
beyond its last delivery, up to the next message that its old filter matches. Messages that are
pending when a filter changes are delivered again, whatever the new filter is.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from jsplan.facts.limit_trimming import DeletionTally, StoredMessage
from jsplan.subjects import passes_filters

Filters = tuple[str, ...]
Certainty = Literal["yes", "maybe", "no"]
#: `narrowed`: messages that a consumer still had to deliver; `passed`: messages that its new filter
#: matches and it has passed; `stranded`: messages that no consumer of a work queue will deliver.
Aspect = Literal["narrowed", "passed", "stranded"]


class FilteredConsumer(Struct, frozen=True):
    """A consumer after the plan. `before` are its filters until now, None for a new one.

    `delivered` is the last sequence that it delivered, `has_ack_pending` whether any of those is
    not acknowledged. `resumes_at`: it is replaced and begins there, or (0) with the first message.
    `filter_unset_briefly`: its filter may match nothing for a moment; a client that waits then lets
    it search to the end of the stream.
    """

    name: str
    before: Filters | None
    after: Filters
    delivered: int = 0
    has_ack_pending: bool = False
    resumes_at: int | None = None
    filter_unset_briefly: bool = False

    @property
    def changes_filter(self) -> bool:
        """True if the existing consumer gets another filter."""
        return (
            self.before is not None
            and self.resumes_at is None
            and sorted(self.before) != sorted(self.after)
        )


class FilterChange(Struct, frozen=True):
    """A request about consumer `name`. `consumers` are all of a work queue, else that one alone."""

    name: str
    aspect: Aspect
    consumers: tuple[FilteredConsumer, ...]

    @property
    def consumer(self) -> FilteredConsumer:
        """The consumer that changes."""
        return next(consumer for consumer in self.consumers if consumer.name == self.name)

    def may_count(self, subject: str) -> bool:
        """Return True if messages of a subject can be counted."""
        consumer = self.consumer
        before, after = (
            consumer.before is not None and passes_filters(subject, consumer.before),
            passes_filters(subject, consumer.after),
        )
        if self.aspect == "stranded":
            return before or after
        return before and not after if self.aspect == "narrowed" else after and not before

    @property
    def start(self) -> int:
        """The first sequence that can be counted."""
        consumer = self.consumer
        if self.aspect == "narrowed":
            return consumer.delivered + 1 if consumer.resumes_at is None else consumer.resumes_at
        return 1


class UndeliveredWalk(Struct):
    """Counts from the first message on: `sure` stay undelivered, `doubtful` may."""

    change: FilterChange
    sure: DeletionTally = field(default_factory=DeletionTally)
    doubtful: DeletionTally = field(default_factory=DeletionTally)
    _stopped: set[str] = field(default_factory=set)

    def visit(self, message: StoredMessage) -> None:
        """Visit the next message."""
        if self.change.may_count(message.subject):
            undelivered = self._is_undelivered(message)
            if undelivered != "no":
                (self.sure if undelivered == "yes" else self.doubtful).add(message)
        self._stopped |= {
            r.name
            for r in self.change.consumers
            if r.changes_filter
            and message.seq > r.delivered
            and passes_filters(message.subject, r.before or ())
        }

    def _is_undelivered(self, message: StoredMessage) -> Certainty:
        """Return whether none of the change's consumers receives it."""
        consumer = self.change.consumer
        if self.change.aspect == "narrowed":
            finished = message.seq < self.change.start or (
                message.seq <= consumer.delivered and not consumer.has_ack_pending
            )
            return "no" if finished else "maybe" if message.seq <= consumer.delivered else "yes"
        if self.change.aspect == "stranded" and not self._counts_here(message):
            return "no"
        deliveries = {self._delivery_to(reader, message) for reader in self.change.consumers}
        return "no" if "yes" in deliveries else "maybe" if "maybe" in deliveries else "yes"

    def _counts_here(self, message: StoredMessage) -> bool:
        """Return True if this consumer counts it: the one that would deliver it, else had it."""
        previous = [
            r.name
            for r in self.change.consumers
            if r.before is not None
            and passes_filters(message.subject, r.before)
            and _filters_differ(r)
        ]
        new = [
            r.name
            for r in self.change.consumers
            if _filters_differ(r) and passes_filters(message.subject, r.after)
        ]
        return (new or previous)[:1] == [self.change.name]

    def _delivery_to(self, reader: FilteredConsumer, message: StoredMessage) -> Certainty:
        after = passes_filters(message.subject, reader.after)
        if reader.resumes_at is not None:
            return "yes" if after and message.seq >= reader.resumes_at else "no"
        if not reader.changes_filter:
            return "yes" if after else "no"
        before = passes_filters(message.subject, reader.before or ())
        if message.seq <= reader.delivered:
            return "yes" if before else "no"  # still pending, or a work queue would not have it
        if not after:
            return "no"
        if (before or reader.name in self._stopped) and not reader.filter_unset_briefly:
            return "yes"
        return "maybe"


def _filters_differ(reader: FilteredConsumer) -> bool:
    return reader.before is not None and sorted(reader.before) != sorted(reader.after)
