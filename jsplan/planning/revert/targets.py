"""What each resource of an apply should be again: three-way, between what the apply found, what it left, and what is there now.

Where something that it changed is no longer as it left it, nothing is guessed: that is a conflict, which says what differs.
Turning wishes into a plan is left to `inverse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.base import digest
from jsplan.facts.live import Live, LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.revert.costs import warn_of_losses
from jsplan.planning.revert.values import field_label, format_value
from jsplan.resources.fields import Config
from jsplan.state.document import Entry, State

#: What a revert cannot touch, because it is no longer as the apply left it.
CONFLICT: Final = "JS307"
#: What a revert leaves as it is.
LEFT_UNCHANGED: Final = "JS493"

RevertAction = Literal["changed", "made", "removed", "forgotten", "taken back"]
HistoryItem = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RevertTarget:
    """What should become of one resource.

    `body` are all fields that it shall have, None for the server's default; none at all where it goes. `state_record` is what state
    had of it (`declared`, `origin`, `prevent_destroy`, `depends_on`); empty where it had nothing, so that it is forgotten in the end.
    """

    address: Address
    action: RevertAction
    body: Config | None = None
    state_record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_released(self) -> bool:
        """Whether it is given up once it is as it was: the apply had taken it over."""
        return self.body is not None and not self.state_record


@dataclass(slots=True)
class RevertDecisions:
    """The wishes, what stands in the way, what is worth knowing, and what could not be looked at."""

    targets: list[RevertTarget] = field(default_factory=list)
    conflicts: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)
    offline: set[Address] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class CurrentState:
    """What is there now. `later_applies` names, by address, the applies after the one that is undone, the newest last."""

    state: State
    live: Live
    domains: frozenset[str]
    later_applies: Mapping[str, Sequence[HistoryItem]] = field(default_factory=dict)

    def entry(self, address: Address) -> Entry | None:
        """What state has of it."""
        return self.state.resources.get(address)

    def is_interrupted(self, address: Address) -> bool:
        """Whether it, or the stream that it belongs to, is being made anew: what is there now is neither before nor after."""
        return not {str(address), str(address.parent)}.isdisjoint(self.state.replacements)

    def describe_later_apply(self, address: Address) -> str:
        """Who changed it after the apply, as far as the history knows."""
        known = self.later_applies.get(str(address), ())
        if not known:
            return ""
        last = known[-1]
        return f" ({last['operation']} {last['id']} of {last['who']}, {last['at']})"


def decide_revert(
    changes: Iterable[HistoryItem], current: CurrentState, backup: str | None = None
) -> RevertDecisions:
    """What undoing these changes of one apply means now; `backup` is where that apply saved streams."""
    out = RevertDecisions()
    for item in changes:
        address = Address.parse(item["address"])
        if item["status"] == "skipped":
            continue
        if address.domain not in current.domains:
            out.conflicts.append(
                _conflict(address, f"its domain {address.domain} is no longer declared")
            )
        elif not current.live.is_reachable(address.domain):
            out.offline.add(address)
        elif current.is_interrupted(address):
            _decide_interrupted(out, address, item, current)
        else:
            _decide_resource(out, address, item, current, backup)
    _require_no_new_consumers(out, current)
    return out


def _decide_interrupted(
    out: RevertDecisions, address: Address, item: HistoryItem, current: CurrentState
) -> None:
    """A stream in the middle of a replacement becomes what it was before that, and its consumers with it."""
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
    return f"Leave it out with --exclude {quote_shell(address)}, or undo what came later first."


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
    for one in found:
        if isinstance(one, RevertTarget):
            out.targets.append(one)
        else:
            (out.conflicts if one.severity == "error" else out.notes).append(one)
    if any(isinstance(one, RevertTarget) for one in found):
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
            yield _unchanged_note(
                address, "was only renamed: what it is called is said by the files"
            )
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
                f"is no longer managed here{current.describe_later_apply(address)}, so it is not deleted",
            )
        return
    if after.get("created") not in (None, entry.created):
        yield _conflict(address, f"was made anew since{current.describe_later_apply(address)}")
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
    """What is not as the apply left it, as far as that can be known; empty where it is as it was left."""
    if digest(live.compact) == f"sha256:{after['sha256']}":
        return ""
    recorded = table_of(address).compact(entry.config)
    names = [
        name
        for name in dict.fromkeys([*recorded, *live.compact])
        if recorded.get(name) != live.compact.get(name)
    ]
    told = [
        f"{field_label(address, n)} was {format_value(address, n, recorded.get(n))} when last applied, and is {format_value(address, n, live.compact.get(n))}"
        for n in names
    ]
    return "\n".join(
        [
            *told,
            f"To delete it all the same: take it out of the files, and apply. Or leave it out with --exclude {quote_shell(address)}.",
        ]
    )


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
            address, "is there again, made by somebody else, and differs from what was deleted"
        )
        return
    yield RevertTarget(address, "made", dict(before), _restored_record(item))


def _revert_forget(
    address: Address, item: HistoryItem, current: CurrentState
) -> Iterator[RevertTarget | Diagnostic]:
    live = current.live.get(address)
    if item["reason"] != "forget_because_removed_block":
        yield _unchanged_note(address, "was gone before: the apply only took note of that")
    elif current.entry(address) is not None:
        yield _unchanged_note(address, "is managed here again")
    elif live is None:
        yield _conflict(address, "was left on the server, and is gone since")
    else:
        yield RevertTarget(address, "taken back", dict(live.config), _restored_record(item))


def _revert_import(address: Address, current: CurrentState) -> Iterator[RevertTarget | Diagnostic]:
    if current.entry(address) is not None:
        yield RevertTarget(address, "forgotten")


def _revert_update(
    address: Address, item: HistoryItem, current: CurrentState
) -> Iterator[RevertTarget | Diagnostic]:
    """An update or a replacement: each field that it changed goes back, all others stay as they are now."""
    live, entry, after = current.live.get(address), current.entry(address), item["after"] or {}
    if live is None or entry is None:
        if item["status"] != "done" and live is None:
            yield RevertTarget(address, "made", dict(item["before"]), _restored_record(item))
        else:
            yield _conflict(
                address,
                "is gone since"
                if live is None
                else f"is no longer managed here{current.describe_later_apply(address)}",
            )
        return
    before = table_of(address).compact(item["before"])
    changed: Mapping[str, Any] = after.get("values", {})
    if told := _describe_conflicts(address, before, changed, live.compact):
        yield _conflict(
            address,
            f"was changed since{current.describe_later_apply(address)}",
            "\n".join([*told, _resolution_hint(address)]),
        )
        return
    if all(live.compact.get(name) == before.get(name) for name in changed):
        if item.get("importing"):
            yield RevertTarget(address, "forgotten")
        else:
            yield _unchanged_note(address, "has the configuration that it had before")
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
    """The fields that are neither as the apply left them nor as it found them."""
    names = [name for name in changed if now.get(name) not in (changed[name], before.get(name))]
    return [
        f"{field_label(address, name)} was {format_value(address, name, before.get(name))} before, {format_value(address, name, changed[name])} after it, "
        f"and is {format_value(address, name, now.get(name))} now"
        for name in names
    ]


def _restored_body(
    live: LiveObject, config: Config, changed: Mapping[str, Any], entry: Entry
) -> Config:
    """Every field by name, so that nothing is left to a default but what was at one."""
    names = dict.fromkeys([*live.compact, *entry.declared, *changed])
    return {name: live.config.get(name) for name in names} | {
        name: config.get(name) for name in changed
    }


def _restored_record(
    item: HistoryItem, entry: Entry | None = None, changed: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What state shall remember again. Of fields that the apply did not change it remembers what it does now."""
    known = item["entry"]
    if known is None:
        return {}
    out = {name: known[name] for name in ("declared", "origin", "depends_on", "prevent_destroy")}
    if entry is not None:
        was, touched = known["declared"], changed or {}
        kept = {name: value for name, value in entry.declared.items() if name not in touched}
        out |= {
            "declared": kept | {name: was[name] for name in touched if name in was},
            "prevent_destroy": entry.prevent_destroy,
        }
    return out


def _require_no_new_consumers(out: RevertDecisions, current: CurrentState) -> None:
    """Consumers that were added since to a stream that would go: they are managed too, and nobody asked to delete them."""
    going = {wish.address for wish in out.targets if wish.action == "removed"}
    for address in sorted(current.state.resources):
        if address.parent in going and address not in going:
            out.conflicts.append(
                _conflict(
                    address,
                    f"was added since{current.describe_later_apply(address)}, and would go with {address.parent}",
                )
            )
