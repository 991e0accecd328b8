"""Checks that a conversion can be a configuration: values by the tables, and one cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsplan.converting.model import Conversion, ConvertedResource
from jsplan.resources import TABLES
from jsplan.resources.fields import Table
from jsplan.resources.stream import STREAM

_DOMAIN_API: Final = re.compile(r"\$JS\.([^.]+)\.API")


def check_clusters(conversion: Conversion, domain: str | None) -> None:
    """Warn once where a stream is read from another domain, and declared beside its reader.

    `domain` is the one that the user named for all of them.
    """
    declared = {(each.owner, each.name) for each in conversion.resources if each.kind == "stream"}
    for resource in conversion.resources:
        config, owner = resource.config, resource.owner
        for origin in (config.get("mirror"), *(config.get("sources") or ())):
            name = (origin or {}).get("name")
            found = _DOMAIN_API.fullmatch(str(((origin or {}).get("external") or {}).get("api")))
            if (
                found is not None
                and found[1] not in (domain, owner.js_domain)
                and name != resource.name
                and (owner, name) in declared
            ):
                conversion.general_notes.warning(
                    resource.place,
                    f"{resource.name} reads {name} through {found[0]}, and {name} is declared"
                    " beside it: these look like several clusters",
                    "Convert the files of each cluster alone, with --domain.",
                )
                return


def check_values(conversion: Conversion) -> None:
    """Note an error for each value that no field accepts: the file is then not what it seems."""
    for resource in conversion.resources:
        notes = conversion.notes_about(resource.kind, resource.name, resource.owner)
        for path, problem in _value_problems(_table_of(resource), resource.config, ""):
            notes.unreadable(
                resource.place, f"{path}: {problem}", "Correct the value where it comes from."
            )


def _table_of(resource: ConvertedResource) -> Table:
    if resource.kind == "consumer" or resource.has_bucket_fields:
        return TABLES[resource.kind]
    return STREAM


def _value_problems(
    table: Table, config: Mapping[str, Any], path: str
) -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        row = table.by_name.get(name)
        if row is None or value is None:
            continue
        if row.table is None:
            try:
                row.parse(value)
            except ValueError as error:
                yield f"{path}{name}", str(error)
        elif row.type == "objects" and not isinstance(value, list):
            yield f"{path}{name}", "must be a list of mappings"
        else:
            items = value if row.type == "objects" else [value]
            for number, item in enumerate(items):
                if item in items[:number]:
                    yield f"{path}{name}", "has the same twice, which the server refuses"
                yield from _item_problems(row.table, item, f"{path}{name}")


def _item_problems(table: Table, item: Any, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(item, Mapping):
        yield path, "must be a mapping"
        return
    yield from (
        (f"{path}.{row.name}", "is missing")
        for row in table.rows
        if row.required and not item.get(row.name)
    )
    yield from _value_problems(table, item, f"{path}.")
