"""The backfill document and the events of a running copy, both as data; printing is left to `render`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class MessagesMoved:
    """How far a copy is: `done` of about `total` messages (0: nobody knows) after `seconds`; `id` tells copies apart."""

    id: str
    title: str
    done: int
    total: int
    seconds: float


@dataclass(slots=True)
class OriginResult:
    """What became of one origin. `copied` messages were copied by this run, `skipped` left out as too large; `gaps` are ranges of
    sequences that were gone before they could be copied, `gap_messages` how many that are. `path` names how they came. `natively` of
    those that were copied came without a header of ours, `windows` is how often the entry's window was open for it.
    """

    origin: str
    target: str
    first: int
    last: int
    copied: int = 0
    bytes: int = 0
    seconds: float = 0.0
    attempts: int = 0
    verified: bool = False
    path: str = ""
    gaps: list[list[int]] = field(default_factory=list)
    gap_messages: int = 0
    skipped: list[int] = field(default_factory=list)
    skipped_count: int = 0
    natively: int = 0
    windows: int = 1

    def to_json(self) -> dict[str, Any]:
        """The element of `origins`."""
        return {
            "from": self.origin,
            "to": self.target,
            "first": self.first,
            "last": self.last,
            "copied": self.copied,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "attempts": self.attempts,
            "verified": self.verified,
            "path": self.path,
            "gaps": self.gaps,
            "gap_messages": self.gap_messages,
            "skipped": self.skipped,
            "skipped_count": self.skipped_count,
            "natively": self.natively,
            "windows": self.windows,
        }


@dataclass(slots=True)
class BackfillResult:
    """The document that `backfill run --json` prints. `deferred` are origins that could not be reached: `{address, reason}`.

    `closed`: the window of the entry closed before everything was copied.
    """

    name: str
    origins: list[OriginResult] = field(default_factory=list)
    exit_code: int = 0
    deferred: list[dict[str, str]] = field(default_factory=list)
    closed: bool = False

    @property
    def copied(self) -> int:
        """Messages that this run copied."""
        return sum(leg.copied for leg in self.origins)

    @property
    def gap_messages(self) -> int:
        """Messages that were gone before they could be copied."""
        return sum(leg.gap_messages for leg in self.origins)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "backfill",
            "name": self.name,
            "origins": [leg.to_json() for leg in self.origins],
            "deferred": self.deferred,
            "exit_code": self.exit_code,
        }


@dataclass(slots=True)
class Difference:
    """One message that both sides do not agree about. `kind`: missing, extra, different, twice or out_of_order; `target_seq` is 0 for
    one that is missing there.
    """

    kind: str
    origin: str
    origin_seq: int
    target_seq: int

    def to_json(self) -> dict[str, Any]:
        """The element of `differences`."""
        return {
            "kind": self.kind,
            "from": self.origin,
            "origin_seq": self.origin_seq,
            "target_seq": self.target_seq or None,
        }


#: What verify counts: messages that are equal on both sides, then those that differ, then those that need not be on both.
DIFFERENCE_KINDS = ("missing", "extra", "different", "twice", "out_of_order")
COUNTED_KINDS = ("equal", *DIFFERENCE_KINDS, "expired", "repaired", "skipped")


@dataclass(slots=True)
class OriginCheck:
    """One origin compared with the target. `counts` has every name of `COUNTED_KINDS`; `listed` are the first differences of each kind."""

    origin: str
    target: str
    first: int
    last: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED_KINDS, 0))
    listed: list[Difference] = field(default_factory=list)

    @property
    def differences(self) -> int:
        """How many differences there are."""
        return sum(self.counts[kind] for kind in DIFFERENCE_KINDS)

    def to_json(self) -> dict[str, Any]:
        """The element of `origins`."""
        return {
            "from": self.origin,
            "to": self.target,
            "first": self.first,
            "last": self.last,
            "counts": self.counts,
            "differences": [one.to_json() for one in self.listed],
        }


@dataclass(slots=True)
class Verification:
    """The document that `backfill verify --json` prints. `others` are messages of the target that come from elsewhere; `seconds` is
    without the start of Spark.
    """

    name: str
    origins: list[OriginCheck] = field(default_factory=list)
    others: int = 0
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        """How many differences there are on all legs."""
        return sum(leg.differences for leg in self.origins)

    @property
    def exit_code(self) -> int:
        """2 if both sides differ."""
        return 2 if self.differences else 0

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "backfill-verify",
            "name": self.name,
            "origins": [leg.to_json() for leg in self.origins],
            "others": self.others,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
        }


@dataclass(slots=True)
class Orphan:
    """What a backfill left on a server: a staging stream, and the streams that have it as a temporary source. `entry` is the name of
    the entry, prefixed with its workspace where that is another one. Without a `domain`, `stream` is a folder in an archive.
    """

    domain: str
    stream: str
    entry: str
    origin: str
    messages: int
    bytes: int
    sealed: bool
    source_of: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The element of `orphans`."""
        return {
            "domain": self.domain,
            "stream": self.stream,
            "entry": self.entry,
            "from": self.origin,
            "messages": self.messages,
            "bytes": self.bytes,
            "sealed": self.sealed,
            "source_of": self.source_of,
        }


@dataclass(slots=True)
class EntryStatus:
    """How far one entry is. `status`: new (never run), started, done, changed (the entry says something else), missing (in no file).

    `origins` are as in state; `next` is the command that resumes it, empty where nothing is left to do. `skipped`: a plan listed it, and
    was applied with --no-backfill.
    """

    name: str
    status: str
    pinned_at: str = ""
    done_at: str = ""
    origins: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    next: str = ""
    skipped: bool = False

    def to_json(self) -> dict[str, Any]:
        """The element of `entries`."""
        legs = [
            {
                "from": leg["origin"],
                "to": leg["target"],
                "first": leg["first"],
                "last": leg["last"],
                "status": leg["status"],
                "copied": leg["copied"],
                "gaps": leg["gaps"],
                "skipped": leg["skipped"],
            }
            for leg in self.origins
        ]
        out = {
            "name": self.name,
            "status": self.status,
            "pinned_at": self.pinned_at or None,
            "done_at": self.done_at or None,
            "origins": legs,
            "orphans": [one.to_json() for one in self.orphans],
            "next": self.next or None,
        }
        return out | ({"skipped": True} if self.skipped else {})


@dataclass(slots=True)
class BackfillStatus:
    """The document that `backfill status --json` prints. `locked` says who works on the state now; `orphans` are leftovers of entries
    that nobody here knows; `offline` has by domain why nothing is known of it.
    """

    workspace: str
    environment: str | None
    entries: list[EntryStatus] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    locked: dict[str, Any] | None = None
    offline: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "backfill-status",
            "workspace": self.workspace,
            "environment": self.environment,
            "entries": [entry.to_json() for entry in self.entries],
            "orphans": [one.to_json() for one in self.orphans],
            "locked": self.locked,
            "offline": self.offline,
        }
