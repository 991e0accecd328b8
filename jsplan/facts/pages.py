"""Pages of stored messages, oldest first, never through a consumer.

Batches of DIRECT.GET where stream and server allow them, else MSG.GET with many requests in flight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from jsplan.errors import ApiError
from jsplan.jetstream import DomainApi

#: One batch: small enough not to be a slow consumer (64 MiB), large enough to hide the round trip.
BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 8 << 20
#: Requests for one batch: with one mirror that answers too, fifteen of sixteen succeed.
BATCH_ATTEMPTS: Final = 4
#: A message larger than this counts as several reads, so that the limit bounds the traffic too.
READ_BYTES: Final = 16 << 10
#: The first of the headers that a server adds to a message of DIRECT.GET.
OWN_HEADERS: Final = b"\r\nNats-Stream: "
#: Where they begin in a message that has none of its own.
NO_HEADERS: Final = len(b"NATS/1.0")


class ReadLimitExceeded(Exception):
    """The measurement would take more reads than its limit."""


class ReadBudget(Struct):
    """Reads that a measurement has left."""

    left: int

    def spend(self, reads: int) -> None:
        """Spend reads. Raises ReadLimitExceeded when none are left."""
        self.left -= reads
        if self.left < 0:
            raise ReadLimitExceeded


class _Sized(Protocol):
    """A message as far as pages need it. `size` is bytes."""

    @property
    def seq(self) -> int: ...

    @property
    def size(self) -> int: ...


M = TypeVar("M", bound=_Sized)


@dataclass
class PageReader(ABC, Generic[M]):
    """Pages of one stream as of one INFO: messages after `last` are not read.

    `gaps` are the deleted sequences, sorted. Without them (None: not requested) MSG.GET cannot be
    used. A stream that never had a message calls its first sequence 0, which servers refuse to
    read. `page_messages` are the messages of a page at most.
    """

    page_messages: ClassVar[int] = BATCH_MESSAGES

    api: DomainApi
    stream: str
    storage: str
    first: int
    last: int
    batches: bool
    budget: ReadBudget
    gaps: Sequence[int] | None = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = max(self.first, 1)

    @abstractmethod
    def _from_json(self, message: dict[str, Any]) -> M:
        """Parse a message of MSG.GET."""

    @abstractmethod
    def _from_batch(self, block: bytes, payload: bytes) -> M:
        """Parse a message of a batch. Raises KeyError or ValueError for one that is none."""

    def _parse_batch(self, answers: Sequence[tuple[bytes, bytes]]) -> tuple[list[M], bool]:
        """Parse the messages of a batch, and return whether all are of this stream.

        Raises KeyError or ValueError for one that is none.
        """
        own = all(answering_stream(block) == self.stream for block, _ in answers)
        return [self._from_batch(block, payload) for block, payload in answers], own

    async def read_forward(self, start: int) -> AsyncIterator[M]:
        """Yield messages from a sequence on, oldest first. Raises as `read_page` does."""
        start = max(start, 1)
        while start <= self.last:
            page, start = await self.read_page(start, self.last)
            for message in page:
                yield message

    async def read_page(self, start: int, end: int) -> tuple[list[M], int]:
        """Read the messages of one page within the range; return the start of the next one too.

        Raises ReadLimitExceeded and ApiError.
        """
        if self.batches and (found := await self._read_batch(start, end)) is not None:
            return found
        if self.gaps is None:
            raise ReadLimitExceeded
        wanted = list(islice(self._existing_seqs(start, end), self.page_messages))
        self.budget.spend(len(wanted))
        messages = await self.api.get_messages(self.stream, wanted, self._from_json)
        self._charge(messages)
        return messages, wanted[-1] + 1 if len(wanted) == self.page_messages else end + 1

    def _existing_seqs(self, start: int, end: int) -> Iterator[int]:
        gaps = self.gaps or []
        at = bisect_left(gaps, start)
        for seq in range(start, end + 1):
            if at < len(gaps) and gaps[at] == seq:
                at += 1
            else:
                yield seq

    def _charge(self, messages: list[M]) -> None:
        self.budget.spend(sum(m.size // READ_BYTES for m in messages))

    async def _read_batch(self, start: int, end: int) -> tuple[list[M], int] | None:
        """Read one batch, or None where it may be another stream's or incomplete.

        Any mirror and any replica may answer. So one that another stream answered is read again.
        """
        size = min(self.page_messages, end - start + 1, self.budget.left + 1)
        query = {"seq": start, "batch": size, "max_bytes": BATCH_BYTES}
        for _ in range(BATCH_ATTEMPTS):
            answers = await self.api.request_many(f"DIRECT.GET.{self.stream}", query)
            end_of_batch = answers.pop()[0]
            if not end_of_batch.startswith((b"NATS/1.0 204", b"NATS/1.0 404")):
                raise ApiError(f"{self.stream} cannot be read: {end_of_batch[:80]!r}")
            try:
                messages, own = self._parse_batch(answers)
            except (KeyError, ValueError) as error:
                raise ApiError(
                    f"{self.stream} cannot be read: "
                    f"a message of a batch lacks the server's own headers ({error})"
                ) from None
            if own:
                break
        else:
            return None
        while messages and messages[-1].seq > end:
            messages.pop()
        after = messages[-1].seq + 1 if messages and len(messages) == len(answers) else end + 1
        if not self._is_complete(messages, start, after):
            return None
        self.budget.spend(len(messages))
        self._charge(messages)
        return messages, after

    def _is_complete(self, messages: list[M], start: int, after: int) -> bool:
        """Return True if the range is complete. Without gaps, an empty range proves nothing."""
        if self.gaps is None:
            return bool(messages)
        gaps = bisect_left(self.gaps, after) - bisect_left(self.gaps, start)
        return len(messages) == after - start - gaps


def answering_stream(block: bytes) -> str:
    """Return the stream of a message: with `mirror_direct` a mirror answers for its origin."""
    start = block.rfind(OWN_HEADERS) + len(OWN_HEADERS)
    return block[start : block.index(b"\r\n", start)].decode()


def stored_headers(block: bytes) -> bytes:
    """Return the stored header block of a message, without what the server adds."""
    at = block.rfind(OWN_HEADERS)
    return block[:at] + b"\r\n\r\n" if at > NO_HEADERS else b""
