"""Plain data in a plan: preconditions, parameters of steps, options, domains and backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypedDict

from msgspec import Meta

from jsplan.codes import HAZARDS
from jsplan.documents.configs import Config, Flow, OldStream, Origin, Payload, Server, StepRecord
from jsplan.documents.step_kinds import Action, TransferMethod
from jsplan.documents.types import (
    AnyAddress,
    ConsumerAddress,
    Count,
    Estimate,
    Fingerprint,
    Instant,
    Int63,
    StreamAddress,
    UInt64,
    UploadId,
    kept,
    listed,
)

ACTIONS: Final[tuple[list[Action], ...]] = (
    ["no-op"],
    ["create"],
    ["update"],
    ["delete"],
    ["delete", "create"],
    ["create", "delete"],
    ["forget"],
)


class AsOfShape(TypedDict, total=False):
    """When the counts of a hazard were true."""

    last_seq: UInt64
    time: str | None


class ImportingShape(TypedDict):
    """The address of a resource that is imported or adopted."""

    id: str


class ParentShape(TypedDict):
    """The stream of a consumer."""

    created: str
    retention: str


class NewFlow(TypedDict):
    """The origin of a flow that begins at its start, and the messages that it may have."""

    origin: StreamAddress
    max_messages: UInt64


class PreconditionShape(TypedDict, total=False):
    """Conditions that must hold right before a step.

    `max_deleted`: with more messages (of a consumer: unfinished ones) it fails. `max_consumers`:
    with more consumers of the stream it fails. `wait_until_stable`: the step waits until the
    cluster has moved or scaled this stream. `parent`: the stream of a consumer. `consumers`:
    `created` of the durable consumers, by name, of a stream that is preserved. `readers`: by domain
    the streams that read one which is deleted, replaced or given other messages, over any number of
    hops; another one makes the plan stale. `related`: a digest of the configuration of each of them
    that no step changes, and of what they read where a flow begins; another digest does so, too.
    """

    fingerprint: Fingerprint
    after_step: str
    before_apply: Fingerprint
    max_deleted: UInt64
    max_consumers: UInt64
    wait_until_stable: AnyAddress
    parent: ParentShape
    consumers: dict[str, str]
    new_flows: list[NewFlow]
    readers: dict[str, list[str]]
    related: dict[StreamAddress, Fingerprint]


class NewConsumer(TypedDict):
    """A consumer that a step creates."""

    address: AnyAddress
    config: Config
    record: StepRecord | None


class Reset(TypedDict):
    """The position to which a consumer is set, by the word of the files."""

    once: str
    seq: UInt64 | None
    direction: Literal["back", "forward", "exact"]


class BegunTransfer(TypedDict):
    """The begin of a transfer. One that replaces a stream has a staging stream."""

    id: str
    origin: StreamAddress
    method: TransferMethod
    old: OldStream
    staging: NotRequired[StreamAddress]
    promotes: NotRequired[bool]


ParamsShape = TypedDict(
    "ParamsShape",
    {
        "state_address": AnyAddress,
        "api_level": Count,
        "from": StreamAddress,
        "to": StreamAddress,
        "consumers": dict[str, NewConsumer | None],
        "with_consumers": bool,
        "leaving": list[str],
        "sources": list[str],
        "flows": list[Flow],
        "position": UInt64 | None,
        "reset": Reset,
        "initial_config": Config,
        "relocated_sources": dict[str, Origin],
        "new_sources": dict[str, Origin],
        "continues": ConsumerAddress,
        "origin_lost": bool,
        "leftovers": list[UploadId],
        "origin_level": Count,
        "transfer": BegunTransfer,
        "managed": bool,
        "text": str,
        "before": str,
    },
    total=False,
)
ParamsShape.__doc__ = "Parameters of a step of more than one request; the fields depend on `op`."


class RequestShape(TypedDict):
    """The subject below the API prefix, and what is sent."""

    api: str
    payload: Payload | None


class PlannedStateShape(TypedDict):
    """The state that a plan was made against; a lineage of null: there was none."""

    lineage: str | None
    serial: Count


class RevertedEntry(TypedDict):
    """The entry of the history that a plan reverts."""

    id: Count
    operation: str
    at: str
    who: str
    host: str


PlanningOptionsShape = TypedDict(
    "PlanningOptionsShape",
    {
        "safe_below": UInt64,
        "measure_limit": UInt64,
        "owner": str | None,
        "offline": str,
        "revert": RevertedEntry,
        "adopt": bool,
        "backfill": bool,
        "rehearse": bool,
        "import": bool,
        "server_version": str,
        "excludes": list[str],
        "replace": list[str],
        "reinstalled": list[str],
    },
    total=False,
)
PlanningOptionsShape.__doc__ = "The planning options."


class PlannedDomainShape(TypedDict):
    """The connection of a domain, and the server that answered."""

    reachable: bool
    server: Server
    api_level: Count
    reason: NotRequired[str | None]
    version: NotRequired[str | None]
    api_prefix: NotRequired[str]
    connection: NotRequired[str]
    imports: NotRequired[dict[str, str]]
    last_seqs: NotRequired[dict[str, UInt64]]


class PlannedRange(TypedDict):
    """The range that apply pins, and the origin's `created`."""

    first: Int63
    last: Int63
    created: str


class StreamSide(TypedDict):
    """A stream that a backfill reads or writes, and the bounds of the files."""

    domain: str
    stream: str
    range: NotRequired[PlannedRange]
    start_seq: NotRequired[UInt64]
    end_seq: NotRequired[UInt64]
    start_time: NotRequired[Instant]
    end_time: NotRequired[Instant]
    filter_subjects: NotRequired[list[str]]


class ParquetSide(TypedDict):
    """An archive that a backfill reads or writes."""

    parquet: str


if TYPE_CHECKING:
    HazardCode = str
    Actions = list[Action]
    AsOf = dict[str, Any]
    Importing = dict[str, str]
    Side = dict[str, Any]
    Params = dict[str, Any]
    Precondition = dict[str, Any]
    Request = dict[str, Any]
    PlannedState = dict[str, Any]
    PlanningOptions = dict[str, Any]
    PlannedDomain = dict[str, Any]
    PlannedBackfill = dict[str, Any]
else:
    HazardCode = Literal[tuple(HAZARDS)]
    Actions = listed("Actions", *ACTIONS)
    AsOf = kept(AsOfShape)
    Importing = kept(ImportingShape)
    Side = kept(
        StreamSide,
        ParquetSide,
        choose=lambda side: ParquetSide if "parquet" in side else StreamSide,
    )
    Params = kept(ParamsShape)
    Precondition = kept(PreconditionShape)
    Request = kept(RequestShape)
    PlannedState = kept(PlannedStateShape)
    PlanningOptions = kept(PlanningOptionsShape)
    PlannedDomain = kept(PlannedDomainShape)

BackfillShape = TypedDict(
    "BackfillShape",
    {
        "name": str,
        "from": Annotated[list[Side], Meta(min_length=1)],
        "to": Side,
        "entry_hash": str,
        "strategy": Literal["snapshot", "spark"],
        "reason": str,
        "messages": UInt64 | None,
        "bytes": UInt64 | None,
        "estimate": Estimate | None,
    },
)
BackfillShape.__doc__ = (
    "A backfill after the steps. Elements of `from` have the `range` that apply pins. "
    "`entry_hash`: the hash of the entry."
)
if not TYPE_CHECKING:
    PlannedBackfill = kept(BackfillShape)

PlanSummary = TypedDict(
    "PlanSummary",
    {
        "import": Count,
        "add": Count,
        "change": Count,
        "replace": Count,
        "replace_deletes": Count,
        "destroy": Count,
        "forget": Count,
        "backfill": Count,
        "deferred": Count,
        "hazards": Count,
    },
)
PlanSummary.__doc__ = (
    "Counts per kind of change. `replace_deletes`: replacements that delete data. "
    "`hazards` counts the blocking ones."
)
