"""The lock of the KV backend: a key with a lease, renewed while its holder works.

Three rules make it safe. Taking the lock compares and sets the revision of the key. The holder's
own clock, which also runs while the machine sleeps, ends its lease, counted from before the request
that began it: so a holder stops before another process may begin. Each write of state is stored
only while the key is at the holder's revision, so a holder that was suspended for longer than its
lease writes nothing.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from jsplan.diagnostics import quote_shell
from jsplan.documents.base import DocumentError, dumps, parse, plain
from jsplan.documents.lock import Lock, LockInfo
from jsplan.documents.reading import decode
from jsplan.errors import ApiError, ConnectError, LeaseLostError, StateError, StateLockedError
from jsplan.state.backend import WaitReporter
from jsplan.state.bucket import Bucket, KeyRevision, RevisionConflict, is_transient
from jsplan.units import SECOND, format_duration

#: Seconds between two reads of a lock that another process holds, and between two attempts.
POLL_INTERVAL = 0.1
#: Renewals within one lease.
RENEWALS_PER_LEASE = 5
#: Attempts to take a lock that no process holds, whatever the timeout.
MIN_ATTEMPTS = 2
#: Factor of the lease after which an unrenewed lock counts as abandoned: clocks differ in speed.
CLOCK_MARGIN = 1.1
#: Seconds that the release may take. A lock that is not released expires.
RELEASE_TIMEOUT = 5.0

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def clock() -> float:
    """Return seconds of a monotonic clock that includes sleep, where the system has one."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def expect_revision(revision: int) -> dict[str, str]:
    """Condition that the written key is at this revision; 0: that it does not exist."""
    return {"Nats-Expected-Last-Subject-Sequence": str(revision)}


def parse_holder(item: KeyRevision) -> tuple[LockInfo, float] | None:
    """Parse the holder of a lock and the seconds of its lease; None where it is free.

    Raises ValueError for a value that is no lock.
    """
    if item.data is None:
        return None
    try:
        found = decode(Lock, parse(item.data, "it", ""), "it", "")
    except DocumentError as error:
        raise ValueError(f"not a lock: {error}") from None
    return found.lock, found.lease


class Lease:
    """One holding of a lock, from `acquire` to `release`.

    `length` is seconds, `place` names what it locks, for messages.
    """

    #: Assumed until a server proves to be older.
    supports_fence_header = True

    def __init__(self, bucket: Bucket, key: str, info: LockInfo, length: float, place: str) -> None:
        self._bucket = bucket
        self._location = place
        self._key = key
        self._info = info
        self._length = length
        self._revision = 0
        self._expires_at = 0.0
        self._lost_reason: str | None = None
        self._last_error = ""
        self._write_lock = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._header = self.supports_fence_header
        self._last_sequence: int | None = None

    # --- acquire ---------------------------------------------------------------------------------

    async def acquire(self, timeout: int, waiting: WaitReporter) -> None:
        """Take the lock, waiting at most `timeout` ns for its holder.

        Where no process holds it, a write without an answer is repeated as long, and at least once.
        Raises StateLockedError, ApiError and ConnectError.
        """
        begun = clock()
        end = begun + timeout / SECOND
        unheld_end = max(end, begun + MIN_ATTEMPTS * self._answer_timeout)
        last_revision, since = -1, 0.0
        while True:
            item = await self._bucket.get(self._key)
            holder = self._parse_holder(item)
            if item.revision != last_revision:
                last_revision, since = item.revision, clock()
            abandoned = holder is not None and clock() - since >= holder[1] * CLOCK_MARGIN
            if (
                holder is None or abandoned or holder[0].id == self._info.id
            ) and await self._try_acquire(item):
                self._renewing = asyncio.create_task(self._renew_periodically())
                return
            if holder is not None and clock() >= end:
                raise self._locked_error(*holder)
            if holder is None and clock() >= unheld_end:
                raise self._unwritable_error()
            waiting.report(holder[0] if holder is not None else None)
            await asyncio.sleep(POLL_INTERVAL)

    def _parse_holder(self, item: KeyRevision) -> tuple[LockInfo, float] | None:
        try:
            return parse_holder(item)
        except ValueError:
            raise StateError(
                f"the key {self._key} in bucket {self._bucket.name} is not a lock of jsplan",
                hint="Nothing was overwritten. Look at it with nats kv get. "
                "Delete it if it is not needed.",
            ) from None

    async def _try_acquire(self, item: KeyRevision) -> bool:
        sent = clock()
        try:
            self._revision = await self._put_lock(item.revision)
        except RevisionConflict:
            self._last_error = "another process wrote it at the same time"
            return False
        except (ApiError, ConnectError) as error:
            if not is_transient(error):
                raise
            self._last_error = str(error)
            return False  # the next read shows if it was stored
        self._expires_at, self._last_error = sent + self._length, ""
        return True

    async def _put_lock(self, revision: int) -> int:
        value = dumps(plain(Lock(self._info, self._length)), pretty=False)
        lifetime = {"Nats-TTL": f"{math.ceil(self._length)}s"} if self._bucket.supports_ttl else {}
        return await self._bucket.put(
            self._key, value, expect_revision(revision) | lifetime, timeout=self._answer_timeout
        )

    @property
    def _answer_timeout(self) -> float:
        """Seconds to wait for one answer: short enough for a second attempt within the lease."""
        return min(5.0, self._length / 4)

    def _locked_error(self, info: LockInfo, lease: float) -> StateLockedError:
        wait = format_duration(math.ceil(lease * 2) * SECOND)
        return StateLockedError(
            f"{self._location} is locked by {info.describe()}",
            hint=f"Wait for it with --lock-timeout {wait}. "
            f"If its holder died, the lock expires {lease:g} s after that. "
            f"To remove it sooner: jsplan state unlock {quote_shell(info.id)}",
        )

    def _unwritable_error(self) -> ApiError:
        return ApiError(
            f"no process holds its lock, and it cannot be taken: {self._last_error}",
            hint="Check that the user of this connection may publish to "
            f"{self._bucket.subject(self._key)}, and the log of the server.",
        )

    # --- renew -----------------------------------------------------------------------------------

    async def _renew_periodically(self) -> None:
        pause = self._length / RENEWALS_PER_LEASE
        while self._lost_reason is None:
            await asyncio.sleep(pause)
            with suppress(LeaseLostError):  # the next write raises it
                pause = self._length / RENEWALS_PER_LEASE if await self._renew() else POLL_INTERVAL

    async def _renew(self) -> bool:
        """Renew the lease; return True if it was renewed. Retry without an answer until it ends."""
        async with self._write_lock:
            self._require_held()
            sent = clock()
            try:
                revision = await self._put_lock(self._revision)
            except RevisionConflict:
                self._last_sequence = None
                return await self._recheck_holder()
            except (ApiError, ConnectError) as error:
                self._last_sequence, self._last_error = None, str(error)
                return False
            self._revision, self._expires_at, self._last_sequence = (
                revision,
                sent + self._length,
                revision,
            )
            return True

    async def _recheck_holder(self) -> bool:
        try:
            await self._is_still_held()
        except (ApiError, ConnectError) as error:
            self._last_error = str(error)
        return False

    def _require_held(self) -> None:
        """Raise LeaseLostError once the lease has ended, and from then on."""
        if self._lost_reason is None and clock() >= self._expires_at:
            cause = f": {self._last_error}" if self._last_error else ""
            self._mark_lost(f"it was not renewed for {self._length:g} s{cause}")
        if self._lost_reason is not None:
            raise self._lost_error()

    def _mark_lost(self, why: str) -> LeaseLostError:
        self._lost_reason = self._lost_reason or why
        return self._lost_error()

    def _lost_error(self) -> LeaseLostError:
        return LeaseLostError(
            f"the lock of {self._location} was lost: {self._lost_reason}",
            hint="Completed steps are kept. When no other process uses the state, run: jsplan plan",
        )

    async def _is_still_held(self) -> bool:
        """After a refused write, return True if the lock is at the revision that we know.

        A renewal whose answer was lost is ours too. Raises LeaseLostError where the lock is free or
        another process has it.
        """
        item = await self._bucket.get(self._key)
        try:
            holder = parse_holder(item)
        except ValueError:
            raise self._mark_lost("its key holds something that is no lock") from None
        if holder is None:
            raise self._mark_lost("it expired, or it was removed")
        if holder[0].id != self._info.id:
            raise self._mark_lost(f"it is held by {holder[0].describe()} now")
        same = item.revision == self._revision
        self._revision = item.revision
        return same

    def may_write(self, seconds: float) -> float:
        """Check the lease as `Backend.may_write`: a request may take at most half a lease."""
        self._require_held()
        allowed = min(seconds, self._length / 2)
        if self._expires_at - clock() < allowed:
            raise LeaseLostError(
                f"the lock of {self._location} could not be renewed: "
                f"{self._expires_at - clock():.0f} s are left",
                hint="No other step was started. Check the connection to that domain, "
                "then run: jsplan plan",
            )
        return allowed

    # --- write under the lock --------------------------------------------------------------------

    async def write(self, key: str, data: bytes, *, after: KeyRevision | None = None) -> int:
        """Store a value under the lock and return its revision.

        With `after`, only while the key is at that revision. Retries for the length of two leases
        at most: that is safe, since the same key gets the same value. Raises LeaseLostError,
        StateError for a key that another process wrote, ApiError and ConnectError where a retry
        does not help.
        """
        end = clock() + 2 * self._length
        while True:
            async with self._write_lock:
                self._require_held()
                try:
                    if (revision := await self._try_store(key, data, after)) is not None:
                        return revision
                except (ApiError, ConnectError) as error:
                    self._last_sequence, self._last_error = None, str(error)
                    if not is_transient(error) or clock() >= end:
                        raise
            await asyncio.sleep(POLL_INTERVAL / 10)

    async def _try_store(self, key: str, data: bytes, after: KeyRevision | None) -> int | None:
        """Try once; return the revision, or None where it was refused although the lock is ours."""
        try:
            if not self._header:
                return await self._store_by_sequence(key, data, after)
            if after is not None and (written := await self._stored_revision(key, data, after)):
                return written
            fence = expect_revision(self._revision) | {
                "Nats-Expected-Last-Subject-Sequence-Subject": self._bucket.subject(self._key)
            }
            return await self._bucket.put(key, data, fence, timeout=self._answer_timeout)
        except RevisionConflict:
            self._last_sequence = None
            if await self._is_still_held():
                # A server before 2.11 applies the condition to the written key.
                self._header = False
            return None

    async def _store_by_sequence(self, key: str, data: bytes, after: KeyRevision | None) -> int:
        """Store with the fence for servers before 2.11: the last sequence of the whole bucket."""
        if self._last_sequence is None or after is not None:
            contents = await self._bucket.read_contents(self._key)
            if contents is None or not await self._is_still_held():
                raise RevisionConflict
            if after is not None and (written := await self._stored_revision(key, data, after)):
                return written
            self._last_sequence = contents.last_sequence
        chain, self._last_sequence = self._last_sequence, None
        self._last_sequence = await self._bucket.put(
            key, data, {"Nats-Expected-Last-Sequence": str(chain)}, timeout=self._answer_timeout
        )
        return self._last_sequence

    async def _stored_revision(self, key: str, data: bytes, after: KeyRevision) -> int:
        """Return the revision of a value whose answer was lost; 0 if it is not stored yet.

        Raises StateError for another value.
        """
        item = await self._bucket.get(key)
        if item.revision == after.revision:
            return 0
        if item.data == data:
            return item.revision
        raise StateError(
            f"the key {key} in bucket {self._bucket.name} was written by a client "
            "that did not hold the lock",
            hint="Nothing was overwritten. Compare both revisions with nats kv history, "
            "then plan again.",
        )

    # --- release ---------------------------------------------------------------------------------

    async def release(self) -> None:
        """Release the lock, if it is still ours. Never raises: a lock that stays expires."""
        with suppress(RevisionConflict, StateError, ApiError, ConnectError, TimeoutError):
            # `_write_lock`: not in the middle of a renewal.
            async with asyncio.timeout(RELEASE_TIMEOUT), self._write_lock:
                self._stop_renewing()
                self._require_held()
                await self._remove_lock()
        self._stop_renewing()
        self._mark_lost("it was released")

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    async def _remove_lock(self) -> None:
        try:
            await remove_key(self._bucket, self._key, self._revision)
        except RevisionConflict:
            await self._is_still_held()  # a renewal whose answer was lost
            await remove_key(self._bucket, self._key, self._revision)


async def remove_key(bucket: Bucket, key: str, revision: int) -> None:
    """Remove a key at this revision. Raises RevisionConflict, ApiError and ConnectError.

    The marker that this needs expires where the server supports it, and is harmless elsewhere.
    """
    lifetime = {"Nats-TTL": "1s"} if bucket.supports_ttl else {}
    marker = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
    await bucket.put(
        key, b"", expect_revision(revision) | marker | lifetime, timeout=RELEASE_TIMEOUT
    )


async def run_shielded(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run to the end even if the task is cancelled; raise the cancellation afterwards."""
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
