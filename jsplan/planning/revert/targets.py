"""Three-way decisions: the state that each resource of a reverted apply returns to.

It compares what the apply found, what it left and what is live now. If something that the apply
changed has changed since, nothing is guessed: that is a conflict, which names the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.base import digest
from jsplan.documents.plan_types import RESET_IN_PLACE
from jsplan.facts.live import Live, LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.relocation.progress import RELOCATES
from jsplan.planning.revert.costs import warn_of_losses
from jsplan.planning.revert.values import field_label, format_value
from jsplan.resources.fields import Config
from jsplan.state.document import Entry, State

#: The code of a resource that a revert cannot change, because it has changed since the apply.
CONFLICT: Final = "JS307"
#: The code of a resource that a revert does not change.
LEFT_UNCHANGED: Final = "JS493"

RevertAction = Literal["changed", "made", "removed", "forgotten", "taken back"]
HistoryItem = Mapping[str, Any]


class RevertTarget(Struct, frozen=True):
    """The state that one resource should return to.

    `body` has all fields that it should have, with None for the server's default. It is None for a
    resource that is deleted. `state_record` is what state had of it (`declared`, `origin`,
    `prevent_destroy`, `depends_on`). It is empty if state had nothing: the resource is then
    forgotten at the end.
    """

    address: Address
    action: RevertAction
    body: Config | None = None
    state_record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_released(self) -> bool:
        """Check whether it is forgotten after it is reverted: the apply had adopted it."""
        return self.body is not None and not self.state_record


class RevertDecisions(Struct):
    """The targets, the conflicts, the notes, and the resources in offline domains."""

    targets: list[RevertTarget] = field(default_factory=list)
    conflicts: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)
    offline: set[Address] = field(default_factory=set)


class CurrentState(Struct, frozen=True):
    """The current state and live side, with the later applies by address, the newest last."""

    state: State
    live: Live
    domains: frozenset[str]
    later_applies: Mapping[str, Sequence[HistoryItem]] = field(default_factory=dict)

    def entry(self, address: Address) -> Entry | None:
        """Return the entry in state."""
        return self.state.resources.get(address)

    def is_interrupted(self, address: Address) -> bool:
        """Check whether its replacement, or that of its stream, is interrupted."""
        return not {str(address), str(address.parent)}.isdisjoint(self.state.replacements)

    def find_relocation(self, address: Address) -> Mapping[str, Any] | None:
        """Return the record of an interrupted relocation that the resource is a part of."""
        stream = str(address.parent or address)
        return next(
            (
                record
                for target, record in self.state.replacements.items()
                if RELOCATES in record and stream in (target, record[RELOCATES])
            ),
            None,
        )

    def describe_later_apply(self, address: Address) -> str:
        """Describe the last apply that changed it later, as far as the history knows."""
        known = self.later_applies.get(str(address), ())
        if not known:
            return ""
        last = known[-1]
        return f" ({last['operation']} {last['id']} of {last['who']}, {last['at']})"


def decide_revert(
    changes: Iterable[HistoryItem], current: CurrentState, backup: str | None = None
) -> RevertDecisions:
    """Decide how to revert the changes of one apply; `backup` is where it saved streams."""
    out, entries, changes = RevertDecisions(), set[Address](), list(changes)
    for item in changes:
        address = Address.parse(item["address"])
        if item["status"] == "skipped":
            continue
        if address.is_content:
            entries.add(address)  # `entries` decides on them
            continue
        if address.domain not in current.domains:
            out.conflicts.append(
                _conflict(address, f"its domain {address.domain} is no longer declared")
            )
        elif not current.live.is_reachable(address.domain):
            out.offline.add(address)
        elif (relocation := current.find_relocation(address)) is not None:
            _decide_relocated(out, address, item, relocation)
        elif (sides := _finished_relocation(item, current)) is not None:
            _refuse_relocated(out, address, *sides, changes)
        elif current.is_interrupted(address):
            _decide_interrupted(out, address, item, current)
        else:
            _decide_resource(out, address, item, current, backup)
    _add_prepared_origins(out, current)
    _require_no_new_consumers(out, current, entries)
    return out


def _add_prepared_origins(out: RevertDecisions, current: CurrentState) -> None:
    """Keep the origin of a dropped copy unchanged, where the apply only prepared it."""
    decided = {target.address: target.action for target in out.targets}
    for target, action in decided.items():
        record = current.state.replacements.get(str(target), {})
        if action != "removed" or RELOCATES not in record:
            continue
        origin = Address.parse(record[RELOCATES])
        entry = current.entry(origin)
        if origin not in decided and entry is not None:
            known = {
                "declared": entry.declared,
                "origin": entry.origin,
                "depends_on": entry.depends_on,
                "prevent_destroy": entry.prevent_destroy,
            }
            body = dict(entry.config)
            out.targets.append(RevertTarget(origin, "changed", body, known))


def _finished_relocation(
    item: HistoryItem, current: CurrentState
) -> tuple[Address, Address] | None:
    """Return origin and target of a relocation that is done and that the item is a part of."""
    here, origin, target = (
        Address.parse(text) if (text := item.get(key)) else None
        for key in ("address", "relocated_from", "relocated_to")
    )
    assert here is not None
    if origin is None and target is None:
        return None
    found = (origin or here, target or here)
    return found if current.entry(found[1]) is not None else None


def _refuse_relocated(
    out: RevertDecisions,
    address: Address,
    origin: Address,
    target: Address,
    changes: Iterable[HistoryItem],
) -> None:
    """Refuse to undo a finished relocation: the target has all messages, and newer ones."""
    if address.kind == "consumer":
        return  # its stream says it
    text = f"was relocated from {origin} to {target}, which has the messages now"
    entries = [(target, origin), *_renamed_consumers(target, changes)]
    written = ", ".join(f"{{from: {here}, to: {there}}}" for here, there in entries)
    instead = "instead of the entry there" if len(entries) == 1 else "instead of the entries there"
    hint = (
        f"Relocate it back: declare {origin} in the files and not {target}, write relocate: "
        f"[{written}] {instead}, and run jsplan apply."
    )
    out.conflicts.append(_conflict(address, text, hint))


def _renamed_consumers(
    target: Address, changes: Iterable[HistoryItem]
) -> Iterator[tuple[Address, Address]]:
    """Yield the consumers that got another name with their stream: the new one, and the old one."""
    for item in changes:
        here, origin = Address.parse(item["address"]), item.get("relocated_from")
        if here.parent == target and origin is not None:
            old = Address.parse(origin)
            if old.consumer != here.consumer:
                yield here, old


def _decide_relocated(
    out: RevertDecisions, address: Address, item: HistoryItem, record: Mapping[str, Any]
) -> None:
    """Give the origin of an interrupted relocation its configuration back, and drop the copy."""
    if record["phase"] in ("activating", "activated"):
        text = f"its relocation to {record['address']} was interrupted after that was activated"
        hint = "Finish it: jsplan apply. Then relocate the stream back, if you want to."
        out.conflicts.append(_conflict(address, text, hint))
    elif str(address.parent or address) == record["address"]:
        out.targets.append(RevertTarget(address, "removed"))
    elif item["before"] is not None:
        out.targets.append(
            RevertTarget(address, "changed", dict(item["before"]), _restored_record(item))
        )


def _decide_interrupted(
    out: RevertDecisions, address: Address, item: HistoryItem, current: CurrentState
) -> None:
    """Return a stream with an interrupted replacement, and its consumers, to the earlier state."""
    record = current.state.replacements.get(str(address.parent or address), {})
    before = item["before"] if "staging" in record else None
    known = record.get("old", {}).get("config") if address.parent is None else before
    if (
        before is not None
        and known is not None
        and table_of(address).compact(before) == table_of(address).compact(known)
    ):
        out.targets.append(RevertTarget(address, "changed", dict(before), _restored_record(item)))
        return
    text = "its replacement was interrupted" + (
        ", and it was something else before that" if "staging" in record else ""
    )
    out.conflicts.append(
        _conflict(
            address,
            text,
            f"Finish the replacement first: jsplan apply. {_resolution_hint(address)}",
        )
    )


def _conflict(address: Address, summary: str, detail: str = "") -> Diagnostic:
    return Diagnostic("error", CONFLICT, summary, detail or _resolution_hint(address), str(address))


def _resolution_hint(address: Address) -> str:
    return f"Leave it out with --exclude {quote_shell(address)}, or revert the later changes first."


def _unchanged_note(address: Address, summary: str) -> Diagnostic:
    return Diagnostic("info", LEFT_UNCHANGED, summary, "", str(address))


def _decide_resource(
    out: RevertDecisions,
    address: Address,
    item: HistoryItem,
    current: CurrentState,
    backup: str | None,
) -> None:
    found = list(_decide_by_action(address, item, current))
    for outcome in found:
        if isinstance(outcome, RevertTarget):
            out.targets.append(outcome)
        else:
            (out.conflicts if outcome.severity == "error" else out.notes).append(outcome)
    if any(isinstance(outcome, RevertTarget) for outcome in found):
        out.notes += warn_of_losses(item, backup)


def _decide_by_action(
    address: Address, item: HistoryItem, current: CurrentState
) -> Iterator[RevertTarget | Diagnostic]:
    match item["actions"]:
        case ["create"]:
            yield from _revert_create(address, item, current)
        case ["delete"]:
            yield from _revert_delete(address, item, current)
        case ["forget"]:
            yield from _revert_forget(address, item, current)
        case ["no-op"] if item.get("importing"):
            yield from _revert_import(address, current)
        case ["no-op"]:
            yield _unchanged_note(address, "was only renamed: the files decide its name")
        case _:
            yield from _revert_update(address, item, current)


def _revert_create(
    address: Address, item: HistoryItem, current: CurrentState
) -> Iterator[RevertTarget | Diagnostic]:
    live, entry, after = current.live.get(address), current.entry(address), item["after"] or {}
    if entry is None:
        if live is not None and item["status"] == "done":
            yield _conflict(
                address,
                f"is no longer managed here{current.describe_later_apply(address)}, "
                "so it is not deleted",
            )
        return
    if after.get("created") not in (None, entry.created):
        yield _conflict(address, f"was recreated since{current.describe_later_apply(address)}")
    elif (
        live is not None
        and after.get("created")
        and (differs := _describe_changes(address, live, entry, after))
    ):
        yield _conflict(
            address,
            f"was changed since{current.describe_later_apply(address)}, and would be deleted",
            differs,
        )
    else:
        yield RevertTarget(address, "removed")


def _describe_changes(address: Address, live: LiveObject, entry: Entry, after: HistoryItem) -> str:
    """Describe what has changed since the apply, as far as that is known; empty if nothing."""
    if digest(live.compact) == f"sha256:{after['sha256']}":
        return ""
    recorded = table_of(address).compact(entry.config)
    names = [
        name
        for name in dict.fromkeys([*recorded, *live.compact])
        if recorded.get(name) != live.compact.get(name)
    ]
    differences = [
        f"{field_label(address, n)} was {format_value(address, n, recorded.get(n))} when last "
        f"applied, and is {format_value(address, n, live.compact.get(n))}"
        for n in names
    ]
    hint = (
        "To delete it anyway: remove it from the files, and apply. "
        f"Or leave it out with --exclude {quote_shell(address)}."
    )
    return "\n".join([*differences, hint])


def _revert_delete(
    address: Address, item: HistoryItem, current: CurrentState
) -> Iterator[RevertTarget | Diagnostic]:
    before, live = item["before"], current.live.get(address)
    if before is None:
        return
    same = live is not None and live.compact == table_of(address).compact(before)
    if current.entry(address) is not None and same:
        yield _unchanged_note(address, "is there, as it was before")
        return
    if current.entry(address) is not None:
        yield _conflict(
            address,
            f"is there again{current.describe_later_apply(address)}, and is not what it was",
        )
        return
    if live is not None and not same:
        yield _conflict(
            address,
            "was created again outside jsplan, and differs from what was deleted",
        )
        return
    yield RevertTarget(address, "made", dict(before), _restored_record(item))


def _revert_forget(
    address: Address, item: HistoryItem, current: CurrentState
) -> Iterator[RevertTarget | Diagnostic]:
    live = current.live.get(address)
    if item["reason"] != "forget_because_removed_block":
        yield _unchanged_note(address, "was deleted before: the apply only recorded that")
    elif current.entry(address) is not None:
        yield _unchanged_note(address, "is managed here again")
    elif live is None:
        yield _conflict(address, "was left on the server, and was deleted since")
    else:
        yield RevertTarget(address, "taken back", dict(live.config), _restored_record(item))


def _revert_import(address: Address, current: CurrentState) -> Iterator[RevertTarget | Diagnostic]:
    if current.entry(address) is not None:
        yield RevertTarget(address, "forgotten")


def _describe_kept(address: Address, item: Mapping[str, Any]) -> str:
    """Describe what a change did besides the configuration, which no revert takes back."""
    replaced = address.kind == "consumer" and item["actions"] == ["create", "delete"]
    if replaced or item.get("reason") == RESET_IN_PLACE:
        return ". Its position stays where it is"
    return ""


def _revert_update(
    address: Address, item: HistoryItem, current: CurrentState
) -> Iterator[RevertTarget | Diagnostic]:
    """Revert an update or a replacement: each changed field goes back, all others stay."""
    live, entry, after = current.live.get(address), current.entry(address), item["after"] or {}
    if live is None or entry is None:
        if item["status"] != "done" and live is None:
            yield RevertTarget(address, "made", dict(item["before"]), _restored_record(item))
        else:
            yield _conflict(
                address,
                "was deleted since"
                if live is None
                else f"is no longer managed here{current.describe_later_apply(address)}",
            )
        return
    before = table_of(address).compact(item["before"])
    changed: Mapping[str, Any] = after.get("values", {})
    if conflicts := _describe_conflicts(address, before, changed, live.compact):
        yield _conflict(
            address,
            f"was changed since{current.describe_later_apply(address)}",
            "\n".join([*conflicts, _resolution_hint(address)]),
        )
        return
    if all(live.compact.get(name) == before.get(name) for name in changed):
        if item.get("importing"):
            yield RevertTarget(address, "forgotten")
        else:
            kept = _describe_kept(address, item)
            yield _unchanged_note(address, f"has the configuration that it had before{kept}")
        return
    yield RevertTarget(
        address,
        "changed",
        _restored_body(live, item["before"], changed, entry),
        _restored_record(item, entry, changed),
    )


def _describe_conflicts(
    address: Address, before: Config, changed: Mapping[str, Any], now: Config
) -> list[str]:
    """Describe the fields that are neither as the apply left them nor as it found them."""
    names = [name for name in changed if now.get(name) not in (changed[name], before.get(name))]
    return [
        f"{field_label(address, name)} was {format_value(address, name, before.get(name))} before, "
        f"{format_value(address, name, changed[name])} after it, "
        f"and is {format_value(address, name, now.get(name))} now"
        for name in names
    ]


def _restored_body(
    live: LiveObject, config: Config, changed: Mapping[str, Any], entry: Entry
) -> Config:
    """Return every field by name; only what had a default gets one."""
    names = dict.fromkeys([*live.compact, *entry.declared, *changed])
    return {name: live.config.get(name) for name in names} | {
        name: config.get(name) for name in changed
    }


def _restored_record(
    item: HistoryItem, entry: Entry | None = None, changed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the state record to restore; fields that the apply did not change keep their own."""
    known = item["entry"]
    if known is None:
        return {}
    out = {name: known[name] for name in ("declared", "origin", "depends_on", "prevent_destroy")}
    if entry is not None:
        declared, touched = known["declared"], changed or {}
        unchanged = {name: value for name, value in entry.declared.items() if name not in touched}
        out |= {
            "declared": unchanged | {name: declared[name] for name in touched if name in declared},
            "prevent_destroy": entry.prevent_destroy,
        }
    return out


def _require_no_new_consumers(
    out: RevertDecisions, current: CurrentState, entries: set[Address]
) -> None:
    """Refuse to delete a stream to which managed consumers, or entries, were added since."""
    removed = {target.address for target in out.targets if target.action == "removed"}
    for address in sorted(current.state.resources):
        if address.parent in removed and address not in removed | entries:
            out.conflicts.append(
                _conflict(
                    address,
                    f"was added since{current.describe_later_apply(address)}, "
                    f"and would be deleted with {address.parent}",
                )
            )
