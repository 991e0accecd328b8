"""Takes one stream into a backup's folder: what `backup` and `apply --backup` share. Which streams, and when, is left to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jsplan.address import OWN_CONSUMERS, Address
from jsplan.archives.folder import BackupFolder, damage
from jsplan.archives.manifest import Saved, SavedConsumer
from jsplan.archives.position import position
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.live import DomainFacts, LiveObject
from jsplan.facts.survey import in_parallel, read_object
from jsplan.jetstream import DomainApi
from jsplan.jetstream.snapshots import is_memory_stream, snapshot
from jsplan.units import stamp

#: Takes bytes of messages saved so far, and how many there are, about.
Progress = Callable[[int, int], None]

NO_MEMORY = "it is in memory, and servers before 2.15 take no snapshot of that"
WAY_OUT = "Mirror it into a stream with storage: file and back that up, or upgrade the server."


def quiet(_: int, __: int) -> None:
    """No progress."""


async def save_stream(
    api: DomainApi, facts: DomainFacts, address: Address, folder: BackupFolder, progress: Progress = quiet, *, check: bool = False
) -> bool:
    """Take a stream with its consumers; False where the folder has it already just as it is now.

    It has it if since then nothing moved on the server (`created`, configuration, state, consumers and their
    positions) and the archive is undamaged. Raises ApiError, and BackupError when the disk does not take it.
    """
    before = await _read(api, address)
    kept = folder.manifest.streams.get(address)
    if kept is not None and _unchanged(kept, before) and await asyncio.to_thread(damage, folder.path, kept.archive) is None:
        folder.add(kept)
        return False
    with folder.begin(address) as draft:
        try:
            async with snapshot(api, address.stream, check=check) as snap:
                async for chunk in snap.chunks:
                    draft.take(chunk)
                    progress(snap.passed.unpacked, int(snap.state.get("bytes") or 0))
        except ServerRefusedError as error:
            raise _explained(address, error) from None
        after = await _read(api, address)
        archive = await asyncio.to_thread(draft.finish, snap.passed.archive)
        folder.add(
            Saved(
                address, before[0].config, before[0].created, before[0].state, after[0].state, _consumers(before[1], after[1]), archive,
                _server(api, facts, after[0]), stamp(),
            )
        )  # fmt: skip
    return True


def _explained(address: Address, error: ServerRefusedError) -> ApiError:
    if is_memory_stream(error):
        return ApiError(f"{address} cannot be saved: {NO_MEMORY}", hint=WAY_OUT)
    return ApiError(f"{address} cannot be saved: {error}", hint=error.hint)


async def _read(api: DomainApi, address: Address) -> tuple[LiveObject, dict[str, LiveObject]]:
    """The stream and its consumers by name, without the server's own."""
    stream = await read_object(api, address)
    if stream is None:
        raise ApiError(f"{address} does not exist", hint="See what is there: jsplan drift, or nats stream ls")
    names = await api.consumer_names(address.stream) if stream.state.get("consumer_count") else []
    found: dict[str, LiveObject] = {}

    async def read(consumer: Address) -> None:
        if (live := await read_object(api, consumer)) is not None:
            found[consumer.consumer] = live

    theirs = [name for name in names if not name.startswith(OWN_CONSUMERS)]
    await in_parallel(read, (Address(address.domain, "consumer", f"{address.stream}/{name}") for name in theirs))
    return stream, found


def _consumers(before: dict[str, LiveObject], after: dict[str, LiveObject]) -> tuple[SavedConsumer, ...]:
    """Those that were there all the time: of the others nobody knows whether the archive has them."""
    return tuple(
        SavedConsumer(name, live.config, live.created, position(live.state), position(after[name].state))
        for name, live in sorted(before.items())
        if name in after and after[name].created == live.created
    )


def _unchanged(kept: Saved, found: tuple[LiveObject, dict[str, LiveObject]]) -> bool:
    stream, consumers = found
    same = kept.before == kept.after == stream.state and (kept.created, kept.config) == (stream.created, stream.config)
    return same and kept.consumers == _consumers(consumers, consumers) and all(c.before == c.after for c in kept.consumers)


def _server(api: DomainApi, facts: DomainFacts, stream: LiveObject) -> dict[str, Any]:
    """Who answered: a domain behind another server tells its version only in its streams, since 2.11."""
    version = facts.version or (stream.raw.get("metadata") or {}).get("_nats.ver")
    name = facts.server.get("name") or stream.server.get("leader")
    known = {"js_domain": api.domain.js_domain, "name": name, "version": version, "api_level": facts.level}
    return known | {"clustered": stream.clustered}
