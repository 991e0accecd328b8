"""Stream and consumer configurations in documents; they may have more fields.

Every known field has the type that servers give it, or is null. Configurations stay plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, defstruct

from jsplan.documents.types import Instant, Name, UInt64, kept
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
