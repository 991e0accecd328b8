"""A stored message as far as it matters for what is deleted. Reading them is left to `messages`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The header that says which message a source copied, and the block of a message without headers.
_SOURCE: Final = b"Nats-Stream-Source: "
_EMPTY_HEADERS: Final = b"NATS/1.0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One stored message. `stored_size` is what it counts in the stream's `bytes`; `time` RFC 3339 as the server wrote it.

    `never_expires` says that its `Nats-TTL: never` exempts it from max_age, `source` is its `Nats-Stream-Source`. `target_size` is what it counts
    in the stream that it is moved to.
    """

    seq: int
    subject: str
    size: int
    time: str
    never_expires: bool = False
    source: str = ""
    target_size: int | None = None

    @property
    def size_for_limit(self) -> int:
        """What max_bytes goes by: its size where it ends."""
        return self.size if self.target_size is None else self.target_size


def stored_size(storage: str, subject: int, headers: int, payload: int) -> int:
    """Bytes that a message counts: lengths in bytes of its subject, its header block as stored, and its payload.

    Measured on 2.10 to 2.15: a file store adds 30, and 4 more where there are headers; a memory store adds 16.
    Compression changes nothing.
    """
    overhead = 16 if storage == "memory" else 34 if headers else 30
    return overhead + subject + headers + payload


@dataclass(frozen=True, slots=True)
class TargetStorage:
    """How messages are stored in the stream that they are moved to: its `storage`, and from which stream (`source_stream`) a source reads them.

    A source writes a header into each message, in place of one that it has (measured on 2.10 and 2.11).
    """

    storage: str
    source_stream: str = ""

    def min_growth(self, before: str) -> int:
        """By how many bytes a message of a stream with storage `before` grows at least, without another header."""
        return {"file": {"file": 0, "memory": -18}, "memory": {"file": 14, "memory": 0}}[before][
            self.storage
        ]

    def max_growth(self, before: str) -> int:
        """By how many bytes it grows at most."""
        grows = {"file": {"file": 0, "memory": -14}, "memory": {"file": 18, "memory": 0}}[before][
            self.storage
        ]
        return grows + (
            len(self._source_header(10**19)) + len(_EMPTY_HEADERS) + 4 if self.source_stream else 0
        )

    def stored_size(self, subject: int, headers: bytes, payload: int, position: int) -> int:
        """What a message counts there; `position` is its place in the stream that the source reads."""
        return stored_size(self.storage, subject, self._header_bytes(headers, position), payload)

    def _header_bytes(self, headers: bytes, position: int) -> int:
        if not self.source_stream:
            return len(headers)
        old = headers.find(b"\r\n" + _SOURCE)
        gone = headers.find(b"\r\n", old + 2) - old if old >= 0 else 0
        return len(headers or _EMPTY_HEADERS) - gone + len(self._source_header(position))

    def _source_header(self, position: int) -> bytes:
        return _SOURCE + f"{self.source_stream} {position} > >\r\n".encode()
