"""Messages that a changed filter leaves undelivered: to one consumer, or in a work queue to all of them. Pure arithmetic.

Measured on 2.10 to 2.15: a changed filter never rewinds a consumer, and the place up to which it has searched for messages may lie
behind the last one that it delivered, up to the next one that its old filter matches. What is out when a filter changes is
delivered again, whatever the new filter is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jsplan.facts.limit_trimming import DeletionTally
from jsplan.facts.stored_message import StoredMessage
from jsplan.subjects import passes_filters

Filters = tuple[str, ...]
Certainty = Literal["yes", "maybe", "no"]
#: `narrowed`: what a consumer still had before it; `passed`: what its new filter matches and it has passed; `stranded`: what no
#: consumer of a work queue will be given.
Aspect = Literal["narrowed", "passed", "stranded"]


@dataclass(frozen=True, slots=True)
class FilteredConsumer:
    """A consumer that is there when the plan is done. `before` are its filters until now, None for one that is created.

    `delivered` is the last sequence that it delivered, `has_ack_pending` whether any of that is not acknowledged. `resumes_at`: it is replaced and
    begins there, or (0) with the first message. `filter_unset_briefly`: its filter may match nothing for a moment; a client that waits then lets it
    search to the end of the stream.
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
        """Whether another filter is given to the consumer that is there."""
        return (
            self.before is not None
            and self.resumes_at is None
            and sorted(self.before) != sorted(self.after)
        )


@dataclass(frozen=True, slots=True)
class FilterChange:
    """What is asked about the consumer `name`; `consumers` are all that a work queue will have, else that one alone."""

    name: str
    aspect: Aspect
    consumers: tuple[FilteredConsumer, ...]

    @property
    def consumer(self) -> FilteredConsumer:
        """The consumer that changes."""
        return next(one for one in self.consumers if one.name == self.name)

    def may_count(self, subject: str) -> bool:
        """Whether messages of a subject can be counted."""
        one = self.consumer
        before, after = (
            one.before is not None and passes_filters(subject, one.before),
            passes_filters(subject, one.after),
        )
        if self.aspect == "stranded":
            return before or after
        return before and not after if self.aspect == "narrowed" else after and not before

    @property
    def start(self) -> int:
        """The first sequence that can be counted."""
        one = self.consumer
        return (
            (one.delivered + 1 if one.resumes_at is None else one.resumes_at)
            if self.aspect == "narrowed"
            else 1
        )


@dataclass
class UndeliveredWalk:
    """Counts from the first message on: `sure` are left, `doubtful` may be."""

    change: FilterChange
    sure: DeletionTally = field(default_factory=DeletionTally)
    doubtful: DeletionTally = field(default_factory=DeletionTally)
    _stopped: set[str] = field(default_factory=set)

    def visit(self, message: StoredMessage) -> None:
        """Look at the next message."""
        if self.change.may_count(message.subject):
            found = self._is_undelivered(message)
            if found != "no":
                (self.sure if found == "yes" else self.doubtful).add(message)
        self._stopped |= {
            r.name
            for r in self.change.consumers
            if r.changes_filter
            and message.seq > r.delivered
            and passes_filters(message.subject, r.before or ())
        }

    def _is_undelivered(self, message: StoredMessage) -> Certainty:
        """Whether nobody who is asked about gets it."""
        one = self.change.consumer
        if self.change.aspect == "narrowed":
            finished = message.seq < self.change.start or (
                message.seq <= one.delivered and not one.has_ack_pending
            )
            return "no" if finished else "maybe" if message.seq <= one.delivered else "yes"
        if self.change.aspect == "stranded" and not self._counts_here(message):
            return "no"
        gets = {self._delivery_to(reader, message) for reader in self.change.consumers}
        return "no" if "yes" in gets else "maybe" if "maybe" in gets else "yes"

    def _counts_here(self, message: StoredMessage) -> bool:
        """Whether it is counted for this consumer: the one that a replacement would let deliver it, else the one that had it."""
        had = [
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
        return (new or had)[:1] == [self.change.name]

    def _delivery_to(self, reader: FilteredConsumer, message: StoredMessage) -> Certainty:
        after = passes_filters(message.subject, reader.after)
        if reader.resumes_at is not None:
            return "yes" if after and message.seq >= reader.resumes_at else "no"
        if not reader.changes_filter:
            return "yes" if after else "no"
        before = passes_filters(message.subject, reader.before or ())
        if message.seq <= reader.delivered:
            return "yes" if before else "no"  # in a work queue it is still there because it is out
        if not after:
            return "no"
        return (
            "yes"
            if (before or reader.name in self._stopped) and not reader.filter_unset_briefly
            else "maybe"
        )


def _filters_differ(reader: FilteredConsumer) -> bool:
    return reader.before is not None and sorted(reader.before) != sorted(reader.after)
