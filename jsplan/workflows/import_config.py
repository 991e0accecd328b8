"""import --generate-config: what is on the servers and in no file, chosen and written into a new file of the workspace.

How a file reads is left to `generating`, and taking what is in it into state to `imports`.
"""

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

#: So many addresses are named where a reason has more.
_MAX_SHOWN = 5


@dataclass(slots=True)
class ImportSelection:
    """What will be written, and what will not, with the reason."""

    selected: list[LiveObject] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, reason: str, what: object) -> None:
        """Remember why something is not written."""
        self.skipped.setdefault(reason, []).append(str(what))


@dataclass(frozen=True, slots=True)
class GeneratedConfig:
    """What goes into a file, and where that stands."""

    resources: tuple[ResourceToWrite, ...]
    surroundings: CodegenContext

    @property
    def addresses(self) -> tuple[Address, ...]:
        """What the file declares."""
        return tuple(one.address for one in self.resources)

    def render(self) -> GeneratedFile:
        """The text of the file."""
        return generate_document(self.resources, self.surroundings, _title_lines(self.addresses))

    def without(self, odd: Collection[Address]) -> GeneratedConfig:
        """The same without some resources, which then only stand beside it."""
        left = {
            one.address: one.config
            for one in self.resources
            if one.address in odd and one.address.kind != "consumer"
        }
        around = replace(
            self.surroundings, other_streams={**self.surroundings.other_streams, **left}
        )
        return GeneratedConfig(
            tuple(one for one in self.resources if one.address not in odd), around
        )


async def generate_config(
    load: LoadOptions, world: Context, globs: tuple[str, ...], observer: Observer
) -> GeneratedConfig | None:
    """Everything that the globs name and that is in no file; None where there is nothing. What is left out is said."""
    keys = [
        key for key in world.workspace.domains if any(_matches_domain(glob, key) for glob in globs)
    ]
    async with open_pool(world, read_only=True, guarded=True) as pool:
        observer.phase(f"Listing {len(keys)} domain{'' if len(keys) == 1 else 's'}")
        live = await list_live(
            pool,
            world.workspace.domains,
            known_domains(world),
            _exact_addresses(globs),
            domain_keys=keys,
        )
        await _read_exact(pool, world, live, _exact_addresses(globs))
        choice = select_objects(world, live, globs)
        await _skip_internal_streams(pool, world, live, globs, choice)
    _require_existing(world, live, _exact_addresses(globs))
    for reason, named in choice.skipped.items():
        more = f" and {len(named) - _MAX_SHOWN} more" if len(named) > _MAX_SHOWN else ""
        observer.warn(f"not written: {', '.join(named[:_MAX_SHOWN])}{more}: {reason}")
    if not choice.selected:
        return None
    return GeneratedConfig(
        tuple(ResourceToWrite(one.address, one.config, complete=True) for one in choice.selected),
        _build_surroundings(load, world, live),
    )


def _exact_addresses(globs: Iterable[str]) -> list[Address]:
    return [Address.parse(glob) for glob in globs if not is_glob(glob)]


def _require_existing(world: Context, live: Live, exact: Iterable[Address]) -> None:
    """Raise PlanError for what was named, is in no file, and is not on its server either."""
    away = [key for key, facts in live.domains.items() if not facts.reachable]
    missing = [
        a
        for a in exact
        if a not in world.workspace.resources
        and a not in live.objects
        and a not in live.unreadable
        and a.domain not in away
    ]
    if missing:
        detail = "Look at what is there: jsplan status."
        raise PlanError(
            [
                Diagnostic("error", "JS420", "does not exist on the server", detail, str(address))
                for address in missing
            ]
        )


def _matches_domain(glob: str, key: str) -> bool:
    return matches(glob.split("/", 1)[0], key) or glob.startswith("**")


async def _read_exact(pool: Pool, world: Context, live: Live, exact: Iterable[Address]) -> None:
    """What was named and is in no list: consumers that are internal to the server, and what an import does not let us list."""
    for address in exact:
        if (
            address not in live.objects
            and address not in live.unreadable
            and live.is_reachable(address.domain)
        ):
            await read_into(pool.api(world.workspace.domains[address.domain]), live, address)


async def _skip_internal_streams(
    pool: Pool, world: Context, live: Live, globs: tuple[str, ...], choice: ImportSelection
) -> None:
    """Streams that no list of ours shows, because they are the server's or come and go with what jsplan does."""
    for key in sorted(live.domains):
        if live.is_reachable(key) and key not in live.unlisted and {"**", f"{key}/**"} & set(globs):
            for name in await pool.api(world.workspace.domains[key]).stream_names():
                address = Address.of_stream(key, name)
                if not may_be_listed(address):
                    choice.skip(
                        "it is the server's own, or stands in for something while jsplan works",
                        address,
                    )


# --- what is taken --------------------------------------------------------------------------------------------


def select_objects(world: Context, live: Live, globs: tuple[str, ...]) -> ImportSelection:
    """What the globs name of what is live, is in no file, and can be declared."""
    choice = ImportSelection()
    exact = {glob for glob in globs if not is_glob(glob)}
    for key, facts in live.domains.items():
        if not facts.reachable:
            choice.skip(
                f"it is away, and nothing is known of it: {facts.short_reason}", f"domain {key}"
            )
    for key in live.domains:
        if is_import(world.workspace.domains[key]) and any(
            is_glob(glob) and _matches_domain(glob, key) for glob in globs
        ):
            choice.skip(
                "what another account lets us reach is not listed; name the addresses",
                f"domain {key}",
            )
    for key, why in live.unlisted.items():
        choice.skip(f"it cannot be listed: {why}", f"domain {key}")
    for address, why in sorted(live.unreadable.items()):
        if _matches_any(address, globs):
            choice.skip(f"its server cannot read it: {why}", address)
    for address, found in sorted(live.objects.items()):
        if address not in world.workspace.resources and _matches_any(address, globs):
            reason = _skip_reason(world, live, found, by_name=str(address) in exact)
            if reason:
                choice.skip(reason, address)
            else:
                choice.selected.append(found)
    return choice


def _matches_any(address: Address, globs: Iterable[str]) -> bool:
    return any(matches(glob, address) for glob in globs)


def _skip_reason(world: Context, live: Live, found: LiveObject, *, by_name: bool) -> str | None:
    """The reason why it is not written; None where it is."""
    address = found.address
    stream = live.get(address.parent) if address.parent else found
    if _is_internal(world, stream or found):
        return "jsplan keeps its own state there, or is working on it"
    if address in world.state.resources:
        return "this workspace manages it, and it has left the files: put it back there, or let the next apply delete it"
    if _is_owned_elsewhere(world, found):
        return f"it carries the mark of another workspace ({owner_of(found)})"
    if address.kind == "consumer" and not found.raw.get("durable_name") and not by_name:
        return "it is not durable and comes and goes with its client; name its address to have it written"
    if not by_name and _matches_any(address, world.workspace.drift.ignore):
        return "`drift: ignore` names it"
    return _undeclarable_reason(world, found)


def _is_internal(world: Context, stream: LiveObject) -> bool:
    return (
        is_state_bucket(stream)
        or stream.address in state_bucket(world.workspace)
        or is_backfill_incomplete(stream.raw)
    )


def _is_owned_elsewhere(world: Context, found: LiveObject) -> bool:
    owner = owner_of(found)
    return owner is not None and owner.rpartition("/")[2] != world.state.ownership.get("id")


def _undeclarable_reason(world: Context, found: LiveObject) -> str | None:
    address = found.address
    key = "name" if address.kind in ("stream", "consumer") else "bucket"
    try:
        TABLES[address.kind].by_name[key].parse(
            address.consumer if address.kind == "consumer" else address.name
        )
    except ValueError as error:
        return f"its name cannot be in the files: {error}"
    if address.kind != "consumer" and has_own_domain_origin(
        address, found.raw, CodegenContext(world.workspace.domains, world.topology.routes)
    ):
        return "one of its origins leads back to its own domain, so that nothing is ever copied; correct that first"
    return None


# --- where it will stand --------------------------------------------------------------------------------------


def _build_surroundings(load: LoadOptions, world: Context, live: Live) -> CodegenContext:
    there = read_existing_defaults(load)
    domains = world.workspace.domains
    return CodegenContext(
        domains,
        world.topology.routes,
        levels={key: facts.level for key, facts in live.domains.items()},
        account_infos={key: facts.info for key, facts in live.domains.items()},
        other_streams={
            address: found.config
            for address, found in live.objects.items()
            if address.kind != "consumer"
        },
        existing_defaults=there.fields,
        extractable_kinds=frozenset(
            kind for kind in KINDS if kind not in there.declared_kinds and kind not in there.fields
        ),
        default_domain=there.domain if there.domain in domains else None,
        may_set_default_domain=there.domain is None,
        now=datetime.now(UTC).strftime(TIMESTAMP_FORMAT),
    )


def _title_lines(taken: Iterable[Address]) -> list[str]:
    domains = list(dict.fromkeys(address.domain for address in taken))
    where = ", ".join(domains[:_MAX_SHOWN]) + (
        f" and {len(domains) - _MAX_SHOWN} more" if len(domains) > _MAX_SHOWN else ""
    )
    return [f"Generated by jsplan import from {where}. Edit freely."]


# --- the file -------------------------------------------------------------------------------------------------


def require_new(path: Path) -> None:
    """Raise before anything is asked of a server when the file cannot be made. Nothing that exists is ever overwritten."""
    if exists(path):
        raise JsplanError(
            f"{path} exists; nothing was written",
            hint="Give another file; what is in no file yet is written there.",
        )
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"{path.name} would hold YAML",
            hint="Name it NAME.jsplan.yaml, which every workspace reads.",
        )
    if not is_folder(path.parent):
        raise JsplanError(
            f"cannot write {path}: there is no such folder",
            hint="Make the folder, or give another file.",
        )


@dataclass(slots=True)
class NewFile:
    """A file that has just been made; it goes again unless it `keep`."""

    path: Path
    keep: bool = False


@contextmanager
def create_new_file(path: Path, text: str) -> Iterator[NewFile]:
    """Have a new file while something is done with it. Raises JsplanError when it cannot be made, or is there meanwhile."""
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
    made = NewFile(path)
    try:
        yield made
    except StalePlanError:
        made.keep = False  # nothing was adopted
        raise
    finally:
        if not made.keep:
            path.unlink(missing_ok=True)


def require_loaded(world: Context, taken: Iterable[Address], path: Path) -> None:
    """Raise when the workspace does not read the new file: the next plan would delete what was only just adopted."""
    if any(address not in world.workspace.resources for address in taken):
        raise UsageError(
            f"this workspace does not read {path}, so that nothing in it would be declared; it was removed again",
            hint="Name it NAME.jsplan.yaml beside jsplan.yaml, or let an `include` of jsplan.yaml match it.",
        )
