"""The state document: what this workspace manages and what it last applied; and its journal.

It records ownership, and is one of the three sides of a comparison. It is no cache of the server.
The journal has a line of JSON for each change since the document was written.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import asdict, replace

from jsplan import __version__
from jsplan.address import Address
from jsplan.documents.base import Document, DocumentError, check_format, dumps, parse
from jsplan.documents.configs import Config
from jsplan.documents.reading import decode, find_flaw
from jsplan.documents.state_parts import (
    DeferredSteps,
    DomainLine,
    FormerStream,
    HistoryEntry,
    KnownServer,
    Owner,
    OwnershipLine,
    Pending,
    PinnedRange,
    Replacement,
    SeenLine,
    SessionLine,
)
from jsplan.documents.types import AnyAddress, Count, UInt64
from jsplan.errors import StateError
from jsplan.state.history import with_entry

#: Sections that every state has; the first states did not have the others.
_FIRST_SECTIONS: Final = ("lineage", "serial", "domains", "ownership", "pending", "resources")
#: Sections whose keys are addresses.
_BY_ADDRESS: Final = ("resources", "pending", "replacements")
#: Partly applied plans whose deferred steps state remembers.
MAX_DEFERRED_PLANS = 20
DAMAGED_HINT = (
    "Nothing was overwritten. To restore an earlier serial: "
    "jsplan state pull --serial N > FILE, then "
    "jsplan state push --force FILE, then jsplan plan"
)


if TYPE_CHECKING:
    EntryOrigin = str
else:
    EntryOrigin = Literal["created", "imported"]


class Entry(Struct, omit_defaults=True):
    """One resource that this workspace created, imported or adopted.

    `config` is the live configuration after the last apply, without `_nats.*` metadata. `declared`
    holds the fields that the files named then, in compact form (None: named, at the server's
    default). `created` is the server's RFC 3339 creation time: another one means another object
    under the same name, unless it is not later than `seen`, the server's time when this was last
    known to be the object (see `identity`). `origin` is `created` or `imported`.
    `depends_on` are addresses, so that deletion can run in reverse order. `starts` are the
    sequences at which a replacement made the resource continue, instead of the start in the files:
    of a consumer under its own name, of the sources of a stream under the key of each.
    `last_seq` is the last sequence that a stream was known to have, which never falls; 0: none.
    `sensitive`: the value of the entry of a bucket may not be shown. `position_once` is the word of
    the `position` to which a consumer was last set. `former` is what a stream was before it was
    moved or replaced with its messages, the oldest first. `left_sources` are the keys of sources
    that it had and has no more: the server finds their messages when one of them comes back.
    """

    config: Config
    declared: Config
    created: str
    origin: EntryOrigin
    prevent_destroy: bool
    depends_on: list[AnyAddress]
    applied_at: str
    starts: dict[str, UInt64] = field(default_factory=dict)
    seen: str = ""
    sensitive: bool = False
    position_once: str = ""
    last_seq: UInt64 = 0
    former: list[FormerStream] = field(default_factory=list)
    left_sources: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return what `plain` returns; large configurations are not copied."""
        optional = self.__struct_fields__[-len(self.__struct_defaults__) :]
        out = asdict(self)
        for name in optional:
            if not out[name]:
                del out[name]
        return out

    def with_fields(self, names: Collection[str], config: dict[str, Any]) -> Entry:
        """Return the entry with these fields from `config`, after one of several update steps."""
        unchanged = {name: value for name, value in self.config.items() if name not in names}
        return replace(
            self, config=unchanged | {name: config[name] for name in names if name in config}
        )

    @classmethod
    def of_record(
        cls, record: Mapping[str, Any], config: dict[str, Any], created: str, seen: str
    ) -> Entry:
        """Return the entry of an object that a step left, by the `record` of the step."""
        return cls(
            config=config,
            declared=record["declared"],
            created=created,
            origin=record["origin"],
            prevent_destroy=record["prevent_destroy"],
            depends_on=record["depends_on"],
            applied_at="",
            starts=record.get("starts", {}),
            seen=seen,
            sensitive=record.get("sensitive", False),
            position_once=record.get("position_once", ""),
        )

    @classmethod
    def of_unfinished(cls, config: dict[str, Any], created: str) -> Entry:
        """Return the entry of an object that a step began to create, and of which no record is."""
        return cls(config, {}, created, "created", False, [], "")


if TYPE_CHECKING:
    ByAddress = dict[Address, Entry]
else:
    ByAddress = dict[AnyAddress, Entry]


class State(Document, tag="state"):
    """The whole document. `lineage` never changes; `serial` grows with every apply.

    `domains` has for each domain key the server that answered last (`name`, `cluster`).
    `ownership` has the id of the owner tag. `pending` are addresses of steps that began and whose
    end was not recorded, with what the step was to leave: `{id, address, op, expect, record}`.
    `replacements` are the objects that are being recreated with their content: by address,
    everything that a resumed replacement needs when the old object is gone; or, as `detached`, the
    sources that are temporarily removed from a stream. `deferred` are the steps of partly applied
    plans that were deferred because their domains were offline: `{plan, steps}`, all of them ids,
    the newest last. `backfills` has by name the pinned range of each entry and its progress
    (`BackfillState`). `history` has one entry for each session that changed something, the newest
    last (see `history`). `newer_format` is the format of a newer release, empty otherwise: such a
    state can be read and not written.
    """

    COMPUTED = ("jsplan_version",)
    LOCAL = ("newer_format",)

    workspace: str
    environment: str | None
    lineage: str = ""
    serial: Count = 0
    domains: dict[str, KnownServer] = field(default_factory=dict)
    resources: ByAddress = field(default_factory=dict)
    ownership: Owner = field(default_factory=dict)
    pending: dict[AnyAddress, Pending] = field(default_factory=dict)
    replacements: dict[AnyAddress, Replacement] = field(default_factory=dict)
    deferred: list[DeferredSteps] = field(default_factory=list)
    backfills: dict[str, PinnedRange] = field(default_factory=dict)
    history: list[HistoryEntry] = field(default_factory=list)
    newer_format: str = ""

    @property
    def jsplan_version(self) -> str:
        """The release that writes the document."""
        return __version__

    def encode(self) -> dict[str, Any]:
        """Return the document to write. Raises StateError for one that no reader would accept."""
        document = self.to_json()
        require_readable(document, State)
        return document

    @property
    def exists(self) -> bool:
        """True if it was ever written."""
        return self.serial > 0

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        entries = {
            str(address): entry.to_json() for address, entry in sorted(self.resources.items())
        }
        return Document.to_json(replace(self, resources={})) | {"resources": entries}

    @classmethod
    def from_json(
        cls, raw: Any, where: str, hint: str = DAMAGED_HINT, without: Collection[str] = ()
    ) -> State:
        """Parse a state document. `hint` says what to do about a damaged one.

        What it has under the addresses `without` is left out, and may be damaged. Raises StateError
        for a foreign, damaged or newer document.
        """
        try:
            raw = check_format(raw, "state", cls.FORMAT_VERSION, where)
            for name in _BY_ADDRESS if without else ():
                if isinstance(found := raw.get(name), dict):
                    raw = raw | {name: {key: found[key] for key in found.keys() - without}}
            _require_sections(raw, where, hint)
            state = decode(cls, raw, where, hint)
        except DocumentError as error:
            raise StateError(str(error), hint=error.hint) from None
        theirs = str(raw["format_version"])
        state.newer_format = theirs if theirs != cls.FORMAT_VERSION else ""
        state.resources = {
            Address.parse(str(address)): entry for address, entry in state.resources.items()
        }
        return state

    @classmethod
    def parse(
        cls,
        data: bytes,
        where: str,
        hint: str = DAMAGED_HINT,
        wrong: str = "is damaged",
        without: Collection[str] = (),
    ) -> State:
        """Parse a state document from bytes. Raises StateError as `from_json` does."""
        try:
            raw = parse(data, where, hint, wrong)
        except DocumentError as error:
            raise StateError(str(error), hint=error.hint) from None
        return cls.from_json(raw, where, hint, without)

    def require_writable(self, place: str) -> None:
        """Raise StateError for a state of a newer release, whose additions would be lost."""
        if self.newer_format:
            raise StateError(
                f"{place} has format {self.newer_format}, "
                f"and this jsplan writes {self.FORMAT_VERSION}: "
                "what a newer release added to it would be lost",
                hint="Use the release that wrote it, or a newer one. "
                "Reading works: plan, drift and status do not write.",
            )

    def require_owner(self, workspace: str, environment: str | None, place: str, hint: str) -> None:
        """Raise StateError for the state of another workspace or environment."""
        if (self.workspace, self.environment) != (workspace, environment):
            theirs = f"{self.workspace}, environment {self.environment or 'none'}"
            ours = f"{workspace}, environment {environment or 'none'}"
            raise StateError(f"{place} belongs to workspace {theirs}, not to {ours}", hint=hint)

    def begin_session(self) -> None:
        """Begin a writing session: add one to the serial, create the lineage if there is none."""
        self.lineage = self.lineage or str(uuid.uuid4())
        self.serial += 1

    def _record_deferred(self, plan: str, steps: list[str]) -> None:
        """Add the deferred steps of a plan as the newest entry; drop the oldest entries."""
        others = [entry for entry in self.deferred if entry["plan"] != plan]
        self.deferred = [*others, *([{"plan": plan, "steps": steps}] if steps else [])][
            -MAX_DEFERRED_PLANS:
        ]

    def apply_change(self, change: dict[str, Any]) -> None:
        """Apply one journal line to the document (see `journal_lines` in SPEC.md).

        `begin` is a step, `end` the address whose step ended. `put` is `{address, entry}` and
        `drop` an address; both end what was pending there. `domain` is `{key, server}`,
        `ownership` is `{id}`. `replacing` is `{address, …}`, and `replaced` the address whose
        replacement ended. `seen` is `{address, at}`, `last_seqs` by address. `backfill`
        and `history` are one entry each.
        """
        match change:
            case {"session": what}:
                self.lineage, self.serial = what["lineage"], what["serial"]
            case {"begin": what}:
                self.pending[what["address"]] = what
            case {"domain": what}:
                self.domains[what["key"]] = what["server"]
            case {"replacing": what}:
                self.replacements[what["address"]] = what
            case {"deferred": what}:
                self._record_deferred(what["plan"], what["steps"])
            case {"ownership": what}:
                self.ownership = {"id": what["id"]}
            case {"backfill": what}:
                self.backfills[what["name"]] = what
            case {"history": what}:
                self.history = with_entry(self.history, what)
            case {"seen": what}:
                self._update_entry(what["address"], seen=what["at"])
            case {"last_seqs": what}:
                for address, last in what.items():
                    self._update_entry(address, last_seq=last)
            case _:
                self._apply_end(change)

    def _update_entry(self, name: str, **fields: Any) -> None:
        address = Address.parse(name)
        if (entry := self.resources.get(address)) is not None:
            self.resources[address] = replace(entry, **fields)

    def _apply_end(self, change: dict[str, Any]) -> None:
        if "put" in change:
            self.resources[Address.parse(change["put"]["address"])] = decode(
                Entry, change["put"]["entry"], "the entry", ""
            )
        if "drop" in change:
            self.resources.pop(Address.parse(change["drop"]), None)
            if "detached" in self.replacements.get(change["drop"], {}):
                # Sources that were to be attached again to a stream that no longer exists.
                self.replacements.pop(change["drop"])
        self.replacements.pop(str(change.get("replaced")), None)
        for ended in (change.get("end"), change.get("drop"), change.get("put", {}).get("address")):
            self.pending.pop(str(ended), None)


def former_names(server: Mapping[str, Any]) -> list[str | None]:
    """Return the names under which a domain was asked, by its record in state."""
    return [*server.get("former", ()), *([server["js_domain"]] if "js_domain" in server else ())]


def _require_sections(raw: Mapping[str, Any], where: str, hint: str) -> None:
    """Raise DocumentError for a document without one of the sections that every state has."""
    for name in _FIRST_SECTIONS:
        if name not in raw:
            message = f'{where} is damaged: expected the field "{name}" at $'
            raise DocumentError(message, hint=hint)


class PutLine(Struct):
    """A resource whose step ended."""

    address: AnyAddress
    entry: Entry


class JournalLine(Struct, forbid_unknown_fields=True):
    """One line of the journal."""

    session: SessionLine | UnsetType = UNSET
    domain: DomainLine | UnsetType = UNSET
    ownership: OwnershipLine | UnsetType = UNSET
    begin: Pending | UnsetType = UNSET
    put: PutLine | UnsetType = UNSET
    drop: AnyAddress | UnsetType = UNSET
    replacing: Replacement | UnsetType = UNSET
    replaced: AnyAddress | UnsetType = UNSET
    deferred: DeferredSteps | UnsetType = UNSET
    backfill: PinnedRange | UnsetType = UNSET
    history: HistoryEntry | UnsetType = UNSET
    end: AnyAddress | UnsetType = UNSET
    seen: SeenLine | UnsetType = UNSET
    last_seqs: dict[str, UInt64] | UnsetType = UNSET


def find_line_flaw(change: Any) -> str | None:
    """Describe where a line of the journal is damaged; None if it is not."""
    return "expected a field at $" if change == {} else find_flaw(change, JournalLine)


def require_readable(document: dict[str, Any], kind: Any) -> None:
    """Raise StateError for a part of the state that its own reader would take for damaged."""
    if (flaw := find_flaw(document, kind)) is not None:
        raise StateError(
            f"the state was not written, since no command could read it again: {flaw}",
            hint="This is a bug in jsplan: please report it with this line.",
        )


def encode_lines(changes: Iterable[dict[str, Any]]) -> bytes:
    """Encode one line for each change. Raises StateError for one that no reader would accept."""
    lines = []
    for change in changes:
        require_readable(change, JournalLine)
        lines.append(dumps(change, pretty=False) + b"\n")
    return b"".join(lines)


def session_line(state: State) -> dict[str, Any]:
    """Return the first line of a journal: the lineage and serial that the document takes."""
    return {"session": {"lineage": state.lineage, "serial": state.serial}}


def parse_serial(line: bytes) -> int | None:
    """Parse the serial in the first line of a journal; None for anything else."""
    try:
        change = parse(line, "it", "")
    except DocumentError:
        return None
    return (
        int(change["session"]["serial"])
        if find_line_flaw(change) is None and "session" in change
        else None
    )


def replay(state: State, data: bytes, where: str, hint: str, without: Collection[str] = ()) -> None:
    """Apply the lines that are not in the document yet. Ignore a torn last line.

    A torn last line is a step whose end was not recorded. Lines about the addresses `without` are
    left out. Raises StateError with `hint` that names `where` and the line for any other that
    cannot be read.
    """
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            change = parse(line, f"{where}:{number}", hint)
        except DocumentError as error:
            if number == len(lines):
                return
            raise StateError(str(error), hint=error.hint) from None
        if without and not _addresses_of(change).isdisjoint(without):
            continue
        if (flaw := find_line_flaw(change)) is not None:
            raise StateError(f"{where}:{number} is damaged: {flaw}", hint=hint)
        if "session" in change and change["session"]["serial"] <= state.serial:
            return  # folded already: the process died after it replaced the document
        state.apply_change(change)


def _addresses_of(change: Any) -> set[str]:
    """Return the addresses that a line is about, of one that may be damaged."""
    found = list(change.values()) if isinstance(change, dict) else []
    named = [value.get("address") if isinstance(value, dict) else value for value in found]
    return {name for name in named if isinstance(name, str)}
