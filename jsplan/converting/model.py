"""A conversion: its target, what the readers return, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from jsplan.address import Address, Kind
from jsplan.config.files import MAIN_FILE
from jsplan.config.findings import Findings
from jsplan.config.model import LoadOptions
from jsplan.config.node import Node, Place, source_range
from jsplan.diagnostics import Diagnostic, Severity
from jsplan.disk import is_file

NOT_CONVERTED = "JS180"
OTHER_DEFAULT = "JS181"
UNREADABLE = "JS182"
WORTH_KNOWING = "JS183"

#: The connection of a resource that names none.
DEFAULT_CONNECTION = "main"


class Owner(Struct, frozen=True):
    """A connection of the other tool, and a JetStream domain if that tool names one."""

    connection: str = DEFAULT_CONNECTION
    js_domain: str | None = None


#: The owner of a resource that names none.
NO_OWNER = Owner()


class ConvertedResource(Struct, frozen=True):
    """One stream, consumer, bucket or object store. A consumer's `name` is `STREAM/CONSUMER`.

    `config` has API names and units and everything that the other tool sends, its own defaults
    included; for a bucket it has the fields of the bucket (`history`, `ttl`). `settings` are keys
    besides the fields (`lifecycle`, `entries`).
    """

    kind: Kind
    name: str
    config: Mapping[str, Any]
    place: Place
    owner: Owner = NO_OWNER
    settings: dict[str, Any] = field(default_factory=dict)

    def address(self, domain: str) -> Address:
        """Return its address in a domain of the workspace."""
        if self.kind == "stream":
            return Address.of_stream(domain, self.name)
        return Address(domain, self.kind, self.name)


class Note(Struct, frozen=True):
    """A diagnostic without its address: a resource has one once the domains are known."""

    diagnostic: Diagnostic
    about: tuple[Owner, Kind, str] | None = None


class Conversion(Struct):
    """The whole result. `connections` are settings by the other tool's name, without secrets.

    An error in `findings` is a wrong value: the conversion fails.
    """

    resources: list[ConvertedResource] = field(default_factory=list)
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def notes_about(self, kind: Kind, name: str, owner: Owner = NO_OWNER) -> NoteWriter:
        """Return the writer of notes about one resource."""
        return NoteWriter(self, (owner, kind, name))

    @property
    def general_notes(self) -> NoteWriter:
        """The writer of notes about no resource in particular."""
        return NoteWriter(self, None)


class NoteWriter(Struct, frozen=True):
    """Adds notes about one resource, or about none in particular."""

    conversion: Conversion
    about: tuple[Owner, Kind, str] | None

    def not_converted(self, at: Node | Place, summary: str, detail: str) -> None:
        """Note something that cannot be converted."""
        self._add("warning", NOT_CONVERTED, at, summary, detail)

    def different_default(self, at: Node, summary: str, detail: str) -> None:
        """Note a default of the other tool that is now written out."""
        self._add("info", OTHER_DEFAULT, at, summary, detail)

    def info(self, at: Node | Place | None, summary: str, detail: str) -> None:
        """Note something of interest."""
        self._add("info", WORTH_KNOWING, at, summary, detail)

    def warning(self, at: Node | Place, summary: str, detail: str) -> None:
        """Note something to know before any other step."""
        self._add("warning", WORTH_KNOWING, at, summary, detail)

    def unreadable(self, at: Node, summary: str, detail: str) -> None:
        """Add an error: the conversion fails."""
        self.conversion.findings.error(UNREADABLE, at, summary, detail)

    def _add(
        self, severity: Severity, code: str, at: Node | Place | None, summary: str, detail: str
    ) -> None:
        place = at.place if isinstance(at, Node) else at
        shown = source_range(place) if place is not None else None
        found = Diagnostic(severity, code, summary, detail, None, shown)
        self.conversion.notes.append(Note(found, self.about))


# --- the target and the result --------------------------------------------------------------------

Tool = Literal["nats", "nack", "terraform"]
TOOL_NAMES: Mapping[str, str] = {"nats": "the nats CLI", "nack": "NACK", "terraform": "Terraform"}


class ConvertTarget(Struct, frozen=True):
    """The workspace that receives the result: an existing one, or a new one called `name`.

    `domain` is used for resources that name none.
    """

    load: LoadOptions
    name: str
    domain: str | None = None

    @property
    def exists(self) -> bool:
        """True if there is a workspace; an empty file, as `> jsplan.yaml` makes it, is none."""
        path = self.load.directory / MAIN_FILE
        return is_file(path) and path.stat().st_size > 0


class ConvertResult(Struct, frozen=True):
    """The text of the file, the addresses that it declares, and diagnostics."""

    tool: Tool
    text: str
    new_workspace: bool
    addresses: tuple[Address, ...]
    diagnostics: tuple[Diagnostic, ...] = ()
