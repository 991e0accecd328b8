"""restore: create the streams of a backup by a plan that is shown, approved and applied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from jsplan.address import Address, is_glob, matches
from jsplan.applying.restore import RestoreOperations
from jsplan.backup.folder import BackupError, find_damage, read_manifest
from jsplan.backup.manifest import SavedStream
from jsplan.config.model import LoadOptions
from jsplan.context import Context, Session, build_inputs, hold_session, open_context
from jsplan.diagnostics import did_you_mean
from jsplan.documents.apply import ApplyResult
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError, PlanError, UsageError
from jsplan.event_loop import run_until_complete
from jsplan.facts.live import Live, LiveObject
from jsplan.options import Approve, Observer, PlanOptions
from jsplan.planning.model import PlanRequest
from jsplan.planning.refusals import require_permission
from jsplan.planning.restore import RestoreTarget, build_restore_plan
from jsplan.server_reader import ServerReader
from jsplan.subjects import is_valid
from jsplan.units import SECOND
from jsplan.workflows.apply import execute_plan


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """`folder` is a backup; `targets` and `excludes` are globs over saved addresses.

    `rename` is an address, or `DOMAIN/**`. `subjects` replace those of the one stream that is
    restored. `allow_hazards` are `CODE` or `CODE:ADDR`. `lock_timeout` is ns; `parallelism` is in
    streams per domain.
    """

    folder: Path
    rename: str | None = None
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    allow_hazards: tuple[str, ...] = ()
    parallelism: int = 4
    lock_timeout: int = 10 * SECOND


def restore(
    load: LoadOptions, options: RestoreOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    """Verify the archives, plan, let `approve` show and ask, and execute, all under the lock.

    Existing objects are not touched. Restored resources of the files become managed. Raises
    BackupError for a damaged backup and UsageError for names that do not fit it, both before any
    request to a server; RefusedError if an object exists already, PlanError if a server cannot take
    it, and the errors of `approve`. Later failures are in the result.
    """
    return run_until_complete(_restore(load, options, approve, observer))


async def _restore(
    load: LoadOptions, options: RestoreOptions, approve: Approve, observer: Observer
) -> tuple[Plan, ApplyResult]:
    async with open_context(load) as context:
        wanted = _select_streams(context, options)
        observer.phase(f"Verifying {len(wanted)} archive{'' if len(wanted) == 1 else 's'}")
        await _verify_snapshots(options.folder, wanted)
        async with hold_session(context, "restore", options.lock_timeout, observer) as session:
            plan = await _build_plan(session, wanted, options)
            if plan.errored:
                raise PlanError(
                    plan.diagnostics, "the backup cannot be restored like this; nothing was changed"
                )
            if plan.has_changes:
                await asyncio.to_thread(approve, plan)
            require_permission(plan)
            operations = _build_operations(options.folder, wanted, observer)
            custom_operations = {
                "stream.restore": operations.restore_stream,
                "consumer.verify": operations.verify_consumer,
            }
            execution = PlanOptions(parallelism=options.parallelism)
            return plan, await execute_plan(session, plan, execution, custom_operations)


def _select_streams(context: Context, options: RestoreOptions) -> list[RestoreTarget]:
    """Select the saved streams, with their new addresses."""
    saved = read_manifest(options.folder).streams
    for option, globs in (("--target", options.targets), ("--exclude", options.excludes)):
        for glob in globs:
            if not any(matches(glob, address) for address in saved):
                raise UsageError(
                    f"{option} {glob} names nothing in the backup", hint=_list_backup(saved)
                )
    chosen = [stream for address, stream in sorted(saved.items()) if _is_selected(address, options)]
    if not chosen:
        raise JsplanError(
            f"there is nothing to restore from {options.folder}", hint=_list_backup(saved)
        )
    wanted = [
        RestoreTarget.of(
            stream,
            _target_address(stream.address, options, len(chosen)),
            _checked_subjects(options, len(chosen)),
        )
        for stream in chosen
    ]
    for target in wanted:
        if target.address.domain not in context.workspace.domains:
            near = did_you_mean(target.address.domain, context.workspace.domains)
            raise UsageError(
                f"{target.address}: there is no domain {target.address.domain}.{near}",
                hint="Give another with --as, as in: --as hub/**",
            )
    return wanted


def _list_backup(saved: Mapping[Address, SavedStream]) -> str:
    shown = [str(address) for address in sorted(saved)[:5]]
    return (
        f"It holds {', '.join(shown)}{' …' if len(saved) > 5 else ''}."
        if saved
        else "It holds no stream."
    )


def _is_selected(address: Address, options: RestoreOptions) -> bool:
    named = not options.targets or any(matches(glob, address) for glob in options.targets)
    return named and not any(matches(glob, address) for glob in options.excludes)


def _target_address(address: Address, options: RestoreOptions, count: int) -> Address:
    """Return the new address. Raises UsageError if it does not fit, or is one for several."""
    if options.rename is None:
        return address
    domain, _, rest = options.rename.partition("/")
    if rest == "**" and not is_glob(domain):
        return address._replace(domain=domain)
    try:
        new = Address.parse(options.rename)
    except ValueError as error:
        raise UsageError(
            f"--as: {error}", hint="Give an address, or DOMAIN/** for all of it."
        ) from None
    if is_glob(options.rename) or new.kind != address.kind:
        raise UsageError(
            f"--as {new}: {address} is a {address.kind}",
            hint=f"Give {new.domain}/{address.kind}/NAME, or {new.domain}/**",
        )
    if count > 1:
        raise UsageError(
            f"--as {new} is one place for {count} streams",
            hint="Choose one with --target, or give --as DOMAIN/**",
        )
    return new


def _checked_subjects(options: RestoreOptions, count: int) -> tuple[str, ...]:
    if options.subjects and count > 1:
        raise UsageError(
            f"--subjects is for one stream, and {count} would be restored",
            hint="Choose one with --target.",
        )
    for subject in options.subjects:
        if not is_valid(subject):
            raise UsageError(f'"{subject}" is not a subject')
    return options.subjects


async def _verify_snapshots(folder: Path, wanted: Iterable[RestoreTarget]) -> None:
    """Raise BackupError that lists damaged archives, before any request to a server."""
    found = await asyncio.gather(
        *(asyncio.to_thread(find_damage, folder, target.saved.archive) for target in wanted)
    )
    damaged = [text for text in found if text is not None]
    if damaged:
        listed = "".join(f"\n  - {text}" for text in damaged)
        raise BackupError(
            f"{folder} is damaged, nothing was restored:{listed}",
            hint="Exclude it with --exclude, or use another backup.",
        )


async def _build_plan(
    session: Session, wanted: list[RestoreTarget], options: RestoreOptions
) -> Plan:
    inputs = build_inputs(
        session.context, PlanRequest(now=datetime.now(UTC), allow_hazards=options.allow_hazards)
    )
    targets = [target.address for target in wanted] + [
        target.consumer_address(consumer)
        for target in wanted
        for consumer in target.saved.consumers
    ]
    session.observer.phase(f"Looking for {len(targets):,} object{'' if len(targets) == 1 else 's'}")
    live = await ServerReader(session).read(targets)
    inputs = replace(inputs, live=live)
    offline = {
        key: facts.offline_text for key, facts in inputs.live.domains.items() if not facts.reachable
    }
    plan = build_restore_plan(
        inputs, wanted, await _read_existing_streams(session, inputs.live), offline
    )
    plan.options["folder"] = str(options.folder)
    return plan


async def _read_existing_streams(session: Session, live: Live) -> dict[Address, LiveObject]:
    """Read all streams of the target domains: one of them may have the subjects."""
    reachable = [key for key in live.domains if live.is_reachable(key)]
    names = await asyncio.gather(
        *(
            session.pool.api(session.context.workspace.domains[key]).stream_names()
            for key in reachable
        )
    )
    existing = [
        Address.of_stream(key, name)
        for key, listed in zip(reachable, names, strict=True)
        for name in listed
    ]
    return (await ServerReader(session).read(existing)).objects if existing else {}


def _build_operations(
    folder: Path, wanted: Iterable[RestoreTarget], observer: Observer
) -> RestoreOperations:
    streams = {str(target.address): target for target in wanted}
    consumers = {
        str(target.consumer_address(consumer)): (target.saved, consumer)
        for target in streams.values()
        for consumer in target.saved.consumers
    }
    return RestoreOperations(folder, streams, consumers, observer.event)
