"""The document of `jsplan compare`: two streams, message by message."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from jsplan.documents.base import Document
from jsplan.documents.types import AnyAddress, Count, SeqBounds, Time

PartKind = Literal["missing", "extra", "different", "twice"]


class ComparedSide(Struct):
    """One stream when it was compared; `last_time` is that of its last message (empty: none)."""

    address: AnyAddress
    created: str
    messages: Count
    first_seq: Count
    last_seq: Count
    last_time: str = ""


class ComparedPart(Struct):
    """Messages that are not the same on both sides.

    `missing` are only in the origin, `extra` only in the copy. `ranges` are sequences of the
    origin, the first of them. `reason` says why there is a difference, where that is known;
    `expected` is true where the configuration explains it. `lost` is true for messages that the
    origin no longer has, and the copy has: at its sequences `in_copy`.
    """

    kind: PartKind
    count: Count
    ranges: list[SeqBounds] = field(default_factory=list)
    reason: str = ""
    expected: bool = False
    lost: bool = False
    in_copy: list[SeqBounds] = field(default_factory=list)


class Comparison(Document, tag="comparison"):
    """The document that `jsplan compare --json` prints.

    `by` is `sequence`, or `header` where the copy names the origin of each message. `first` and
    `last` are the sequences of the origin that were compared. `since` is the time of the kept
    result whose messages were not read again; `equal` counts them too. `kept` says why a kept
    result was not used. `backup` is the folder of a saved stream, which is the copy then, and
    `beside` the address where that can be restored (empty: nowhere in this workspace).
    """

    COMPUTED = ("exit_code",)

    timestamp: Time
    origin: ComparedSide
    copy: ComparedSide
    relation: Literal["mirror", "source", "backup", ""]
    by: Literal["sequence", "header"]
    first: Count
    last: Count
    equal: Count = 0
    parts: list[ComparedPart] = field(default_factory=list)
    since: str = ""
    kept: str = ""
    seconds: float = 0.0
    backup: str = ""
    beside: str = ""

    @property
    def lost(self) -> int:
        """The number of messages that the origin no longer has, and the copy has."""
        return sum(part.count for part in self.parts if part.lost)

    @property
    def exit_code(self) -> Count:
        """2 if a difference is not explained by the configuration."""
        return 2 if any(not part.expected for part in self.parts) else 0
