"""Messages that a change deletes or leaves behind: counts, and what a plan keeps of them.

Planning asks for the count, a step keeps the request with the answer, and the executor asks again
before it writes.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, field

from jsplan.documents.types import StreamAddress, UInt64

#: Limits by which only messages that arrive delete more than a plan said. Time and
#: acknowledgements change the others.
ARRIVAL_LIMITS: Final = frozenset({"max_msgs", "max_bytes", "max_msgs_per_subject"})

#: Empty where messages are not moved.
Storage = Literal["", "file", "memory"]


class Limits(Struct, frozen=True, omit_defaults=True):
    """The limits that a stream gets; 0 for others. `max_age` is in ns, `max_bytes` in bytes.

    `max_msgs` and `max_bytes` are only set where the stream discards old messages.
    """

    max_msgs: UInt64 = 0
    max_bytes: UInt64 = 0
    max_age: UInt64 = 0
    max_msgs_per_subject: UInt64 = 0

    @property
    def causes(self) -> list[str]:
        """Names of the limits that are set."""
        return [
            name
            for name in ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
            if getattr(self, name)
        ]


class ConsumerChange(Struct, frozen=True, omit_defaults=True):
    """One consumer of a stream after a plan: its filters (none: every subject) and its position.

    `position`: `gone`; `same`, updated in place; `floor`, replaced, continues behind its ack floor;
    `start`, new and starts by `policy`, with `opt_start_seq` where that is `by_start_sequence`.
    """

    name: str
    position: Literal["gone", "same", "floor", "start"]
    filters: tuple[str, ...] = ()
    policy: str = "all"
    opt_start_seq: UInt64 = 0


class HeldMessages(Struct, frozen=True):
    """Deletions that an earlier plan announced for its placeholder and these `consumers`.

    What consumers finished since then is still there, and is no loss.
    """

    at_most: UInt64
    consumers: tuple[str, ...]


class DeletionRequest(Struct, frozen=True, omit_defaults=True):
    """Count the messages of a stream that a change deletes.

    `limits` are those that the stream gets. `interest`: it has or gets interest
    retention, and the messages that no consumer wants once `consumers` have changed are counted;
    `was_interest`: it has or had it, so what all consumers have finished is gone already. `held`: a
    placeholder consumer of an earlier plan exists. `has_downstream`: the server reads the stream
    for a downstream stream, with a consumer that it may not show, so unwanted messages may stay.
    `changes_subjects`: some may stay because its subjects change. `drains` are filters through
    which a new downstream stream consumes the stream. `deletes_later`: the server deletes only with
    the next message of each subject. `finished` are the consumers of a stream that becomes a work
    queue, which does not get what they have finished. `target_storage`: the messages are copied to
    a stream with this storage, in which they have another size.
    """

    limits: Limits = field(default_factory=Limits)
    interest: Literal["", "is", "becomes"] = ""
    consumers: tuple[ConsumerChange, ...] = ()
    was_interest: bool = False
    held: HeldMessages | None = None
    has_downstream: bool = False
    changes_subjects: bool = False
    drains: tuple[str, ...] | None = None
    deletes_later: bool = False
    finished: tuple[str, ...] = ()
    target_storage: Storage = ""

    @property
    def counts_arrivals(self) -> bool:
        """True if only messages that arrive change the answer."""
        others = self.interest or self.drains is not None or self.finished
        return not others and ARRIVAL_LIMITS.issuperset(self.limits.causes)


class PlannedDeletion(Struct, frozen=True):
    """The deletions of one stream by a step: `at_most` so many messages when it was planned.

    `last_seq` was the last sequence of the stream then, 0 if it had no message.
    """

    stream: StreamAddress
    request: DeletionRequest
    at_most: UInt64
    last_seq: UInt64


class UncopiedFlow(Struct, frozen=True, omit_defaults=True):
    """A mirror or source that a step removes; `at_most` so many messages are not copied yet.

    `at_most` is None if that is unknown. `name` is its key, `origin` its stream, whose domain is an
    API prefix where no file has it any more, `api` the prefix by which it is reached, empty in the
    same domain. It takes `subjects`, and `source` is how the messages that it copied name it:
    stream, filters and destinations. `mirror`: it is one. `origin_goes`:
    the plan deletes the messages of its origin, too.
    """

    name: str
    origin: StreamAddress
    subjects: tuple[str, ...]
    source: tuple[str, str, str]
    at_most: UInt64 | None
    api: str = ""
    mirror: bool = False
    origin_goes: bool = False
