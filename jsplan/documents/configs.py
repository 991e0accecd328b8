"""Configurations in documents, and what state remembers of a resource.

Configurations stay plain data. They may have more fields than we know, and every known one has the
type that servers give it, or is null.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

from msgspec import UNSET, defstruct

from jsplan.documents.types import AnyAddress, Instant, Name, StreamAddress, UInt64, kept
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.fields import Field, Table
from jsplan.resources.nested import (
    CONSUMER_LIMITS,
    CONSUMER_SOURCE,
    EXTERNAL,
    NAME,
    ORIGIN,
    PLACEMENT,
    REPUBLISH,
    TRANSFORM,
)

_TYPES: Final[dict[str, Any]] = {
    "string": str, "enum": str, "percent": str, "bool": bool, "int": int, "duration": int,
    "size": int, "time": Instant, "strings": list[str], "durations": list[int],
    "metadata": dict[str, str],
}  # fmt: skip
#: Numbers that the server cannot give below 0.
_UNSIGNED: Final = ("first_seq", "opt_start_seq", "rate_limit_bps")
_SOURCE_CONSUMER: Final = "The consumer with which a stream reads from its origin."
#: Names of nested objects in the JSON Schemas, and what they are.
_NESTED: Final[dict[str, tuple[Table, str, str]]] = {
    table.kind: (table, name, doc)
    for table, name, doc in (
        (ORIGIN, "OriginShape", "A mirror or a source."),
        (EXTERNAL, "External", "Another domain or account, by the prefix of its API."),
        (CONSUMER_SOURCE, "SourceConsumer", _SOURCE_CONSUMER),
        (TRANSFORM, "Transform", "A subject transform."),
        (PLACEMENT, "Placement", "The cluster and servers of a stream."),
        (REPUBLISH, "Republish", "Subjects under which a stream publishes again."),
        (CONSUMER_LIMITS, "ConsumerLimits", "Limits of the consumers of a stream."),
    )
}


def field_type(row: Field, nested_type: Callable[[Table], Any]) -> Any:
    """Return the type of a field of a configuration, by the type of the objects in it."""
    if row.table is not None:
        nested = nested_type(row.table)
        return list[nested] if row.type == "objects" else nested  # type: ignore[valid-type]
    return UInt64 if row.name in _UNSIGNED else _TYPES[row.type]


def _type_of(table: Table) -> Any:
    return _nested_type(table.kind)


@cache
def _nested_type(kind: str) -> Any:
    """Return the type of a nested object. Those with a name always have it."""
    table, name, doc = _NESTED[kind]
    fields = list[Any]()
    for row in table.rows:
        found = field_type(row, _type_of)
        if row.required and row.name == "name":
            fields.append((row.name, Name if row.pattern == NAME else found))
        else:
            fields.append((row.name, found if row.required else found | None, UNSET))
    return defstruct(name, fields, namespace={"__doc__": doc})


OriginShape = _type_of(ORIGIN)
ConfigShape = defstruct(
    "ConfigShape",
    [
        (name, field_type(row, _type_of) | None, UNSET)
        for name, row in {**CONSUMER.by_name, **STREAM.by_name}.items()
    ],
    namespace={"__doc__": "A configuration in API names and units, as the server has it."},
    gc=False,
)

if TYPE_CHECKING:
    Config = dict[str, Any]
    Origin = dict[str, Any]
    Payload = dict[str, Any]
else:
    Config = kept(ConfigShape)
    Origin = kept(OriginShape)
    #: A configuration, or an object with one under `config`, as CONSUMER.CREATE takes it.
    Payload = kept(
        defstruct("PayloadShape", [("config", Config, UNSET)], bases=(ConfigShape,), gc=False)
    )


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
