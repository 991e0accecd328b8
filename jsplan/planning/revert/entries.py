"""Three-way decisions of a revert about the entries of KV buckets.

State has digests only, so the value that an entry had comes from the history, which has the text
that the plan showed. A value that the plan did not show cannot be put back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import DeclaredResource, Lifecycle, Workspace
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.facts.live import Live
from jsplan.planning.contents.decide import is_past, is_unknown
from jsplan.planning.revert.plan import FILES_DIFFER, NO_LOCATION
from jsplan.planning.revert.targets import CONFLICT, LEFT_UNCHANGED, HistoryItem
from jsplan.resources.kv_entry import TTL, VALUE, digest_value
from jsplan.state.document import Entry

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}( \([\d,]+ bytes\))?")
_NOT_KNOWN: Final = (
    "keeps its value: the history has only the digest of the old one. "
    "Put the old value into the files, and apply"
)
_SCHEDULE_STAYS: Final = (
    "stays: a revert does not put back schedules. Put the old one into the files, and apply"
)


class EntryReverts(Struct):
    """The value that each entry returns to, None for a key that is deleted; and the findings."""

    targets: dict[Address, bytes | None] = field(default_factory=dict)
    conflicts: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)


def decide_entries(
    changes: Iterable[HistoryItem],
    entries: Mapping[Address, Entry],
    live: Live,
    removed: Iterable[Address],
) -> EntryReverts:
    """Decide on the entries that an apply changed. `removed` are the buckets that go anyway."""
    out, gone = EntryReverts(), set(removed)
    for item in changes:
        address = Address.parse(item["address"])
        if not address.is_content or item["status"] == "skipped" or address.parent in gone:
            continue
        if not live.is_reachable(address.domain):
            out.notes.append(_note(address, "keeps its value: its domain is offline"))
        elif item["actions"] == ["create"]:
            _revert_create(out, address, entries.get(address), live)
        elif item["actions"] == ["update"]:
            _revert_update(out, address, item, live)
        elif item["actions"] != ["no-op"]:
            out.notes.append(_note(address, _NOT_KNOWN))
    return out


def _revert_create(out: EntryReverts, address: Address, entry: Entry | None, live: Live) -> None:
    found = live.get(address)
    if found is None or entry is None:
        out.notes.append(_note(address, "is no longer there, or no longer managed here"))
    elif found.raw != entry.config:
        out.conflicts.append(_conflict(address, "was changed since, and would be deleted"))
    else:
        out.targets[address] = None


def _revert_update(out: EntryReverts, address: Address, item: HistoryItem, live: Live) -> None:
    found, before = live.get(address), (item["before"] or {}).get(VALUE)
    after = ((item["after"] or {}).get("values") or {}).get(VALUE)
    if address.kind == "schedule":
        out.notes.append(
            _note(
                address,
                "stays: a revert does not put back schedules. Put the old one into the files",
            )
        )
    elif TTL in (item["before"] or {}) or TTL in ((item["after"] or {}).get("values") or {}):
        out.notes.append(_note(address, "keeps its value: a revert does not put back a `ttl`"))
    elif not isinstance(before, str) or _DIGEST.fullmatch(before) or item.get("importing"):
        out.notes.append(_note(address, _NOT_KNOWN))
    elif found is not None and found.raw[VALUE] == digest_value(before.encode()):
        out.notes.append(_note(address, "has the value that it had before"))
    elif found is None or found.raw[VALUE] != after:
        out.conflicts.append(_conflict(address, "was changed since"))
    else:
        out.targets[address] = before.encode()


def _note(address: Address, summary: str) -> Diagnostic:
    return Diagnostic("info", LEFT_UNCHANGED, summary, "", str(address))


def _conflict(address: Address, summary: str) -> Diagnostic:
    detail = (
        f"Leave it out with --exclude {quote_shell(address)}, or revert the later changes first."
    )
    return Diagnostic("error", CONFLICT, summary, detail, str(address))


def with_entry_targets(workspace: Workspace, reverts: EntryReverts) -> Workspace:
    """Return the workspace whose only entries are those that get a value back."""
    contents = {}
    for address, content in reverts.targets.items():
        known = workspace.contents.get(address)
        lifecycle = known.lifecycle if known is not None else Lifecycle()
        if content is not None:
            body: dict[str, Any] = {VALUE: digest_value(content)}
            contents[address] = DeclaredResource(
                address, body, NO_LOCATION, lifecycle=lifecycle, content=content
            )
    return replace(workspace, contents=contents, pruned=(), diagnostics=())


def compare_with_files(
    workspace: Workspace,
    reverts: EntryReverts,
    counts: dict[str, int],
    gone: Collection[Address],
    now: datetime,
) -> Iterable[Diagnostic]:
    """Warn about each entry that the next plan changes again, and add it to `counts`.

    `workspace` is that of the files. Entries of the buckets in `gone` are deleted with them, which
    the plan of the revert says there.
    """
    written = sum(
        1
        for address, declared in workspace.contents.items()
        if address.parent in gone
        and address not in reverts.targets
        and not (is_unknown(declared) or is_past(declared, now))
    )
    if written:
        counts["add"] = counts.get("add", 0) + written
    for address, content in sorted(reverts.targets.items()):
        declared = workspace.contents.get(address)
        if (declared.content if declared is not None else None) == content:
            continue
        if declared is None:
            kind, text = "destroy", "no file has it: the next plan deletes it"
        else:
            kind = "add" if content is None else "change"
            text = "the files still contain the change: the next plan writes it again"
        counts[kind] = counts.get(kind, 0) + 1
        place = declared.range if declared is not None else None
        yield Diagnostic(
            "warning", FILES_DIFFER, text, "Change the files too.", str(address), place
        )
