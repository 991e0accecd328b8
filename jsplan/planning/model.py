"""The data of planning: its inputs, and the decision about each resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import (
    INTERNAL_CONSUMER_PREFIXES,
    Address,
    Kind,
    matches,
    matches_any,
    move_address,
    names_content,
)
from jsplan.config.model import DeclaredResource, Workspace
from jsplan.diagnostics import Diagnostic, Severity, SourceRange
from jsplan.documents.plan import FieldChange, Hazard
from jsplan.documents.state_parts import Watermark
from jsplan.documents.step_kinds import RESTORED, Action
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.measurement import Answer, FlowCount, Measurement
from jsplan.planning.merge import declared_fields
from jsplan.planning.options import PlanningOptions
from jsplan.planning.origins import with_live_externals
from jsplan.planning.transfer.consumer_position import PositionReset
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources import TABLES
from jsplan.resources.buckets import client_defaults
from jsplan.resources.contents import CONTENTS
from jsplan.resources.fields import Config
from jsplan.state.document import Entry, State
from jsplan.topology import Topology

if TYPE_CHECKING:
    from jsplan.planning.restore.selection import Backup

T = TypeVar("T")

#: The reason of a resource whose live, recorded and declared configurations are equal.
UNTOUCHED: Final = "equal"


class InterruptedWork(Struct, frozen=True):
    """The work that an interrupted apply left, and its traces on the servers.

    `steps`: the steps that it began and did not finish.
    `replacements`: the records of the replacements that it began and did not finish.
    `streams`: the interrupted replacements of streams, with their progress.
    `recovered`: the resources whose unfinished steps or replacements were done.
    `recovered_deletions`: the resources that unfinished steps deleted, no longer in the entries.
    `unready`: the resources whose replacement exists and is not ready.
    `detached_sources`: the sources that wait for the end of a replacement, by stream.
    `is_running`: another process holds the lock and works on them, so nothing is interrupted yet.
    """

    steps: Mapping[Address, dict[str, Any]] = field(default_factory=dict)
    replacements: Mapping[Address, dict[str, Any]] = field(default_factory=dict)
    streams: Mapping[Address, Transfer] = field(default_factory=dict)
    recovered: frozenset[Address] = frozenset()
    recovered_deletions: frozenset[Address] = frozenset()
    unready: frozenset[Address] = frozenset()
    detached_sources: Mapping[Address, set[str]] = field(default_factory=dict)
    is_running: bool = False


class Measurements(Struct, frozen=True):
    """The numbers that were counted on the servers for the decisions.

    `answers`: the requests for counts (`list_measurements`) with their answers, by changed
    address.
    `uncopied`: the messages that removed sources have not copied.
    `arriving`: the messages that new sources bring, by downstream stream; None: not counted.
    `sourced`: the last sequence of a lost origin that a stream has by a source, by its key.
    `unreadable_origins`: the error per stream and origin that could not be read.
    `seqs_by_time`: the requested sequences of the first message at or after a time. It is one
    after the last sequence if there is no such message.
    """

    answers: Mapping[Address, list[Answer]] = field(default_factory=dict)
    uncopied: Mapping[Address, list[FlowCount]] = field(default_factory=dict)
    arriving: Mapping[Address, list[FlowCount]] | None = None
    sourced: Mapping[tuple[Address, str], int] = field(default_factory=dict)
    unreadable_origins: Mapping[Address, Mapping[Address, str]] = field(default_factory=dict)
    seqs_by_time: Mapping[tuple[Address, str], int] = field(default_factory=dict)

    def concern(self, address: Address) -> bool:
        """Return True if something was counted for the hazards and warnings of this resource."""
        return bool(address in self.uncopied or self.counts(address))

    def counts(self, address: Address) -> list[Measurement]:
        """Return what was counted for one resource, where that is something."""
        return [answer for _, answer in self.answers.get(address, ()) if answer is not None]


class PlanInputs(Struct, frozen=True):
    """Desired (workspace, topology), live, last applied (`entries` after `moved`), and options.

    `moved_from`: the old address of each entry that a `moved` block renamed, by new address.
    `selected`: the addresses to plan.
    `forgotten`: the addresses in undeclared domains that are forgotten without a read.
    `owner_tag`: the owner tag of this workspace, empty if it has none.
    `relocations`: the relocations that are not done yet, by target.
    `backup`: the saved streams that a restore creates; empty for every other plan.
    `now`: the time of the plan (UTC).
    `watermarks`: how far streams were when drift last looked.
    """

    workspace: Workspace
    topology: Topology
    state: State
    live: Live
    options: PlanningOptions = field(default_factory=PlanningOptions)
    entries: Mapping[Address, Entry] = field(default_factory=dict)
    moved_from: Mapping[Address, Address] = field(default_factory=dict)
    selected: frozenset[Address] = frozenset()
    forgotten: frozenset[Address] = frozenset()
    interrupted: InterruptedWork = field(default_factory=InterruptedWork)
    measured: Measurements = field(default_factory=Measurements)
    owner_tag: str = ""
    relocations: Mapping[Address, Transfer] = field(default_factory=dict)
    backup: Backup = field(default_factory=dict)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    watermarks: Mapping[Address, Watermark] = field(default_factory=dict)
    _declared_fields: dict[Address, dict[str, Any]] = field(default_factory=dict)
    _indexes: dict[str, tuple[tuple[object, ...], Any]] = field(default_factory=dict)

    def declared(self, address: Address) -> DeclaredResource | None:
        """Return the declared resource; None if the plan destroys everything."""
        return None if self.options.destroy else self.workspace.resources.get(address)

    def place(self, address: Address, field_name: str = "") -> SourceRange | None:
        """Return where the files declare a resource, or one of its fields."""
        declared = self.workspace.resources.get(address)
        return (declared.ranges.get(field_name) or declared.range) if declared else None

    def finding(
        self, severity: Severity, code: str, text: str, detail: str, at: Address, name: str = ""
    ) -> Diagnostic:
        """Return a finding about a resource, or about its field `name`, with its place."""
        return Diagnostic(severity, code, text, detail, str(at), self.place(at, name))

    def state_name(self, address: Address) -> str:
        """Return the address under which state has a resource: the one before a `moved` block."""
        return str(self.moved_from.get(address, address))

    @property
    def under_way(self) -> set[Address]:
        """The addresses of which state has a record: sides of relocations, and what is replaced."""
        moving = {side for one in self.relocations.values() for side in (one.origin, one.target)}
        return {*moving, *self.interrupted.streams, *self.interrupted.replacements}

    def stream_of(self, consumer: Address) -> LiveObject | None:
        """Return the live stream of a consumer; None also for what is no consumer."""
        return self.live.get(consumer.parent) if consumer.parent is not None else None

    def on_replace(self, address: Address) -> str:
        """Return the `on_replace` of a resource: `refuse`, `recreate` or `preserve`."""
        declared = self.declared(address)
        mode = declared.lifecycle.on_replace if declared else None
        return mode or ("preserve" if address.kind == "consumer" else "refuse")

    def body(self, address: Address) -> dict[str, Any]:
        """Return the declared body with resolved references and the name.

        A live origin keeps the `external` that it has on the server.
        """
        return with_live_externals(self._named_body(address), address, self.topology, self.live)

    def _named_body(self, address: Address) -> dict[str, Any]:
        if address.is_content:
            return self.topology.bodies[address]
        name = address.consumer if address.kind == "consumer" else address.stream
        return {"name": name} | self.topology.bodies[address]

    def creation_body(self, address: Address) -> dict[str, Any]:
        """Return the body of a new object. A bucket also gets the defaults that all clients set."""
        body = self.body(address)
        return body | client_defaults(address.kind, body)

    def declared_fields(self, address: Address) -> dict[str, Any]:
        """Return the declared fields for state, cached by address."""
        found = self._declared_fields.get(address)
        if found is None:
            kind: Kind = "consumer" if address.kind == "consumer" else "stream"
            table = CONTENTS[address.kind].table if address.is_content else TABLES[kind]
            found = declared_fields(table, self._named_body(address))
            self._declared_fields[address] = found
        return found

    def continues_flows(self, stream: Address) -> bool:
        """Check whether a stream is restored where it was: its origins know it, nothing begins."""
        target = self.backup.get(stream)
        return target is not None and not target.is_elsewhere

    def index(self, name: str, sources: tuple[object, ...], build: Callable[[], T]) -> T:
        """Return what `build` makes of `sources`, made once for these very objects.

        They may not change any more. For questions that are asked about each of many resources.
        """
        known = self._indexes.get(name)
        if known is None or not all(map(is_, known[0], sources)):
            known = self._indexes[name] = (sources, build())
        found: T = known[1]
        return found

    def touched(self, decisions: Decisions) -> dict[Address, ResourceDecision]:
        """Return the decisions that are not `is_untouched`; few of many resources change."""

        def build() -> dict[Address, ResourceDecision]:
            return {a: found for a, found in decisions.items() if not found.is_untouched}

        return self.index("touched", (decisions,), build)

    def recorded_downstream(self, origin: Address) -> frozenset[Address]:
        """Return the streams that depended on a stream when they were last applied."""

        def build() -> dict[str, set[Address]]:
            found: dict[str, set[Address]] = {}
            for address, entry in self.entries.items():
                for text in entry.depends_on if address.is_stream else ():
                    found.setdefault(text, set()).add(address)
            return found

        found = self.index("recorded_downstream", (self.entries,), build)
        return frozenset(found.get(str(origin), ()))

    def consumers_of(self, stream: Address) -> list[LiveObject]:
        """Return the consumers of a stream that were read, without the server's own, in order."""
        return [
            found
            for found in self.all_consumers_of(stream)
            if not found.address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
        ]

    def all_consumers_of(self, stream: Address) -> list[LiveObject]:
        """Return the consumers of a stream that were read, also those of servers, in order."""
        objects = self.live.objects
        found = self.index("consumers", (objects,), lambda: _consumers_by_stream(sorted(objects)))
        return [objects[address] for address in found.get(stream, ())]

    def planned_consumers(self, decisions: Decisions, stream: Address) -> list[Address]:
        """Return the consumers of a stream in the decisions of a whole plan, in their order."""
        found = self.index(
            "planned consumers", (decisions,), lambda: _consumers_by_stream(decisions)
        )
        return found.get(stream, [])

    def level(self, address: Address) -> int:
        """Return the API level of the address's domain."""
        facts = self.live.domains.get(address.domain)
        return facts.level if facts else 0


def _consumers_by_stream(addresses: Iterable[Address]) -> dict[Address | None, list[Address]]:
    found: dict[Address | None, list[Address]] = {}
    for address in addresses:
        if address.kind == "consumer":
            found.setdefault(address.parent, []).append(address)
    return found


class ResourceDecision(Struct, frozen=True):
    """The decision about one resource. A pass that changes it returns another in its place.

    `after`: the compact configuration that it should end with; None if it is removed.
    `ignored`: changes that the server accepts without effect.
    `deleted_with`: the stream whose replacement or deletion also deletes this consumer.
    `restored_with`: the stream whose replacement creates this consumer again, as desired.
    `adopts`: the live object was not managed until now.
    `unknown`: fields of `after` whose value is known only during the apply.
    `sources_to_detach`: sources that are removed before their origins are recreated.
    `sources_to_attach`: sources that are added again at the sequence where they stopped.
    `relocation`: the relocation that the resource is one side of, or a consumer of.
    `replacement`: how the messages of a stream are kept that is replaced.
    `reset`: the position to which a consumer is set, because the files have a new word.
    `continues_at`: the first sequence of a stream in place of one that is gone; 0: its own.
    `source_starts`: the sequences at which new sources begin in place of what the files say.
    `relocated_sources`: by the key of a source of a relocated stream, its source before.
    """

    address: Address
    actions: list[Action]
    reason: str
    live: LiveObject | None = None
    entry: Entry | None = None
    after: Config | None = None
    fields: list[FieldChange] = field(default_factory=list)
    ignored: list[FieldChange] = field(default_factory=list)
    adopts: bool = False
    deleted_with: Address | None = None
    restored_with: Address | None = None
    unknown: list[str] = field(default_factory=list)
    sources_to_detach: frozenset[str] = frozenset()
    sources_to_attach: frozenset[str] = frozenset()
    diagnostics: list[Diagnostic] = field(default_factory=list)
    relocation: Transfer | None = None
    replacement: Transfer | None = None
    relocated_sources: dict[str, Config] = field(default_factory=dict)
    continues_at: int = 0
    source_starts: dict[str, int] = field(default_factory=dict)
    reset: PositionReset | None = None

    @property
    def before(self) -> Config:
        """The compact configuration now; empty for a new object."""
        return self.live.compact if self.live is not None else {}

    @property
    def planned(self) -> Config:
        """The compact configuration after the plan; empty for an object that is removed."""
        return self.after or {}

    @property
    def replaces(self) -> bool:
        """Return True if the object is deleted and created again, with or without its content."""
        return len(self.actions) == 2

    @property
    def is_untouched(self) -> bool:
        """Return True if live, recorded and declared are equal, and no other change affects it."""
        return (
            self.reason == UNTOUCHED
            and self.actions == ["no-op"]
            and self.deleted_with is None
            and not (self.sources_to_detach or self.sources_to_attach or self.diagnostics)
        )

    @property
    def recreates_consumers(self) -> bool:
        """Return True if a replacement creates each consumer of the stream as desired.

        It begins at its ack floor. Else it comes with the content of the stream.
        """
        return self.replacement is not None and self.replacement.places_consumers

    @property
    def comes_filled(self) -> bool:
        """Return True if a new stream brings its messages along: it is relocated, or restored.

        Its mirror and sources continue behind what it has.
        """
        return (self.relocation is not None and not self.deletes) or self.reason == RESTORED

    @property
    def creates(self) -> bool:
        """Return True if an object is created: a new one, or the replacement of a deleted one."""
        return "create" in self.actions

    @property
    def preserves(self) -> bool:
        """Return True if a replacement keeps the content of the object."""
        return self.actions == ["create", "delete"]

    @property
    def loses_content(self) -> bool:
        """Return True if the content of the live object is deleted with it."""
        return self.deletes and not self.preserves

    @property
    def is_gone(self) -> bool:
        """Return True if the object is not on the server after the plan; a forgotten one is."""
        return self.actions[-1] == "delete" and not self.preserves

    @property
    def is_removed(self) -> bool:
        """Return True if the object is deleted, or forgotten and left on the server."""
        return self.is_gone or self.actions[-1] == "forget"

    @property
    def writes(self) -> bool:
        """Return True if the plan creates or updates the object."""
        return self.actions[-1] in ("create", "update") or self.preserves

    @property
    def deletes(self) -> bool:
        """Return True if the live object is deleted."""
        return "delete" in self.actions


#: The decisions about all resources of a plan. A pass over them returns those that it changes.
Decisions = Mapping[Address, ResourceDecision]


#: What a pass returns: the decisions that it changes.
Overrides = dict[Address, ResourceDecision]
#: The findings of one rule, and the hazards of one kind.
Findings = Iterable[Diagnostic]
Hazards = Iterable[Hazard]


def is_state_only(inputs: PlanInputs) -> bool:
    """Check whether the plan only updates state and leaves interrupted work alone."""
    return inputs.options.refresh_only or bool(inputs.options.imports)


def split_contents(
    decisions: Decisions,
) -> tuple[dict[Address, ResourceDecision], dict[Address, ResourceDecision]]:
    """Return the decisions about streams and consumers, and those about what streams hold."""
    contents = {address: found for address, found in decisions.items() if address.is_content}
    return {a: found for a, found in decisions.items() if a not in contents}, contents


def apply_moves(
    workspace: Workspace, entries: Mapping[Address, Entry]
) -> tuple[dict[Address, Entry], dict[Address, Address]]:
    """Rename entries by the `moved` blocks. Also return the old address of each, by new address.

    An entry keeps its address if the new one is taken, or if the new one is in no file while the
    old domain is still declared.
    """
    renamed: dict[Address, Entry] = dict(entries)
    moved: dict[Address, Address] = {}
    for block in workspace.moved:
        for old in [address for address in renamed if matches(block.old_address, address)]:
            new = move_address(block.old_address, block.new_address, old)
            if new not in renamed and (
                new in workspace.resources or _is_domain_rename(workspace, old, new)
            ):
                renamed[new] = renamed.pop(old)
                moved[new] = moved.pop(old, old)
    names = {str(old): str(new) for new, old in moved.items()}
    if names:
        renamed = {address: rename_dependencies(one, names) for address, one in renamed.items()}
    return renamed, moved


def rename_dependencies(entry: Entry, names: Mapping[str, str]) -> Entry:
    """Return the entry with its dependencies renamed."""
    return replace(entry, depends_on=[names.get(text, text) for text in entry.depends_on])


def _is_domain_rename(workspace: Workspace, old: Address, new: Address) -> bool:
    """Check whether only the domain was renamed.

    A resource that left the files at the same time moves too, and is deleted at the new address.
    """
    return (
        old.domain not in workspace.domains
        and new.domain in workspace.domains
        and (old.kind, old.name) == (new.kind, new.name)
    )


def apply_moves_to_records(
    workspace: Workspace, records: Mapping[str, dict[str, Any]]
) -> tuple[dict[Address, dict[str, Any]], dict[Address, Address]]:
    """Rename unfinished steps as `apply_moves` renames entries."""
    steps = {Address.parse(text): step for text, step in records.items()}
    placeholder = Entry({}, {}, "", "created", prevent_destroy=False, depends_on=[], applied_at="")
    _, moved = apply_moves(workspace, dict.fromkeys(steps, placeholder))
    old_names = {old: new for new, old in moved.items()}
    return {old_names.get(address, address): step for address, step in steps.items()}, moved


def select_addresses(inputs: PlanInputs, candidates: frozenset[Address]) -> frozenset[Address]:
    """Select addresses by `--target`, with their dependencies, and `--exclude`.

    An import takes those contents of buckets that it names as contents.
    A destroy and an import do not include the dependencies of a target.
    """
    options = inputs.options
    chosen = candidates
    if options.imports:
        named = [glob for glob in options.imports if names_content(glob)]
        chosen = frozenset(a for a in chosen if not a.is_content or matches_any(named, a))
    if options.targets:
        chosen = frozenset(a for a in candidates if matches_any(options.targets, a))
        if options.imports:
            new = inputs.workspace.resources.keys() - inputs.entries.keys()
            chosen = frozenset(a for a in chosen if a in new)
        elif not options.destroy:
            chosen = _with_dependencies(inputs, chosen, candidates)
    if not options.excludes:
        return chosen
    return frozenset(a for a in chosen if not matches_any(options.excludes, a))


def _with_dependencies(
    inputs: PlanInputs, chosen: frozenset[Address], candidates: frozenset[Address]
) -> frozenset[Address]:
    todo, seen = list(chosen), set(chosen)
    while todo:
        for other in inputs.topology.dependencies.get(todo.pop(), ()):
            if other in candidates and other not in seen:
                seen.add(other)
                todo.append(other)
    return frozenset(seen)
