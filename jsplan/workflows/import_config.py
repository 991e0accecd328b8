"""import --generate-config: write live resources that are in no file to a new file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from jsplan.address import KINDS, Address, is_glob, matches
from jsplan.codegen import CodegenContext, GeneratedFile, ResourceToWrite, generate_document
from jsplan.codegen.references import has_own_domain_origin
from jsplan.config.existing_defaults import read_existing_defaults
from jsplan.config.model import LoadOptions
from jsplan.context import Context, known_domains, open_pool, state_bucket
from jsplan.diagnostics import Diagnostic
from jsplan.disk import exists, is_folder
from jsplan.errors import JsplanError, PlanError, StalePlanError, UsageError
from jsplan.facts.inventory import is_state_bucket, may_be_listed
from jsplan.facts.listing import list_live
from jsplan.facts.live import Live, LiveObject, is_backfill_incomplete
from jsplan.facts.reader import read_into
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.planning.ownership import owner_of
from jsplan.resources import TABLES
from jsplan.topology.routes import is_import
from jsplan.units import TIMESTAMP_FORMAT

#: Addresses that a reason lists at most.
_MAX_SHOWN = 5


@dataclass(slots=True)
class ImportSelection:
    """Resources to write, and skipped ones by reason."""

    selected: list[LiveObject] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, reason: str, what: object) -> None:
        """Record why something is not written."""
        self.skipped.setdefault(reason, []).append(str(what))


@dataclass(frozen=True, slots=True)
class GeneratedConfig:
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


async def generate_config(
    load: LoadOptions, context: Context, globs: tuple[str, ...], observer: Observer
) -> GeneratedConfig | None:
    """Select what the globs name and no file declares, or None. Warn about what is skipped."""
    keys = [
        key
        for key in context.workspace.domains
        if any(_matches_domain(glob, key) for glob in globs)
    ]
    async with open_pool(context, read_only=True, guarded=True) as pool:
        observer.phase(f"Listing {len(keys)} domain{'' if len(keys) == 1 else 's'}")
        live = await list_live(
            pool,
            context.workspace.domains,
            known_domains(context),
            _exact_addresses(globs),
            domain_keys=keys,
        )
        await _read_exact(pool, context, live, _exact_addresses(globs))
        selection = select_objects(context, live, globs)
        await _skip_internal_streams(pool, context, live, globs, selection)
    _require_existing(context, live, _exact_addresses(globs))
    for reason, named in selection.skipped.items():
        more = f" and {len(named) - _MAX_SHOWN} more" if len(named) > _MAX_SHOWN else ""
        observer.warn(f"not written: {', '.join(named[:_MAX_SHOWN])}{more}: {reason}")
    if not selection.selected:
        return None
    return GeneratedConfig(
        tuple(
            ResourceToWrite(each.address, each.config, complete=True) for each in selection.selected
        ),
        _build_codegen_context(load, context, live),
    )


def _exact_addresses(globs: Iterable[str]) -> list[Address]:
    return [Address.parse(glob) for glob in globs if not is_glob(glob)]


def _require_existing(context: Context, live: Live, exact: Iterable[Address]) -> None:
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


def _matches_domain(glob: str, key: str) -> bool:
    return matches(glob.split("/", 1)[0], key) or glob.startswith("**")


async def _read_exact(pool: Pool, context: Context, live: Live, exact: Iterable[Address]) -> None:
    """Read exact addresses that no list has: internal consumers, and objects behind an import."""
    for address in exact:
        if (
            address not in live.objects
            and address not in live.unreadable
            and live.is_reachable(address.domain)
        ):
            await read_into(pool.api(context.workspace.domains[address.domain]), live, address)


async def _skip_internal_streams(
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


# --- selection ---


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
            is_glob(glob) and _matches_domain(glob, key) for glob in globs
        ):
            selection.skip(
                "objects of another account are not listed; name the addresses",
                f"domain {key}",
            )
    for key, why in live.unlisted.items():
        selection.skip(f"it cannot be listed: {why}", f"domain {key}")
    for address, why in sorted(live.unreadable.items()):
        if _matches_any(address, globs):
            selection.skip(f"its server cannot read it: {why}", address)
    for address, found in sorted(live.objects.items()):
        if address not in context.workspace.resources and _matches_any(address, globs):
            reason = _skip_reason(context, live, found, by_name=str(address) in exact)
            if reason:
                selection.skip(reason, address)
            else:
                selection.selected.append(found)
    return selection


def _matches_any(address: Address, globs: Iterable[str]) -> bool:
    return any(matches(glob, address) for glob in globs)


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
    if address.kind == "consumer" and not found.raw.get("durable_name") and not by_name:
        return (
            "it is not durable and comes and goes with its client;"
            " name its address to have it written"
        )
    if not by_name and _matches_any(address, context.workspace.drift.ignore):
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


# --- surroundings ---


def _build_codegen_context(load: LoadOptions, context: Context, live: Live) -> CodegenContext:
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
        now=datetime.now(UTC).strftime(TIMESTAMP_FORMAT),
    )


def _title_lines(addresses: Iterable[Address]) -> list[str]:
    domains = list(dict.fromkeys(address.domain for address in addresses))
    where = ", ".join(domains[:_MAX_SHOWN]) + (
        f" and {len(domains) - _MAX_SHOWN} more" if len(domains) > _MAX_SHOWN else ""
    )
    return [f"Generated by jsplan import from {where}. Edit freely."]


# --- the file ---


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


@dataclass(slots=True)
class NewFile:
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
