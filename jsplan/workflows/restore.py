"""restore: streams of a backup come back as a plan that is shown, asked about and carried out like any other. Creates only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jsplan.address import Address, is_glob, matches
from jsplan.applying.restoring import Restoring
from jsplan.archives.folder import BackupError, damage, read_manifest
from jsplan.archives.manifest import Saved
from jsplan.config.model import LoadOptions
from jsplan.diagnostics import did_you_mean
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError, PlanError, UsageError
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.survey import survey
from jsplan.jetstream import Pool
from jsplan.planning.inputs import Request
from jsplan.planning.restoring import Wanted, build_restore
from jsplan.subjects import is_valid
from jsplan.units import SECOND
from jsplan.workflows.apply import carry_out, require_permission
from jsplan.workflows.options import Approve, Observer, PlanOptions
from jsplan.workflows.running import run
from jsplan.workflows.world import World, inputs_of, known_domains, locked, open_pool, open_world


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """`folder` is a backup. `rename` is an address, or `DOMAIN/**`; `targets` and `excludes` are globs over saved addresses.

    `subjects` replace those of the one stream that is restored. `allow_hazards` are `CODE` or `CODE:ADDR`. `lock_timeout` is ns;
    `parallelism` streams at once, per domain.
    """

    folder: Path
    rename: str | None = None
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    allow_hazards: tuple[str, ...] = ()
    parallelism: int = 4
    lock_timeout: int = 10 * SECOND


def restore(load: LoadOptions, options: RestoreOptions, approve: Approve, observer: Observer) -> tuple[Plan, ApplyResult]:
    """Verify the archives, plan, let `approve` show it and ask, and carry it out, all under the lock.

    Nothing that exists is touched. What is in the files becomes managed. Raises BackupError for a damaged backup and UsageError for
    names that do not fit it, both before anything is asked of a server; RefusedError where something is in the way,
    PlanError where a server cannot take it, and what `approve` raises. What failed later is in the result.
    """
    return run(_restore(load, options, approve, observer))


async def _restore(load: LoadOptions, options: RestoreOptions, approve: Approve, observer: Observer) -> tuple[Plan, ApplyResult]:
    async with open_world(load) as world:
        wanted = _wanted(world, options)
        observer.phase(f"Verifying {len(wanted)} archive{'' if len(wanted) == 1 else 's'}")
        await _require_undamaged(options.folder, wanted)
        async with locked(world, "restore", options.lock_timeout, observer), open_pool(world, read_only=False) as pool:
            plan = await _plan(world, pool, wanted, options, observer)
            if plan.errored:
                raise PlanError(plan.diagnostics, "the backup cannot be restored like this; nothing was changed")
            if plan.has_changes:
                await asyncio.to_thread(approve, plan)
            require_permission(plan)
            operations = _operations(options.folder, wanted, observer)
            how = {"stream.restore": operations.stream, "consumer.verify": operations.consumer}
            return plan, await carry_out(world, pool, plan, PlanOptions(parallelism=options.parallelism), observer, how)


def _wanted(world: World, options: RestoreOptions) -> list[Wanted]:
    """The saved streams that are meant, under the names that they will have."""
    saved = read_manifest(options.folder).streams
    for option, globs in (("--target", options.targets), ("--exclude", options.excludes)):
        for glob in globs:
            if not any(matches(glob, address) for address in saved):
                raise UsageError(f"{option} {glob} names nothing in the backup", hint=_inside(saved))
    chosen = [one for address, one in sorted(saved.items()) if _chosen(address, options)]
    if not chosen:
        raise JsplanError(f"there is nothing to restore from {options.folder}", hint=_inside(saved))
    wanted = [Wanted.of(one, _renamed(one.address, options, len(chosen)), _subjects(options, len(chosen))) for one in chosen]
    for one in wanted:
        if one.address.domain not in world.workspace.domains:
            near = did_you_mean(one.address.domain, world.workspace.domains)
            raise UsageError(
                f"{one.address}: there is no domain {one.address.domain}.{near}", hint="Give another with --as, as in: --as hub/**"
            )
    return wanted


def _inside(saved: Mapping[Address, Saved]) -> str:
    shown = [str(address) for address in sorted(saved)[:5]]
    return f"It holds {', '.join(shown)}{' …' if len(saved) > 5 else ''}." if saved else "It holds no stream."


def _chosen(address: Address, options: RestoreOptions) -> bool:
    named = not options.targets or any(matches(glob, address) for glob in options.targets)
    return named and not any(matches(glob, address) for glob in options.excludes)


def _renamed(address: Address, options: RestoreOptions, count: int) -> Address:
    """Where it goes. Raises UsageError for a place that does not fit, or one place for many."""
    if options.rename is None:
        return address
    domain, _, rest = options.rename.partition("/")
    if rest == "**" and not is_glob(domain):
        return address._replace(domain=domain)
    try:
        new = Address.parse(options.rename)
    except ValueError as error:
        raise UsageError(f"--as: {error}", hint="Give an address, or DOMAIN/** for all of it.") from None
    if is_glob(options.rename) or new.kind != address.kind:
        raise UsageError(f"--as {new}: {address} is a {address.kind}", hint=f"Give {new.domain}/{address.kind}/NAME, or {new.domain}/**")
    if count > 1:
        raise UsageError(f"--as {new} is one place for {count} streams", hint="Choose one with --target, or give --as DOMAIN/**")
    return new


def _subjects(options: RestoreOptions, count: int) -> tuple[str, ...]:
    if options.subjects and count > 1:
        raise UsageError(f"--subjects is for one stream, and {count} would be restored", hint="Choose one with --target.")
    for subject in options.subjects:
        if not is_valid(subject):
            raise UsageError(f'"{subject}" is not a subject')
    return options.subjects


async def _require_undamaged(folder: Path, wanted: Iterable[Wanted]) -> None:
    """Raise BackupError that lists what is damaged, before anything is asked of a server."""
    found = await asyncio.gather(*(asyncio.to_thread(damage, folder, one.saved.archive) for one in wanted))
    damaged = [text for text in found if text is not None]
    if damaged:
        listed = "".join(f"\n  - {text}" for text in damaged)
        raise BackupError(f"{folder} is damaged, nothing was restored:{listed}", hint="Leave it out with --exclude, or use another backup.")


async def _plan(world: World, pool: Pool, wanted: list[Wanted], options: RestoreOptions, observer: Observer) -> Plan:
    inputs = inputs_of(world, Request(now=datetime.now(UTC), allow_hazards=options.allow_hazards))
    targets = [one.address for one in wanted] + [one.consumer(consumer) for one in wanted for consumer in one.saved.consumers]
    observer.phase(f"Looking for {len(targets):,} object{'' if len(targets) == 1 else 's'}")
    inputs.live = await survey(pool, world.workspace.domains, targets, known_domains(world))
    away = {key: facts.absence for key, facts in inputs.live.domains.items() if not facts.reachable}
    plan = build_restore(inputs, wanted, await _holders(world, pool, inputs.live), away)
    plan.options["folder"] = str(options.folder)
    return plan


async def _holders(world: World, pool: Pool, live: Live) -> dict[Address, LiveObject]:
    """Every stream of the domains that something is restored into: one of them may have its subjects."""
    reachable = [key for key in live.domains if live.reachable(key)]
    names = await asyncio.gather(*(pool.api(world.workspace.domains[key]).stream_names() for key in reachable))
    there = [Address.of_stream(key, name) for key, listed in zip(reachable, names, strict=True) for name in listed]
    found = await survey(pool, world.workspace.domains, there, known_domains(world)) if there else Live({})
    return found.objects


def _operations(folder: Path, wanted: Iterable[Wanted], observer: Observer) -> Restoring:
    streams = {str(one.address): one for one in wanted}
    consumers = {str(one.consumer(consumer)): (one.saved, consumer) for one in streams.values() for consumer in one.saved.consumers}
    return Restoring(folder, streams, consumers, observer.event)
