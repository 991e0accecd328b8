"""What planning asks to be measured, and the answer, as plain data. Asking the servers is left to `measure`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from jsplan.address import Address
from jsplan.facts.interest import ConsumerChange, InterestSnapshot
from jsplan.facts.limit_trimming import ExceededLimits
from jsplan.facts.redelivery import Redelivery
from jsplan.facts.stored_message import TargetStorage
from jsplan.facts.undelivered import FilterChange

#: Reads that one measurement may take unless somebody says otherwise.
MEASURE_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class FinishedConsumer:
    """What a consumer with such filters has finished: all before `position`, or (None: nobody knows) at most what it was `delivered`."""

    filters: tuple[str, ...]
    delivered: int
    position: int | None


@dataclass(frozen=True, slots=True)
class MeasurementRequest:
    """What to measure, for the change of `address`, in the stream `stream` of the same or (a drained origin) another domain.

    `limits` are those of an update. `interest`: the stream is or becomes one whose messages go when no consumer wants them, and what
    none wants once `consumers` have changed is counted; `recreates_consumers`: all of them are made again. `placeholder`: a placeholder
    consumer holds all messages until then; with `since`, what came or was acknowledged after it was made is left out.
    `drains` are filters through which a new copy consumes the stream. `deletes_later` says that the server deletes only with the next
    message of each subject. `finished` are messages that go because consumers of a stream that becomes a work queue have finished
    them. `redelivery` asks what a consumer that continues at its position is given again, and nothing else; `filter_change` what a changed
    filter leaves undelivered, and nothing else. `has_downstream`: the server reads the stream for a copy of it, by a consumer that it may
    not show, so messages may stay that no other consumer wants, or go.
    `changes_subjects`: its subjects change, so some may stay.
    `target_storage`: the messages are moved to a stream in which they count otherwise.
    """

    address: Address
    stream: Address
    limits: ExceededLimits = field(default_factory=ExceededLimits)
    interest: Literal["", "is", "becomes"] = ""
    consumers: tuple[ConsumerChange, ...] = ()
    recreates_consumers: bool = False
    placeholder: bool = False
    since: InterestSnapshot | None = None
    drains: tuple[str, ...] | None = None
    deletes_later: bool = False
    finished: tuple[FinishedConsumer, ...] = ()
    redelivery: Redelivery | None = None
    filter_change: FilterChange | None = None
    has_downstream: bool = False
    changes_subjects: bool = False
    target_storage: TargetStorage | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The answer: bounds on messages and bytes, `is_exact` when both are numbers. `total` is all that the stream holds.

    `since` and `until` are the times of the oldest and newest message that goes, where known. `as_of` is the last message
    that was there: its sequence and time. `newest` is the sequence of the newest message that goes, 0 where it is not known.
    `acknowledged` are consumers that acknowledge all messages up to one, and how many each may never be given again: the server
    takes the deletion of a delivered message for its acknowledgement.
    """

    at_least: int
    at_most: int
    least_bytes: int
    most_bytes: int
    total: int
    causes: tuple[str, ...]
    as_of: dict[str, Any]
    since: str = ""
    until: str = ""
    deletes_later: bool = False
    newest: int = 0
    acknowledged: tuple[tuple[str, int], ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether the number of messages and that of bytes are known."""
        return self.at_least == self.at_most and self.least_bytes == self.most_bytes


@dataclass(frozen=True, slots=True)
class UnmanagedRequest:
    """Of one domain: subjects that streams begin to store, streams all of whose consumers matter, and whether all streams do."""

    domain: str
    subjects: tuple[str, ...] = ()
    streams: tuple[Address, ...] = ()
    all_streams: bool = False
