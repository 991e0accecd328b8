"""Comparison of two streams by content: sequence, subject, headers, payload and time.

It reads both in the order of their sequences, never through a consumer, and keeps a digest of each
message only.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jsplan.facts.messages import MessageReader, ReadBudget, open_reader
from jsplan.facts.stored_message import StoredMessage
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import message_headers
from jsplan.units import parse_instant

#: Deleted sequences whose list is requested. A stream with more is compared in batches only.
MAX_GAPS: Final = 100_000
#: Differences that are kept. More of them are only counted.
MAX_KEPT: Final = 10_000


@dataclass(slots=True)
class Comparison:
    """Differences of a copy: messages that it lacks, that differ, and that only it has.

    Each is a list of sequences, the first `MAX_KEPT` of them. `messages` were compared.
    """

    messages: int = 0
    missing: list[int] = field(default_factory=list)
    different: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    omitted: int = 0

    def add(self, found: list[int], seq: int) -> None:
        """Keep one difference, or count it."""
        if len(found) < MAX_KEPT:
            found.append(seq)
        else:
            self.omitted += 1


@dataclass
class DigestReader(MessageReader):
    """A reader whose messages have a digest of everything that is stored of them."""

    def _from_json(self, message: dict[str, Any]) -> StoredMessage:
        found = super()._from_json(message)
        payload = base64.b64decode(message.get("data") or "")
        return replace(found, digest=_digest(found, message_headers(message), payload))

    def _from_batch(self, block: bytes, payload: bytes) -> StoredMessage:
        found = super()._from_batch(block, payload)
        return replace(found, digest=_digest(found, self.stored_headers(block), payload))


def _digest(message: StoredMessage, headers: bytes, payload: bytes) -> bytes:
    """Hash a message, each part with its length, so that no two messages look alike."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (message.subject.encode(), _without_conditions(headers), payload):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    digest.update(parse_instant(message.time).to_bytes(16, "big", signed=True))
    return digest.digest()


def _without_conditions(headers: bytes) -> bytes:
    """Return headers without the conditions of the publish, which servers remove in a mirror."""
    head, *lines = headers.split(b"\r\n")
    kept = [line for line in lines if line and not line.startswith(b"Nats-Expected-")]
    return b"\r\n".join((head, *kept)) if kept else b""


async def compare_streams(
    origin: tuple[DomainApi, Mapping[str, Any], int],
    copy: tuple[DomainApi, Mapping[str, Any], int],
    first: int,
    last: int,
) -> Comparison:
    """Compare the messages of two streams from `first` to `last`, both inclusive.

    Each side is its API, its INFO and the API level of its domain. Raises ApiError, and
    ReadLimitExceeded for a stream with more than `MAX_GAPS` deleted messages and without
    `allow_direct`.
    """
    found = Comparison()
    theirs, ours = [await _open(*side, last) for side in (origin, copy)]
    left, right = theirs.read_forward(first), ours.read_forward(first)
    one, other = await anext(left, None), await anext(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.seq < other.seq):
            assert one is not None
            found.add(found.missing, one.seq)
            one = await anext(left, None)
        elif one is None or other.seq < one.seq:
            found.add(found.extra, other.seq)
            other = await anext(right, None)
        else:
            found.messages += 1
            if one.digest != other.digest:
                found.add(found.different, one.seq)
            one, other = await anext(left, None), await anext(right, None)
    return found


async def _open(api: DomainApi, info: Mapping[str, Any], level: int, last: int) -> MessageReader:
    reader = await open_reader(api, info, level, MAX_GAPS, DigestReader)
    reader.budget = ReadBudget(sys.maxsize)
    reader.last = min(reader.last, last)
    return reader
