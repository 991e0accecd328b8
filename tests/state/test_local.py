"""The local file backend: atomic, private, locked, and readable after a process died at any moment."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.errors import StateError, StateLockedError
from jsplan.state import Entry, LocalBackend, LockInfo, State

if TYPE_CHECKING:
    from pathlib import Path

A, B = Address("hub", "stream", "A"), Address("hub", "stream", "B")


def entry(**fields: Any) -> Entry:
    """An entry like those an apply writes."""
    return Entry({"name": "A", "max_age": 5}, {"name": "A"}, "2026-01-01T00:00:00Z", **fields)


def put(address: Address) -> dict[str, Any]:
    """The journal line of a finished step."""
    return {"put": {"address": str(address), "entry": entry().to_json()}}


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    """A backend whose folder does not exist yet."""
    return LocalBackend(tmp_path / "deep" / "state.json", "shop", None)


def session(backend: LocalBackend, *changes: dict[str, Any]) -> State:
    """One writing session from start to finish."""
    state = backend.read()
    backend.start(state)
    backend.append(state, *changes)
    backend.finish(state)
    return state


def test_nothing_yet(backend: LocalBackend) -> None:
    """A file that is not there is an empty state, and reading makes no file."""
    assert not backend.read().exists
    assert not backend.path.parent.exists()


def test_round_trip(backend: LocalBackend) -> None:
    """What was recorded is read again, with the lineage of the first session and a growing serial."""
    first = session(backend, put(A))
    second = session(backend, put(B), {"domain": {"key": "hub", "server": {"name": "h1"}}})

    read = backend.read()
    assert (first.serial, second.serial, read.serial) == (1, 2, 2)
    assert read.lineage == first.lineage != ""
    assert read.resources == {A: entry(), B: entry()}
    assert read.domains == {"hub": {"name": "h1"}}


def test_files_are_private(backend: LocalBackend) -> None:
    """State, journal and lock can be read by their owner only."""
    state = backend.read()
    with backend.lock(LockInfo.here("apply"), 0):
        backend.start(state)
        backend.append(state, put(A))
        modes = {path.name: path.stat().st_mode & 0o777 for path in backend.path.parent.iterdir()}
        backend.finish(state)
    modes |= {path.name: path.stat().st_mode & 0o777 for path in backend.path.parent.iterdir()}

    assert "state.json" in modes
    assert "state.json.journal" in modes
    assert set(modes.values()) == {0o600}


def test_the_serial_before_is_kept(backend: LocalBackend) -> None:
    """The document before the last one stays as a backup."""
    session(backend, put(A))
    before = backend.path.read_bytes()
    session(backend, {"drop": str(A)})

    assert backend.path.with_name("state.json.backup").read_bytes() == before


@pytest.mark.parametrize("folded", [True, False])
def test_a_process_that_died_leaves_its_steps(backend: LocalBackend, folded: bool) -> None:
    """Journal lines count, whether the process died before the fold or between the fold and the removal of the journal."""
    session(backend, put(A))
    state = backend.read()
    backend.start(state)
    backend.append(state, {"begin": {"id": "s2", "address": str(B), "op": "stream.create"}}, put(B))
    journal = backend.path.with_name("state.json.journal")
    lines = journal.read_bytes()
    backend.close()
    if folded:
        backend.finish(state)
        journal.write_bytes(lines)

    later = LocalBackend(backend.path, "shop", None).read()
    assert later.resources == {A: entry(), B: entry()}
    assert later.serial == 2
    assert later.pending == {}


def test_a_torn_last_line(backend: LocalBackend) -> None:
    """A line that was being written when the power went is a step whose end is not known; it stays pending."""
    state = backend.read()
    backend.start(state)
    backend.append(state, {"begin": {"id": "s1", "address": str(A), "op": "stream.create"}})
    backend.close()
    with backend.path.with_name("state.json.journal").open("ab") as file:
        file.write(b'{"put":{"addr')

    later = LocalBackend(backend.path, "shop", None).read()
    assert later.resources == {}
    assert list(later.pending) == [str(A)]


def test_a_new_session_folds_what_a_dead_one_left(backend: LocalBackend) -> None:
    """The next writer keeps the dead session's steps."""
    state = backend.read()
    backend.start(state)
    backend.append(state, put(A))
    backend.close()

    other = LocalBackend(backend.path, "shop", None)
    session(other, put(B))
    assert set(other.read().resources) == {A, B}
    assert other.read().serial == 2


def test_every_cut_of_the_file_is_an_error(backend: LocalBackend) -> None:
    """A state file cut anywhere is an error that says so; it is never taken for an empty one, and never overwritten."""
    session(backend, put(A))
    whole = backend.path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        backend.path.write_bytes(whole[:length])
        with pytest.raises(StateError, match="damaged"):
            backend.read()
        assert backend.path.read_bytes() == whole[:length]


def test_a_foreign_state(backend: LocalBackend) -> None:
    """State of another workspace or environment is refused."""
    session(backend, put(A))
    for workspace, environment in (("other", None), ("shop", "prod")):
        with pytest.raises(StateError, match="belongs to workspace shop"):
            LocalBackend(backend.path, workspace, environment).read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"kind": "plan"}', "not a jsplan state"),
        (b'{"kind": "state", "format_version": "2.0"}', "has format 2.0"),
        (b"[]", "not a jsplan state"),
    ],
)
def test_other_documents(backend: LocalBackend, text: bytes, message: str) -> None:
    """Another document and a newer format are named as what they are."""
    backend.path.parent.mkdir()
    backend.path.write_bytes(text)
    with pytest.raises(StateError, match=message):
        backend.read()


def test_the_lock_names_its_holder(backend: LocalBackend) -> None:
    """Whoever comes second is told who holds the lock and since when."""
    other = LocalBackend(backend.path, "shop", None)
    with (
        backend.lock(LockInfo.here("apply"), 0),
        pytest.raises(StateLockedError, match=r"for apply since 20\d\d-"),
        other.lock(LockInfo.here("destroy"), 0),
    ):
        pass
    with backend.lock(LockInfo.here("apply"), 0):
        pass


def test_the_lock_of_a_killed_process_is_free(backend: LocalBackend) -> None:
    """The system frees the lock of a process that was killed; nobody has to clean up."""
    code = (
        "import sys, os, pathlib; from jsplan.state import LocalBackend, LockInfo\n"
        "b = LocalBackend(pathlib.Path(sys.argv[1]), 'shop', None)\n"
        "with b.lock(LockInfo.here('apply'), 0):\n    print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(backend.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    with child:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(StateLockedError), backend.lock(LockInfo.here("apply"), 0):
            pass
        child.kill()
        child.wait()
        child.stdin.close()
    with backend.lock(LockInfo.here("apply"), 10_000_000_000):
        assert backend.read().serial == 0
