"""Selects what a revert undoes: the changes of an entry of the history. Pure.

Losses that no revert undoes are kept in the history, and shown by a revert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jsplan.address import Address, is_selected, matches
from jsplan.config.model import Workspace
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.apply import STATE_COMMANDS
from jsplan.documents.plan import Hazard
from jsplan.errors import JsplanError, RefusedError, UsageError
from jsplan.planning.transfer.progress import is_transfer
from jsplan.resources.buckets import nouns_of
from jsplan.state.document import State
from jsplan.state.history import JsonObject, unpack_changes
from jsplan.units import count_text

#: Sessions that changed only state: there is nothing on a server to undo.
STATE_ONLY_OPERATIONS: Final = (*STATE_COMMANDS, "refresh")
#: Hazards whose effect stays whatever the configuration is later, and the text for each.
_LOSS_TEXTS = {
    "DELETES_STREAM": "{messages} that were deleted with the {object} cannot be restored",
    "DELETES_MESSAGES": "{messages} that were deleted cannot be restored",
    "LOSES_CONSUMER_POSITION": "the position that the consumer had does not come back",
    "DELETES_CONSUMER": "the position that the consumer had does not come back",
    "DUPLICATES_MESSAGES": "messages that were stored or delivered twice stay so",
}


def entry_name(entry: JsonObject) -> str:
    """Return how messages call an entry, such as `apply 12`."""
    return f"{entry['operation']} {entry['id']}"


def select_changes(
    entry: JsonObject,
    targets: Sequence[str],
    excludes: Sequence[str],
    workspace: Workspace,
    state: State,
) -> list[JsonObject]:
    """Select by --target and --exclude. A consumer needs the stream that it was deleted with.

    Raises JsplanError for an entry that is not kept in full, UsageError for a glob that matches
    nothing, and RefusedError for a change that no plan undoes.
    """
    changes = _list_changes(entry)
    for option, globs in (("--target", targets), ("--exclude", excludes)):
        for glob in globs:
            if not any(matches(glob, Address.parse(item["address"])) for item in changes):
                raise UsageError(
                    f"{option} {glob} names nothing that {entry_name(entry)} changed",
                    hint=f"See: jsplan history {entry['id']}",
                )
    found = {
        address: item
        for item in changes
        if is_selected(address := Address.parse(item["address"]), targets, excludes)
    }
    deleted = {Address.parse(item["address"]) for item in changes if item["actions"] == ["delete"]}
    selected = {
        address: item
        for address, item in found.items()
        if address.parent not in deleted or address.parent in found
    }
    for address in selected:
        _require_domain(address, workspace)
        _require_finished(address, state)
    _require_not_relocated(entry, selected.values())
    return list(selected.values())


def _list_changes(entry: JsonObject) -> list[JsonObject]:
    if entry["operation"] in STATE_ONLY_OPERATIONS:
        raise JsplanError(
            f"{entry_name(entry)} changed no server, only the state, so there is nothing to plan",
            hint=f"The state before it: jsplan state pull --serial {entry['id'] - 1}."
            " To restore that: jsplan state push --force",
        )
    changes = unpack_changes(entry)
    if changes is None:
        raise JsplanError(
            f"of {entry_name(entry)} only the counts are kept:"
            " it, or what came after it, was too large",
            hint="Restore the files of that time, and apply them.",
        )
    return changes


def _require_domain(address: Address, workspace: Workspace) -> None:
    if address.domain not in workspace.domains:
        glob = quote_shell(f"{address.domain}/**")
        raise RefusedError(
            f"{address} cannot be restored: domain {address.domain} is no longer declared",
            hint=f"Declare it again, or leave it out: --exclude {glob}",
        )


def _require_finished(address: Address, state: State) -> None:
    """Refuse what an interrupted or prepared relocation works on."""
    stream = str(address.parent or address)
    for target, record in state.replacements.items():
        origin = record["origin"] if is_transfer(record) else target
        if origin != target and stream in (target, origin):
            raise RefusedError(
                f"the relocation of {origin} to {target} is not finished",
                hint="Finish it: jsplan apply. To go back instead, put the old declaration into "
                "the files without the relocate entry, and apply.",
            )


def _require_not_relocated(entry: JsonObject, changes: Iterable[JsonObject]) -> None:
    """Refuse a finished relocation: the new stream has all messages, and newer ones."""
    moves = sorted(set(_list_moves(changes)), key=lambda move: (move[0].kind == "consumer", move))
    if not moves:
        return
    written = ", ".join(
        f"{{from: {new}, to: {old}}}"
        for old, new in moves
        if old.parent is None or old.consumer != new.consumer
    )
    pairs = sorted({(old.parent or old, new.parent or new) for old, new in moves})
    origins, targets = (", ".join(map(str, side)) for side in zip(*pairs, strict=True))
    raise RefusedError(
        f"{entry_name(entry)} relocated {origins} to {targets}, which has the messages now",
        hint=f"Relocate it back: declare {origins} in the files and not {targets}, write relocate: "
        f"[{written}] instead of the entries there, and run jsplan apply. "
        "To undo the rest of that apply, leave both and their consumers out with --exclude.",
    )


def _list_moves(changes: Iterable[JsonObject]) -> Iterator[tuple[Address, Address]]:
    """Yield the old and the new address of each relocated stream and consumer."""
    for item in changes:
        here = Address.parse(item["address"])
        if origin := item.get("relocated_from"):
            yield Address.parse(origin), here
        if target := item.get("relocated_to"):
            yield here, Address.parse(target)


def list_later_applies(entries: Sequence[JsonObject], entry: JsonObject) -> dict[str, str]:
    """Return by address the last entry after this one that changed it: `apply 4 of ann, TIME`."""
    return {
        item["address"]: f"{entry_name(other)} of {other['who']}, {other['at']}"
        for other in entries
        if other["id"] > entry["id"]
        for item in unpack_changes(other) or ()
        if item.get("status") != "skipped"
    }


def permanent_cost(hazard: Hazard) -> dict[str, Any] | None:
    """Return what the history keeps of a hazard; None if a revert reverts its effect."""
    if hazard.code not in _LOSS_TEXTS:
        return None
    names = ("messages", "at_least", "at_most", "consumers")
    known = {name: value for name in names if (value := getattr(hazard, name))}
    return {"code": hazard.code} | known


def warn_of_losses(item: Mapping[str, Any], backup: str | None) -> Iterable[Diagnostic]:
    """Warn about the losses of one change, with the place where the messages may still be."""
    if "/consumer/" in item["address"] and item["actions"] in (["delete"], ["delete", "create"]):
        text = _LOSS_TEXTS["DELETES_CONSUMER"]
        yield Diagnostic("warning", "JS491", text, "", str(item["address"]))
        return
    nouns = nouns_of(Address.parse(item["address"]))
    for cost in (cost for cost in item.get("costs", ()) if _has_losses(cost)):
        detail = ""
        if backup and cost["code"] in ("DELETES_STREAM", "DELETES_MESSAGES"):
            kind, _, name = str(item["address"]).partition("/")[2].partition("/")
            word = quote_shell(item["address"])
            detail = (
                f"That apply saved the {kind} before. To restore its {nouns.content} too, "
                f"leave {name} out with --exclude {word} and run: "
                f"jsplan restore {quote_shell(backup)} --target {word}"
            )
        many = _format_messages(cost, nouns.message)
        text = _LOSS_TEXTS[cost["code"]].format(messages=many, object=nouns.object)
        yield Diagnostic("warning", "JS491", text, detail, str(item["address"]))


def _has_losses(cost: Mapping[str, Any]) -> bool:
    """Check whether anything was lost: a stream that was deleted empty lost nothing."""
    return not cost["code"].startswith("DELETES_") or any(
        cost.get(name) for name in ("messages", "at_most", "at_least")
    )


def _format_messages(cost: Mapping[str, Any], noun: str) -> str:
    exact, most = cost.get("messages"), cost.get("at_most")
    count = most or exact or cost.get("at_least") or 0
    bound = "at most " if most and most != cost.get("at_least") else "" if exact else "at least "
    return f"{bound}{count_text(count, noun)}"
