"""The state document: what this workspace owns and what it last applied. Keeping it is left to the backends.

State is for ownership and for the third side of every comparison; it is never a cache of the server.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jsplan import __version__
from jsplan.address import Address
from jsplan.documents.base import DocumentError, check_format, parse
from jsplan.documents.validation import require_valid
from jsplan.errors import StateError
from jsplan.state.history import with_entry

FORMAT_VERSION = "1.0"
#: What the first states did not have, and of which type it is.
_ADDED_SECTIONS: Final[Mapping[str, type[Any]]] = {
    "replacements": dict,
    "deferred": list,
    "backfills": dict,
    "history": list,
}
#: Applied plans of which state remembers what is left of them.
MAX_DEFERRED_PLANS = 20
DAMAGED_HINT = (
    "Nothing was overwritten. To go back to a serial that is kept: jsplan state pull --serial N > FILE, then "
    "jsplan state push --force FILE, then jsplan plan"
)


@dataclass(slots=True)
class Entry:
    """One resource this workspace created or adopted.

    `config` is the live configuration after the last apply, without `_nats.*` metadata. `declared` holds the
    fields that the files named then, in compact form (None: named, at the server's default). `created` is the
    server's RFC 3339 creation time: another one means another object under the same name, unless it is not later
    than `seen`, the server's time when this was last known to be the object (see `jetstream.identity`). `origin`
    is `created` or `imported`. `depends_on` are addresses, so that deletion can go the other way round. `starts` are the
    sequences at which a replacement made it go on, in place of where the files begin: of a consumer under its own name, of
    a stream's sources under the key of each.
    """

    config: dict[str, Any]
    declared: dict[str, Any]
    created: str
    origin: str = "created"
    prevent_destroy: bool = False
    depends_on: list[str] = field(default_factory=list)
    applied_at: str = ""
    starts: dict[str, int] = field(default_factory=dict)
    seen: str = ""

    def to_json(self) -> dict[str, Any]:
        """The value of `resources[address]`."""
        out: dict[str, Any] = {
            "config": self.config,
            "declared": self.declared,
            "created": self.created,
            "origin": self.origin,
            "prevent_destroy": self.prevent_destroy,
            "depends_on": self.depends_on,
            "applied_at": self.applied_at,
        }
        return (
            out
            | ({"starts": self.starts} if self.starts else {})
            | ({"seen": self.seen} if self.seen else {})
        )

    def with_fields(self, names: Collection[str], config: dict[str, Any]) -> Entry:
        """The entry with these fields as `config` has them: one of several steps of an update changed them."""
        kept = {name: value for name, value in self.config.items() if name not in names}
        return replace(self, config=kept | {name: config[name] for name in names if name in config})

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Entry:
        """The reverse of `to_json`."""
        return cls(
            raw["config"],
            raw["declared"],
            raw["created"],
            raw["origin"],
            raw["prevent_destroy"],
            raw["depends_on"],
            raw["applied_at"],
            raw.get("starts", {}),
            raw.get("seen", ""),
        )


@dataclass(slots=True)
class State:
    """The whole document. `lineage` is made once and never changes; `serial` grows with every apply.

    `domains` says for each domain key which server answered last (`name`, `cluster`). `ownership` is the id
    that the optional marker carries. `pending` are the addresses of steps that began and whose end was never
    recorded, with what the step was to leave behind: `{id, address, op, expect, record}`. `replacements` are the
    objects that are being made anew with what they hold: by address, everything that is needed to go on with it
    when the old object is gone already; or, as `detached`, the sources that are out of a stream meanwhile.
    `deferred` says of saved plans that were applied in part which steps are
    left because their domains were away: `{plan, steps}`, ids both, the newest last. `backfills` has by name which range
    of which origin an entry means, and what of it is done (`backfill.ranges.Record`). `history` has one entry for each session
    that changed something, the newest last (see `history`). `newer_format` is the format of a release that knows more than this one,
    empty otherwise: such a state can be read and not be written.
    """

    workspace: str
    environment: str | None
    lineage: str = ""
    serial: int = 0
    domains: dict[str, dict[str, Any]] = field(default_factory=dict)
    resources: dict[Address, Entry] = field(default_factory=dict)
    ownership: dict[str, Any] = field(default_factory=dict)
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)
    replacements: dict[str, dict[str, Any]] = field(default_factory=dict)
    deferred: list[dict[str, Any]] = field(default_factory=list)
    backfills: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    newer_format: str = ""

    @property
    def exists(self) -> bool:
        """Whether it was ever written."""
        return self.serial > 0

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "state",
            "jsplan_version": __version__,
            "lineage": self.lineage,
            "serial": self.serial,
            "workspace": self.workspace,
            "environment": self.environment,
            "domains": self.domains,
            "ownership": self.ownership,
            "pending": self.pending,
            "deferred": self.deferred,
            "replacements": self.replacements,
            "backfills": self.backfills,
            "history": self.history,
            "resources": {
                str(address): entry.to_json() for address, entry in sorted(self.resources.items())
            },
        }

    @classmethod
    def from_json(cls, raw: Any, where: str, hint: str = DAMAGED_HINT) -> State:
        """Read a state document; raises StateError for a foreign, damaged (`hint` says what to do then) or newer one."""
        try:
            raw = check_format(raw, "state", FORMAT_VERSION, where)
            raw = {name: empty() for name, empty in _ADDED_SECTIONS.items()} | raw
            require_valid(raw, "state", where, hint)
        except DocumentError as error:
            raise StateError(str(error), hint=error.hint) from None
        theirs = str(raw["format_version"])
        return cls(
            workspace=raw["workspace"],
            environment=raw["environment"],
            lineage=raw["lineage"],
            serial=raw["serial"],
            domains=raw["domains"],
            ownership=raw["ownership"],
            pending=raw["pending"],
            replacements=raw["replacements"],
            deferred=raw["deferred"],
            backfills=raw["backfills"],
            history=raw["history"],
            resources={Address.parse(a): Entry.from_json(e) for a, e in raw["resources"].items()},
            newer_format=theirs if theirs != FORMAT_VERSION else "",
        )

    @classmethod
    def parse(
        cls, data: bytes, where: str, hint: str = DAMAGED_HINT, wrong: str = "is damaged"
    ) -> State:
        """Read a state document from its bytes; raises StateError as `from_json` does."""
        try:
            raw = parse(data, where, hint, wrong)
        except DocumentError as error:
            raise StateError(str(error), hint=error.hint) from None
        return cls.from_json(raw, where, hint)

    def require_writable(self, place: str) -> None:
        """Raise StateError for a state of a newer release: what this one does not know would be lost."""
        if self.newer_format:
            raise StateError(
                f"{place} has format {self.newer_format}, and this jsplan writes {FORMAT_VERSION}: what a newer release added to it would be lost",
                hint="Use the release that wrote it, or a newer one. Reading works: plan, drift and status do not write.",
            )

    def begin_session(self) -> None:
        """A new writing session: the serial grows by one, the lineage is made if there is none."""
        self.lineage = self.lineage or str(uuid.uuid4())
        self.serial += 1

    def _record_deferred(self, plan: str, steps: list[str]) -> None:
        """The newest plan last; the oldest are forgotten."""
        others = [entry for entry in self.deferred if entry["plan"] != plan]
        self.deferred = [*others, *([{"plan": plan, "steps": steps}] if steps else [])][
            -MAX_DEFERRED_PLANS:
        ]

    def apply_change(self, change: dict[str, Any]) -> None:
        """Carry out one journal line on the document (see `journal_lines` in SPEC.md).

        `begin_session` is a step, `end` the address whose step is over; `put` is `{address, entry}` and `drop` an address,
        and both end what was pending there; `domain` is `{key, server}`, `ownership` is `{id}`. `replacing` is
        `{address, …}`, and `replaced` the address whose replacement is over. `seen` is `{address, at}`.
        `backfill` and `history` are one entry of those.
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
                self._record_seen(Address.parse(what["address"]), what["at"])
            case _:
                self._apply_end(change)

    def _record_seen(self, address: Address, at: str) -> None:
        entry = self.resources.get(address)
        if entry is not None:
            self.resources[address] = replace(entry, seen=at)

    def _apply_end(self, change: dict[str, Any]) -> None:
        if "put" in change:
            self.resources[Address.parse(change["put"]["address"])] = Entry.from_json(
                change["put"]["entry"]
            )
        if "drop" in change:
            self.resources.pop(Address.parse(change["drop"]), None)
            if "detached" in self.replacements.get(change["drop"], {}):
                self.replacements.pop(
                    change["drop"]
                )  # sources that were to come back to what is no more
        self.replacements.pop(str(change.get("replaced")), None)
        for over in (change.get("end"), change.get("drop"), change.get("put", {}).get("address")):
            self.pending.pop(str(over), None)
