"""What planning works on: the three sides of every comparison, and what was asked for. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from jsplan.address import Address, matches, move_address
from jsplan.config.model import DeclaredResource, Workspace
from jsplan.facts.duplicates import DuplicateCount
from jsplan.facts.live import Live
from jsplan.facts.measurement import Measurement
from jsplan.planning.merge import declared_fields
from jsplan.planning.options import PlanningOptions
from jsplan.planning.origins import with_live_externals
from jsplan.planning.preserve.interrupted import InterruptedReplacement
from jsplan.resources import TABLES
from jsplan.resources.buckets import client_defaults
from jsplan.state.document import Entry, State
from jsplan.topology import Topology


@dataclass(frozen=True, slots=True)
class PlanRequest(PlanningOptions):
    """What a plan was asked to do, and when, free of how it was asked. `now` is UTC."""

    now: datetime = field(kw_only=True)


@dataclass(slots=True)
class PlanInputs:
    """Desired (workspace and topology), live, last applied (`entries`, after `moved`), and the request.

    `moved_from[new] = old` for entries that a `moved` block renamed. `selected` are the addresses to plan,
    `forgotten` those in undeclared domains that are forgotten unread.
    `measurements` is what would be deleted, as far as it was asked for (see `questions`), `duplicate_counts` what would be copied
    once more (see `recopies`); `uncopied_counts` is what sources that go have not copied (see `leaving`);
    `unread[copy][origin]` is why an origin could not be asked.
    `unfinished_steps` are steps that an apply began and never ended, `recovered` those of them that turned out to be done; `recovered_deletions` are the
    resources that such a step deleted, which are no entries any more.
    `replacement_records` are those that an apply began and never ended, `unready_replacements` those whose new object is there and not ready,
    `interrupted` those of streams with how far they came; `detached_sources` are sources that wait for a replacement to end.
    `owner_tag` is the mark of this workspace, empty as long as it has none. `seqs_by_time` are the sequences of the first messages at or after
    a time (one after the last where there is none), as far as they were asked for.
    """

    workspace: Workspace
    topology: Topology
    state: State
    live: Live
    request: PlanRequest
    entries: dict[Address, Entry] = field(default_factory=dict)
    moved_from: dict[Address, Address] = field(default_factory=dict)
    selected: frozenset[Address] = frozenset()
    forgotten: frozenset[Address] = frozenset()
    unfinished_steps: dict[Address, dict[str, Any]] = field(default_factory=dict)
    recovered: set[Address] = field(default_factory=set)
    recovered_deletions: set[Address] = field(default_factory=set)
    replacement_records: dict[Address, dict[str, Any]] = field(default_factory=dict)
    unready_replacements: set[Address] = field(default_factory=set)
    interrupted: dict[Address, InterruptedReplacement] = field(default_factory=dict)
    detached_sources: dict[Address, set[str]] = field(default_factory=dict)
    measurements: dict[Address, list[Measurement]] = field(default_factory=dict)
    duplicate_counts: dict[Address, list[DuplicateCount]] = field(default_factory=dict)
    uncopied_counts: dict[Address, list[DuplicateCount]] = field(default_factory=dict)
    unreadable_origins: dict[Address, dict[Address, str]] = field(default_factory=dict)
    owner_tag: str = ""
    seqs_by_time: dict[tuple[Address, str], int] = field(default_factory=dict)
    _declared_fields: dict[Address, dict[str, Any]] = field(default_factory=dict)

    def declared(self, address: Address) -> DeclaredResource | None:
        """What the files say of it; nothing when everything is to be destroyed."""
        return None if self.request.destroy else self.workspace.resources.get(address)

    def on_replace(self, address: Address) -> str:
        """`refuse`, `recreate` or `preserve`: what the files let a replacement do."""
        declared = self.declared(address)
        said = declared.lifecycle.on_replace if declared else None
        return said or ("preserve" if address.kind == "consumer" else "refuse")

    def body(self, address: Address) -> dict[str, Any]:
        """The declared body with references resolved and the name filled in; an origin that is live is reached as it is live."""
        return with_live_externals(self._named_body(address), address, self.topology, self.live)

    def _named_body(self, address: Address) -> dict[str, Any]:
        name = address.consumer if address.kind == "consumer" else address.stream
        return {"name": name} | self.topology.bodies[address]

    def creation_body(self, address: Address) -> dict[str, Any]:
        """The body of a new object: what the files say, and for a bucket what every client gives it besides."""
        body = self.body(address)
        return body | client_defaults(address.kind, body)

    def declared_fields(self, address: Address) -> dict[str, Any]:
        """What state would remember of the files; worked out once per address, since most of planning asks for it."""
        found = self._declared_fields.get(address)
        if found is None:
            table = TABLES["consumer" if address.kind == "consumer" else "stream"]
            found = self._declared_fields[address] = declared_fields(
                table, self._named_body(address)
            )
        return found

    def level(self, address: Address) -> int:
        """The API level of the address's domain."""
        facts = self.live.domains.get(address.domain)
        return facts.level if facts else 0


def apply_moves(
    workspace: Workspace, entries: Mapping[Address, Entry]
) -> tuple[dict[Address, Entry], dict[Address, Address]]:
    """Entries under the names that `moved` blocks give them, and what each was called before.

    An entry stays where it is when its new name is taken, or is in no file while the old domain is still declared.
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
    return {
        address: rename_dependencies(entry, names) for address, entry in renamed.items()
    } if names else renamed, moved


def rename_dependencies(entry: Entry, names: Mapping[str, str]) -> Entry:
    """The entry with what it depends on under its new names."""
    return replace(entry, depends_on=[names.get(text, text) for text in entry.depends_on])


def _is_domain_rename(workspace: Workspace, old: Address, new: Address) -> bool:
    """What left the files together with its domain's old name goes along, to be deleted under the new one."""
    return (
        old.domain not in workspace.domains
        and new.domain in workspace.domains
        and (old.kind, old.name) == (new.kind, new.name)
    )


def apply_moves_to_records(
    workspace: Workspace, records: Mapping[str, dict[str, Any]]
) -> tuple[dict[Address, dict[str, Any]], dict[Address, Address]]:
    """Steps that never ended, as `apply_moves` does it with entries."""
    steps = {Address.parse(text): step for text, step in records.items()}
    placeholder = Entry({}, {}, "")
    _, moved = apply_moves(workspace, dict.fromkeys(steps, placeholder))
    old_names = {old: new for new, old in moved.items()}
    return {old_names.get(address, address): step for address, step in steps.items()}, moved


def select_addresses(inputs: PlanInputs, candidates: frozenset[Address]) -> frozenset[Address]:
    """The addresses that `--target` (with what they depend on) and `--exclude` leave.

    Deleting takes nothing along that a target depends on.
    """
    request = inputs.request
    chosen = candidates
    if request.targets:
        chosen = frozenset(a for a in candidates if any(matches(t, a) for t in request.targets))
        if request.imports:
            chosen = frozenset(
                a for a in chosen if a in inputs.workspace.resources and a not in inputs.entries
            )
        chosen = (
            chosen
            if request.imports or request.destroy
            else _with_dependencies(inputs, chosen, candidates)
        )
    return frozenset(a for a in chosen if not any(matches(x, a) for x in request.excludes))


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
