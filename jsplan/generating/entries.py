"""Resources as entries of the files: what is alike in several domains is one entry, consumers stand under their streams."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import Address, Kind


@dataclass(slots=True)
class Said:
    """One resource with its fields as they will be written (units, escapes), but for its domain; `stream` for a consumer."""

    address: Address
    name: str
    fields: dict[str, Any]
    stream: str | None = None
    comment: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """What it is."""
        return self.address.kind


@dataclass(slots=True)
class Entry:
    """One element of a section. `domains` are the keys it is for; `stream` is set where it stands beside its stream."""

    kind: Kind
    name: str
    domains: list[str]
    fields: dict[str, Any]
    stream: str | None = None
    comment: tuple[str, ...] = ()
    consumers: list[Entry] = field(default_factory=list)


def entries(said: Iterable[Said]) -> list[Entry]:
    """Entries in the order of the sections, each section by name and first domain."""
    everything = list(said)
    streams = _grouped([one for one in everything if one.kind == "stream"])
    others = _grouped([one for one in everything if one.kind in ("kv", "object_store")])
    beside = _nested([one for one in everything if one.kind == "consumer"], streams)
    return sorted([*streams, *beside, *others], key=lambda entry: (entry.kind, entry.stream or "", entry.name, entry.domains))


def _nested(consumers: list[Said], streams: list[Entry]) -> list[Entry]:
    """Puts consumers that all domains of a stream's entry have under it; the others are handed back."""
    homes = {(domain, _filled(entry.name, domain)): entry for entry in streams for domain in entry.domains}
    of: dict[int, list[Said]] = {}
    beside: list[Said] = []
    for one in consumers:
        home = homes.get((one.address.domain, one.stream or ""))
        if home is None:
            beside.append(one)
        else:
            of.setdefault(id(home), []).append(one)
    left: list[Entry] = []
    for entry in streams:
        for group in _grouped(of.get(id(entry), [])):
            if group.domains == entry.domains:
                group.stream = None
                entry.consumers.append(group)
            else:
                left.append(group)
        entry.consumers.sort(key=lambda consumer: consumer.name)
    return [*left, *_grouped(beside)]


def _grouped(said: list[Said]) -> list[Entry]:
    """One entry for what is equal in several domains, or would be with `${domain}` in place of each one's name."""
    alike = _by_signature((one, one) for one in said)
    single = [one for group in alike for one in group if len(group) == 1]
    found = [_entry(group, group[0]) for group in alike if len(group) > 1]
    for group in _by_signature((one, general(one)) for one in single):
        shown = general(group[0]) if len(group) > 1 else group[0]
        found.append(_entry(group, shown))
    return found


def _by_signature(pairs: Iterable[tuple[Said, Said]]) -> list[list[Said]]:
    groups: dict[str, list[Said]] = {}
    for one, shown in pairs:
        signature = json.dumps([shown.kind, shown.stream, shown.name, shown.fields, one.comment], sort_keys=True)
        groups.setdefault(signature, []).append(one)
    return list(groups.values())


def _entry(group: list[Said], shown: Said) -> Entry:
    domains = sorted(one.address.domain for one in group)
    return Entry(shown.kind, shown.name, domains, shown.fields, shown.stream, shown.comment)


def general(one: Said) -> Said:
    """The resource with `${domain}` where its texts have the name of its domain."""
    key = one.address.domain
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(key)}(?![A-Za-z0-9])")

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub("${domain}", value)
        if isinstance(value, list):
            return [put(item) for item in value]
        return {name: put(item) for name, item in value.items()} if isinstance(value, Mapping) else value

    stream = put(one.stream) if one.stream is not None else None
    return Said(one.address, put(one.name), put(one.fields), stream, one.comment)


def _filled(text: str, domain: str) -> str:
    return text.replace("${domain}", domain)
