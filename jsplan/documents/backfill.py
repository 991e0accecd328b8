"""The documents of backfills, and the events of a running copy."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

FORMAT_VERSION = "1.0"


class OriginResult(Struct):
    """The result of one origin.

    `copied` messages were copied by this run; `skipped` were too large. `gaps` are ranges of
    sequences that were deleted before they could be copied, `gap_messages` counts them. `path`
    names the strategy.
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
        }


class BackfillResult(Struct):
    """The document that `backfill run --json` prints.

    `deferred` are origins that could not be reached: `{address, reason}`. `stopped`: the time of
    `--until` came before everything was copied.
    """

    name: str
    origins: list[OriginResult] = field(default_factory=list)
    exit_code: int = 0
    deferred: list[dict[str, str]] = field(default_factory=list)
    stopped: bool = False

    @property
    def copied(self) -> int:
        """Messages that this run copied."""
        return sum(origin.copied for origin in self.origins)

    @property
    def gap_messages(self) -> int:
        """Messages that were deleted before they could be copied."""
        return sum(origin.gap_messages for origin in self.origins)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "backfill",
            "name": self.name,
            "origins": [origin.to_json() for origin in self.origins],
            "deferred": self.deferred,
            "stopped": self.stopped,
            "exit_code": self.exit_code,
        }


class Difference(Struct):
    """One message that differs between origin and target.

    `kind` is missing, extra, different, twice or out_of_order. `target_seq` is 0 for a missing one.
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


DIFFERENCE_KINDS = ("missing", "extra", "different", "twice", "out_of_order")
#: Counts of verify. Expired, repaired and skipped messages need not be on both sides.
COUNTED_KINDS = ("equal", *DIFFERENCE_KINDS, "expired", "repaired", "skipped")


class OriginCheck(Struct):
    """One origin compared with the target.

    `counts` has every name of `COUNTED_KINDS`; `listed` are the first differences of each kind.
    """

    origin: str
    target: str
    first: int
    last: int
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED_KINDS, 0))
    listed: list[Difference] = field(default_factory=list)

    @property
    def differences(self) -> int:
        """The number of differences."""
        return sum(self.counts[kind] for kind in DIFFERENCE_KINDS)

    def to_json(self) -> dict[str, Any]:
        """The element of `origins`."""
        return {
            "from": self.origin,
            "to": self.target,
            "first": self.first,
            "last": self.last,
            "counts": self.counts,
            "differences": [difference.to_json() for difference in self.listed],
        }


class Verification(Struct):
    """The document that `backfill verify --json` prints.

    `others` counts messages of the target from other origins. `seconds` is without the start of
    Spark.
    """

    name: str
    origins: list[OriginCheck] = field(default_factory=list)
    others: int = 0
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        """The number of differences of all origins."""
        return sum(origin.differences for origin in self.origins)

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
            "origins": [origin.to_json() for origin in self.origins],
            "others": self.others,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
        }


class Orphan(Struct):
    """A staging stream that an interrupted run left, and the streams that source it.

    `entry` is the name of the entry, prefixed with its workspace if that is another one. Without a
    `domain`, `stream` is a folder in an archive.
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


class EntryStatus(Struct):
    """The progress of one entry.

    `status` is new (never run), started, done, changed (the entry differs from state) or missing
    (in no file). `origins` are as in state. `next` is the command that resumes it; it is empty when
    nothing is pending.
    """

    name: str
    status: str
    pinned_at: str = ""
    done_at: str = ""
    origins: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    next: str = ""

    def to_json(self) -> dict[str, Any]:
        """The element of `entries`."""
        origins = [
            {
                "from": origin["origin"],
                "to": origin["target"],
                "first": origin["first"],
                "last": origin["last"],
                "status": origin["status"],
                "copied": origin["copied"],
                "gaps": origin["gaps"],
                "skipped": origin["skipped"],
            }
            for origin in self.origins
        ]
        return {
            "name": self.name,
            "status": self.status,
            "pinned_at": self.pinned_at or None,
            "done_at": self.done_at or None,
            "origins": origins,
            "orphans": [orphan.to_json() for orphan in self.orphans],
            "next": self.next or None,
        }


class BackfillStatus(Struct):
    """The document that `backfill status --json` prints.

    `locked` is the holder of the state's lock. `orphans` are orphans of entries that are unknown to
    this workspace. `offline` has the reason by domain.
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
            "orphans": [orphan.to_json() for orphan in self.orphans],
            "locked": self.locked,
            "offline": self.offline,
        }
