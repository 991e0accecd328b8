"""The documents of backfills and of their preview, and the events of a running copy."""

from __future__ import annotations

from typing import Final, Literal, get_args

from msgspec import Struct, field

from jsplan.documents.base import Document
from jsplan.documents.lock import LockInfo
from jsplan.documents.types import Count, Deferred, Estimate, SeqBounds, Time

DifferenceKind = Literal["missing", "extra", "different", "twice", "out_of_order"]
DIFFERENCE_KINDS: Final[tuple[DifferenceKind, ...]] = get_args(DifferenceKind)
#: Counts of verify. Expired, repaired and skipped messages need not be on both sides.
COUNTED_KINDS: Final = ("equal", *DIFFERENCE_KINDS, "expired", "repaired", "skipped")
#: Values of `measured`: counted by a server, compared by headers with the target, an upper bound
#: without the extra `spark`, or not known.
COUNTED: Final = "counted"
COMPARED: Final = "compared"
BOUNDED: Final = "bounded"
UNKNOWN: Final = "unknown"


class OriginRange(Struct):
    """The sequences `first` to `last` of one origin; both sides are addresses or folders."""

    origin: str = field(name="from")
    target: str = field(name="to")
    first: Count
    last: Count


class OriginResult(OriginRange):
    """The result of one origin.

    `copied` messages were copied by this run; `skipped` were too large. `gaps` are ranges of
    sequences that were deleted before they could be copied, `gap_messages` counts them. `path`
    names the strategy. `seconds` is without the start of Spark.
    """

    copied: Count = 0
    bytes: Count = 0
    seconds: float = 0.0
    attempts: Count = 0
    verified: bool = False
    path: str = ""
    gaps: list[SeqBounds] = field(default_factory=list)
    gap_messages: Count = 0
    skipped: list[Count] = field(default_factory=list)
    skipped_count: Count = 0


class BackfillResult(Document, tag="backfill"):
    """The document that `backfill run --json` prints.

    `deferred` are origins that could not be reached. `stopped`: the time of `--until` came before
    everything was copied.
    """

    name: str
    origins: list[OriginResult] = field(default_factory=list)
    exit_code: Count = 0
    deferred: list[Deferred] = field(default_factory=list)
    stopped: bool = False

    @property
    def copied(self) -> int:
        """Messages that this run copied."""
        return sum(origin.copied for origin in self.origins)

    @property
    def gap_messages(self) -> int:
        """Messages that were deleted before they could be copied."""
        return sum(origin.gap_messages for origin in self.origins)


class Difference(Struct):
    """One message that differs between origin and target; a missing one has no `target_seq`."""

    kind: DifferenceKind
    origin: str = field(name="from")
    origin_seq: Count
    target_seq: Count | None


class OriginCheck(OriginRange):
    """One origin compared with the target.

    `counts` has every name of `COUNTED_KINDS`; `listed` are the first differences of each kind.
    """

    counts: dict[str, Count] = field(default_factory=lambda: dict.fromkeys(COUNTED_KINDS, 0))
    listed: list[Difference] = field(default_factory=list, name="differences")

    @property
    def differences(self) -> int:
        """The number of differences."""
        return sum(self.counts[kind] for kind in DIFFERENCE_KINDS)


class Verification(Document, tag="backfill-verify"):
    """The document that `backfill verify --json` prints.

    `others` counts messages of the target from other origins. `seconds` is without the start of
    Spark.
    """

    COMPUTED = ("exit_code",)

    name: str
    origins: list[OriginCheck] = field(default_factory=list)
    others: Count = 0
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        """The number of differences of all origins."""
        return sum(origin.differences for origin in self.origins)

    @property
    def exit_code(self) -> Count:
        """2 if both sides differ."""
        return 2 if self.differences else 0


class Orphan(Struct):
    """A staging stream that an interrupted run left, and the streams that source it.

    `entry` is the name of the entry, prefixed with its workspace if that is another one. Without a
    `domain`, `stream` is a folder in an archive.
    """

    domain: str
    stream: str
    entry: str
    origin: str = field(name="from")
    messages: Count
    bytes: Count
    sealed: bool
    source_of: list[str] = field(default_factory=list)


class OriginProgress(OriginRange):
    """One origin of an entry, as in state."""

    status: str
    copied: Count
    gaps: list[SeqBounds]
    skipped: list[Count]


class EntryStatus(Struct):
    """The progress of one entry.

    `status` is new (never run), started, done, changed (the entry differs from state) or missing
    (in no file). `next` is the command that resumes it; null when nothing is pending.
    """

    name: str
    status: Literal["new", "started", "done", "changed", "missing"]
    pinned_at: Time | None = None
    done_at: Time | None = None
    origins: list[OriginProgress] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    next: str | None = None


class BackfillStatus(Document, tag="backfill-status"):
    """The document that `backfill status --json` prints.

    `locked` is the holder of the state's lock. `orphans` are orphans of entries that are unknown to
    this workspace. `offline` has the reason by domain.
    """

    workspace: str
    environment: str | None
    entries: list[EntryStatus] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    locked: LockInfo | None = None
    offline: dict[str, str] = field(default_factory=dict)


class OriginPreview(OriginRange):
    """The preview of one origin, with the sequences `first` to `last`.

    `messages` and about `bytes` of them are pending; None: see `error`. `measured` says how they
    were counted; `bounded` is an upper bound. `in_target` are in the target already. `gap_messages`
    are no longer at the origin.
    """

    pinned: bool = False
    done: bool = False
    messages: Count | None = None
    bytes: Count | None = None
    measured: Literal["counted", "compared", "bounded", "unknown"] = UNKNOWN
    in_target: Count = 0
    gap_messages: Count = 0
    error: str | None = None


class BackfillPreview(Document, tag="backfill-plan"):
    """The document. `status` is new, started or done; `command` runs the backfill.

    `strategy_problem` says why the strategy of the entry is not possible. `filtered_by` names the
    keys that may still drop messages during the copy (`where`, `transform`): then all numbers are
    upper bounds.
    """

    COMPUTED = ("messages", "bytes")

    name: str
    status: Literal["new", "started", "done"]
    strategy: Literal["snapshot", "spark"]
    reason: str
    command: str
    strategy_problem: str | None = None
    estimate: Estimate | None = None
    filtered_by: list[str] = field(default_factory=list)
    origins: list[OriginPreview] = field(default_factory=list)

    @property
    def messages(self) -> Count:
        """Pending messages of all origins that could be measured."""
        return sum(origin.messages or 0 for origin in self.origins)

    @property
    def bytes(self) -> Count:
        """About how many bytes these have."""
        return sum(origin.bytes or 0 for origin in self.origins)
