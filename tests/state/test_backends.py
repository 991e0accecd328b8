"""The contract of every backend, with one test per rule."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.documents.base import dumps, plain
from jsplan.errors import StateError, StateLockedError
from jsplan.state import Backend, LockInfo, State
from jsplan.units import SECOND
from tests.support.buckets import value
from tests.support.state import entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.state.conftest import StateLocation

pytestmark = pytest.mark.matrix

A, B = Address("hub", "stream", "A"), Address("hub", "stream", "B")


def put(address: Address, **fields: Any) -> dict[str, Any]:
    """The journal line of a finished step."""
    return {"put": {"address": str(address), "entry": plain(entry(**fields))}}


def begin(address: Address) -> dict[str, Any]:
    """The journal line of a step that begins."""
    return {
        "begin": {
            "id": "s1",
            "address": str(address),
            "op": "stream.create",
            "expect": None,
            "record": None,
        }
    }


@asynccontextmanager
async def open_backend(state_location: StateLocation, *name: str | None) -> AsyncIterator[Backend]:
    """Open the backend as another process does."""
    backend = state_location.open(*name)
    try:
        yield backend
    finally:
        await backend.close()


async def session(state_location: StateLocation, *changes: dict[str, Any]) -> State:
    """Run one writing session from start to finish."""
    async with (
        open_backend(state_location) as backend,
        backend.lock(LockInfo.for_this_process("apply"), 10 * SECOND),
    ):
        state = await backend.read()
        await backend.start(state)
        backend.append(state, *changes)
        await backend.finish(state)
        return state


async def kill_session(
    state_location: StateLocation,
    *changes: dict[str, Any],
    name: tuple[str, str | None] = ("shop", None),
) -> State:
    """Run a session that ends after `flush` without anything more; its lock is free."""
    async with (
        open_backend(state_location, *name) as backend,
        backend.lock(LockInfo.for_this_process("apply"), 10 * SECOND),
    ):
        state = await backend.read()
        await backend.start(state)
        backend.append(state, *changes)
        await backend.flush()
        return state


async def read(state_location: StateLocation, *name: str | None) -> State:
    """Return the state as another process reads it."""
    async with open_backend(state_location, *name) as backend:
        return await backend.read()


async def test_a_missing_state_is_empty(state_location: StateLocation) -> None:
    """A missing state is empty, and reading it creates no file and no bucket."""
    state = await read(state_location)

    assert not state.exists
    assert state.resources == {}
    assert not state_location.path.parent.exists()
    if state_location.kind == "kv":
        with state_location.hub() as raw:
            assert (
                raw.api(f"$JS.API.STREAM.INFO.KV_{state_location.bucket}")["error"]["err_code"]
                == 10059
            )


async def test_round_trip(state_location: StateLocation) -> None:
    """A session is read back with the first lineage and a growing serial."""
    first = await session(state_location, put(A))
    second = await session(
        state_location, put(B), {"domain": {"key": "hub", "server": {"name": "h1"}}}
    )
    result = await read(state_location)

    assert (first.serial, second.serial, result.serial) == (1, 2, 2)
    assert result.lineage == first.lineage != ""
    assert result.resources == {A: entry(), B: entry()}
    assert result.domains == {"hub": {"name": "h1"}}


async def test_each_environment_has_its_own(state_location: StateLocation) -> None:
    """States of several workspaces and environments are independent in one bucket."""
    if state_location.kind == "local":
        return  # a file holds one state
    names = [("shop", None), ("shop", "prod"), ("shop", "1"), ("shop", "1.1"), ("prod", None)]
    await asyncio.gather(
        *(
            kill_session(state_location, put(Address("hub", "stream", f"S{number}")), name=name)
            for number, name in enumerate(names)
        )
    )

    for number, name in enumerate(names):
        assert set((await read(state_location, *name)).resources) == {
            Address("hub", "stream", f"S{number}")
        }


async def test_a_session_under_way_is_seen(state_location: StateLocation) -> None:
    """Flushed changes are visible to other processes, which read without a lock."""
    async with (
        open_backend(state_location) as backend,
        backend.lock(LockInfo.for_this_process("apply"), 0),
    ):
        state = await backend.read()
        await backend.start(state)
        backend.append(state, put(A))
        backend.append(state, begin(B))
        await backend.flush()
        seen = await read(state_location)
        backend.append(state, put(B))
        await backend.sync()
        later = await read(state_location)
        await backend.finish(state)

    assert (set(seen.resources), list(seen.pending)) == ({A}, [str(B)])
    assert (set(later.resources), later.pending) == ({A, B}, {})
    assert (await read(state_location)).resources == {A: entry(), B: entry()}


async def test_the_steps_of_a_dead_process_count(state_location: StateLocation) -> None:
    """Journaled steps of a dead process count, also without an end, under its serial."""
    await session(state_location, put(A))
    await kill_session(state_location, {"drop": str(A)}, begin(B))
    result = await read(state_location)

    assert result.resources == {}
    assert list(result.pending) == [str(B)]
    assert result.serial == 2


async def test_the_next_session_keeps_the_steps_of_a_dead_one(
    state_location: StateLocation,
) -> None:
    """The steps of a dead session stay, and the next session has a new serial."""
    await kill_session(state_location, put(A))
    await kill_session(state_location, put(B))
    last = await session(state_location, {"drop": str(A)})
    result = await read(state_location)

    assert (last.serial, result.serial) == (3, 3)
    assert result.resources == {B: entry()}


async def test_many_steps_at_once(state_location: StateLocation) -> None:
    """Many steps that end together are all stored."""
    addresses = [Address("hub", "stream", f"S{number:04}") for number in range(300)]
    async with (
        open_backend(state_location) as backend,
        backend.lock(LockInfo.for_this_process("apply"), 0),
    ):
        state = await backend.read()
        await backend.start(state)

        async def step(address: Address) -> None:
            backend.append(state, begin(address))
            await backend.flush()
            backend.append(state, put(address))
            await backend.sync()

        await asyncio.gather(*map(step, addresses))

    result = await read(state_location)
    assert set(result.resources) == set(addresses)
    assert result.pending == {}


async def test_a_large_state(state_location: StateLocation) -> None:
    """A state of ten megabytes, too large for one message, is read back unchanged."""
    noise = "".join(chr(33 + (number * 7919 % 89)) for number in range(1000))
    lines = [
        put(Address("hub", "stream", f"S{number}"), applied_at=f"{number}{noise}")
        for number in range(6000)
    ]
    await session(state_location, *lines)
    first = await read(state_location)
    await session(state_location, {"drop": "hub/stream/S0"})
    second = await read(state_location)

    assert len(first.resources) == 6000
    assert first.resources[Address("hub", "stream", "S77")].applied_at == f"77{noise}"
    assert first.resources.keys() - second.resources.keys() == {Address("hub", "stream", "S0")}


async def test_a_foreign_state(state_location: StateLocation) -> None:
    """The state of another workspace or environment is refused and stays unchanged."""
    other = State("other", "prod")
    other.begin_session()
    data = dumps(other.to_json())
    state_location.overwrite(data)

    with pytest.raises(StateError, match="belongs to workspace other, environment prod"):
        await read(state_location)
    with pytest.raises(StateError, match="belongs to workspace other"):
        await session(state_location, put(A))
    assert _stored(state_location) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged"),
        (b'{"kind": "state", "format_ver', "damaged"),
        (b'{"kind": "state", "format_version": "1.0"}', "damaged: expected the field"),
        (b'{"kind": "plan"}', "not a jsplan state"),
        (b'{"kind": "state", "format_version": "2.0"}', "has format 2.0"),
        (b"[]", "not a jsplan state"),
    ],
)
async def test_other_documents_are_refused(
    state_location: StateLocation, data: bytes, message: str
) -> None:
    """A damaged, newer or other document is an error, and is never overwritten."""
    state_location.overwrite(data)

    with pytest.raises(StateError, match=message):
        await read(state_location)
    with pytest.raises(StateError, match=message):
        await session(state_location, put(A))
    assert _stored(state_location) == data


async def test_previous_serials_are_kept(state_location: StateLocation) -> None:
    """The last nine serials can be read; the error for another one names them."""
    for number in range(12):
        await session(state_location, put(Address("hub", "stream", f"S{number}")))
    async with open_backend(state_location) as backend:
        for serial in range(3, 13):
            state = await backend.read_previous(serial)
            assert (state.serial, len(state.resources)) == (serial, serial)
        with pytest.raises(StateError, match="serial 2 of") as error:
            await backend.read_previous(2)
    assert str(error.value.hint) == "Kept are: 3, 4, 5, 6, 7, 8, 9, 10, 11, 12."


async def test_replace_writes_the_whole_document(state_location: StateLocation) -> None:
    """`replace` leaves nothing of the old state or journal, and the next session follows it."""
    await session(state_location, put(A))
    await kill_session(state_location, put(B))
    async with (
        open_backend(state_location) as backend,
        backend.lock(LockInfo.for_this_process("state push"), 0),
    ):
        state = await backend.read()
        state.resources.clear()
        state.serial += 1
        await backend.replace(state)

    assert (await read(state_location)).resources == {}
    assert (await session(state_location, put(B))).serial == 4
    assert (await read(state_location)).resources == {B: entry()}


# --- The lock


async def test_the_lock_names_its_holder(state_location: StateLocation) -> None:
    """The error of a second process names the holder, and the lock is free afterwards."""
    info = LockInfo.for_this_process("destroy")
    async with open_backend(state_location) as first, open_backend(state_location) as second:
        async with first.lock(info, 0):
            with pytest.raises(StateLockedError) as error:
                await _require_free(second)
        await _require_free(second)

    for part in (info.id, info.who, info.host, str(info.pid), "for destroy", info.since):
        assert part in str(error.value)


async def test_waiting_for_the_lock(state_location: StateLocation) -> None:
    """A process that waits with a timeout continues as soon as the first one ends."""
    order: list[str] = []
    taken, release = asyncio.Event(), asyncio.Event()

    async def hold(backend: Backend) -> None:
        async with backend.lock(LockInfo.for_this_process("apply"), 0):
            taken.set()
            await release.wait()
            order.append("first ends")

    async def wait(backend: Backend) -> None:
        await taken.wait()
        async with backend.lock(LockInfo.for_this_process("apply"), 60 * SECOND):
            order.append("second begins")

    async with open_backend(state_location) as first, open_backend(state_location) as second:
        holding, waiting = asyncio.create_task(hold(first)), asyncio.create_task(wait(second))
        await asyncio.wait({waiting, holding}, timeout=0.3)
        assert not holding.done(), holding.exception()
        release.set()
        await asyncio.gather(holding, waiting)

    assert order == ["first ends", "second begins"]


async def test_a_lock_is_released_when_its_holder_fails(state_location: StateLocation) -> None:
    """An error or a cancelled task under the lock frees it at once."""
    async with open_backend(state_location) as backend:
        with pytest.raises(ZeroDivisionError):
            async with backend.lock(LockInfo.for_this_process("apply"), 0):
                raise ZeroDivisionError
        await _require_free(backend)
        inside = asyncio.Event()

        async def hold() -> None:
            async with backend.lock(LockInfo.for_this_process("apply"), 0):
                inside.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await inside.wait()
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        await _require_free(backend)


async def test_a_holder_may_write(state_location: StateLocation) -> None:
    """A new lock allows a request of any timeout."""
    async with (
        open_backend(state_location) as backend,
        backend.lock(LockInfo.for_this_process("apply"), 0),
    ):
        assert backend.may_write(10.0) == 10.0


async def test_nothing_to_unlock(state_location: StateLocation) -> None:
    """`unlock` removes nothing where no lock is held; another lock is an error."""
    async with open_backend(state_location) as backend, open_backend(state_location) as other:
        assert await backend.unlock("some-id") is None
        async with other.lock(LockInfo.for_this_process("apply"), 0):
            with pytest.raises(StateError, match="is locked by"):
                await backend.unlock("some-id")
        assert await backend.unlock("some-id") is None


async def _require_free(backend: Backend) -> None:
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        pass


def _stored(state_location: StateLocation) -> bytes:
    if state_location.kind == "local":
        return state_location.path.read_bytes()
    with state_location.hub() as raw:
        return value(raw, state_location.bucket, "shop")


async def test_a_state_of_a_newer_minor_version(state_location: StateLocation) -> None:
    """A newer minor version is read and never written, because fields would be lost."""
    backend = state_location.open()
    document = State("shop", None, lineage="l", serial=3).to_json() | {
        "format_version": "1.7",
        "newer_field": {"x": 1},
    }
    state_location.overwrite(dumps(document))
    state = await backend.read()
    assert (state.serial, state.newer_format) == (3, "1.7")
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        for write in (backend.start, backend.replace):
            with pytest.raises(StateError, match=r"has format 1\.7, and this jsplan writes 1\.0"):
                await write(state)
    await backend.close()
    again = state_location.open()
    assert (await again.read()).newer_format == "1.7"
    await again.close()


@pytest.mark.parametrize("serial", ["x", 5.0, -1, 2**60, None])
async def test_a_serial_that_is_none(state_location: StateLocation, serial: Any) -> None:
    """A serial that is no valid number is damage."""
    backend = state_location.open()
    state_location.overwrite(
        dumps(State("shop", None, lineage="l", serial=3).to_json() | {"serial": serial})
    )
    with pytest.raises(StateError, match=r"damaged: expected a whole number.* at \$\.serial"):
        await backend.read()
    await backend.close()


#: As servers name them, and the schema of the state does not.
_BAD = "hub/schedule/S/s.a>b"


async def test_what_no_reader_accepts_is_not_written(state_location: StateLocation) -> None:
    """Nothing is written that would make the state unreadable, by a journal or as a document."""
    await session(state_location, put(A))
    refused = "no command could read it again: "
    with pytest.raises(StateError, match=refused):
        await session(state_location, {"put": {"address": _BAD, "entry": plain(entry())}})
    with pytest.raises(StateError, match=refused):
        await session(state_location, begin(Address("hub", "schedule", "S/s.a>b")))
    async with (
        open_backend(state_location) as backend,
        backend.lock(LockInfo.for_this_process("state push"), 10 * SECOND),
    ):
        state = await backend.read()
        state.serial += 1
        state.resources[Address("hub", "schedule", "S/s.a>b")] = entry()
        with pytest.raises(StateError, match=refused):
            await backend.replace(state)

    assert (await read(state_location)).resources == {A: entry()}


async def test_reading_without_a_damaged_address(state_location: StateLocation) -> None:
    """A state with one bad address can be read without it, and be corrected so."""
    state = await session(state_location, put(A), put(B))
    document = state.to_json()
    document["resources"][_BAD] = document["resources"][str(A)]
    document["pending"][_BAD] = {}
    state_location.overwrite(dumps(document))

    with pytest.raises(StateError, match="is damaged"):
        await read(state_location)
    async with open_backend(state_location) as backend:
        assert set((await backend.read(without=[_BAD])).resources) == {A, B}
