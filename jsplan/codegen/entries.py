"""Resources as entries of the files.

Equal resources in several domains are one entry, and consumers are nested in their streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from jsplan.address import Address, Kind


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
        (domain, _fill_domain(entry.name, domain)): entry
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

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub("${domain}", value)
        if isinstance(value, list):
            return [put(item) for item in value]
        return (
            {name: put(item) for name, item in value.items()}
            if isinstance(value, Mapping)
            else value
        )

    stream = put(one.stream) if one.stream is not None else None
    return RenderedResource(one.address, put(one.name), put(one.fields), stream, one.comment)


def _fill_domain(text: str, domain: str) -> str:
    return text.replace("${domain}", domain)
