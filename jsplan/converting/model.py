"""What the readers of other tools' files make, and how they say what they could not carry over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import Address, Kind
from jsplan.config.node import Node, Place, range_of
from jsplan.diagnostics import Diagnostic, Severity

NOT_CARRIED = "JS180"
OTHER_DEFAULT = "JS181"
UNREADABLE = "JS182"
WORTH_KNOWING = "JS183"

#: How the readers name the connection of a resource that does not say one.
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a resource lives, as the other tool says it: a connection of that tool, and a JetStream domain if it names one."""

    connection: str = MAIN
    js_domain: str | None = None


#: The owner of what does not say one.
NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class Resource:
    """One stream, consumer, bucket or object store. A consumer's `name` is `STREAM/CONSUMER`.

    `config` has API names and units and everything that the other tool sends, its own defaults included. For a bucket it is
    that of its stream, unless `words` is true: then it has the words of the grammar (`history`, `ttl`). `settings` are keys beside
    the fields (`lifecycle`), `comment` are lines above the entry.
    """

    kind: Kind
    name: str
    config: Mapping[str, Any]
    place: Place
    owner: Owner = NOBODY
    words: bool = False
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

    def diagnostic(self, address: str | None) -> Diagnostic:
        """The same as everybody else says things."""
        place = range_of(self.place) if self.place else None
        return Diagnostic(self.severity, self.code, self.summary, self.detail, address, place)


@dataclass(slots=True)
class Conversion:
    """Everything that was read. `connections` are settings of connections by the other tool's name, without secrets."""

    resources: list[Resource] = field(default_factory=list)
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def teller(self, kind: Kind, name: str, owner: Owner | None = None) -> Teller:
        """Says things about one resource."""
        return Teller(self, (owner or NOBODY, kind, name))

    @property
    def general(self) -> Teller:
        """Says things about no resource in particular."""
        return Teller(self, None)


@dataclass(frozen=True, slots=True)
class Teller:
    """Says things about one resource, or about none in particular."""

    conversion: Conversion
    about: tuple[Owner, Kind, str] | None

    def lost(self, at: Node | Place, summary: str, detail: str) -> None:
        """Something cannot be carried over."""
        self._say("warning", NOT_CARRIED, at, summary, detail)

    def differs(self, at: Node | Place, summary: str, detail: str) -> None:
        """The other tool has a default of its own, which is now written out."""
        self._say("info", OTHER_DEFAULT, at, summary, detail)

    def unreadable(self, at: Node | Place, summary: str, detail: str) -> None:
        """Something is not what it should be: the conversion fails."""
        self._say("error", UNREADABLE, at, summary, detail)

    def knows(self, at: Node | Place | None, summary: str, detail: str) -> None:
        """Something is worth knowing."""
        self._say("info", WORTH_KNOWING, at, summary, detail)

    def warns(self, at: Node | Place | None, summary: str, detail: str) -> None:
        """Something is worth knowing before anything is done."""
        self._say("warning", WORTH_KNOWING, at, summary, detail)

    def _say(self, severity: Severity, code: str, at: Node | Place | None, summary: str, detail: str) -> None:
        place = at.place if isinstance(at, Node) else at
        self.conversion.notes.append(Note(severity, code, summary, detail, place, self.about))
