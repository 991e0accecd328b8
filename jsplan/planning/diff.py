"""Compare two compact configurations and list the fields that differ, as users name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from jsplan.address import Address
from jsplan.documents.plan import FieldChange
from jsplan.documents.step_kinds import Effect
from jsplan.resources.buckets import is_bucket, lift_change
from jsplan.resources.fields import Config, Field, FieldUpdate, Table
from jsplan.resources.nested import ORIGIN, origin_key

_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*")


def changed_names(before: Config, after: Config) -> list[str]:
    """List the top-level names whose values differ, in the order of `after`, then of `before`."""
    if before == after:
        return []
    return [
        name for name in dict.fromkeys([*after, *before]) if before.get(name) != after.get(name)
    ]


def field_changes(table: Table, before: Config, after: Config, level: int) -> list[FieldChange]:
    """List the leaves that differ between two compact configurations, with their update effect.

    `level` is the domain's API level, on which some update rules depend. Values include the
    defaults of the server.
    """
    found: list[FieldChange] = []
    for name in changed_names(before, after):
        row = table.by_name.get(name)
        effect = effect_of(row, before, after, name, level)
        if effect != "ignored" and table.refuses_updates(before, after):
            effect = "replace"
        for path, *values in _leaves(row, name, before.get(name), after.get(name)):
            old, new = (table.default_of(path) if value is None else value for value in values)
            found.append(FieldChange(path, old, new, effect))
    return found


def with_bucket_names(address: Address, fields: Iterable[FieldChange]) -> list[FieldChange]:
    """Rename the changed fields of a bucket, such as `max_msgs_per_subject` to `history`.

    The effects of the changes stay the same.
    """
    if not is_bucket(address.kind):
        return list(fields)
    return [
        FieldChange(*lift_change(address.kind, address.name, f.path, f.before, f.after), f.effect)
        for f in fields
    ]


def differing_fields(table: Table, live: Config, expect: Config) -> list[str]:
    """List the fields of the compact `live` that differ from `expect`.

    A derived field that is expected to be None matches every value: the server computes it.
    """
    return [
        name
        for name, wanted in expect.items()
        if live.get(name) != wanted and not (wanted is None and name in table.derived)
    ]


def effect_of(row: Field | None, before: Config, after: Config, name: str, level: int) -> Effect:
    """Return the effect of changing one field. A field without a row changes in place."""
    if row is None:
        return "in_place"
    return row.update(FieldUpdate(before.get(name), after.get(name), before, after, level))


def _leaves(
    row: Field | None, name: str, before: Any, after: Any
) -> Iterator[tuple[str, Any, Any]]:
    keyed_before, keyed_after = _by_origin_key(row, before), _by_origin_key(row, after)
    if not (isinstance(keyed_before, dict) and isinstance(keyed_after, dict)):
        yield name, before, after
        return
    from deepdiff import DeepDiff  # noqa: PLC0415 - slow to import, and rarely needed

    # With a threshold above 0, mappings that share few keys are not compared by key.
    tree = DeepDiff(
        keyed_before, keyed_after, view="tree", verbose_level=2, threshold_to_diff_deeper=0
    )
    for items in tree.values():
        for item in items:
            path = item.path(output_format="list")
            yield _format_path([name, *path]), _none_if_absent(item.t1), _none_if_absent(item.t2)


def _none_if_absent(value: Any) -> Any:
    return None if type(value).__name__ == "NotPresent" else value


def _by_origin_key(field: Field | None, value: Any) -> Any:
    """Convert a list of origins to a mapping by origin key, and leave other values unchanged.

    Then the order makes no difference, and paths name the elements.
    """
    is_origins = field is not None and field.type == "objects" and field.table is ORIGIN
    return {origin_key(one): one for one in value} if is_origins and value is not None else value


def _format_path(parts: list[Any]) -> str:
    out = str(parts[0])
    for part in parts[1:]:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{part}" if _PLAIN_KEY.fullmatch(str(part)) else f'["{part}"]'
    return out
