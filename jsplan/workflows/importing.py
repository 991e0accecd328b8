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
from jsplan.config.model import LoadOptions
from jsplan.config.standing import standing
from jsplan.diagnostics import Diagnostic
from jsplan.disk import exists, is_folder
from jsplan.errors import JsplanError, PlanError, StalePlanError, UsageError
from jsplan.facts.inventory import keeps_state, may_be_listed
from jsplan.facts.live import Live, LiveObject, is_being_filled
from jsplan.facts.overview import overview
from jsplan.facts.survey import read_into
from jsplan.generating import Found, Surroundings, Written, document
from jsplan.generating.references import leads_home
from jsplan.jetstream import Pool
from jsplan.planning.ownership import owner_of
from jsplan.resources import TABLES
from jsplan.topology.reach import is_import
from jsplan.units import STAMP
from jsplan.workflows.options import Observer
from jsplan.workflows.world import World, known_domains, open_pool, state_bucket

#: So many addresses are named where a reason has more.
_SHOWN = 5


@dataclass(slots=True)
class Choice:
    """What will be written, and what will not, with the reason."""

    taken: list[LiveObject] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)

    def leave(self, reason: str, what: object) -> None:
        """Remember why something is not written."""
        self.left.setdefault(reason, []).append(str(what))


@dataclass(frozen=True, slots=True)
class Generated:
    """What goes into a file, and where that stands."""

    found: tuple[Found, ...]
    around: Surroundings

    @property
    def addresses(self) -> tuple[Address, ...]:
        """What the file declares."""
        return tuple(one.address for one in self.found)

    def written(self) -> Written:
        """The text of the file."""
        return document(self.found, self.around, _title(self.addresses))

    def without(self, odd: Collection[Address]) -> Generated:
        """The same without some resources, which then only stand beside it."""
        left = {one.address: one.config for one in self.found if one.address in odd and one.address.kind != "consumer"}
        around = replace(self.around, others={**self.around.others, **left})
        return Generated(tuple(one for one in self.found if one.address not in odd), around)


async def generate(load: LoadOptions, world: World, globs: tuple[str, ...], observer: Observer) -> Generated | None:
    """Everything that the globs name and that is in no file; None where there is nothing. What is left out is said."""
    keys = [key for key in world.workspace.domains if any(_may_name(glob, key) for glob in globs)]
    async with open_pool(world, read_only=True, sealed=True) as pool:
        observer.phase(f"Listing {len(keys)} domain{'' if len(keys) == 1 else 's'}")
        live = await overview(pool, world.workspace.domains, known_domains(world), _exact(globs), only=keys)
        await _read_named(pool, world, live, _exact(globs))
        choice = choose(world, live, globs)
        await _own_streams(pool, world, live, globs, choice)
    _require_there(world, live, _exact(globs))
    for reason, named in choice.left.items():
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        observer.warn(f"not written: {', '.join(named[:_SHOWN])}{more}: {reason}")
    if not choice.taken:
        return None
    return Generated(tuple(Found(one.address, one.config, complete=True) for one in choice.taken), _surroundings(load, world, live))


def _exact(globs: Iterable[str]) -> list[Address]:
    return [Address.parse(glob) for glob in globs if not is_glob(glob)]


def _require_there(world: World, live: Live, exact: Iterable[Address]) -> None:
    """Raise PlanError for what was named, is in no file, and is not on its server either."""
    away = [key for key, facts in live.domains.items() if not facts.reachable]
    missing = [
        a for a in exact if a not in world.workspace.resources and a not in live.objects and a not in live.broken and a.domain not in away
    ]
    if missing:
        detail = "Look at what is there: jsplan status."
        raise PlanError([Diagnostic("error", "JS420", "does not exist on the server", detail, str(address)) for address in missing])


def _may_name(glob: str, key: str) -> bool:
    return matches(glob.split("/", 1)[0], key) or glob.startswith("**")


async def _read_named(pool: Pool, world: World, live: Live, exact: Iterable[Address]) -> None:
    """What was named and is in no list: consumers that are internal to the server, and what an import does not let us list."""
    for address in exact:
        if address not in live.objects and address not in live.broken and live.reachable(address.domain):
            await read_into(pool.api(world.workspace.domains[address.domain]), live, address)


async def _own_streams(pool: Pool, world: World, live: Live, globs: tuple[str, ...], choice: Choice) -> None:
    """Streams that no list of ours shows, because they are the server's or come and go with what jsplan does."""
    for key in sorted(live.domains):
        if live.reachable(key) and key not in live.unlisted and {"**", f"{key}/**"} & set(globs):
            for name in await pool.api(world.workspace.domains[key]).stream_names():
                address = Address.of_stream(key, name)
                if not may_be_listed(address):
                    choice.leave("it is the server's own, or stands in for something while jsplan works", address)


# --- what is taken --------------------------------------------------------------------------------------------


def choose(world: World, live: Live, globs: tuple[str, ...]) -> Choice:
    """What the globs name of what is live, is in no file, and can be declared."""
    choice = Choice()
    exact = {glob for glob in globs if not is_glob(glob)}
    for key, facts in live.domains.items():
        if not facts.reachable:
            choice.leave(f"it is away, and nothing is known of it: {facts.why}", f"domain {key}")
    for key in live.domains:
        if is_import(world.workspace.domains[key]) and any(is_glob(glob) and _may_name(glob, key) for glob in globs):
            choice.leave("what another account lets us reach is not listed; name the addresses", f"domain {key}")
    for key, why in live.unlisted.items():
        choice.leave(f"it cannot be listed: {why}", f"domain {key}")
    for address, why in sorted(live.broken.items()):
        if _named(address, globs):
            choice.leave(f"its server cannot read it: {why}", address)
    for address, found in sorted(live.objects.items()):
        if address not in world.workspace.resources and _named(address, globs):
            reason = _why_not(world, live, found, by_name=str(address) in exact)
            if reason:
                choice.leave(reason, address)
            else:
                choice.taken.append(found)
    return choice


def _named(address: Address, globs: Iterable[str]) -> bool:
    return any(matches(glob, address) for glob in globs)


def _why_not(world: World, live: Live, found: LiveObject, *, by_name: bool) -> str | None:
    """The reason why it is not written; None where it is."""
    address = found.address
    stream = live.get(address.parent) if address.parent else found
    if _of_jsplan(world, stream or found):
        return "jsplan keeps its own state there, or is working on it"
    if address in world.state.resources:
        return "this workspace manages it, and it has left the files: put it back there, or let the next apply delete it"
    if _foreign(world, found):
        return f"it carries the mark of another workspace ({owner_of(found)})"
    if address.kind == "consumer" and not found.raw.get("durable_name") and not by_name:
        return "it is not durable and comes and goes with its client; name its address to have it written"
    if not by_name and _named(address, world.workspace.drift.ignore):
        return "`drift: ignore` names it"
    return _unsayable(world, found)


def _of_jsplan(world: World, stream: LiveObject) -> bool:
    return keeps_state(stream) or stream.address in state_bucket(world.workspace) or is_being_filled(stream.raw)


def _foreign(world: World, found: LiveObject) -> bool:
    owner = owner_of(found)
    return owner is not None and owner.rpartition("/")[2] != world.state.ownership.get("id")


def _unsayable(world: World, found: LiveObject) -> str | None:
    address = found.address
    key = "name" if address.kind in ("stream", "consumer") else "bucket"
    try:
        TABLES[address.kind].by_name[key].parse(address.consumer if address.kind == "consumer" else address.name)
    except ValueError as error:
        return f"its name cannot be in the files: {error}"
    if address.kind != "consumer" and leads_home(address, found.raw, Surroundings(world.workspace.domains, world.topology.reach)):
        return "one of its origins leads back to its own domain, so that nothing is ever copied; correct that first"
    return None


# --- where it will stand --------------------------------------------------------------------------------------


def _surroundings(load: LoadOptions, world: World, live: Live) -> Surroundings:
    there = standing(load)
    domains = world.workspace.domains
    return Surroundings(
        domains, world.topology.reach,
        levels={key: facts.level for key, facts in live.domains.items()},
        infos={key: facts.info for key, facts in live.domains.items()},
        others={address: found.config for address, found in live.objects.items() if address.kind != "consumer"},
        standing=there.fields,
        factor=frozenset(kind for kind in KINDS if kind not in there.declared and kind not in there.fields),
        default_domain=there.domain if there.domain in domains else None,
        factor_domain=there.domain is None,
        now=datetime.now(UTC).strftime(STAMP),
    )  # fmt: skip


def _title(taken: Iterable[Address]) -> list[str]:
    domains = list(dict.fromkeys(address.domain for address in taken))
    where = ", ".join(domains[:_SHOWN]) + (f" and {len(domains) - _SHOWN} more" if len(domains) > _SHOWN else "")
    return [f"Generated by jsplan import from {where}. Edit freely."]


# --- the file -------------------------------------------------------------------------------------------------


def require_new(path: Path) -> None:
    """Raise before anything is asked of a server when the file cannot be made. Nothing that exists is ever overwritten."""
    if exists(path):
        raise JsplanError(f"{path} exists; nothing was written", hint="Give another file; what is in no file yet is written there.")
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path.name} would hold YAML", hint="Name it NAME.jsplan.yaml, which every workspace reads.")
    if not is_folder(path.parent):
        raise JsplanError(f"cannot write {path}: there is no such folder", hint="Make the folder, or give another file.")


@dataclass(slots=True)
class NewFile:
    """A file that has just been made; it goes again unless it `stays`."""

    path: Path
    stays: bool = False


@contextmanager
def new_file(path: Path, text: str) -> Iterator[NewFile]:
    """Have a new file while something is done with it. Raises JsplanError when it cannot be made, or is there meanwhile."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
    made = NewFile(path)
    try:
        yield made
    except StalePlanError:
        made.stays = False  # nothing was adopted
        raise
    finally:
        if not made.stays:
            path.unlink(missing_ok=True)


def require_read(world: World, taken: Iterable[Address], path: Path) -> None:
    """Raise when the workspace does not read the new file: the next plan would delete what was only just adopted."""
    if any(address not in world.workspace.resources for address in taken):
        raise UsageError(
            f"this workspace does not read {path}, so that nothing in it would be declared; it was removed again",
            hint="Name it NAME.jsplan.yaml beside jsplan.yaml, or let an `include` of jsplan.yaml match it.",
        )
