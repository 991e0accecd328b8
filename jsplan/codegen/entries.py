"""Resources as entries of the files, and what most entries share as `defaults:`.

Equal resources in several domains are one entry, and consumers are nested in their streams. The few
entries that lack a shared value then get the server's default.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import KINDS, Address, Kind
from jsplan.codegen import layout
from jsplan.codegen.model import CodegenContext
from jsplan.resources import TABLES
from jsplan.resources.buckets import CREATOR_DEFAULTED, is_bucket, usual_value
from jsplan.resources.fields import ABSENT, Field

#: From this number of entries on, a default saves lines.
_MIN_ENTRIES: Final = 3
#: Fields of a single resource, whatever others have.
_RESOURCE_FIELDS: Final = frozenset(
    {
        "description",
        "subjects",
        "mirror",
        "sources",
        "metadata",
        "durable_name",
        "filter_subject",
        "filter_subjects",
        "deliver_subject",
    }
)


class RenderedResource(Struct):
    """One resource with its fields as written (units, escapes), without its domain.

    `stream` is the stream of a consumer.
    """

    address: Address
    name: str
    fields: dict[str, Any]
    stream: str | None = None
    comment: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the resource."""
        return self.address.kind


class FileEntry(Struct):
    """One element of a section. `domains` are its keys; `stream` is set if it is not nested."""

    kind: Kind
    name: str
    domains: list[str]
    fields: dict[str, Any]
    stream: str | None = None
    comment: tuple[str, ...] = ()
    consumers: list[FileEntry] = field(default_factory=list)


def build_entries(resources: Iterable[RenderedResource]) -> list[FileEntry]:
    """Build entries in the order of the sections, each section by name and first domain."""
    everything = list(resources)
    streams = _group_equal([one for one in everything if one.kind == "stream"])
    others = _group_equal([one for one in everything if one.kind in ("kv", "object_store")])
    top_level = _nest_consumers([one for one in everything if one.kind == "consumer"], streams)
    return sorted(
        [*streams, *top_level, *others],
        key=lambda entry: (entry.kind, entry.stream or "", entry.name, entry.domains),
    )


def _nest_consumers(consumers: list[RenderedResource], streams: list[FileEntry]) -> list[FileEntry]:
    """Nest consumers that all domains of a stream's entry have; return the others."""
    parents = {
        (domain, entry.name.replace("${domain}", domain)): entry
        for entry in streams
        for domain in entry.domains
    }
    nested: dict[int, list[RenderedResource]] = {}
    top_level: list[RenderedResource] = []
    for one in consumers:
        parent = parents.get((one.address.domain, one.stream or ""))
        if parent is None:
            top_level.append(one)
        else:
            nested.setdefault(id(parent), []).append(one)
    unmatched: list[FileEntry] = []
    for entry in streams:
        for group in _group_equal(nested.get(id(entry), [])):
            if group.domains == entry.domains:
                group.stream = None
                entry.consumers.append(group)
            else:
                unmatched.append(group)
        entry.consumers.sort(key=lambda consumer: consumer.name)
    return [*unmatched, *_group_equal(top_level)]


def _group_equal(resources: list[RenderedResource]) -> list[FileEntry]:
    """Build one entry for resources that are equal in several domains.

    They may differ in the name of their domain, which `${domain}` then replaces.
    """
    if len({one.address.domain for one in resources}) < 2:
        return [_make_entry([one], one) for one in resources]
    alike = _by_signature((one, one) for one in resources)
    single = [one for group in alike for one in group if len(group) == 1]
    found = [_make_entry(group, group[0]) for group in alike if len(group) > 1]
    for group in _by_signature((one, generalize_domain(one)) for one in single):
        shown = generalize_domain(group[0]) if len(group) > 1 else group[0]
        found.append(_make_entry(group, shown))
    return found


def _by_signature(
    pairs: Iterable[tuple[RenderedResource, RenderedResource]],
) -> list[list[RenderedResource]]:
    groups: dict[str, list[RenderedResource]] = {}
    for one, shown in pairs:
        signature = json.dumps(
            [shown.kind, shown.stream, shown.name, shown.fields, one.comment], sort_keys=True
        )
        groups.setdefault(signature, []).append(one)
    return list(groups.values())


def _make_entry(group: list[RenderedResource], shown: RenderedResource) -> FileEntry:
    domains = sorted(one.address.domain for one in group)
    return FileEntry(shown.kind, shown.name, domains, shown.fields, shown.stream, shown.comment)


def generalize_domain(one: RenderedResource) -> RenderedResource:
    """Return the resource with `${domain}` where its texts contain the name of its domain."""
    key = one.address.domain
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(key)}(?![A-Za-z0-9])")

    def put(text: str) -> str:
        return pattern.sub("${domain}", text)

    fields = {name: layout.map_texts(put, item) for name, item in one.fields.items()}
    stream = put(one.stream) if one.stream is not None else None
    return RenderedResource(one.address, put(one.name), fields, stream, one.comment)


def extract_defaults(entries: list[FileEntry], context: CodegenContext) -> dict[str, Any]:
    """Return the `defaults:` of the file by kind, and remove them from the entries.

    Existing defaults of the workspace are taken into account.
    """
    found: dict[str, Any] = {}
    for kind in KINDS:
        some = [entry for entry in _with_consumers(entries) if entry.kind == kind]
        if context.existing_defaults.get(kind):
            _apply_existing_defaults(some, kind, context.existing_defaults[kind])
        elif kind in context.extractable_kinds and (taken := _extract_for_kind(some, kind)):
            found[kind] = taken
    return found


def _with_consumers(entries: list[FileEntry]) -> Iterator[FileEntry]:
    for entry in entries:
        yield entry
        yield from entry.consumers


def _extract_for_kind(entries: list[FileEntry], kind: Kind) -> dict[str, Any]:
    out = {}
    for row in TABLES[kind].rows:
        value = None if row.name in _RESOURCE_FIELDS else _most_common_value(entries, kind, row)
        if value is not None:
            out[row.name] = value
            _move_to_defaults(entries, kind, row, value)
    return out


def _most_common_value(entries: list[FileEntry], kind: Kind, row: Field) -> Any:
    """Return the value that saves most lines as a default; None if none does."""
    counts = Counter(
        json.dumps(entry.fields[row.name])
        for entry in entries
        if entry.fields.get(row.name) is not None
    )
    if not counts:
        return None
    text, count = counts.most_common(1)[0]
    missing = sum(1 for entry in entries if row.name not in entry.fields)
    worth = count >= _MIN_ENTRIES and count > 3 * missing
    if worth and (not missing or _explicit_default(kind, row) is not None):
        return json.loads(text)
    return None


def _move_to_defaults(entries: list[FileEntry], kind: Kind, row: Field, value: Any) -> None:
    for entry in entries:
        if row.name not in entry.fields:
            entry.fields[row.name] = _explicit_default(kind, row)
        elif entry.fields[row.name] == value:
            del entry.fields[row.name]


def _explicit_default(kind: Kind, row: Field) -> Any:
    """Return a field's default as written; None if it depends on others or cannot be written."""
    if is_bucket(kind) and row.name in CREATOR_DEFAULTED:
        return usual_value(kind, row)
    if row.type == "bool":
        return False
    simple = row.default is not ABSENT and isinstance(row.default, int | str) and row.default != ""
    return layout.format_value(row, row.default) if simple else None


def _apply_existing_defaults(
    entries: list[FileEntry], kind: Kind, existing: Mapping[str, Any]
) -> None:
    """Adapt entries to existing defaults: an omitted field gets the server's own default."""
    for entry in entries:
        for name, value in existing.items():
            row = TABLES[kind].by_name.get(name)
            if row is None:
                continue
            if name not in entry.fields:
                entry.fields[name] = _explicit_default(kind, row)
            elif value is not None and entry.fields[name] == _format_default(row, value):
                del entry.fields[name]


def _format_default(row: Field, value: Any) -> Any:
    """Format a default of the workspace as entries have it, for comparison."""
    try:
        if row.table is None:
            return layout.format_value(row, row.parse(value))
        return layout.escape_references(value)
    except ValueError:
        return None


def choose_default_domain(entries: list[FileEntry], context: CodegenContext) -> str | None:
    """Return the domain of most entries, if writing it once saves lines."""
    own = [key for key, domain in context.domains.items() if domain.is_own]
    if not context.may_set_default_domain or context.default_domain is not None or len(own) < 2:
        return None
    alone = Counter(entry.domains[0] for entry in entries if len(entry.domains) == 1)
    key, count = alone.most_common(1)[0] if alone else ("", 0)
    return key if count >= _MIN_ENTRIES and 2 * count > len(entries) else None
