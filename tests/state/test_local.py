"""The local backend: atomic, private, locked, and readable after a death at any moment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.documents.base import dumps, plain
from jsplan.errors import StateError, StateLockedError
from jsplan.state import LocalBackend, LockInfo, State
from jsplan.units import SECOND
from tests.support.state import entry

if TYPE_CHECKING:
    from pathlib import Path

A, B = Address("hub", "stream", "A"), Address("hub", "stream", "B")


def put(address: Address) -> dict[str, Any]:
    """The journal line of a finished step."""
    return {"put": {"address": str(address), "entry": plain(entry())}}


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    """A backend whose folder does not exist yet."""
    return LocalBackend(tmp_path / "deep" / "state.json", "shop", None)


async def session(backend: LocalBackend, *changes: dict[str, Any]) -> State:
    """Run one writing session from start to finish."""
    state = await backend.read()
    await backend.start(state)
    backend.append(state, *changes)
    await backend.finish(state)
    return state


async def take_lock(backend: LocalBackend, operation: str, timeout: int = 0) -> None:
    """Take the lock and release it; `timeout` is in ns."""
    async with backend.lock(LockInfo.for_this_process(operation), timeout):
        pass


async def test_a_missing_file_is_empty(backend: LocalBackend) -> None:
    """A missing file is an empty state, and reading creates no file."""
    assert not (await backend.read()).exists
    assert not backend.path.parent.exists()


async def test_round_trip(backend: LocalBackend) -> None:
    """A session is read back with the first lineage and a growing serial."""
    first = await session(backend, put(A))
    second = await session(backend, put(B), {"domain": {"key": "hub", "server": {"name": "h1"}}})

    read = await backend.read()
    assert (first.serial, second.serial, read.serial) == (1, 2, 2)
    assert read.lineage == first.lineage != ""
    assert read.resources == {A: entry(), B: entry()}
    assert read.domains == {"hub": {"name": "h1"}}


async def test_files_are_private(backend: LocalBackend) -> None:
    """State, journal and lock can be read by their owner only."""
    state = await backend.read()
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        await backend.start(state)
        backend.append(state, put(A))
        modes = {path.name: path.stat().st_mode & 0o777 for path in backend.path.parent.iterdir()}
        await backend.finish(state)
    modes |= {path.name: path.stat().st_mode & 0o777 for path in backend.path.parent.iterdir()}

    assert "state.json" in modes
    assert "state.json.journal" in modes
    assert set(modes.values()) == {0o600}


async def test_the_previous_serial_is_kept(backend: LocalBackend) -> None:
    """The previous document stays as a backup."""
    await session(backend, put(A))
    before = backend.path.read_bytes()
    await session(backend, {"drop": str(A)})

    assert backend.path.with_name("state.json.backup").read_bytes() == before


@pytest.mark.parametrize("folded", [True, False])
async def test_the_steps_of_a_dead_process_count(backend: LocalBackend, folded: bool) -> None:
    """Journaled steps count if the process died before or after the fold of the journal."""
    await session(backend, put(A))
    state = await backend.read()
    await backend.start(state)
    backend.append(
        state,
        {
            "begin": {
                "id": "s2",
                "address": str(B),
                "op": "stream.create",
                "expect": None,
                "record": None,
            }
        },
        put(B),
    )
    journal = backend.path.with_name("state.json.journal")
    lines = journal.read_bytes()
    await backend.close()
    if folded:
        await backend.finish(state)
        journal.write_bytes(lines)

    later = await LocalBackend(backend.path, "shop", None).read()
    assert later.resources == {A: entry(), B: entry()}
    assert later.serial == 2
    assert later.pending == {}


async def test_a_torn_last_line(backend: LocalBackend) -> None:
    """A line that was cut off is a step with an unknown end, which stays pending."""
    state = await backend.read()
    await backend.start(state)
    backend.append(
        state,
        {
            "begin": {
                "id": "s1",
                "address": str(A),
                "op": "stream.create",
                "expect": None,
                "record": None,
            }
        },
    )
    await backend.close()
    with backend.path.with_name("state.json.journal").open("ab") as file:
        file.write(b'{"put":{"addr')

    later = await LocalBackend(backend.path, "shop", None).read()
    assert later.resources == {}
    assert list(later.pending) == [str(A)]


async def test_a_new_session_keeps_the_steps_of_a_dead_one(backend: LocalBackend) -> None:
    """The next session keeps the steps of a dead one."""
    state = await backend.read()
    await backend.start(state)
    backend.append(state, put(A))
    await backend.close()

    other = LocalBackend(backend.path, "shop", None)
    await session(other, put(B))
    assert set((await other.read()).resources) == {A, B}
    assert (await other.read()).serial == 2


async def test_every_cut_of_the_file_is_an_error(backend: LocalBackend) -> None:
    """A state file that is cut anywhere is damaged, and never overwritten."""
    await session(backend, put(A))
    content = backend.path.read_bytes()
    for length in range(0, len(content) - 2, 7):
        backend.path.write_bytes(content[:length])
        with pytest.raises(StateError, match="damaged"):
            await backend.read()
        assert backend.path.read_bytes() == content[:length]


async def test_a_foreign_state(backend: LocalBackend) -> None:
    """The state of another workspace or environment is refused."""
    await session(backend, put(A))
    for workspace, environment in (("other", None), ("shop", "prod")):
        with pytest.raises(StateError, match="belongs to workspace shop"):
            await LocalBackend(backend.path, workspace, environment).read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"kind": "plan"}', "not a jsplan state"),
        (b'{"kind": "state", "format_version": "2.0"}', "has format 2.0"),
        (b"[]", "not a jsplan state"),
    ],
)
async def test_other_documents(backend: LocalBackend, text: bytes, message: str) -> None:
    """Another document or a newer format is an error that names it."""
    backend.path.parent.mkdir()
    backend.path.write_bytes(text)
    with pytest.raises(StateError, match=message):
        await backend.read()


async def test_the_lock_names_its_holder(backend: LocalBackend) -> None:
    """The error of a second process names the holder and the time."""
    other = LocalBackend(backend.path, "shop", None)
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        with pytest.raises(StateLockedError, match=r"for apply since 20\d\d-"):
            await take_lock(other, "destroy")
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        pass


def test_the_lock_of_a_killed_process_is_free(backend: LocalBackend) -> None:
    """The lock of a killed process is free without any clean-up."""
    code = (
        "import asyncio, sys, pathlib; from jsplan.state import LocalBackend, LockInfo\n"
        "async def hold():\n"
        "    async with LocalBackend(pathlib.Path(sys.argv[1]), 'shop', None).lock(LockInfo.for_this_process('apply'), 0):\n"
        "        print('held', flush=True); sys.stdin.read()\n"
        "asyncio.run(hold())"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(backend.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    with child:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(StateLockedError):
            asyncio.run(take_lock(backend, "apply"))
        child.kill()
        child.wait()
        child.stdin.close()
    asyncio.run(take_lock(backend, "apply", 10 * SECOND))


async def test_a_session_that_ends_while_it_is_read(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read during the fold of the journal sees the document with the journal, or the new one."""
    state = await session(backend, put(A))
    await backend.start(state)
    backend.append(state, put(B))
    path, lines = backend.path, backend._path_with_suffix(".journal")  # noqa: SLF001 - the test changes the file
    reader, read, after = (
        LocalBackend(path, "shop", None),
        LocalBackend._read_journal,  # noqa: SLF001
        dumps(state.to_json()),
    )

    def fold_first(self: LocalBackend) -> bytes:
        if lines.exists():
            path.with_name("next").write_bytes(after)
            path.with_name("next").replace(path)
            lines.unlink()
        return read(self)

    monkeypatch.setattr(LocalBackend, "_read_journal", fold_first)
    assert (await reader.read()).resources.keys() == {A, B}
    await backend.close()
