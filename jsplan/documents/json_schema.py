"""JSON Schemas, made from the structs that read and write the documents.

A field that a later minor version adds is no error, so objects are open. What is always written is
required.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, Final, get_type_hints

import msgspec
import orjson
from msgspec import NODEFAULT
from msgspec.inspect import Field, StructType, Type

from jsplan.documents.base import Document, dumps

Schema = dict[str, Any]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
VERSION: Final[Schema] = {"type": "string", "pattern": r"^1\.\d{1,9}$(?!\n)"}


def schema_of(document: type[Document]) -> Schema:
    """Return the schema of a document."""
    computed = {
        name: get_type_hints(getattr(document, name).fget, include_extras=True)["return"]
        for name in document.COMPUTED
    }
    (_, *found), definitions = _define([document, *computed.values()])
    root = definitions.pop(document.__name__)
    for name in document.LOCAL:
        del root["properties"][name]
    root["properties"] |= {"format_version": VERSION} | dict(zip(computed, found, strict=True))
    root["required"] = sorted({*root["required"], "format_version", *computed} - {*document.LOCAL})
    kind = document.__struct_config__.tag
    schema = root | {
        "$schema": DIALECT,
        "$id": f"urn:jsplan:schema:{kind}-v1",
        "title": f"jsplan {kind} document, format 1",
        "$defs": definitions,
    }
    named: Schema = orjson.loads(dumps(schema).replace(b'Shape"', b'"'))
    return named


def _define(
    types: list[Any], shapes: tuple[Any, ...] = ()
) -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    """Return the schemas of these types and shapes, and those of the objects in them by name.

    Shapes are those of plain data, which may have been written by an earlier release.
    """
    kept = list[Any]()

    def keep(kind: Any) -> Schema:
        if kind.values:
            return {"enum": [*kind.values]}
        kept.extend(shape for shape in kind.shapes if shape not in (*shapes, *kept))
        some: list[Schema] = [{"$ref": f"#/$defs/{shape.__name__}"} for shape in kind.shapes]
        return some[0] if len(some) == 1 else {"anyOf": some}

    schemas, definitions = msgspec.json.schema_components(
        [*types, *shapes], schema_hook=keep, ref_template="#/$defs/{name}"
    )
    if kept:
        return _define(types, (*shapes, *kept))
    for struct in _list_structs([msgspec.inspect.type_info(each) for each in types]):
        written = [field.encode_name for field in struct.fields if _is_written(struct, field)]
        tag = [struct.tag_field] if struct.tag_field else []
        definitions[struct.cls.__name__]["required"] = sorted([*tag, *written])
    for definition in definitions.values():
        del definition["title"]
        definition.get("required", []).sort()
        definition["description"] = cleandoc(definition.get("description", ""))
        for field in definition["properties"].values():
            _simplify(field)
    return schemas[: len(types)], definitions


def _simplify(field: Schema) -> None:
    """Leave out the default, and write `null` as one of the types where that says the same."""
    field.pop("default", None)
    match field:
        case {"anyOf": [{"type": str(kind)} as given, {"type": "null"}]}:
            del field["anyOf"]
            field |= given | {"type": [kind, "null"]}


def _list_structs(nodes: list[Any]) -> Iterator[StructType]:
    """Yield each struct in these types once."""
    seen = set[type]()
    while nodes:
        node = nodes.pop()
        if isinstance(node, tuple):
            nodes += node
        elif isinstance(node, Type | Field) and getattr(node, "cls", None) not in seen:
            nodes += (getattr(node, name) for name in node.__struct_fields__)
            if isinstance(node, StructType):
                seen.add(node.cls)
                yield node


def _is_written(struct: StructType, field: Field) -> bool:
    """Check whether a field is written with each value that it may have."""
    if struct.cls.__struct_config__.omit_defaults:
        return field.required or field.default_factory not in (NODEFAULT, list, dict)
    has_default = (field.default, field.default_factory) != (NODEFAULT, NODEFAULT)
    return field.required or has_default  # else the default is UNSET
