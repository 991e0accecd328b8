"""A stored message, as far as it matters for deletions."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from jsplan.resources.source_header import SOURCE_HEADER, SourceHeader, replaced_header_size

_EMPTY_HEADERS: Final = b"NATS/1.0\r\n\r\n"


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


class TargetStorage(Struct, frozen=True):
    """Storage of the stream that messages are copied to, and the stream that a source reads.

    A source writes a header into each message, replacing an existing one (measured on 2.10 and
    2.11).
    """

    storage: str
    source_stream: str = ""

    def min_growth(self, before: str) -> int:
        """Least growth in bytes of a message from storage `before`, without another header."""
        return {"file": {"file": 0, "memory": -18}, "memory": {"file": 14, "memory": 0}}[before][
            self.storage
        ]

    def max_growth(self, before: str) -> int:
        """Most growth in bytes."""
        grows = {"file": {"file": 0, "memory": -14}, "memory": {"file": 18, "memory": 0}}[before][
            self.storage
        ]
        return grows + (
            len(self._source_header(10**19)) + len(_EMPTY_HEADERS) + 4 if self.source_stream else 0
        )

    def stored_size(self, subject: int, headers: bytes, payload: int, position: int) -> int:
        """Return the size there; `position` is the message's place in the stream that is read."""
        return stored_size(self.storage, subject, self._header_bytes(headers, position), payload)

    def _header_bytes(self, headers: bytes, position: int) -> int:
        if not self.source_stream:
            return len(headers)
        added = len(self._source_header(position)) - replaced_header_size(headers)
        return len(headers or _EMPTY_HEADERS) + added

    def _source_header(self, position: int) -> bytes:
        return f"{SOURCE_HEADER}: {self.source_stream} {position} > >\r\n".encode()
