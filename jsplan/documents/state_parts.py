"""Plain data in a state and its journal: steps, replacements, watermarks, the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypedDict, get_args

from msgspec import Meta, Struct, field

from jsplan.documents.apply import STATE_COMMANDS, StepStatus
from jsplan.documents.base import MAX_BYTES, Document
from jsplan.documents.configs import (
    Config,
    Flow,
    OldStream,
    RememberedShape,
    RenameRecord,
    Server,
    StepRecord,
)
from jsplan.documents.plan_parts import Actions, HazardCode
from jsplan.documents.step_kinds import VERIFY_OP, Op, TransferMethod, recorded_effect
from jsplan.documents.types import (
    AnyAddress,
    ConsumerAddress,
    Count,
    Instant,
    Int63,
    Seconds,
    SeqBounds,
    StreamAddress,
    Time,
    UInt64,
    UploadId,
    kept,
)

# --- pending steps --------------------------------------------------------------------------------


class StartedStep(TypedDict):
    """A step that has started."""

    id: str
    address: AnyAddress
    expect: Config | None


class FlowParams(TypedDict):
    """The flows that a check waits for."""

    flows: list[Flow]
    managed: bool


class StartedCheck(StartedStep):
    """A check of replication that has started."""

    op: Literal["replication.verify"]
    params: FlowParams


class SavedCounts(TypedDict):
    """The counts of a stream in a backup."""

    messages: UInt64
    first_seq: UInt64
    last_seq: UInt64


class StartedChange(StartedStep):
    """A step that has started and changes something. `check` is a check that it began before."""

    op: Op
    check: NotRequired[StartedCheck]
    uploads: NotRequired[list[UploadId]]


class StartedWrite(StartedChange):
    """A step that has started and does not delete. `saved` is of a restore."""

    record: StepRecord | None
    saved: NotRequired[SavedCounts]


class StartedDeletion(StartedChange):
    """A step that has started and deletes an object."""

    record: RenameRecord | None


def _choose_pending(step: dict[str, Any]) -> Any:
    if step.get("op") == VERIFY_OP:
        return StartedCheck
    return StartedDeletion if recorded_effect(step) == "delete" else StartedWrite


# --- replacements ---------------------------------------------------------------------------------

#: The last phase of a transfer that is done, in their order. From `compared` on the first copy is
#: complete. `activating`: the call that gives the target its subjects is sent.
Phase = Literal[
    "started", "mirrored", "quiesced", "consumers_paused", "copied", "compared", "old_deleted",
    "refilled", "recompared", "consumers_resumed", "activating", "activated",
]  # fmt: skip
PHASES: Final[tuple[str, ...]] = get_args(Phase)


def is_before(phase: str, other: str) -> bool:
    """Check whether a phase comes before another one."""
    return PHASES.index(phase) < PHASES.index(other)


class Counts(TypedDict, total=False):
    """Numbers of a stream or consumer as the server reported them."""

    messages: UInt64 | None
    bytes: UInt64 | None
    first_seq: UInt64 | None
    last_seq: UInt64 | None
    consumer_count: UInt64 | None
    num_pending: UInt64 | None
    num_ack_pending: UInt64 | None
    num_redelivered: UInt64 | None


class SequencePair(TypedDict):
    """A position of a consumer."""

    consumer_seq: UInt64
    stream_seq: UInt64


class ConsumerState(Counts):
    """The position and the counts of a consumer."""

    delivered: SequencePair
    ack_floor: SequencePair


class RecordedConsumer(OldStream):
    """A consumer that is held: its configuration before the pause, and its position.

    `target` is the consumer that gets the position, if that has another address. `position` is the
    sequence that it gets, where that is known already.
    """

    state: ConsumerState
    target: NotRequired[ConsumerAddress]
    position: NotRequired[UInt64]


class RecordedStream(OldStream):
    """A stream that is replaced, and its counts."""

    state: NotRequired[Counts]


class FormerStream(TypedDict):
    """An earlier stream, which was moved or replaced: it had the same messages and sequences."""

    address: StreamAddress
    created: str


class Transferred(TypedDict):
    """A transfer that has begun: a stream that moves, or is replaced and keeps its messages.

    `address` is the target, and the key in state. `staging` is the stream between both of a
    replacement. `promotes`: the target was a mirror of the origin before.

    `quiesced_state` has the counts of the quiesced origin, `last_seq` its last
    sequence, and `end` the last one that it stored, where copying consumes it. `copied` says behind
    which sequence each of its sources continues. `compared` is the last sequence that was compared
    from the start on, `compared_from` the first one that was compared during the cut-over.
    `with_consumers`: the new stream was restored with its consumers.
    `record` and `expect` are those of the step that activates the target.
    """

    address: StreamAddress
    origin: StreamAddress
    id: str
    method: TransferMethod
    old: RecordedStream
    phase: Phase
    staging: NotRequired[StreamAddress]
    promotes: NotRequired[bool]
    allowed: NotRequired[dict[str, UInt64]]
    prepared: NotRequired[Instant]
    target_created: NotRequired[str]
    made_seen: NotRequired[str]
    quiesced_state: NotRequired[Counts]
    copied: NotRequired[dict[str, UInt64]]
    end: NotRequired[UInt64]
    last_seq: NotRequired[UInt64]
    compared: NotRequired[UInt64]
    compared_from: NotRequired[UInt64]
    with_consumers: NotRequired[bool]
    consumers: NotRequired[dict[str, RecordedConsumer]]
    record: NotRequired[StepRecord | None]
    expect: NotRequired[Config | None]


class ConsumerReplaced(RecordedConsumer):
    """The interrupted replacement of a consumer, or its reset by the word `position_once`."""

    address: ConsumerAddress
    stream_created: NotRequired[str]
    position_once: NotRequired[str]


class Placeholder(TypedDict):
    """A placeholder consumer, and how many messages the changed consumers delete after it."""

    address: ConsumerAddress
    at_most: UInt64
    consumers: list[str]


class OriginReplaced(TypedDict):
    """The start of a new origin."""

    address: StreamAddress
    first_seq: UInt64
    detached: NotRequired[list[str]]


class SourcesDetached(TypedDict):
    """Sources that are removed from a stream for a while."""

    address: StreamAddress
    detached: list[str]


_REPLACEMENTS: Final[dict[str, Any]] = {
    "origin": Transferred,
    "created": ConsumerReplaced,
    "first_seq": OriginReplaced,
    "detached": SourcesDetached,
}


def _choose_replacement(record: dict[str, Any]) -> Any:
    """Return the shape by the first field that only it has."""
    return next((kind for name, kind in _REPLACEMENTS.items() if name in record), Placeholder)


# --- backfills and deferred steps -----------------------------------------------------------------


class PinnedOrigin(Struct):
    """One origin of an entry, from the time when its range was pinned.

    `origin` and `target` are addresses. `created` distinguishes the origin from another stream of
    the same name. `first` to `last` are its sequences. `target_created` and `target_next` are the
    identity of the target and its next sequence; they are empty until the first run of a planned
    range. `copied` counts messages. `gaps` are ranges that were deleted before they could be copied
    (the first of them; `gap_messages` counts all). `skipped` are sequences of messages that are too
    large. `strategy` stays the same when a run is resumed. `seconds` is the time of copying.
    `archive` is the folder that is read instead of the origin, as written in the files; a `target`
    that is no address is a folder that is written.
    """

    origin: StreamAddress
    target: str
    created: str
    first: Int63
    last: Int63
    filters: list[str]
    target_created: str
    target_next: Int63
    status: Literal["planned", "done"] = "planned"
    copied: Count = 0
    gaps: list[SeqBounds] = field(default_factory=list)
    skipped: list[Int63] = field(default_factory=list)
    gap_messages: Count = 0
    strategy: Literal["snapshot", "spark"] = "spark"
    seconds: Seconds = 0.0
    archive: str = ""


class PinnedRangeShape(Struct):
    """The pinned range of an entry of `backfills:`, and its progress.

    `entry_hash` is the hash of the entry when its range was pinned. `done_at` is RFC 3339.
    `planned`: a plan pinned it, and no run has started.
    """

    name: str
    entry_hash: str
    origins: Sequence[PinnedOrigin]
    pinned_at: str
    done_at: str = ""
    planned: bool = False


class DeferredStepsShape(TypedDict):
    """The deferred steps of a partly applied plan, all of them ids."""

    plan: str
    steps: list[str]


# --- the history ----------------------------------------------------------------------------------


class PlanId(TypedDict):
    """The plan of an apply."""

    id: str
    sha256: str


class PackedChanges(TypedDict):
    """Changes, compressed, and their size."""

    zlib: str
    bytes: Annotated[int, Meta(ge=0, le=MAX_BYTES)]


class SessionShape(TypedDict):
    """One session that changed something. `id` is the serial of the state that it wrote."""

    id: Count
    at: Time
    ended: Time | None
    who: str
    host: str
    environment: str | None
    operation: Operation
    plan: PlanId | None
    summary: dict[str, Count]
    jsplan_version: str
    result: Literal["started", "done", "partial", "failed", "interrupted"]
    backfills: NotRequired[list[str]]
    reverts: NotRequired[Count]
    backup: NotRequired[str]
    running: NotRequired[bool]


class HistoryEntryShape(SessionShape):
    """A session in state. `changes` may be compressed, or omitted (null)."""

    changes: NotRequired[PackedChanges | list[Any] | None]


class Cost(TypedDict):
    """A consequence that cannot be undone."""

    code: HazardCode
    messages: NotRequired[UInt64]
    at_least: NotRequired[UInt64]
    at_most: NotRequired[UInt64]
    consumers: NotRequired[UInt64]


class ChangeByHand(TypedDict):
    """The result of one resource of a command that changes the state alone."""

    address: AnyAddress
    actions: Actions
    status: Literal["started"] | StepStatus
    importing: NotRequired[bool]
    moved_from: NotRequired[AnyAddress]
    relocated_from: NotRequired[AnyAddress]
    relocated_to: NotRequired[AnyAddress]
    costs: NotRequired[list[Cost]]
    error: NotRequired[str | None]


class EntryBefore(RememberedShape):
    """The entry in state before a change."""

    created: str
    applied_at: str
    config: NotRequired[Config]


class ObjectAfter(TypedDict):
    """The object after a change: changed values, and the hash of its configuration."""

    created: str | None
    sha256: str | None
    values: Config


class RecordedChange(ChangeByHand):
    """The result of one resource of an apply."""

    reason: str
    before: Config | None
    entry: EntryBefore | None
    after: ObjectAfter | None


# --- heads and lines ------------------------------------------------------------------------------


class SessionLine(TypedDict):
    """The lineage and serial that the document takes."""

    lineage: str
    serial: Count


class DomainLine(TypedDict):
    """The server of a domain."""

    key: str
    server: Server


class OwnershipLine(TypedDict):
    """The id of the owner tag."""

    id: str


class SeenLine(TypedDict):
    """When an object was last known to be the object."""

    address: AnyAddress
    at: str


class Watermark(Struct, frozen=True, omit_defaults=True):
    """The state of a stream at `at`, the time of a check.

    `created` is its identity, and `last_time` the time of its last message. `deleted` is the number
    of deleted messages between the first and the last one. `serial` is that of the state then: an
    apply since accepts the stream.
    """

    created: str
    at: Time
    serial: Count
    last_seq: UInt64
    last_time: str = ""
    first_seq: UInt64 = 0
    deleted: UInt64 = 0


class Watermarks(Document, tag="watermarks"):
    """The watermarks of a workspace by address."""

    workspace: str
    environment: str | None = None
    streams: dict[AnyAddress, Watermark] = field(default_factory=dict)


if TYPE_CHECKING:
    Operation = str
    Pending = dict[str, Any]
    Replacement = dict[str, Any]
    PinnedRange = dict[str, Any]
    DeferredSteps = dict[str, Any]
    HistoryEntry = dict[str, Any]
    KnownServer = dict[str, Any]
    Owner = dict[str, Any]
else:
    Operation = Literal[
        ("apply", "destroy", "import", "restore", "refresh", "revert", *STATE_COMMANDS)
    ]
    Pending = kept(StartedWrite, StartedDeletion, StartedCheck, choose=_choose_pending)
    Replacement = kept(*_REPLACEMENTS.values(), Placeholder, choose=_choose_replacement)
    PinnedRange = kept(PinnedRangeShape)
    DeferredSteps = kept(DeferredStepsShape)
    HistoryEntry = kept(HistoryEntryShape)
    KnownServer = kept(Server)
    Owner = kept(TypedDict("OwnerShape", {"id": str}, total=False))
