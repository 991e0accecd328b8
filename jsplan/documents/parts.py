"""Parts that several documents have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from msgspec import Struct

from jsplan.documents.plan_types import Severity
from jsplan.documents.types import AnyAddress, Count, Seconds, kept


class Deferred(Struct):
    """A resource or origin that is deferred to a later run, because its domain is offline."""

    address: AnyAddress
    reason: str


class Estimate(Struct, frozen=True):
    """An estimated time; `basis` says how it was computed."""

    seconds: Seconds
    basis: str


class InterruptedShape(TypedDict):
    """A replacement or relocation that an apply did not finish.

    Publishers to the subjects of `rejected` are rejected until it is finished.
    """

    address: AnyAddress
    rejected: list[str]
    summary: str
    detail: str


class BreachShape(TypedDict):
    """A threshold in the metadata of an object that is exceeded."""

    key: str
    level: Literal["critical", "warning"]
    threshold: str
    cause: str


class ReplicationShape(TypedDict("Sides", {"from": str, "to": str})):
    """One mirror or source. `healthy` null: not known; `cause` says why.

    `active` is the time since the last contact with its origin, in ns.
    """

    kind: str
    healthy: bool | None
    cause: str | None
    origin_last_seq: Count | None
    last_seq: Count | None
    lag: NotRequired[Count | None]
    active: NotRequired[Count | None]
    severity: NotRequired[Severity]


if TYPE_CHECKING:
    Interrupted = dict[str, Any]
    Breach = dict[str, Any]
    Replication = dict[str, Any]
else:
    Interrupted = kept(InterruptedShape)
    Breach = kept(BreachShape)
    Replication = kept(ReplicationShape)
