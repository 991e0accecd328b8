"""Plain data about one resource in plan, state and journal: what state remembers of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from jsplan.documents.configs import Config, Origin
from jsplan.documents.types import AnyAddress, StreamAddress, UInt64, kept


class RememberedShape(TypedDict):
    """The part of a resource in state that does not come from the server."""

    declared: Config
    origin: Literal["created", "imported"]
    prevent_destroy: bool
    depends_on: list[AnyAddress]
    starts: NotRequired[dict[str, UInt64]]
    sensitive: NotRequired[bool]
    position_once: NotRequired[str]


class StepRecordShape(RememberedShape):
    """The record in state when the step is done; the executor adds the read-back."""

    previous_address: NotRequired[AnyAddress]
    replaced: NotRequired[AnyAddress]


class RenameRecordShape(TypedDict):
    """A step without a record may still have the previous address."""

    previous_address: AnyAddress


class Flow(TypedDict):
    """A mirror or source that a downstream stream has."""

    origin: StreamAddress
    kind: Literal["mirror", "source"]
    config: Origin
    from_start: bool


class Server(TypedDict, total=False):
    """The server of a domain that answered last. `former`: names under which it was asked."""

    name: str | None
    cluster: str | None
    js_domain: str | None
    seen: str
    former: list[str | None]


class OldStream(TypedDict):
    """A stream before it was replaced or moved."""

    config: Config
    created: str


if TYPE_CHECKING:
    StepRecord = dict[str, Any]
    RenameRecord = dict[str, Any]
    AnyRecord = dict[str, Any]
else:
    StepRecord = kept(StepRecordShape)
    RenameRecord = kept(RenameRecordShape)
    AnyRecord = kept(
        StepRecordShape,
        RenameRecordShape,
        choose=lambda record: StepRecordShape if "declared" in record else RenameRecordShape,
    )
