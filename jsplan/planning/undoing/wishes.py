"""What each resource of an apply should be again: three-way, between what the apply found, what it left, and what is there now.

Where something that it changed is no longer as it left it, nothing is guessed: that is a conflict, which says what differs.
Turning wishes into a plan is left to `inverse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, shell_word
from jsplan.documents.base import digest
from jsplan.facts.live import Live, LiveObject
from jsplan.planning.undoing.costs import lost
from jsplan.planning.undoing.values import shown, word
from jsplan.planning.verdict import table_of
from jsplan.resources.fields import Config
from jsplan.state.document import Entry, State

#: What a revert cannot touch, because it is no longer as the apply left it.
CONFLICT: Final = "JS307"
#: What a revert leaves as it is.
LEFT: Final = "JS493"

Becomes = Literal["changed", "made", "removed", "forgotten", "taken back"]
Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wish:
    """What should become of one resource.

    `body` are all fields that it shall have, None for the server's default; none at all where it goes. `remembered` is what state
    had of it (`declared`, `origin`, `prevent_destroy`, `depends_on`); empty where it had nothing, so that it is forgotten in the end.
    """

    address: Address
    becomes: Becomes
    body: Config | None = None
    remembered: Mapping[str, Any] = field(default_factory=dict)

    @property
    def releases(self) -> bool:
        """Whether it is given up once it is as it was: the apply had taken it over."""
        return self.body is not None and not self.remembered


@dataclass(slots=True)
class Undoing:
    """The wishes, what stands in the way, what is worth knowing, and what could not be looked at."""

    wishes: list[Wish] = field(default_factory=list)
    conflicts: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)
    away: set[Address] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Now:
    """What is there now. `later` names, by address, the applies after the one that is undone, the newest last."""

    state: State
    live: Live
    domains: frozenset[str]
    later: Mapping[str, Sequence[Item]] = field(default_factory=dict)

    def entry(self, address: Address) -> Entry | None:
        """What state has of it."""
        return self.state.resources.get(address)

    def half_way(self, address: Address) -> bool:
        """Whether it, or the stream that it belongs to, is being made anew: what is there now is neither before nor after."""
        return not {str(address), str(address.parent)}.isdisjoint(self.state.replacements)

    def since(self, address: Address) -> str:
        """Who changed it after the apply, as far as the history knows."""
        known = self.later.get(str(address), ())
        if not known:
            return ""
        last = known[-1]
        return f" ({last['operation']} {last['id']} of {last['who']}, {last['at']})"


def undoing(changes: Iterable[Item], now: Now, backup: str | None = None) -> Undoing:
    """What undoing these changes of one apply means now; `backup` is where that apply saved streams."""
    out = Undoing()
    for item in changes:
        address = Address.parse(item["address"])
        if item["status"] == "skipped":
            continue
        if address.domain not in now.domains:
            out.conflicts.append(_conflict(address, f"its domain {address.domain} is no longer declared"))
        elif not now.live.reachable(address.domain):
            out.away.add(address)
        elif now.half_way(address):
            _interrupted(out, address, item, now)
        else:
            _one(out, address, item, now, backup)
    _require_no_guests(out, now)
    return out


def _interrupted(out: Undoing, address: Address, item: Item, now: Now) -> None:
    """A stream in the middle of a replacement becomes what it was before that, and its consumers with it."""
    record = now.state.replacements.get(str(address.parent or address), {})
    before = item["before"] if "staging" in record else None
    known = record.get("old", {}).get("config") if address.parent is None else before
    if before is not None and known is not None and table_of(address).compact(before) == table_of(address).compact(known):
        out.wishes.append(Wish(address, "changed", dict(before), _memory(item)))
        return
    text = "its replacement was interrupted" + (", and it was something else before that" if "staging" in record else "")
    out.conflicts.append(_conflict(address, text, f"Finish the replacement first: jsplan apply. {_way_out(address)}"))


def _conflict(address: Address, summary: str, detail: str = "") -> Diagnostic:
    return Diagnostic("error", CONFLICT, summary, detail or _way_out(address), str(address))


def _way_out(address: Address) -> str:
    return f"Leave it out with --exclude {shell_word(address)}, or undo what came later first."


def _left(address: Address, summary: str) -> Diagnostic:
    return Diagnostic("info", LEFT, summary, "", str(address))


def _one(out: Undoing, address: Address, item: Item, now: Now, backup: str | None) -> None:
    found = list(_by_action(address, item, now))
    for one in found:
        if isinstance(one, Wish):
            out.wishes.append(one)
        else:
            (out.conflicts if one.severity == "error" else out.notes).append(one)
    if any(isinstance(one, Wish) for one in found):
        out.notes += lost(item, backup)


def _by_action(address: Address, item: Item, now: Now) -> Iterator[Wish | Diagnostic]:
    match item["actions"]:
        case ["create"]:
            yield from _made(address, item, now)
        case ["delete"]:
            yield from _deleted(address, item, now)
        case ["forget"]:
            yield from _given_up(address, item, now)
        case ["no-op"] if item.get("importing"):
            yield from _taken_over(address, now)
        case ["no-op"]:
            yield _left(address, "was only renamed: what it is called is said by the files")
        case _:
            yield from _changed(address, item, now)


def _made(address: Address, item: Item, now: Now) -> Iterator[Wish | Diagnostic]:
    live, entry, after = now.live.get(address), now.entry(address), item["after"] or {}
    if entry is None:
        if live is not None and item["status"] == "done":
            yield _conflict(address, f"is no longer managed here{now.since(address)}, so it is not deleted")
        return
    if after.get("created") not in (None, entry.created):
        yield _conflict(address, f"was made anew since{now.since(address)}")
    elif live is not None and after.get("created") and (differs := _differs(address, live, entry, after)):
        yield _conflict(address, f"was changed since{now.since(address)}, and would be deleted", differs)
    else:
        yield Wish(address, "removed")


def _differs(address: Address, live: LiveObject, entry: Entry, after: Item) -> str:
    """What is not as the apply left it, as far as that can be known; empty where it is as it was left."""
    if digest(live.compact) == f"sha256:{after['sha256']}":
        return ""
    recorded = table_of(address).compact(entry.config)
    names = [name for name in dict.fromkeys([*recorded, *live.compact]) if recorded.get(name) != live.compact.get(name)]
    told = [
        f"{word(address, n)} was {shown(address, n, recorded.get(n))} when last applied, and is {shown(address, n, live.compact.get(n))}"
        for n in names
    ]
    return "\n".join(
        [*told, f"To delete it all the same: take it out of the files, and apply. Or leave it out with --exclude {shell_word(address)}."]
    )


def _deleted(address: Address, item: Item, now: Now) -> Iterator[Wish | Diagnostic]:
    before, live = item["before"], now.live.get(address)
    if before is None:
        return
    same = live is not None and live.compact == table_of(address).compact(before)
    if now.entry(address) is not None and same:
        yield _left(address, "is there, as it was before")
        return
    if now.entry(address) is not None:
        yield _conflict(address, f"is there again{now.since(address)}, and is not what it was")
        return
    if live is not None and not same:
        yield _conflict(address, "is there again, made by somebody else, and differs from what was deleted")
        return
    yield Wish(address, "made", dict(before), _memory(item))


def _given_up(address: Address, item: Item, now: Now) -> Iterator[Wish | Diagnostic]:
    live = now.live.get(address)
    if item["reason"] != "forget_because_removed_block":
        yield _left(address, "was gone before: the apply only took note of that")
    elif now.entry(address) is not None:
        yield _left(address, "is managed here again")
    elif live is None:
        yield _conflict(address, "was left on the server, and is gone since")
    else:
        yield Wish(address, "taken back", dict(live.config), _memory(item))


def _taken_over(address: Address, now: Now) -> Iterator[Wish | Diagnostic]:
    if now.entry(address) is not None:
        yield Wish(address, "forgotten")


def _changed(address: Address, item: Item, now: Now) -> Iterator[Wish | Diagnostic]:
    """An update or a replacement: each field that it changed goes back, all others stay as they are now."""
    live, entry, after = now.live.get(address), now.entry(address), item["after"] or {}
    if live is None or entry is None:
        if item["status"] != "done" and live is None:
            yield Wish(address, "made", dict(item["before"]), _memory(item))
        else:
            yield _conflict(address, "is gone since" if live is None else f"is no longer managed here{now.since(address)}")
        return
    before = table_of(address).compact(item["before"])
    changed: Mapping[str, Any] = after.get("values", {})
    if told := _clashes(address, before, changed, live.compact):
        yield _conflict(address, f"was changed since{now.since(address)}", "\n".join([*told, _way_out(address)]))
        return
    if all(live.compact.get(name) == before.get(name) for name in changed):
        if item.get("importing"):
            yield Wish(address, "forgotten")
        else:
            yield _left(address, "has the configuration that it had before")
        return
    yield Wish(address, "changed", _body(live, item["before"], changed, entry), _memory(item, entry, changed))


def _clashes(address: Address, before: Config, changed: Mapping[str, Any], now: Config) -> list[str]:
    """The fields that are neither as the apply left them nor as it found them."""
    names = [name for name in changed if now.get(name) not in (changed[name], before.get(name))]
    return [
        f"{word(address, name)} was {shown(address, name, before.get(name))} before, {shown(address, name, changed[name])} after it, "
        f"and is {shown(address, name, now.get(name))} now" for name in names
    ]  # fmt: skip


def _body(live: LiveObject, config: Config, changed: Mapping[str, Any], entry: Entry) -> Config:
    """Every field by name, so that nothing is left to a default but what was at one."""
    names = dict.fromkeys([*live.compact, *entry.declared, *changed])
    return {name: live.config.get(name) for name in names} | {name: config.get(name) for name in changed}


def _memory(item: Item, entry: Entry | None = None, changed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What state shall remember again. Of fields that the apply did not change it remembers what it does now."""
    known = item["entry"]
    if known is None:
        return {}
    out = {name: known[name] for name in ("declared", "origin", "depends_on", "prevent_destroy")}
    if entry is not None:
        was, touched = known["declared"], changed or {}
        kept = {name: value for name, value in entry.declared.items() if name not in touched}
        out |= {"declared": kept | {name: was[name] for name in touched if name in was}, "prevent_destroy": entry.prevent_destroy}
    return out


def _require_no_guests(out: Undoing, now: Now) -> None:
    """Consumers that were added since to a stream that would go: they are managed too, and nobody asked to delete them."""
    going = {wish.address for wish in out.wishes if wish.becomes == "removed"}
    for address in sorted(now.state.resources):
        if address.parent in going and address not in going:
            out.conflicts.append(_conflict(address, f"was added since{now.since(address)}, and would go with {address.parent}"))
