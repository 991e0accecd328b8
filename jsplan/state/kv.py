"""The KV backend: the state of one workspace and environment under keys of a NATS KV bucket (layout: state/SPEC.md).

The document is one value, or a head that names the parts of one; the journal is a row of messages under keys of its own, which
are removed when the document has taken them in. Who may write, and that nobody else does, is left to `lease`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from typing import Any

from jsplan.config.model import Connection, Domain
from jsplan.errors import ApiError, ConnectError, StateError
from jsplan.state import journal
from jsplan.state.bucket import Bucket, Conflict, Item
from jsplan.state.document import State
from jsplan.state.lease import Lease, holder_of, remove, shielded
from jsplan.state.locks import LockInfo, Waiting
from jsplan.state.parts import Packed, join, pack, read_head
from jsplan.units import SECOND

#: How often a reader starts again because a writer ended its session under it.
READS = 20
#: So many parts of a document are asked for at once.
AT_ONCE = 64


class KvBackend:
    """State under `key` in a bucket. `lease` is ns: how long a lock outlives its holder."""

    def __init__(self, bucket: Bucket, workspace: str, environment: str | None, lease: int) -> None:
        self._bucket = bucket
        self._workspace = workspace
        self._environment = environment
        self.key = f"{workspace}.{environment}" if environment else workspace
        self._length = lease / SECOND
        self._lease: Lease | None = None
        self._head = Item(0, None)
        self._left: list[str] = []  # keys of journals that nobody removed yet
        self._unfolded = False  # whether one of them is not in the document yet
        self._serial = 0
        self._segments = 0
        self._unsent = bytearray()
        self._appended = self._sent = 0
        self._sender: asyncio.Task[None] | None = None
        self._failure: StateError | None = None

    @classmethod
    def at(cls, name: str, domain: Domain, connection: Connection, environ: Mapping[str, str], *, of: tuple[str, str | None],
           lease: int) -> KvBackend:  # fmt: skip
        """The backend of the workspace and environment `of` in the bucket `name` of a domain."""
        return cls(Bucket(name, domain, connection, environ), *of, lease)

    @property
    def place(self) -> str:
        """Bucket, domain and key."""
        return f"the state {self.key} in bucket {self._bucket.name} of domain {self._bucket.domain.key}"

    @property
    def _lock_key(self) -> str:
        return f"_lock.{self.key}"

    @contextmanager
    def _in_words(self, doing: str) -> Iterator[None]:
        """Whatever goes wrong with the bucket is an error of the state, wherever it happens."""
        try:
            yield
        except (ApiError, ConnectError) as error:
            hint = error.hint or "Nothing is planned or changed without the state. Run the command again when its bucket can be reached."
            raise StateError(f"cannot {doing} {self.place}: {error}", hint=hint) from None

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self) -> State:
        """The state with its journal carried out; an empty one if there is no bucket or no key.

        Raises StateError for a damaged or foreign value: it is never taken for an empty state.
        """
        with self._in_words("read"):
            for _ in range(READS):
                if (state := await self._read()) is not None:
                    return state
        raise StateError(f"{self.place} changes faster than it can be read", hint="Run the command again when less is going on.")

    async def _read(self) -> State | None:
        """None where a writer ended its session meanwhile."""
        contents = await self._bucket.contents(f"_journal.{self.key}.*.*")
        head = await self._bucket.get(self.key) if contents else Item(0, None)
        left = [key for key in contents.keys if _is_piece(key)] if contents else []
        self._head, self._left, self._unfolded = head, left, False  # also where it cannot be read: somebody may force it
        try:
            state = await self._document(head)
            segments = self._segments_after(left, state.serial)
            data = self._joined(await asyncio.gather(*map(self._bucket.get, segments)))
        except StateError:
            if left or head.data is not None:
                now = await self._bucket.get(self.key)
                if now != head:
                    return None
            raise
        journal.carry_out(state, data, f"{self.place}, its journal", self._damaged)
        self._unfolded = bool(segments)
        return state

    @property
    def _damaged(self) -> str:
        return (
            "Nothing was overwritten. Earlier serials are kept in the bucket: jsplan state pull --serial N prints one, and "
            "jsplan state push --force puts one in place."
        )

    async def _document(self, head: Item) -> State:
        """The document that a head is or names. Raises StateError where it is damaged or foreign."""
        if head.data is None:
            return State(self._workspace, self._environment)
        document = read_head(head.data, self.place, self._damaged)
        if isinstance(document, Packed):
            whole = join(document, await self._parts(document), self.place, self._damaged)
            state = State.parse(whole, self.place, self._damaged)
        else:
            state = State.from_json(document, self.place, self._damaged)
        self._check_ours(state)
        return state

    async def _parts(self, head: Packed) -> list[bytes | None]:
        """Some at a time, up to the first that is missing: a damaged head may name any number."""
        found: list[bytes | None] = []
        names = (f"_part.{self.key}.{name}" for name in head.names)
        while None not in found and (some := list(islice(names, AT_ONCE))):
            found += [part.data for part in await asyncio.gather(*map(self._bucket.get, some))]
        return found

    def _check_ours(self, state: State) -> None:
        if (state.workspace, state.environment) != (self._workspace, self._environment):
            theirs = f"{state.workspace}, environment {state.environment or 'none'}"
            ours = f"{self._workspace}, environment {self._environment or 'none'}"
            raise StateError(f"{self.place} belongs to workspace {theirs}, not to {ours}", hint="Look at who wrote it: nats kv get.")

    def _segments_after(self, keys: list[str], serial: int) -> list[str]:
        """The journal that is not in the document yet, in order. Raises StateError for a hole in it."""
        numbers = sorted((int(at), int(number)) for at, number in (key.rsplit(".", 2)[1:] for key in keys) if int(at) > serial)
        for place, (at, number) in enumerate(numbers, 1):
            if (at, number) != (numbers[0][0], place):
                raise StateError(f"{self.place}: part {place} of its journal is missing", hint=self._damaged)
        return [f"_journal.{self.key}.{at}.{number}" for at, number in numbers]

    def _joined(self, found: list[Item]) -> bytes:
        if all(item.data is None and item.revision for item in found):
            return b""  # somebody deleted it whole with a client of buckets; jsplan itself leaves no markers
        if any(item.data is None for item in found):
            raise StateError(f"{self.place}: its journal is incomplete", hint=self._damaged)
        return b"".join(item.data or b"" for item in found)

    # --- the lock --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lock(self, info: LockInfo, timeout: int, tell: Callable[[LockInfo], None] | None = None) -> AsyncIterator[None]:
        """Hold the lock for one operation; `timeout` is ns to wait for somebody else. Makes the bucket if there is none.

        Raises StateLockedError that says who holds it, StateError where the bucket cannot be reached: it is never ignored.
        """
        lease = Lease(self._bucket, self._lock_key, info, self._length, self.place)
        with self._in_words("lock"):
            await self._bucket.ensure()
            await lease.acquire(timeout, Waiting(tell))
        self._lease = lease
        try:
            yield
        finally:
            await shielded(lease.release())

    def may_write(self, seconds: float) -> float:
        """Raises LeaseLostError where less of the lease is left than that, or than half of it if it is shorter."""
        return self._held.may_write(seconds)

    @property
    def _held(self) -> Lease:
        assert self._lease is not None, "lock() comes first"
        return self._lease

    # --- writing ---------------------------------------------------------------------------------------------

    async def start(self, state: State) -> None:
        """Begin a writing session under the lock: fold what a dead process left, then begin a new serial."""
        state.require_writable(self.place)
        if self._unfolded:
            await self.replace(state)
        await self._remove_journals()
        state.begin()
        self._serial, self._segments = state.serial, 0
        self.append(state, journal.session_of(state))
        await self.flush()

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Carry out changes on the document in memory, and send their lines off; those of one moment go together."""
        if self._failure is not None:
            raise self._failure
        for change in changes:
            state.apply(change)
        lines = journal.encode(changes)
        self._unsent += lines
        self._appended += len(lines)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """One message after the other, so that the row has no holes. What stops it is raised to whoever waits or appends."""
        try:
            while self._unsent:
                segment = bytes(self._unsent[: self._bucket.largest])
                with self._in_words("write the journal of"):
                    await self._held.write(f"_journal.{self.key}.{self._serial}.{self._segments + 1}", segment)
                self._segments += 1
                self._sent += len(segment)
                del self._unsent[: len(segment)]
        except StateError as error:
            self._failure = error

    async def flush(self) -> None:
        """Wait until the server has stored everything appended so far."""
        mine = self._appended
        while self._sent < mine:
            if self._failure is not None:
                raise self._failure
            assert self._sender is not None
            await asyncio.shield(self._sender)

    async def sync(self) -> None:
        """What the server has stored is kept as well as it ever will be."""
        await self.flush()

    async def finish(self, state: State) -> None:
        """End the session: the document takes in its journal, which goes then. What is not removed is removed by the next session."""
        await self.flush()
        await self.replace(state)
        self._left = [f"_journal.{self.key}.{self._serial}.{number}" for number in range(1, self._segments + 1)]
        with suppress(StateError):
            await self._remove_journals()

    async def _remove_journals(self) -> None:
        """Only those of serials that are in the document: a session of somebody else has a later one."""
        with self._in_words("clean up"):
            for serial in sorted({key.rsplit(".", 2)[1] for key in self._left}):
                await self._bucket.purge(f"_journal.{self.key}.{serial}.*")
        self._left = []

    async def replace(self, state: State) -> None:
        """Put a whole document in place of what is there; earlier ones stay in the history of the key."""
        state.require_writable(self.place)
        head, parts = pack(state.to_json(), self._bucket.largest)
        if any(int(key.rsplit(".", 2)[1]) > state.serial for key in self._left):
            await self._remove_journals()  # of something that cannot be read: they must not come on top of this
        with self._in_words("write"):
            for name, data in parts:
                await self._held.write(f"_part.{self.key}.{name}", data)
            self._head = Item(await self._held.write(self.key, head, after=self._head), head)
            with suppress(ApiError, ConnectError):  # the next session removes them
                await self._remove_old_parts(state.serial)

    async def _remove_old_parts(self, serial: int) -> None:
        """Those that no document in the history names. Later serials are somebody else's, who may be writing them now."""
        contents = await self._bucket.contents(f"_part.{self.key}.*.*.*")
        if contents is None or not contents.keys:
            return
        sets = {tuple(key.removeprefix(f"_part.{self.key}.").split(".")[:2]) for key in contents.keys}
        named: set[tuple[str, ...]] = set()
        for item in await self._bucket.history(self.key):
            with suppress(StateError):
                document = read_head(item.data or b"", self.place, self._damaged)
                named |= {tuple(document.prefix.split("."))} if isinstance(document, Packed) else set()
        for old in sorted(s for s in sets - named if s[0].isdecimal() and int(s[0]) <= serial):
            await self._bucket.purge(f"_part.{self.key}.{old[0]}.{old[1]}.*")

    # --- for the state commands ------------------------------------------------------------------------------

    async def previous(self, serial: int) -> State:
        """The document of a serial that is kept. Raises StateError that names those that are."""
        kept: dict[int, State] = {}
        with self._in_words("read"):
            for item in await self._bucket.history(self.key):
                with suppress(StateError):
                    state = await self._document(item)
                    kept[state.serial] = state
        if serial not in kept:
            raise StateError(f"serial {serial} of {self.place} is not kept", hint=f"Kept are: {', '.join(map(str, kept)) or 'none'}.")
        return kept[serial]

    async def holder(self) -> LockInfo | None:
        """Who has the lock's key; whether it still lives shows when its lease is over."""
        with self._in_words("look at"):
            if await self._bucket.contents(self._lock_key) is None:
                return None
            try:
                found = holder_of(await self._bucket.get(self._lock_key))
            except ValueError:
                return None
            return found[0] if found is not None else None

    async def unlock(self, lock_id: str) -> LockInfo:
        """Take the lock away from whoever holds it under this id; a holder that lives finds out with its next write."""
        with self._in_words("unlock"):
            if await self._bucket.contents(self._lock_key) is None:
                raise StateError(f"{self.place} is not locked", hint="There is nothing to do.")
            while True:
                item = await self._bucket.get(self._lock_key)
                info = self._removable(item, lock_id)
                with suppress(Conflict):
                    await remove(self._bucket, self._lock_key, item.revision)
                    return info

    def _removable(self, item: Item, lock_id: str) -> LockInfo:
        try:
            holder = holder_of(item)
        except ValueError as error:
            raise StateError(f"the lock of {self.place} is {error}", hint="Look at it with nats kv get, and delete it there.") from None
        if holder is None:
            raise StateError(f"{self.place} is not locked", hint="There is nothing to do.")
        if holder[0].id != lock_id:
            raise StateError(f"{self.place} is locked by {holder[0].describe()}", hint="Give the id of that lock.")
        return holder[0]

    async def close(self) -> None:
        """Hang up; of an open session stays what was sent."""
        if self._sender is not None:
            self._sender.cancel()
        await self._bucket.close()


def _is_piece(key: str) -> bool:
    """Whether a key below that of a journal is named like a piece of one; others are not ours."""
    return all(name.isdecimal() for name in key.rsplit(".", 2)[1:])
