"""The document of `jsplan status`: the live objects and their health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from msgspec import field

from jsplan.address import KINDS
from jsplan.diagnostics import Diagnostic
from jsplan.documents.base import Document
from jsplan.documents.types import AnyAddress, Breach, Count, Interrupted, Replication, Time, kept

if TYPE_CHECKING:
    ObjectKind = str
else:
    ObjectKind = Literal[KINDS]


class Limits(TypedDict):
    """Limits of an account; null is none."""

    max_streams: Count | None
    max_consumers: Count | None
    max_memory: Count | None
    max_storage: Count | None


class StatusDomainShape(TypedDict):
    """One domain. Sizes in bytes, `may_be_offline` in ns."""

    domain: str
    js_domain: str | None
    connection: str
    reachable: bool
    reason: str | None
    may_be_offline: Count | None
    last_seen: Time | None
    excused: bool | None
    messages: Count
    bytes: Count
    limits: Limits | None
    server: str | None
    cluster: str | None
    version: str | None
    api_level: Count | None
    streams: Count | None
    consumers: Count | None
    memory: Count | None
    storage: Count | None


class Replica(TypedDict):
    """A replica. `active` in ns, `lag` in operations."""

    name: str
    lag: Count
    active: Count
    leader: bool
    current: bool
    offline: bool


class ClusterPlacement(TypedDict):
    """The placement that the configuration wants."""

    cluster: str | None
    tags: list[str]


class DesiredReplicas(TypedDict):
    """The replicas that the metadata wants, and why these differ."""

    replicas: list[str]
    reason: str


class ClusterState(TypedDict):
    """The cluster of a stream or consumer."""

    name: str
    leader: str | None
    replicas: list[Replica]
    placement: ClusterPlacement | None
    desired: DesiredReplicas | None


class StatusStreamShape(TypedDict):
    """A stream or bucket; `cluster` is null without one."""

    address: AnyAddress
    type: ObjectKind
    managed: bool | None
    down: bool
    fed_by: Literal["mirror", "sources"] | None
    last_time: Time | None
    created: str
    cluster: ClusterState | None
    thresholds: list[Breach]
    messages: Count
    bytes: Count
    first_seq: Count
    last_seq: Count
    consumers: Count


class StatusPosition(TypedDict):
    """A position of a consumer."""

    consumer_seq: Count
    stream_seq: Count


class StatusConsumerShape(TypedDict):
    """A consumer; `cluster` is null without one."""

    address: AnyAddress
    managed: bool | None
    delivered: StatusPosition
    ack_floor: StatusPosition
    cluster: ClusterState | None
    thresholds: list[Breach]
    pending: Count
    ack_pending: Count
    redelivered: Count
    waiting: Count


RelocationShape = TypedDict(
    "RelocationShape",
    {
        "from": str,
        "to": str,
        "phase": Literal["copying", "prepared", "cut-over", "activated"],
        "prepared": str | None,
        "lag": Count,
        "last_message": str | None,
    },
)
RelocationShape.__doc__ = (
    "A relocation that has begun. `lag`: the messages that the copy has not yet. "
    "`prepared`: the time of the comparison after which `apply --stage prepare` ended."
)


class StatusSummary(TypedDict):
    """Counts of domains, streams, consumers, messages, bytes and flows."""

    domains: Count
    offline: Count
    streams: Count
    down: Count
    consumers: Count
    messages: Count
    bytes: Count
    flows: Count
    unhealthy: Count
    unknown: Count
    breached: Count


if TYPE_CHECKING:
    StatusDomain = dict[str, Any]
    StatusStream = dict[str, Any]
    StatusConsumer = dict[str, Any]
    Relocation = dict[str, Any]
else:
    StatusDomain = kept(StatusDomainShape)
    StatusStream = kept(StatusStreamShape)
    StatusConsumer = kept(StatusConsumerShape)
    Relocation = kept(RelocationShape)


class Status(Document, tag="status"):
    """The whole document, sorted by address.

    `managed` is true for the streams and consumers of this workspace, null where the state cannot
    be read.
    `interrupted` are replacements and relocations that an apply did not finish. A stream is `down`
    while one rejects its publishers; it is listed even while it does not exist.
    `relocations` have begun and are not finished: `lag` is the messages that the copy has not yet.
    `thresholds` of a stream or consumer are those in its metadata that are exceeded, and
    `peer-expect` where a cluster has it without a leader or without a replica.
    `exit_code` is 2 where one of `interrupted`, `replication` or the critical `thresholds` is what
    `drift` fails for.
    """

    COMPUTED = ("summary",)

    jsplan_version: str
    workspace: str
    environment: str | None
    timestamp: Time
    id: str
    domains: list[StatusDomain] = field(default_factory=list)
    interrupted: list[Interrupted] = field(default_factory=list)
    relocations: list[Relocation] = field(default_factory=list)
    streams: list[StatusStream] = field(default_factory=list)
    consumers: list[StatusConsumer] = field(default_factory=list)
    replication: list[Replication] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    exit_code: Count = 0

    @property
    def summary(self) -> StatusSummary:
        """The counts."""
        health = [flow["healthy"] for flow in self.replication]
        return {
            "domains": len(self.domains),
            "offline": sum(1 for d in self.domains if not d["reachable"]),
            "streams": len(self.streams),
            "down": sum(1 for s in self.streams if s["down"]),
            "consumers": len(self.consumers),
            "messages": sum(s["messages"] for s in self.streams),
            "bytes": sum(s["bytes"] for s in self.streams),
            "flows": len(health),
            "unhealthy": health.count(False),
            "unknown": health.count(None),
            "breached": sum(1 for o in (*self.streams, *self.consumers) if o["thresholds"]),
        }
