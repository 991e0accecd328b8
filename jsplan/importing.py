"""The selection of an import, from addresses, globs and live objects; and its new file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import KINDS, Address, is_glob, matches, matches_any, names_content
from jsplan.codegen import CodegenContext, GeneratedFile, ResourceToWrite, generate_document
from jsplan.codegen.layout import escape_references
from jsplan.codegen.references import has_own_domain_origin
from jsplan.config.expand import DomainSelectors, has_range
from jsplan.config.findings import Findings
from jsplan.config.model import LoadOptions
from jsplan.config.node import Source, from_plain
from jsplan.config.overrides import read_existing_defaults
from jsplan.context import Context, state_bucket
from jsplan.diagnostics import Diagnostic, list_known
from jsplan.disk import exists, is_folder
from jsplan.errors import JsplanError, PlanError, StalePlanError, UsageError
from jsplan.facts.contents import list_contents, read_entries
from jsplan.facts.live import Live, LiveObject, is_backfill_incomplete
from jsplan.facts.reader import read_into
from jsplan.facts.unmanaged import is_state_bucket, may_be_listed
from jsplan.jetstream import Pool
from jsplan.planning.ownership import owner_of
from jsplan.resources import TABLES
from jsplan.resources.contents import CONTENTS
from jsplan.resources.kv_entry import MAX_SHOWN, TTL, readable_text
from jsplan.topology.routes import is_import
from jsplan.units import format_timestamp

#: Addresses that a reason lists at most.
MAX_LISTED = 5


def expand_globs(context: Context, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Expand selectors of domains: `label:edge`, `store-{001..100}`, `!store-099`.

    Raises UsageError for one that matches no domain.
    """
    domains = context.workspace.domains
    out: dict[str, None] = {}
    for text in addresses:
        key, _, rest = text.partition("/")
        if key.startswith(("label:", "!")) or has_range(key):
            found = DomainSelectors(domains, Findings()).select(
                from_plain(key, (Source(context.workspace.root, text), 0, 0))
            )
            if not found:
                raise UsageError(
                    f"{key} matches no domain",
                    hint="Labels are given under `domains:` in jsplan.yaml.",
                )
            out |= dict.fromkeys(f"{name}/{rest}" for name in found)
        elif rest == "**" and key not in domains and not is_glob(key):
            raise UsageError(f'there is no domain "{key}". {list_known("domains", domains, key)}')
        else:
            out[text] = None
    return tuple(out)


def find_problems(text: str, declared: set[Address], managed: set[Address]) -> list[Diagnostic]:
    """Return why an address or glob cannot be imported: it is in no file, or managed."""
    try:
        named = {text} if is_glob(text) else {str(Address.parse(text))}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not any(matches(glob, address) for glob in named for address in declared):
        detail = (
            "Declare it first; the plan shows what differs from what is live."
            " Or have it written: --generate-config NAME.jsplan.yaml."
        )
        return [Diagnostic("error", "JS418", "is in no file", detail, text)]
    if not is_glob(text) and Address.parse(text) in managed:
        return [
            Diagnostic("error", "JS419", "is managed already", "There is nothing to import.", text)
        ]
    return []


# --- the objects that no file declares ------------------------------------------------------------


class ImportSelection(Struct):
    """Resources to write, and skipped ones by reason."""

    selected: list[LiveObject] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, reason: str, what: object) -> None:
        """Record why something is not written."""
        self.skipped.setdefault(reason, []).append(str(what))


def select_objects(context: Context, live: Live, globs: tuple[str, ...]) -> ImportSelection:
    """Select the live objects that the globs name, no file declares, and a file can declare."""
    selection = ImportSelection()
    exact = {glob for glob in globs if not is_glob(glob)}
    for key, facts in live.domains.items():
        if not facts.reachable:
            selection.skip(
                f"it is offline, and nothing is known of it: {facts.short_reason}", f"domain {key}"
            )
    for key in live.domains:
        if is_import(context.workspace.domains[key]) and any(
            is_glob(glob) and matches_domain(glob, key) for glob in globs
        ):
            selection.skip(
                "objects of another account are not listed; name the addresses",
                f"domain {key}",
            )
    for key, why in live.unlisted.items():
        selection.skip(f"it cannot be listed: {why}", f"domain {key}")
    for address, why in sorted(live.unreadable.items()):
        if matches_any(globs, address):
            selection.skip(f"its server cannot read it: {why}", address)
    for address, found in sorted(live.objects.items()):
        if address not in context.workspace.resources and matches_any(globs, address):
            reason = _skip_reason(context, live, found, by_name=str(address) in exact)
            if reason:
                selection.skip(reason, address)
            else:
                selection.selected.append(found)
    return selection


def exact_addresses(globs: Iterable[str]) -> list[Address]:
    """Return the addresses among the globs."""
    return [Address.parse(glob) for glob in globs if not is_glob(glob)]


def require_existing(context: Context, live: Live, exact: Iterable[Address]) -> None:
    """Raise PlanError for exact addresses that are in no file and not on the server."""
    offline = [key for key, facts in live.domains.items() if not facts.reachable]
    missing = [
        a
        for a in exact
        if a not in context.workspace.resources
        and a not in live.objects
        and a not in live.unreadable
        and a.domain not in offline
    ]
    if missing:
        detail = "See what exists: jsplan status."
        raise PlanError(
            [
                Diagnostic("error", "JS420", "does not exist on the server", detail, str(address))
                for address in missing
            ]
        )


def matches_domain(glob: str, key: str) -> bool:
    """Return True if the glob may match an address of the domain."""
    return matches(glob.split("/", 1)[0], key) or glob.startswith("**")


async def read_exact(pool: Pool, context: Context, live: Live, exact: Iterable[Address]) -> None:
    """Read exact addresses that no list has: internal consumers, and objects behind an import."""
    for address in exact:
        if (
            address not in live.objects
            and address not in live.unreadable
            and live.is_reachable(address.domain)
        ):
            await read_into(pool.api(context.workspace.domains[address.domain]), live, [address])


async def skip_internal_streams(
    pool: Pool, context: Context, live: Live, globs: tuple[str, ...], selection: ImportSelection
) -> None:
    """Skip streams of the server, and streams that jsplan uses while it works."""
    for key in sorted(live.domains):
        if live.is_reachable(key) and key not in live.unlisted and {"**", f"{key}/**"} & set(globs):
            for name in await pool.api(context.workspace.domains[key]).stream_names():
                address = Address.of_stream(key, name)
                if not may_be_listed(address):
                    selection.skip(
                        "it is the server's own, or jsplan uses it while it works",
                        address,
                    )


def _skip_reason(context: Context, live: Live, found: LiveObject, *, by_name: bool) -> str | None:
    """Return the reason why it is not written, or None."""
    address = found.address
    stream = live.get(address.parent) if address.parent else found
    if _is_internal(context, stream or found):
        return "jsplan keeps its own state there, or is working on it"
    if address in context.state.resources:
        return (
            "this workspace manages it, and it has left the files:"
            " put it back there, or let the next apply delete it"
        )
    if _is_owned_elsewhere(context, found):
        return f"it has the owner tag of another workspace ({owner_of(found)})"
    if found.is_ephemeral and not by_name:
        return (
            "it is not durable and comes and goes with its client;"
            " name its address to have it written"
        )
    if not by_name and matches_any(context.workspace.drift.ignore, address):
        return "`drift: ignore` names it"
    return _undeclarable_reason(context, found)


def _is_internal(context: Context, stream: LiveObject) -> bool:
    return (
        is_state_bucket(stream)
        or stream.address in state_bucket(context.workspace)
        or is_backfill_incomplete(stream.raw)
    )


def _is_owned_elsewhere(context: Context, found: LiveObject) -> bool:
    owner = owner_of(found)
    return owner is not None and owner.rpartition("/")[2] != context.state.ownership.get("id")


def _undeclarable_reason(context: Context, found: LiveObject) -> str | None:
    address = found.address
    key = "name" if address.kind in ("stream", "consumer") else "bucket"
    try:
        TABLES[address.kind].by_name[key].parse(
            address.consumer if address.kind == "consumer" else address.name
        )
    except ValueError as error:
        return f"its name cannot be in the files: {error}"
    if address.kind != "consumer" and has_own_domain_origin(
        address, found.raw, CodegenContext(context.workspace.domains, context.topology.routes)
    ):
        return (
            "one of its origins leads back to its own domain, so that nothing is ever copied;"
            " correct that first"
        )
    return None


class GeneratedConfig(Struct, frozen=True):
    """The resources of a generated file, and the workspace around it."""

    resources: tuple[ResourceToWrite, ...]
    surroundings: CodegenContext

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses that the file declares."""
        return tuple(each.address for each in self.resources)

    def render(self) -> GeneratedFile:
        """Return the text of the file."""
        return generate_document(self.resources, self.surroundings, _title_lines(self.addresses))

    def without(self, excluded: Collection[Address]) -> GeneratedConfig:
        """Return the configuration without some resources, which others may still refer to."""
        other = {
            each.address: each.config
            for each in self.resources
            if each.address in excluded and each.address.kind != "consumer"
        }
        surroundings = replace(
            self.surroundings, other_streams={**self.surroundings.other_streams, **other}
        )
        return GeneratedConfig(
            tuple(each for each in self.resources if each.address not in excluded), surroundings
        )


def build_codegen_context(load: LoadOptions, context: Context, live: Live) -> CodegenContext:
    """Build what the generated file depends on: domains, levels, other streams, defaults."""
    existing = read_existing_defaults(load)
    domains = context.workspace.domains
    return CodegenContext(
        domains,
        context.topology.routes,
        levels={key: facts.level for key, facts in live.domains.items()},
        account_infos={key: facts.info for key, facts in live.domains.items()},
        other_streams={
            address: found.config
            for address, found in live.objects.items()
            if address.kind != "consumer"
        },
        existing_defaults=existing.fields,
        extractable_kinds=frozenset(
            kind
            for kind in KINDS
            if kind not in existing.declared_kinds and kind not in existing.fields
        ),
        default_domain=existing.domain if existing.domain in domains else None,
        may_set_default_domain=existing.domain is None,
        now=format_timestamp(),
    )


def _title_lines(addresses: Iterable[Address]) -> list[str]:
    domains = list(dict.fromkeys(address.domain for address in addresses))
    where = ", ".join(domains[:MAX_LISTED]) + (
        f" and {len(domains) - MAX_LISTED} more" if len(domains) > MAX_LISTED else ""
    )
    return [f"Generated by jsplan import from {where}. Edit freely."]


# --- the new file ---------------------------------------------------------------------------------


def require_new(path: Path) -> None:
    """Raise if the file exists or cannot be created, before any request to a server."""
    if exists(path):
        raise JsplanError(
            f"{path} exists; nothing was written",
            hint="Give another file; what is in no file yet is written there.",
        )
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"{path.name} would contain YAML",
            hint="Name it NAME.jsplan.yaml, which every workspace reads.",
        )
    if not is_folder(path.parent):
        raise JsplanError(
            f"cannot write {path}: there is no such folder",
            hint="Make the folder, or give another file.",
        )


class NewFile(Struct):
    """A new file; it is removed again unless `keep` is set."""

    path: Path
    keep: bool = False


@contextmanager
def create_new_file(path: Path, text: str) -> Iterator[NewFile]:
    """Create a file for the length of the context. Raises JsplanError if that fails."""
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
    new_file = NewFile(path)
    try:
        yield new_file
    except StalePlanError:
        new_file.keep = False  # nothing was imported
        raise
    finally:
        if not new_file.keep:
            path.unlink(missing_ok=True)


def require_loaded(context: Context, addresses: Iterable[Address], path: Path) -> None:
    """Raise if the workspace does not read the file: the next plan would delete its resources."""
    if any(address not in context.workspace.resources for address in addresses):
        raise UsageError(
            f"this workspace does not read {path}, so that nothing in it would be declared;"
            " it was removed again",
            hint="Name it NAME.jsplan.yaml beside jsplan.yaml,"
            " or let an `include` of jsplan.yaml match it.",
        )


# --- entries of buckets ---------------------------------------------------------------------------

NOT_TEXT: Final = f"its value is no text of at most {MAX_SHOWN:,} bytes; put it into a `file:`"
HAS_TTL: Final = "it expires"


async def read_selected_entries(
    pool: Pool, context: Context, live: Live, globs: Iterable[str], selection: ImportSelection
) -> dict[Address, dict[str, str]]:
    """Return the values to declare, by bucket and key: those of selected buckets.

    Raises UsageError for a bucket that is in the files already: a generated file cannot add to it.
    """
    wanted = [glob for glob in globs if names_content(glob)]
    found: dict[Address, dict[str, str]] = {}
    if not wanted:
        return found
    _require_generated(context, wanted, selection)
    for bucket in selection.selected:
        if bucket.address.kind != "kv":
            continue
        api = pool.api(context.workspace.domains[bucket.address.domain])
        keys = [
            address
            for address in await list_contents(api, bucket.address, "")
            if matches_any(wanted, address) and CONTENTS["kv_entry"].is_name(address.key)
        ]
        level = live.domains[bucket.address.domain].level
        for address, entry in sorted((await read_entries(api, bucket, keys, level)).items()):
            text = readable_text(entry.content or b"")
            if entry.raw.get(TTL):
                selection.skip(HAS_TTL, address)
            elif text is None:
                selection.skip(NOT_TEXT, address)
            else:
                found.setdefault(bucket.address, {})[address.key] = escape_references(text)
    return found


def _require_generated(context: Context, globs: list[str], selection: ImportSelection) -> None:
    buckets = {found.address for found in selection.selected}
    for glob in globs:
        domain, kind, *rest = glob.split("/")
        bucket = Address(domain, "kv", rest[0] if rest else "")
        if kind != "kv_entry" or (not is_glob(f"{domain}/{bucket.name}") and bucket not in buckets):
            declared = bucket in context.workspace.resources
            what = "is in the files already" if declared else "is not imported by this command"
            raise UsageError(
                f"{glob}: no generated file can declare it: {bucket} {what}"
                if kind == "kv_entry"
                else f"{glob}: only entries of KV buckets can be written to a generated file",
                hint="Declare it under `entries:`, `objects:` or `schedules:` there. The next "
                "apply imports what is equal without a write."
                if declared or kind != "kv_entry"
                else f"Name the bucket too: {bucket}.",
            )
