"""Which messages an interest stream gives up when consumers or filters go, or when it becomes one. Pure arithmetic.

A message stays while a consumer wants it: one whose filter matches and that has not acknowledged it. The server tells
of a consumer up to where everything is acknowledged and up to where it has delivered; what lies between is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.facts.stored import Stored
from jsplan.facts.trims import Tally
from jsplan.subjects import within

#: Levels with which server behaviour changed: 2.12 counts acks above the floor, 2.14 starts, 2.15 streams without consumers.
ACKS_ABOVE_FLOOR, STARTS_COUNT, NOBODY_COUNTS = 2, 4, 5


@dataclass(frozen=True, slots=True)
class Wants:
    """One consumer: its filters (none: everything), up to where all is acknowledged, up to where it has delivered."""

    name: str
    filters: tuple[str, ...]
    floor: int
    delivered: int
    pending: int = 0
    from_the_start: bool = True

    def matches(self, subject: str) -> bool:
        """Whether the consumer would be given messages of this subject."""
        return not self.filters or any(within(subject, other) for other in self.filters)


def filters_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The filters of a consumer's configuration, raw or compact."""
    one, several = config.get("filter_subject"), config.get("filter_subjects") or ()
    return (one,) if one else tuple(several)


def wants_of(info: Mapping[str, Any]) -> Wants:
    """From an element of CONSUMER.LIST."""
    config = info["config"]
    floor = (info.get("ack_floor") or {}).get("stream_seq", 0)
    delivered = (info.get("delivered") or {}).get("stream_seq", 0)
    whole = config.get("deliver_policy", "all") == "all"
    return Wants(info["name"], filters_of(config), floor, max(floor, delivered), info.get("num_ack_pending") or 0, whole)


@dataclass
class Unwanted:
    """Walks from the first message on to where every consumer has been; what follows is known from the counts.

    `becoming`: the stream turns from limits to interest; then what no filter matches stays, and what is acknowledged
    by all goes. Else a consumer goes or changes, and what nobody wants any more goes; `unsure_below` is its floor, below
    which the server does not always look. `sure` go, `doubtful` may.
    """

    consumers: tuple[Wants, ...]
    level: int
    becoming: bool
    unsure_below: int = 0
    sure: Tally = field(default_factory=Tally)
    doubtful: Tally = field(default_factory=Tally)
    _seen: dict[str, int] = field(default_factory=dict)

    @property
    def horizon(self) -> int:
        """The last sequence that must be read."""
        return max((*(c.delivered for c in self.consumers), self.unsure_below), default=0)

    def take(self, message: Stored) -> bool:
        """Look at the next message, which is not beyond the horizon."""
        self._seen[message.subject] = self._seen.get(message.subject, 0) + 1
        wanting = [c for c in self.consumers if c.matches(message.subject)]
        if self.becoming and not wanting:
            return True
        if all(message.seq <= self._surely_done(c) for c in wanting) and message.seq > self.unsure_below:
            self.sure.add(message)
        elif all(message.seq <= c.delivered for c in wanting) and self._looks_at(message, wanting):
            self.doubtful.add(message)
        return True

    def beyond(self, counts: Mapping[str, int]) -> int:
        """How many messages beyond the horizon go: those of subjects that nobody wants."""
        if self.becoming:
            return 0
        unwanted = (s for s in counts if not any(c.matches(s) for c in self.consumers))
        return sum(max(0, counts[s] - self._seen.get(s, 0)) for s in unwanted)

    @property
    def at_least(self) -> int:
        """Below the horizon: what is delivered but neither acknowledged by all nor pending anywhere was acknowledged."""
        reliable = all(self._counts_acks(c) for c in self.consumers) and not self.unsure_below
        pending = sum(c.pending for c in self.consumers)
        return self.sure.messages + (max(0, self.doubtful.messages - pending) if reliable else 0)

    @property
    def at_most(self) -> int:
        """Below the horizon."""
        return self.sure.messages + self.doubtful.messages

    def _counts_acks(self, consumer: Wants) -> bool:
        """Whether the server goes by single acknowledgements of this consumer when the stream becomes an interest stream."""
        return not self.becoming or self.level >= (ACKS_ABOVE_FLOOR if consumer.from_the_start else STARTS_COUNT)

    def _surely_done(self, consumer: Wants) -> int:
        if self.becoming and not consumer.from_the_start and self.level < STARTS_COUNT:
            return 0
        return consumer.floor

    def _looks_at(self, message: Stored, wanting: list[Wants]) -> bool:
        """Servers before 2.12 look only at what is below the floor of some consumer when a stream becomes one of interest."""
        if not self.becoming or self.level >= ACKS_ABOVE_FLOOR:
            return True
        return any(message.seq <= (c.floor if c.from_the_start else c.delivered) for c in wanting)
