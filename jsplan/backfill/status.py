"""The status of backfills: the progress of entries, and their orphans on the servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from jsplan.address import BACKFILL_INCOMPLETE, Address
from jsplan.backfill.options import format_run_command
from jsplan.backfill.tasks import staging_streams
from jsplan.backfill.tasks.staging_streams import list_staging_sources
from jsplan.config.model import Backfill, LoadOptions
from jsplan.context import Context, open_context, open_pool
from jsplan.diagnostics import did_you_mean
from jsplan.documents.backfill import BackfillStatus, EntryStatus, OriginProgress, Orphan
from jsplan.documents.reading import convert
from jsplan.errors import JsplanError, UsageError
from jsplan.facts.live import is_backfill_incomplete
from jsplan.jetstream import Pool
from jsplan.planning.backfill.model import BackfillState, hash_config


async def read_backfill_status(load: LoadOptions, names: tuple[str, ...]) -> BackfillStatus:
    """Read the status of these entries, or of all.

    Raises UsageError for a name that is neither in the files nor in state.
    """
    async with open_context(load) as world:
        entries = _list_entries(world, names)
        found = BackfillStatus(world.workspace.name, world.workspace.environment, entries)
        found.locked = await world.backend.read_holder()
        async with open_pool(world, read_only=True) as pool:
            orphans = await _find_orphans(world, pool, found.offline)
    _assign_orphans(world, found, orphans, include_unowned=not names)
    return found


def _list_entries(world: Context, names: tuple[str, ...]) -> list[EntryStatus]:
    declared, stored = world.workspace.backfills, world.state.backfills
    all_names = dict.fromkeys([*declared, *stored])
    for name in names:
        if name not in all_names:
            raise UsageError(
                f"there is no backfill {name}.{did_you_mean(name, all_names)}".rstrip("."),
                hint="See all of them: jsplan backfill status",
            )
    return [
        _build_entry_status(name, declared.get(name), stored.get(name))
        for name in all_names
        if not names or name in names
    ]


def _build_entry_status(
    name: str, declared: Backfill | None, stored: dict[str, Any] | None
) -> EntryStatus:
    if stored is None:
        return EntryStatus(name, "new", next=format_run_command(name))
    record = convert(stored, BackfillState)
    origins = [
        OriginProgress(o.origin, o.target, o.first, o.last, o.status, o.copied, o.gaps, o.skipped)
        for o in record.origins
    ]
    done = record.done_at or (origins and all(origin.status == "done" for origin in origins))
    status = EntryStatus(name, "new", record.pinned_at or None, record.done_at or None, origins)
    if declared is None and ">" not in name:
        status.status = "missing"
    elif declared is not None and record.entry_hash != hash_config(declared):
        status.status = "changed"
    elif not record.is_new:
        status.status = "done" if done else "started"
    if status.status not in ("missing", "done"):
        status.next = format_run_command(name)
    return status


async def _find_orphans(world: Context, pool: Pool, offline: dict[str, str]) -> list[Orphan]:
    """Find orphans in each domain that is or was the target of a backfill."""
    domains = world.workspace.domains
    keys = {
        entry.target.domain for entry in world.workspace.backfills.values() if entry.target.stream
    }
    keys |= {
        origin["target"].partition("/")[0]
        for stored in world.state.backfills.values()
        for origin in stored["origins"]
    }
    known = sorted(keys & domains.keys())
    await pool.open(domains[key].connection for key in known)

    async def find(key: str) -> list[Orphan]:
        try:
            return await _find_domain_orphans(world, pool, key)
        except JsplanError as error:
            offline[key] = error.full_text
            return []

    found = await asyncio.gather(*(find(key) for key in known))
    return [orphan for of_domain in found for orphan in of_domain]


async def _find_domain_orphans(world: Context, pool: Pool, key: str) -> list[Orphan]:
    infos, _ = await pool.api(world.workspace.domains[key]).streams()
    own, found = f"{world.workspace.state_name}/", dict[str, Orphan]()
    for info in infos:
        config, state = info["config"], info["state"]
        name, metadata = config["name"], config.get("metadata") or {}
        is_staging = name.startswith(staging_streams.STAGING_PREFIX)
        if is_staging or is_backfill_incomplete(config):
            entry = metadata.get(
                staging_streams.ENTRY_KEY if is_staging else BACKFILL_INCOMPLETE, ""
            )
            found[name] = Orphan(
                key,
                name,
                entry.removeprefix(own),
                metadata.get(staging_streams.ORIGIN_KEY, ""),
                state["messages"],
                state["bytes"],
                bool(config.get("sealed")),
            )
    for info in infos:
        stream = str(Address(key, "stream", info["config"]["name"]))
        for name in list_staging_sources(info["config"]):  # one may be deleted already
            orphan = found.setdefault(name, Orphan(key, name, "", "", 0, 0, True))
            orphan.source_of.append(stream)
    return [found[name] for name in sorted(found)]


def _assign_orphans(
    world: Context, found: BackfillStatus, orphans: Iterable[Orphan], *, include_unowned: bool
) -> None:
    """Assign orphans to their entries; a run removes those of a finished entry."""
    by_name = {entry.name: entry for entry in found.entries}
    known = {*world.workspace.backfills, *world.state.backfills}
    for orphan in orphans:
        entry = by_name.get(orphan.entry)
        if entry is not None:
            entry.orphans.append(orphan)
            if entry.status == "done":
                entry.next = format_run_command(entry.name)
        elif include_unowned and orphan.entry not in known:
            found.orphans.append(orphan)
