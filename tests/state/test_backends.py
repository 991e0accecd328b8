"""What every backend does, wherever it keeps the state: one contract, each test for each of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.documents.base import dumps
from jsplan.errors import StateError, StateLockedError
from jsplan.state import Backend, Entry, LockInfo, State
from jsplan.units import SECOND
from tests.support.buckets import value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.state.conftest import StateLocation

pytestmark = pytest.mark.matrix

A, B = Address("hub", "stream", "A"), Address("hub", "stream", "B")


def entry(**fields: Any) -> Entry:
    """An entry like those an apply writes."""
    return Entry({"name": "A", "max_age": 5}, {"name": "A"}, "2026-01-01T00:00:00Z", **fields)


def put(address: Address, **fields: Any) -> dict[str, Any]:
    """The journal line of a finished step."""
    return {"put": {"address": str(address), "entry": entry(**fields).to_json()}}


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
    """The backend as a process of its own has it."""
    backend = state_location.open(*name)
    try:
        yield backend
    finally:
        await backend.close()


async def session(state_location: StateLocation, *changes: dict[str, Any]) -> State:
    """One writing session from start to finish."""
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
    """A session that ended after `flush` without anything more; its lock went with it."""
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
    """The state as somebody else sees it."""
    async with open_backend(state_location, *name) as backend:
        return await backend.read()


async def test_nothing_yet(state_location: StateLocation) -> None:
    """Where nothing was written is an empty state, and reading it makes nothing: no file, no bucket."""
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
    """What was recorded is read again, with the lineage of the first session and a growing serial."""
    first = await session(state_location, put(A))
    second = await session(
        state_location, put(B), {"domain": {"key": "hub", "server": {"name": "h1"}}}
    )
    found = await read(state_location)

    assert (first.serial, second.serial, found.serial) == (1, 2, 2)
    assert found.lineage == first.lineage != ""
    assert found.resources == {A: entry(), B: entry()}
    assert found.domains == {"hub": {"name": "h1"}}


async def test_each_environment_has_its_own(state_location: StateLocation) -> None:
    """States of several workspaces and environments lie side by side in one bucket and know nothing of each other."""
    if state_location.kind == "local":
        return  # a file has room for one
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
    """Everything flushed is there for others at once; reading it takes no lock and disturbs nobody."""
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


async def test_a_process_that_died_leaves_its_steps(state_location: StateLocation) -> None:
    """What was journaled counts, also what began and has no end; the serial is that of the session that died."""
    await session(state_location, put(A))
    await kill_session(state_location, {"drop": str(A)}, begin(B))
    found = await read(state_location)

    assert found.resources == {}
    assert list(found.pending) == [str(B)]
    assert found.serial == 2


async def test_the_next_session_takes_over_what_a_dead_one_left(
    state_location: StateLocation,
) -> None:
    """Its steps stay, under a serial of their own, and later ones come on top."""
    await kill_session(state_location, put(A))
    await kill_session(state_location, put(B))
    last = await session(state_location, {"drop": str(A)})
    found = await read(state_location)

    assert (last.serial, found.serial) == (3, 3)
    assert found.resources == {B: entry()}


async def test_many_steps_at_once(state_location: StateLocation) -> None:
    """Steps that end together, each waiting for its own line: all of them are kept, in a state as large as they make it."""
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

    found = await read(state_location)
    assert set(found.resources) == set(addresses)
    assert found.pending == {}


async def test_a_large_state(state_location: StateLocation) -> None:
    """Ten megabytes, which no message of a server takes, come back as they were; and again after the next session."""
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
    """State of another workspace or environment is refused, and stays as it is."""
    theirs = State("other", "prod")
    theirs.begin_session()
    data = dumps(theirs.to_json())
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
        (b'{"kind": "state", "format_version": "1.0"}', "damaged: the document lacks .*workspace"),
        (b'{"kind": "plan"}', "not a jsplan state"),
        (b'{"kind": "state", "format_version": "2.0"}', "has format 2.0"),
        (b"[]", "not a jsplan state"),
    ],
)
async def test_what_is_no_state_of_ours(
    state_location: StateLocation, data: bytes, message: str
) -> None:
    """A damaged, newer or other document is an error that says what it is; it is never taken for an empty one, never overwritten."""
    state_location.overwrite(data)

    with pytest.raises(StateError, match=message):
        await read(state_location)
    with pytest.raises(StateError, match=message):
        await session(state_location, put(A))
    assert _stored(state_location) == data


async def test_previous_serials_are_kept(state_location: StateLocation) -> None:
    """The last nine before the present one can be had again; asking for another names those that are there."""
    for number in range(12):
        await session(state_location, put(Address("hub", "stream", f"S{number}")))
    async with open_backend(state_location) as backend:
        for serial in range(3, 13):
            state = await backend.read_previous(serial)
            assert (state.serial, len(state.resources)) == (serial, serial)
        with pytest.raises(StateError, match="serial 2 of") as failed:
            await backend.read_previous(2)
    assert str(failed.value.hint) == "Kept are: 3, 4, 5, 6, 7, 8, 9, 10, 11, 12."


async def test_a_document_is_put_in_place_whole(state_location: StateLocation) -> None:
    """`replace` leaves nothing of what was there, not even of a session that died; and the next session goes on from it."""
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


# --- the lock -------------------------------------------------------------------------------------------------


async def test_the_lock_names_its_holder(state_location: StateLocation) -> None:
    """Whoever comes second is told who holds it, where, for what and since when; afterwards it is free."""
    info = LockInfo.for_this_process("destroy")
    async with open_backend(state_location) as first, open_backend(state_location) as second:
        async with first.lock(info, 0):
            with pytest.raises(StateLockedError) as failed:
                await _is_locked(second)
        await _is_locked(second)

    for part in (info.id, info.who, info.host, str(info.pid), "for destroy", info.since):
        assert part in str(failed.value)


async def test_waiting_for_the_lock(state_location: StateLocation) -> None:
    """With a timeout the second one waits, and goes on as soon as the first one is done."""
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
        await taken.wait()
        await asyncio.wait({waiting}, timeout=0.3)
        release.set()
        await asyncio.gather(holding, waiting)

    assert order == ["first ends", "second begins"]


async def test_a_lock_is_let_go_when_its_holder_fails(state_location: StateLocation) -> None:
    """An error under the lock and a task that is cancelled both leave it free, at once."""
    async with open_backend(state_location) as backend:
        with pytest.raises(ZeroDivisionError):
            async with backend.lock(LockInfo.for_this_process("apply"), 0):
                raise ZeroDivisionError
        await _is_locked(backend)
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
        await _is_locked(backend)


async def test_a_holder_may_write(state_location: StateLocation) -> None:
    """Under a lock just taken, a request to a server may take the time it asks for."""
    async with (
        open_backend(state_location) as backend,
        backend.lock(LockInfo.for_this_process("apply"), 0),
    ):
        assert backend.may_write(10.0) == 10.0


async def test_nothing_to_unlock(state_location: StateLocation) -> None:
    """A lock that is not there, or not that one, is not taken away."""
    async with open_backend(state_location) as backend, open_backend(state_location) as other:
        with pytest.raises(StateError, match="is not locked"):
            await backend.unlock("some-id")
        async with other.lock(LockInfo.for_this_process("apply"), 0):
            with pytest.raises(StateError, match="is locked by"):
                await backend.unlock("some-id")
        with pytest.raises(StateError, match="is not locked"):
            await backend.unlock("some-id")


async def _is_locked(backend: Backend) -> None:
    async with backend.lock(LockInfo.for_this_process("apply"), 0):
        pass


def _stored(state_location: StateLocation) -> bytes:
    if state_location.kind == "local":
        return state_location.path.read_bytes()
    with state_location.hub() as raw:
        return value(raw, state_location.bucket, "shop")


async def test_a_state_of_a_newer_minor_version(state_location: StateLocation) -> None:
    """It is read, what it has besides is no matter, and it is never written: that would lose what this release does not know."""
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
    """A serial that cannot be counted on is damage, said when the state is read."""
    backend = state_location.open()
    state_location.overwrite(
        dumps(State("shop", None, lineage="l", serial=3).to_json() | {"serial": serial})
    )
    with pytest.raises(StateError, match="damaged: serial must be"):
        await backend.read()
    await backend.close()
