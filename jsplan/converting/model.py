"""What the readers of other tools' files make, and how they say what they could not carry over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import Address, Kind
from jsplan.config.node import Node, Place, source_range
from jsplan.diagnostics import Diagnostic, Severity

NOT_CONVERTED = "JS180"
OTHER_DEFAULT = "JS181"
UNREADABLE = "JS182"
WORTH_KNOWING = "JS183"

#: How the readers name the connection of a resource that does not say one.
DEFAULT_CONNECTION = "main"


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a resource lives, as the other tool says it: a connection of that tool, and a JetStream domain if it names one."""

    connection: str = DEFAULT_CONNECTION
    js_domain: str | None = None


#: The owner of what does not say one.
NO_OWNER = Owner()


@dataclass(frozen=True, slots=True)
class ConvertedResource:
    """One stream, consumer, bucket or object store. A consumer's `name` is `STREAM/CONSUMER`.

    `config` has API names and units and everything that the other tool sends, its own defaults included. For a bucket it is
    that of its stream, unless `has_bucket_fields` is true: then it has the words of the grammar (`history`, `ttl`). `settings` are keys beside
    the fields (`lifecycle`), `comment` are lines above the entry.
    """

    kind: Kind
    name: str
    config: Mapping[str, Any]
    place: Place
    owner: Owner = NO_OWNER
    has_bucket_fields: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    comment: tuple[str, ...] = ()

    def address(self, domain: str) -> Address:
        """Its address in a domain of ours."""
        if self.kind == "stream":
            return Address.of_stream(domain, self.name)
        return Address(domain, self.kind, self.name)


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell. `about` is the resource as (owner, kind, name), once it is known which one it is."""

    severity: Severity
    code: str
    summary: str
    detail: str
    place: Place | None
    about: tuple[Owner, Kind, str] | None = None

    def to_diagnostic(self, address: str | None) -> Diagnostic:
        """The same as everybody else says things."""
        place = source_range(self.place) if self.place else None
        return Diagnostic(self.severity, self.code, self.summary, self.detail, address, place)


@dataclass(slots=True)
class Conversion:
    """Everything that was read. `connections` are settings of connections by the other tool's name, without secrets."""

    resources: list[ConvertedResource] = field(default_factory=list)
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def notes_about(self, kind: Kind, name: str, owner: Owner | None = None) -> NoteWriter:
        """Says things about one resource."""
        return NoteWriter(self, (owner or NO_OWNER, kind, name))

    @property
    def general_notes(self) -> NoteWriter:
        """Says things about no resource in particular."""
        return NoteWriter(self, None)


@dataclass(frozen=True, slots=True)
class NoteWriter:
    """Says things about one resource, or about none in particular."""

    conversion: Conversion
    about: tuple[Owner, Kind, str] | None

    def not_converted(self, at: Node | Place, summary: str, detail: str) -> None:
        """Something cannot be carried over."""
        self._add("warning", NOT_CONVERTED, at, summary, detail)

    def different_default(self, at: Node | Place, summary: str, detail: str) -> None:
        """The other tool has a default of its own, which is now written out."""
        self._add("info", OTHER_DEFAULT, at, summary, detail)

    def unreadable(self, at: Node | Place, summary: str, detail: str) -> None:
        """Something is not what it should be: the conversion fails."""
        self._add("error", UNREADABLE, at, summary, detail)

    def info(self, at: Node | Place | None, summary: str, detail: str) -> None:
        """Something is worth knowing."""
        self._add("info", WORTH_KNOWING, at, summary, detail)

    def warning(self, at: Node | Place | None, summary: str, detail: str) -> None:
        """Something is worth knowing before anything is done."""
        self._add("warning", WORTH_KNOWING, at, summary, detail)

    def _add(
        self, severity: Severity, code: str, at: Node | Place | None, summary: str, detail: str
    ) -> None:
        place = at.place if isinstance(at, Node) else at
        self.conversion.notes.append(Note(severity, code, summary, detail, place, self.about))
