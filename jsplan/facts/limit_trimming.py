"""Messages that an update's limits delete: the server's order, replayed over what is stored.

The server trims `max_msgs` and `max_bytes` from the old end first, then `max_msgs_per_subject`,
then `max_age` (proved per version by tests). So it deletes a message that is in the trimmed prefix,
or too old, or not among the last of its subject. Both directions give the same result; the shorter
one is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from jsplan.documents.deletions import Limits
from jsplan.resources.source_header import SourceHeader


class DeletionTally(Struct):
    """Deletions so far. `until` and `newest` are time and sequence of the newest one."""

    messages: int = 0
    bytes: int = 0
    until: str = ""
    newest: int = 0

    def add(self, message: StoredMessage) -> None:
        """Count one message."""
        self.messages += 1
        self.bytes += message.size
        self.until = max(self.until, message.time)
        self.newest = max(self.newest, message.seq)


@dataclass
class ForwardTrim:
    """Trims from the first message on. `messages` and `bytes` are those of the whole stream.

    `first_unexpired_seq` is the first sequence that max_age keeps; `counts` the messages per
    subject.
    """

    limits: Limits
    messages: int
    bytes: int
    first_unexpired_seq: int
    counts: Mapping[str, int] = field(default_factory=dict)
    deleted: DeletionTally = field(default_factory=DeletionTally)
    _next: int = 0
    _excess: dict[str, int] = field(default_factory=dict)
    _left: int = 0

    def __post_init__(self) -> None:
        limit = self.limits.max_msgs_per_subject
        self._excess = (
            {subject: count - limit for subject, count in self.counts.items() if count > limit}
            if limit
            else {}
        )
        self._left = sum(self._excess.values())

    def visit(self, message: StoredMessage) -> bool:
        """Visit the next message; return True if more deletions can follow."""
        is_deleted = self._is_trimmed() or (
            message.seq < self.first_unexpired_seq and not message.never_expires
        )
        if self._excess.get(message.subject, 0) > 0:
            self._excess[message.subject] -= 1
            self._left -= 1
            is_deleted = True
        self.messages -= 1
        self.bytes -= message.size
        if is_deleted:
            self.deleted.add(message)
        self._next = message.seq + 1
        return self._left > 0 or not self.is_prefix_known

    @property
    def is_prefix_known(self) -> bool:
        """True if only `max_msgs_per_subject` can delete what follows; then `total` is exact."""
        return not self._is_trimmed() and self._next >= self.first_unexpired_seq

    @property
    def total(self) -> int:
        """All deletions, once the prefix is known: the counts give the rest."""
        return self.deleted.messages + self._left

    def _is_trimmed(self) -> bool:
        limits = self.limits
        return bool(
            (limits.max_msgs and self.messages > limits.max_msgs)
            or (limits.max_bytes and self.bytes > limits.max_bytes)
        )


@dataclass
class BackwardTrim:
    """Trims from the last message back, counting what stays.

    `ttl`: old messages may be exempt from max_age.
    """

    limits: Limits
    first_unexpired_seq: int
    ttl: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    kept: DeletionTally = field(default_factory=DeletionTally)
    until: str = ""
    newest: int = 0
    _seen: Counter[str] = field(default_factory=Counter)
    _messages: int = 0
    _bytes: int = 0
    _stay: int = -1

    def __post_init__(self) -> None:
        limit = self.limits.max_msgs_per_subject
        if limit and self.limits.causes == ["max_msgs_per_subject"]:
            self._stay = sum(min(count, limit) for count in self.counts.values())

    def visit(self, message: StoredMessage) -> bool:
        """Visit the next older message; return True if more can follow that stay."""
        limits = self.limits
        self._messages += 1
        self._bytes += message.size_for_limit
        trimmed = (limits.max_msgs and self._messages > limits.max_msgs) or (
            limits.max_bytes and self._bytes > limits.max_bytes
        )
        old = message.seq < self.first_unexpired_seq
        if trimmed or (old and not self.ttl):
            self._note_deleted(message)
            return False
        self._seen[message.subject] += 1
        is_excess = (
            limits.max_msgs_per_subject
            and self._seen[message.subject] > limits.max_msgs_per_subject
        )
        if is_excess or (old and not message.never_expires):
            self._note_deleted(message)
        else:
            self.kept.add(message)
        return self.kept.messages != self._stay

    def _note_deleted(self, message: StoredMessage) -> None:
        self.until = self.until or message.time
        self.newest = self.newest or message.seq


class StoredMessage(Struct, frozen=True):
    """One stored message. `size` is what it counts in the stream's `bytes`; `time` is RFC 3339.

    `never_expires`: its `Nats-TTL: never` exempts it from max_age. `target_size` is its size in the
    stream that it is copied to.
    """

    seq: int
    subject: str
    size: int
    time: str
    never_expires: bool = False
    source: SourceHeader | None = None
    target_size: int | None = None

    @property
    def size_for_limit(self) -> int:
        """The size that max_bytes counts: that in the target, if there is one."""
        return self.size if self.target_size is None else self.target_size


def stored_size(storage: str, subject: int, headers: int, payload: int) -> int:
    """Return the bytes that a message counts, from those of subject, headers and payload.

    Measured on 2.10 to 2.15: a file store adds 30, and 4 more where there are headers; a memory
    store adds 16. Compression changes nothing.
    """
    overhead = 16 if storage == "memory" else 34 if headers else 30
    return overhead + subject + headers + payload


def size_growth(before: str, after: str) -> tuple[int, int]:
    """Return the least and the most bytes by which a message grows in another storage."""
    if before == after:
        return 0, 0
    return (-18, -14) if after == "memory" else (14, 18)
