"""The KV backend: state under keys of a NATS KV bucket (layout: state/SPEC.md).

The document is one value, or a head that names its parts. The journal is a sequence of messages
under its own keys, which are removed once the document contains them. `lease` guards the writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from typing import Any

from jsplan.config.model import Connection, Domain
from jsplan.diagnostics import quote_shell
from jsplan.documents.lock import LockInfo
from jsplan.errors import ApiError, ConnectError, StateError
from jsplan.state import document
from jsplan.state.backend import WaitReporter
from jsplan.state.bucket import Bucket, KeyRevision, RevisionConflict
from jsplan.state.document import State
from jsplan.state.lease import CLOCK_MARGIN, Lease, parse_holder, remove_key, run_shielded
from jsplan.state.parts import PartsHead, join_parts, read_head, split_document
from jsplan.units import SECOND, parse_instant

#: Retries of a reader that overlaps with the end of a session.
MAX_READ_ATTEMPTS = 20
#: Parts of a document that are requested at once.
PARALLEL_READS = 64


class KvBackend:
    """State under `key` in a bucket. `lease` is ns: the time that a lock outlives its holder."""

    def __init__(self, bucket: Bucket, workspace: str, environment: str | None, lease: int) -> None:
        self._bucket = bucket
        self._workspace = workspace
        self._environment = environment
        self.key = f"{workspace}.{environment}" if environment else workspace
        self._lease_seconds = lease / SECOND
        self._lease: Lease | None = None
        self._head = KeyRevision(0, None)
        self._journal_keys: list[str] = []  # keys of journals that are not removed yet
        self._has_unfolded_journal = False  # one of them is not in the document yet
        self._serial = 0
        self._segments = 0
        self._unsent = bytearray()
        self._appended = self._sent = 0
        self._sender: asyncio.Task[None] | None = None
        self._failure: StateError | None = None

    @classmethod
    def open_bucket(
        cls,
        name: str,
        domain: Domain,
        connection: Connection,
        environ: Mapping[str, str],
        *,
        of: tuple[str, str | None],
        lease: int,
    ) -> KvBackend:
        """Build the backend of the workspace and environment `of` in the bucket `name`."""
        return cls(Bucket(name, domain, connection, environ), *of, lease)

    @property
    def location(self) -> str:
        """Bucket, domain and key."""
        bucket = self._bucket
        return f"the state {self.key} in bucket {bucket.name} of domain {bucket.domain.key}"

    @property
    def _lock_key(self) -> str:
        return f"_lock.{self.key}"

    @contextmanager
    def _raise_state_error(self, doing: str) -> Iterator[None]:
        """Turn errors of the bucket into StateError."""
        try:
            yield
        except (ApiError, ConnectError) as error:
            hint = (
                error.hint
                or "Nothing is planned or changed without the state. "
                "Run the command again when its bucket can be reached."
            )
            raise StateError(f"cannot {doing} {self.location}: {error}", hint=hint) from None

    # --- read ------------------------------------------------------------------------------------

    async def read(self, without: Collection[str] = ()) -> State:
        """Read the state and apply its journal. An empty state if there is no bucket or no key.

        Raises StateError for a damaged or foreign value, which is never taken for an empty state.
        """
        with self._raise_state_error("read"):
            for _ in range(MAX_READ_ATTEMPTS):
                if (state := await self._read(without)) is not None:
                    return state
        raise StateError(
            f"{self.location} changes faster than it can be read",
            hint="Run the command again when fewer processes write it.",
        )

    async def _read(self, without: Collection[str]) -> State | None:
        """Read once; None where a writer ended its session at the same time."""
        contents = await self._bucket.read_contents(f"_journal.{self.key}.*.*")
        head = await self._bucket.get(self.key) if contents else KeyRevision(0, None)
        unremoved = [key for key in contents.keys if _is_segment_key(key)] if contents else []
        # Set before the document is parsed: `push --force` may replace one that cannot be read.
        self._head, self._journal_keys, self._has_unfolded_journal = head, unremoved, False
        try:
            state = await self._read_document(head, without)
            segments = self._segments_after(unremoved, state.serial)
            data = self._join_segments(await asyncio.gather(*map(self._bucket.get, segments)))
        except StateError:
            if unremoved or head.data is not None:
                now = await self._bucket.get(self.key)
                if now != head:
                    return None
            raise
        where = f"{self.location}, its journal"
        document.replay(state, data, where, self._damaged_hint, without)
        self._has_unfolded_journal = bool(segments)
        return state

    @property
    def _damaged_hint(self) -> str:
        return (
            "Nothing was overwritten. Earlier serials are kept in the bucket: "
            "jsplan state pull --serial N prints one, and "
            "jsplan state push --force writes one."
        )

    async def _read_document(self, head: KeyRevision, without: Collection[str] = ()) -> State:
        """Read the document of a head. Raises StateError if it is damaged or foreign."""
        if head.data is None:
            return State(self._workspace, self._environment)
        document = read_head(head.data, self.location, self._damaged_hint)
        if isinstance(document, PartsHead):
            whole = join_parts(
                document, await self._read_parts(document), self.location, self._damaged_hint
            )
            state = State.parse(whole, self.location, self._damaged_hint, without=without)
        else:
            state = State.from_json(document, self.location, self._damaged_hint, without)
        state.require_owner(
            self._workspace,
            self._environment,
            self.location,
            "Find out who wrote it: nats kv get.",
        )
        return state

    async def _read_parts(self, head: PartsHead) -> list[bytes | None]:
        """Read parts up to the first missing one: a damaged head may name any number."""
        found: list[bytes | None] = []
        names = (f"_part.{self.key}.{name}" for name in head.part_names)
        while None not in found and (some := list(islice(names, PARALLEL_READS))):
            found += [part.data for part in await asyncio.gather(*map(self._bucket.get, some))]
        return found

    def _segments_after(self, keys: list[str], serial: int) -> list[str]:
        """Return the journal keys that are not in the document yet, in order.

        Raises StateError where one is missing.
        """
        numbers = sorted(
            (int(at), int(number))
            for at, number in (key.rsplit(".", 2)[1:] for key in keys)
            if int(at) > serial
        )
        for place, (at, number) in enumerate(numbers, 1):
            if (at, number) != (numbers[0][0], place):
                raise StateError(
                    f"{self.location}: part {place} of its journal is missing",
                    hint=self._damaged_hint,
                )
        return [f"_journal.{self.key}.{at}.{number}" for at, number in numbers]

    def _join_segments(self, found: list[KeyRevision]) -> bytes:
        if all(item.data is None and item.revision for item in found):
            return b""  # deleted by another client of the bucket; jsplan leaves no markers
        if any(item.data is None for item in found):
            raise StateError(f"{self.location}: its journal is incomplete", hint=self._damaged_hint)
        return b"".join(item.data or b"" for item in found)

    # --- lock ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lock(
        self, info: LockInfo, timeout: int, tell: Callable[[LockInfo], None] | None = None
    ) -> AsyncIterator[None]:
        """Hold the lock for one operation; wait at most `timeout` ns. Create a missing bucket.

        Raises StateLockedError that names the holder, StateError if the bucket cannot be reached.
        """
        lease = Lease(self._bucket, self._lock_key, info, self._lease_seconds, self.location)
        with self._raise_state_error("lock"):
            await self._bucket.ensure_exists()
            await lease.acquire(timeout, WaitReporter(tell))
        self._lease = lease
        try:
            yield
        finally:
            await run_shielded(lease.release())

    def may_write(self, seconds: float) -> float:
        """Raise LeaseLostError where less than `seconds` (at most half a lease) are left."""
        return self._held_lease.may_write(seconds)

    @property
    def _held_lease(self) -> Lease:
        assert self._lease is not None, "lock() comes first"
        return self._lease

    # --- write -----------------------------------------------------------------------------------

    async def start(self, state: State) -> None:
        """Begin a session under the lock: fold an unfinished journal, take a new serial."""
        state.require_writable(self.location)
        if self._has_unfolded_journal:
            await self.replace(state)
        await self._remove_journals()
        state.begin_session()
        self._serial, self._segments = state.serial, 0
        self.append(state, document.session_line(state))
        await self.flush()

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Apply changes in memory and send their lines. Lines of one moment share a message."""
        if self._failure is not None:
            raise self._failure
        lines = document.encode_lines(changes)
        for change in changes:
            state.apply_change(change)
        self._unsent += lines
        self._appended += len(lines)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_segments())

    async def _send_segments(self) -> None:
        """Send one message after the other, so that the sequence has no holes. Keep the error."""
        try:
            while self._unsent:
                segment = bytes(self._unsent[: self._bucket.max_value_bytes])
                with self._raise_state_error("write the journal of"):
                    await self._held_lease.write(
                        f"_journal.{self.key}.{self._serial}.{self._segments + 1}", segment
                    )
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
        """Same as `flush`: what the server stored is durable."""
        await self.flush()

    async def finish(self, state: State) -> None:
        """End the session: fold the journal into the document, then remove the journal.

        The next session removes what could not be removed.
        """
        await self.flush()
        await self.replace(state)
        self._journal_keys = [
            f"_journal.{self.key}.{self._serial}.{number}"
            for number in range(1, self._segments + 1)
        ]
        with suppress(StateError):
            await self._remove_journals()

    async def _remove_journals(self) -> None:
        """Remove the journals that the document contains; later serials belong to others."""
        with self._raise_state_error("clean up"):
            for serial in sorted({key.rsplit(".", 2)[1] for key in self._journal_keys}):
                await self._bucket.purge(f"_journal.{self.key}.{serial}.*")
        self._journal_keys = []

    async def replace(self, state: State) -> None:
        """Write a whole document. Earlier ones stay in the history of the key."""
        state.require_writable(self.location)
        head, parts = split_document(state.encode(), self._bucket.max_value_bytes)
        if any(int(key.rsplit(".", 2)[1]) > state.serial for key in self._journal_keys):
            # They belong to a document that cannot be read, and must not apply to this one.
            await self._remove_journals()
        with self._raise_state_error("write"):
            for name, data in parts:
                await self._held_lease.write(f"_part.{self.key}.{name}", data)
            self._head = KeyRevision(
                await self._held_lease.write(self.key, head, after=self._head), head
            )
            with suppress(ApiError, ConnectError):  # the next session removes them
                await self._remove_old_parts(state.serial)

    async def _remove_old_parts(self, serial: int) -> None:
        """Remove parts that no document in the history names, except those of later serials.

        Parts of later serials belong to another process, which may be writing them now.
        """
        contents = await self._bucket.read_contents(f"_part.{self.key}.*.*.*")
        if contents is None or not contents.keys:
            return
        sets = {
            tuple(key.removeprefix(f"_part.{self.key}.").split(".")[:2]) for key in contents.keys
        }
        named: set[tuple[str, ...]] = set()
        for item in await self._bucket.history(self.key):
            with suppress(StateError):
                document = read_head(item.data or b"", self.location, self._damaged_hint)
                if isinstance(document, PartsHead):
                    named.add(tuple(document.prefix.split(".")))
        for old in sorted(s for s in sets - named if s[0].isdecimal() and int(s[0]) <= serial):
            await self._bucket.purge(f"_part.{self.key}.{old[0]}.{old[1]}.*")

    # --- state commands --------------------------------------------------------------------------

    async def read_previous(self, serial: int) -> State:
        """Read the document of a kept serial. Raises StateError that names the kept serials."""
        previous: dict[int, State] = {}
        with self._raise_state_error("read"):
            for item in await self._bucket.history(self.key):
                with suppress(StateError):
                    state = await self._read_document(item)
                    previous[state.serial] = state
        if serial not in previous:
            raise StateError(
                f"serial {serial} of {self.location} is not kept",
                hint=f"Kept are: {', '.join(map(str, previous)) or 'none'}.",
            )
        return previous[serial]

    async def read_holder(self) -> LockInfo | None:
        """Read the holder from the key of the lock; None once its lease ended without a renewal.

        A server since 2.11 removes the key of a holder that died; in a bucket of an older one, or
        without lifetimes of messages, it stays. The age of the key is measured by the server's
        clock alone.
        """
        with self._raise_state_error("look at"):
            item = await self._bucket.get(self._lock_key)
            contents = await self._bucket.read_contents(self._lock_key)
            try:
                holder = parse_holder(item)
                if holder is None or contents is None:
                    return None
                age = (parse_instant(contents.time) - parse_instant(item.time)) / SECOND
            except ValueError:  # neither a lock of jsplan nor a time
                return None
            return holder[0] if age < holder[1] * CLOCK_MARGIN else None

    async def unlock(self, lock_id: str) -> LockInfo | None:
        """Remove the lock with this id. A holder that is alive finds out at its next write."""
        with self._raise_state_error("unlock"):
            if await self._bucket.read_contents(self._lock_key) is None:
                return None
            while True:
                item = await self._bucket.get(self._lock_key)
                info = self._require_removable(item, lock_id)
                if info is None:
                    return None
                with suppress(RevisionConflict):
                    await remove_key(self._bucket, self._lock_key, item.revision)
                    return info

    def _require_removable(self, item: KeyRevision, lock_id: str) -> LockInfo | None:
        try:
            holder = parse_holder(item)
        except ValueError as error:
            raise StateError(
                f"the lock of {self.location} is {error}",
                hint="Look at it with nats kv get, and delete it there.",
            ) from None
        if holder is None:
            return None
        if holder[0].id != lock_id:
            raise StateError(
                f"{self.location} is locked by {holder[0].describe()}",
                hint=f"To remove that lock: jsplan state unlock {quote_shell(holder[0].id)}",
            )
        return holder[0]

    async def close(self) -> None:
        """Close the connection. What an open session has sent stays."""
        if self._sender is not None:
            self._sender.cancel()
        await self._bucket.close()


def _is_segment_key(key: str) -> bool:
    """Return True if the key of a journal ends like one of its parts; others are not ours."""
    return all(name.isdecimal() for name in key.rsplit(".", 2)[1:])
