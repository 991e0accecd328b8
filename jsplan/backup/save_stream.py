"""Saves one stream to the folder of a backup, for `backup` and `apply --backup`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.backup.differences import extract_position
from jsplan.backup.folder import BackupFolder, find_damage
from jsplan.backup.manifest import SavedConsumer, SavedStream
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.live import DomainFacts, LiveObject
from jsplan.facts.reader import read_object, run_parallel
from jsplan.jetstream import DomainApi
from jsplan.jetstream.snapshots import is_memory_stream, open_snapshot
from jsplan.units import format_timestamp

#: Receives the bytes of messages saved so far, and their approximate total.
Progress = Callable[[int, int], None]

MEMORY_NOT_SUPPORTED = "it is in memory, and servers before 2.15 take no snapshot of that"
MEMORY_HINT = "Mirror it into a stream with storage: file and back that up, or upgrade the server."


def ignore_progress(_: int, __: int) -> None:
    """Ignore progress."""


async def save_stream(
    api: DomainApi,
    facts: DomainFacts,
    address: Address,
    folder: BackupFolder,
    progress: Progress = ignore_progress,
    *,
    check: bool = False,
) -> bool:
    """Save a stream with its consumers; return False if the folder has it unchanged.

    It is unchanged if `created`, configuration, state, consumers and their positions are the same
    and the archive is undamaged. Raises ApiError, and BackupError when the disk fails.
    """
    before = await _read_stream(api, address)
    saved = folder.manifest.streams.get(address)
    if (
        saved is not None
        and _is_unchanged(saved, before)
        and await asyncio.to_thread(find_damage, folder.path, saved.archive) is None
    ):
        folder.add(saved)
        return False
    with folder.create_draft(address) as draft:
        try:
            async with open_snapshot(api, address.stream, check=check) as snap:
                async for chunk in snap.chunks:
                    draft.write(chunk)
                    progress(snap.frames.uncompressed_bytes, int(snap.state.get("bytes") or 0))
        except ServerRefusedError as error:
            raise _save_error(address, error) from None
        after = await _read_stream(api, address)
        archive = await asyncio.to_thread(draft.finish, snap.frames.archive_format)
        folder.add(
            SavedStream(
                str(address),
                before[0].config,
                before[0].created,
                before[0].state,
                after[0].state,
                _saved_consumers(before[1], after[1]),
                archive,
                _server_identity(api, facts, after[0]),
                format_timestamp(),
            )
        )
    return True


def _save_error(address: Address, error: ServerRefusedError) -> ApiError:
    if is_memory_stream(error):
        return ApiError(f"{address} cannot be saved: {MEMORY_NOT_SUPPORTED}", hint=MEMORY_HINT)
    return ApiError(f"{address} cannot be saved: {error}", hint=error.hint)


async def _read_stream(
    api: DomainApi, address: Address
) -> tuple[LiveObject, dict[str, LiveObject]]:
    """Read the stream and its consumers by name, without the server's own."""
    stream = await read_object(api, address)
    if stream is None:
        raise ApiError(
            f"{address} does not exist", hint="See what exists: jsplan drift, or nats stream ls"
        )
    names = await api.consumer_names(address.stream) if stream.state.get("consumer_count") else []
    found: dict[str, LiveObject] = {}

    async def read(consumer: Address) -> None:
        if (live := await read_object(api, consumer)) is not None:
            found[consumer.consumer] = live

    listed = [name for name in names if not name.startswith(INTERNAL_CONSUMER_PREFIXES)]
    await run_parallel(
        read, (Address(address.domain, "consumer", f"{address.stream}/{name}") for name in listed)
    )
    return stream, found


def _saved_consumers(
    before: dict[str, LiveObject], after: dict[str, LiveObject]
) -> list[SavedConsumer]:
    """Return consumers that existed all the time; the archive may lack the others."""
    return [
        SavedConsumer(
            name,
            live.config,
            live.created,
            extract_position(live.state),
            extract_position(after[name].state),
        )
        for name, live in sorted(before.items())
        if name in after and after[name].created == live.created
    ]


def _is_unchanged(saved: SavedStream, found: tuple[LiveObject, dict[str, LiveObject]]) -> bool:
    stream, consumers = found
    same = saved.before == saved.after == stream.state and (saved.created, saved.config) == (
        stream.created,
        stream.config,
    )
    return (
        same
        and saved.consumers == _saved_consumers(consumers, consumers)
        and all(c.before == c.after for c in saved.consumers)
    )


def _server_identity(api: DomainApi, facts: DomainFacts, stream: LiveObject) -> dict[str, Any]:
    """Return the server's identity. A domain behind another server has its version in streams."""
    version = facts.version or (stream.raw.get("metadata") or {}).get("_nats.ver")
    name = facts.server.get("name") or stream.server.get("leader")
    known = {
        "js_domain": api.domain.js_domain,
        "name": name,
        "version": version,
        "api_level": facts.level,
    }
    return known | {"clustered": stream.is_clustered}
