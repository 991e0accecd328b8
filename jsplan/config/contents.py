"""Readers of entries, objects and schedules: after their buckets and streams are resolved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from jsplan.address import Address, Kind
from jsplan.config.files import WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope
from jsplan.config.kv_entries import KvEntryReader
from jsplan.config.model import DeclaredResource, Domain, PrunedPrefix
from jsplan.config.node import Node, without_keys
from jsplan.config.objects import ObjectReader
from jsplan.config.schedules import ScheduleReader
from jsplan.resources.contents import content_subject
from jsplan.subjects import is_covered


class ContentReaders(Struct):
    """One reader for each kind of parent. They share what they found.

    `secrets` is the scope with the environment: values and payloads may come from there.
    """

    files: WorkspaceFiles
    secrets: Scope | None
    declared: dict[Address, DeclaredResource] = field(default_factory=dict)
    pruned: list[PrunedPrefix] = field(default_factory=list)
    _readers: dict[Kind, KvEntryReader] = field(default_factory=dict)
    _found: list[tuple[Address, Node, Scope]] = field(default_factory=list)

    def __post_init__(self) -> None:
        files, declared, pruned = self.files, self.declared, self.pruned
        self._readers = {
            "kv": KvEntryReader(files, self.secrets, declared, pruned),
            # Nothing of an object comes from the environment.
            "object_store": ObjectReader(files, None, declared, pruned),
            "stream": ScheduleReader(files, self.secrets, declared, pruned),
        }

    def split(self, kind: Kind, entry: Node) -> Node:
        """Return an element of a section without what a reader reads: itself if there is none."""
        reader = self._readers.get(kind)
        return without_keys(entry, reader.keys) if reader is not None else entry

    def add(self, address: Address, entry: Node, scope: Scope) -> None:
        """Remember what is to be read of an element, once its parent is resolved."""
        self._found.append((address, entry, scope))

    def read(self, parents: Mapping[Address, DeclaredResource]) -> None:
        """Read everything that was added. Parents with an error are left out."""
        for address, entry, scope in self._found:
            if (parent := parents.get(address)) is not None:
                self._readers[address.kind].read_scoped(parent, entry, scope)


def check_linked_parents(
    declared: Mapping[Address, DeclaredResource],
    contents: Iterable[Address],
    domains: Mapping[str, Domain],
    findings: Findings,
) -> None:
    """Refuse objects and schedules where a write would reach no stream, or more than one.

    Servers map KV buckets below the API prefix of a domain, and nothing else: each stream of the
    account with the subject stores the message.
    """
    parents: dict[Address, list[Address]] = {}
    for address in contents:
        if address.kind != "kv_entry" and address.parent is not None:
            parents.setdefault(address.parent, []).append(address)
    for parent, children in sorted(parents.items()):
        if parent.domain not in domains:
            continue  # it has a finding
        own, place = domains[parent.domain], declared[parent].range
        if own.api_prefix != (f"$JS.{own.js_domain}.API" if own.js_domain else "$JS.API"):
            findings.error(
                "JS139",
                place,
                f"{parent} is in another account, where no message for it can be published",
                "Declare what it holds in a domain of that account.",
                str(parent),
            )
        subjects = [content_subject(child) for child in children]
        for other, found in declared.items():
            if (
                other.domain != parent.domain
                and other.domain in domains
                and domains[other.domain].connection == own.connection
                and any(is_covered(subject, _subjects_of(found)) for subject in subjects)
            ):
                findings.error(
                    "JS139",
                    place,
                    f"{parent} and {other} would store each other's messages",
                    "Give them different names or subjects: their domains may be linked.",
                    str(parent),
                )
                break


def _subjects_of(declared: DeclaredResource) -> tuple[str, ...]:
    """Return the subjects that a stream or object store takes messages on."""
    address, body = declared.address, declared.body
    if address.kind == "object_store":
        return () if body.get("mirror") else (f"$O.{address.name}.>",)
    if address.kind != "stream" or body.get("mirror"):
        return ()
    subjects = body.get("subjects")
    return tuple(subjects) if subjects else () if body.get("sources") else (address.name,)
