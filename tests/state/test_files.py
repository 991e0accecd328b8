"""State files behind links, on special file systems, full disks and odd paths."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsplan.errors import StateError
from jsplan.state import LocalBackend, LockInfo, State
from tests.state.test_local import A, B, put, session

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """The file behind the links, which does not exist yet."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared" / "real.json"


def linked(tmp_path: Path, real: Path, name: str = "here") -> LocalBackend:
    """A backend whose path is a symbolic link to the real file."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "state.json").symlink_to(real)
    return LocalBackend(tmp_path / name / "state.json", "shop", None)


def modes(folder: Path) -> dict[str, int]:
    """Return the permissions of the files in a folder."""
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


async def test_a_state_behind_a_link(tmp_path: Path, real: Path) -> None:
    """A link stays a link; journal, backups and lock are beside the real file."""
    backend = linked(tmp_path, real)
    for address in (A, B):
        async with backend.lock(LockInfo.for_this_process("apply"), 0):
            state = await backend.read()
            await backend.start(state)
            backend.append(state, put(address))
            beside = {path.name for path in real.parent.iterdir()}
            await backend.finish(state)

    assert {"real.json.journal", "real.json.lock", "real.json.lock.info"} <= beside
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["state.json"]
    assert (tmp_path / "here" / "state.json").is_symlink()
    assert real.with_name("real.json.backup").exists()
    other = await LocalBackend(real, "shop", None).read()
    assert (other.serial, set(other.resources)) == (2, {A, B})


async def test_two_links_to_one_state(tmp_path: Path, real: Path) -> None:
    """A lock that is taken through one link holds for all."""
    first, other = linked(tmp_path, real, "first"), linked(tmp_path, real, "other")
    async with first.lock(LockInfo.for_this_process("apply"), 0):
        with pytest.raises(StateError, match="is locked by"):
            async with other.lock(LockInfo.for_this_process("apply"), 0):
                pass


@pytest.mark.parametrize(
    "number",
    [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EACCES],
)
async def test_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A file system without hard links keeps earlier documents as private copies."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    backend = LocalBackend(tmp_path / "state.json", "shop", None)
    for address in (A, B, A):
        await session(backend, put(address))

    assert (await backend.read()).serial == 3
    assert [(await backend.read_previous(serial)).serial for serial in (1, 2, 3)] == [1, 2, 3]
    assert set(modes(tmp_path).values()) == {0o600}
    assert not [name for name in modes(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize("failing", ["fsync", "link"])
async def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """On a full disk, partial files are removed, and the journal keeps the steps."""
    backend = LocalBackend(tmp_path / "state.json", "shop", None)
    await session(backend, put(A))
    before = backend.path.read_bytes()
    state = await backend.read()
    await backend.start(state)
    backend.append(state, put(B))
    _fill_the_disk(monkeypatch, failing)

    with pytest.raises(StateError, match="No space left") as raised:
        await backend.finish(state)
    await backend.close()
    assert raised.value.hint == "Free space on the disk. The steps done so far are in its journal."
    assert backend.path.read_bytes() == before
    assert not [name for name in modes(tmp_path) if name.endswith(".tmp")]
    assert set((await backend.read()).resources) == {A, B}


def _fill_the_disk(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)


async def test_a_failed_push_keeps_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older document that cannot be written leaves the newer journal in place."""
    backend = LocalBackend(tmp_path / "state.json", "shop", None)
    older = await session(backend, put(A))
    newer = await backend.read()
    await backend.start(newer)
    backend.append(newer, put(B))
    await backend.close()
    _fill_the_disk(monkeypatch, "fsync")

    with pytest.raises(StateError, match="No space left"):
        await backend.replace(State.from_json(older.to_json(), "older"))
    assert set((await backend.read()).resources) == {A, B}


@pytest.mark.parametrize(
    "name",
    ["state.json.tmp", "state.json.backup.tmp", "state.json.journal", "state.json.lock.info"],
)
async def test_links_in_the_folder_are_not_followed(tmp_path: Path, name: str) -> None:
    """A link in the place of a file of jsplan is replaced, and its target stays unchanged."""
    precious = tmp_path / "precious"
    precious.write_text("original")
    backend = LocalBackend(tmp_path / "state" / "state.json", "shop", None)
    await session(backend, put(A))
    if name.endswith(".journal"):
        precious.write_text("")  # a journal is read first
    (tmp_path / "state" / name).symlink_to(precious)
    text = precious.read_text()
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        await session(backend, put(B))

    assert precious.read_text() == text
    assert (await backend.read()).serial >= 2


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "kind"),
    [(Path.mkdir, "a folder"), (_fifo, "a named pipe"), (_device, "a device")],
    ids=["folder", "pipe", "device"],
)
@pytest.mark.parametrize("name", ["state.json", "state.json.journal"])
async def test_special_files_are_refused(
    tmp_path: Path, make: Callable[[Path], None], kind: str, name: str
) -> None:
    """A folder, pipe or device in the place of the state or its journal is refused at once."""
    make(tmp_path / name)
    with pytest.raises(StateError, match=f"is {kind}") as raised:
        await asyncio.wait_for(LocalBackend(tmp_path / "state.json", "shop", None).read(), 10)
    assert "backend.local.path" in str(raised.value.hint)


@pytest.mark.parametrize("make", [Path.mkdir, _fifo, _device], ids=["folder", "pipe", "device"])
async def test_special_files_are_not_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """`state push --force` does not replace a device either."""
    path = tmp_path / "state.json"
    make(path)
    before = path.lstat().st_mode
    backend = LocalBackend(path, "shop", None)

    with pytest.raises(StateError, match="is not a regular file"):
        await backend.replace(State("shop", None))
    with pytest.raises(StateError, match="is not a regular file"):
        async with backend.lock(LockInfo.for_this_process("state push"), 0):
            pass
    assert path.lstat().st_mode == before


async def test_a_pipe_in_place_of_the_holder(tmp_path: Path) -> None:
    """A named pipe in the place of the holder's file is ignored."""
    os.mkfifo(tmp_path / "state.json.lock.info")

    assert (
        await asyncio.wait_for(
            LocalBackend(tmp_path / "state.json", "shop", None).read_holder(), 10
        )
        is None
    )
