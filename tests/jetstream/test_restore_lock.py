"""A restore is alone: a server of 2.15.1 dies of one that begins while streams come and go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from jsplan.jetstream.restore_lock import RestoreLock
from jsplan.jetstream.snapshots import repeat_restore, restore_stream
from tests.jetstream.test_snapshots import api_of, archive, sent_snapshot
from tests.support.links import open_link
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.jetstream import DomainApi
    from jsplan.jetstream.snapshots import Snapshot
    from jsplan.sandbox import Server

STREAMS = 200


async def archives(api: DomainApi, raw: Raw) -> list[tuple[Snapshot, bytes]]:
    """Return archives of many streams that are deleted again."""
    names = [f"S{number}" for number in range(STREAMS)]
    for name in names:
        raw.create(name, subjects=[name.lower()])
        raw.api_ok(name.lower(), b"x")
    found = [await archive(api, name) for name in names]
    for name in names:
        raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")
    return found


@pytest.mark.matrix
async def test_many_restores_while_streams_come_and_go(server: Server) -> None:
    """The server lives, and each stream is there with its message."""
    async with open_link(server) as link:
        api = api_of(link)
        with Raw(server.url) as raw:
            taken = await archives(api, raw)

        async def restore(snap: Snapshot, data: bytes) -> None:
            await repeat_restore(
                api, lambda: restore_stream(api, snap.config, snap.state, sent_snapshot(data))
            )

        async def come_and_go(number: int) -> None:
            await api.request(f"STREAM.CREATE.T{number}", {"name": f"T{number}"})
            await api.request(f"STREAM.DELETE.T{number}")

        async with asyncio.TaskGroup() as group:
            for number, (snap, data) in enumerate(taken):
                group.create_task(restore(snap, data))
                group.create_task(come_and_go(number))
        infos, _ = await api.streams()
    counts = {info["config"]["name"]: info["state"]["messages"] for info in infos}
    assert counts == {f"S{number}": 1 for number in range(STREAMS)}


class Journal:
    """Records when work with a lock begins and ends."""

    def __init__(self) -> None:
        self.lock = RestoreLock()
        self.lines: list[str] = []

    async def restore(self, name: str, *, deletes: bool = False) -> None:
        """Restore; with `deletes` another task of the restore deletes a stream meanwhile."""
        async with self.lock.restore():
            self.lines.append(f"begin {name}")
            await asyncio.sleep(0)
            if deletes:
                await asyncio.ensure_future(self.change("its own"))
            self.lines.append(f"end {name}")

    async def change(self, name: str) -> None:
        """Create or delete a stream."""
        async with self.lock.change_streams():
            self.lines.append(f"begin {name}")
            await asyncio.sleep(0)
            self.lines.append(f"end {name}")


async def test_one_restore_after_the_other() -> None:
    """Changes run together and restores alone, which come before the changes that wait."""
    journal = Journal()
    async with asyncio.TaskGroup() as group:
        group.create_task(journal.change("1"))
        group.create_task(journal.change("2"))
        group.create_task(journal.restore("A"))
        group.create_task(journal.restore("B"))
        group.create_task(journal.change("3"))

    changes, restores, last = journal.lines[:4], journal.lines[4:8], journal.lines[8:]
    assert changes == ["begin 1", "begin 2", "end 1", "end 2"]
    assert restores in (
        ["begin A", "end A", "begin B", "end B"],
        ["begin B", "end B", "begin A", "end A"],
    )
    assert last == ["begin 3", "end 3"]


async def test_a_restore_may_delete() -> None:
    """A task that a restore starts does not wait for it."""
    journal = Journal()
    async with asyncio.timeout(5):
        await journal.restore("A", deletes=True)

    assert journal.lines == ["begin A", "begin its own", "end its own", "end A"]


async def test_a_cancelled_restore_lets_others_run() -> None:
    """A change that waits behind a restore continues when that is cancelled before its turn."""
    journal = Journal()
    async with asyncio.timeout(5), journal.lock.change_streams():
        restoring = asyncio.ensure_future(journal.restore("A"))
        await asyncio.sleep(0.01)
        behind = asyncio.ensure_future(journal.change("1"))
        await asyncio.sleep(0.01)
        assert journal.lines == []
        restoring.cancel()
        await behind

    assert journal.lines == ["begin 1", "end 1"]
