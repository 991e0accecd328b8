"""The lock of the KV backend: a key with a lifetime, renewed while its holder works, and the fence around every write of state.

Three rules make it safe. Whoever takes it compares and sets the key's revision. A holder's own clock, which also counts while
the machine sleeps, says when its lease is over, counted from before the request that began it: so it stops before anybody else
may begin. And each write of state is stored only while the key is still at the holder's revision, so that a holder that was
stopped longer than its lease writes nothing. Which keys hold what is left to `kv`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from jsplan.diagnostics import quote_shell
from jsplan.documents.base import DocumentError, dumps, parse
from jsplan.documents.validation import find_flaw
from jsplan.errors import ApiError, ConnectError, LeaseLostError, StateError, StateLockedError
from jsplan.state.bucket import Bucket, KeyRevision, RevisionConflict, is_transient
from jsplan.state.locks import LockInfo, WaitReporter
from jsplan.units import SECOND, format_duration

#: Seconds between two looks at a lock that somebody else holds, and between two tries of a request that was not answered.
POLL_INTERVAL = 0.1
#: A lease is renewed so many times before it would be over.
RENEWALS_PER_LEASE = 5
#: How much longer than a lease a lock must stand still before it counts as left behind: clocks do not run at quite the same speed.
CLOCK_MARGIN = 1.1
#: Seconds that letting go may take; a lock that is not let go runs out by itself.
RELEASE_TIMEOUT = 5.0

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def clock() -> float:
    """Seconds on a clock that only goes forward, and also while the machine sleeps where the system has such a one."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def expect_revision(revision: int) -> dict[str, str]:
    """The condition that the key which is written is at this revision; 0: that it does not exist."""
    return {"Nats-Expected-Last-Subject-Sequence": str(revision)}


def parse_holder(item: KeyRevision) -> tuple[LockInfo, float] | None:
    """Who holds the lock and for how many seconds; None where nobody does. Raises ValueError for something else in its place."""
    if item.data is None:
        return None
    try:
        raw = parse(item.data, "it", "")
    except DocumentError as error:
        raise ValueError(f"not a lock: {error}") from None
    if (flaw := find_flaw(raw, "lock")) is not None:
        raise ValueError(f"not a lock: {flaw}")
    return LockInfo.from_json(raw["lock"]), float(raw["lease"])


class Lease:
    """One holding of a lock, from `acquire` to `release`; `length` is seconds, `place` is what it locks, in words."""

    #: Taken for true until a server shows that it is older.
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

    # --- taking it -------------------------------------------------------------------------------------------

    async def acquire(self, timeout: int, waiting: WaitReporter) -> None:
        """Take the lock, waiting at most `timeout` ns for who holds it. Raises StateLockedError, ApiError and ConnectError."""
        end = clock() + timeout / SECOND
        seen, since = -1, 0.0
        while True:
            item = await self._bucket.get(self._key)
            holder = self._parse_holder(item)
            if item.revision != seen:
                seen, since = item.revision, clock()
            left_behind = holder is not None and clock() - since >= holder[1] * CLOCK_MARGIN
            if (
                holder is None or left_behind or holder[0].id == self._info.id
            ) and await self._try_acquire(item):
                self._renewing = asyncio.create_task(self._renew_periodically())
                return
            if holder is not None and clock() >= end:
                raise self._locked_error(*holder)
            waiting.report(holder[0] if holder is not None else None)
            await asyncio.sleep(POLL_INTERVAL)

    def _parse_holder(self, item: KeyRevision) -> tuple[LockInfo, float] | None:
        try:
            return parse_holder(item)
        except ValueError:
            raise StateError(
                f"the key {self._key} in bucket {self._bucket.name} holds something that is no lock of jsplan",
                hint="Nothing was overwritten. Look at it with nats kv get; delete it if nobody needs it.",
            ) from None

    async def _try_acquire(self, item: KeyRevision) -> bool:
        sent = clock()
        try:
            self._revision = await self._put_lock(item.revision)
        except RevisionConflict:
            return False
        except (ApiError, ConnectError) as error:
            if not is_transient(error):
                raise
            return False  # whether it was stored is seen at the next look
        self._expires_at = sent + self._length
        return True

    async def _put_lock(self, revision: int) -> int:
        value = dumps({"lock": self._info.to_json(), "lease": self._length}, pretty=False)
        lifetime = {"Nats-TTL": f"{math.ceil(self._length)}s"} if self._bucket.supports_ttl else {}
        return await self._bucket.put(
            self._key, value, expect_revision(revision) | lifetime, timeout=self._answer_timeout
        )

    @property
    def _answer_timeout(self) -> float:
        """Seconds to wait for one answer: short enough that a second try fits into the lease."""
        return min(5.0, self._length / 4)

    def _locked_error(self, info: LockInfo, lease: float) -> StateLockedError:
        wait = format_duration(math.ceil(lease * 2) * SECOND)
        return StateLockedError(
            f"{self._location} is locked by {info.describe()}",
            hint=f"Wait for it with --lock-timeout {wait}. If its holder died, the lock runs out {lease:g} s after that; to take it "
            f"away sooner: jsplan state unlock {quote_shell(info.id)}",
        )

    # --- keeping it ------------------------------------------------------------------------------------------

    async def _renew_periodically(self) -> None:
        pause = self._length / RENEWALS_PER_LEASE
        while self._lost_reason is None:
            await asyncio.sleep(pause)
            with suppress(LeaseLostError):  # whoever writes next is told
                pause = self._length / RENEWALS_PER_LEASE if await self._renew() else POLL_INTERVAL

    async def _renew(self) -> bool:
        """Whether the lease is longer now. A request without an answer is tried again until the lease is over."""
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
        """Raise LeaseLostError once the lease is over, and for ever after."""
        if self._lost_reason is None and clock() >= self._expires_at:
            self._mark_lost(
                f"it was not renewed for {self._length:g} s{f': {self._last_error}' if self._last_error else ''}"
            )
        if self._lost_reason is not None:
            raise self._lost_error()

    def _mark_lost(self, why: str) -> LeaseLostError:
        self._lost_reason = self._lost_reason or why
        return self._lost_error()

    def _lost_error(self) -> LeaseLostError:
        return LeaseLostError(
            f"the lock of {self._location} was lost: {self._lost_reason}",
            hint="What is done is kept. When nobody else works on it any more, run: jsplan plan",
        )

    async def _is_still_held(self) -> bool:
        """After a refused write: whether the lock is just as we know it. A renewal whose answer was lost is ours too.

        Raises LeaseLostError where somebody else has it, or nobody.
        """
        item = await self._bucket.get(self._key)
        try:
            holder = parse_holder(item)
        except ValueError:
            raise self._mark_lost("something that is no lock stands in its place") from None
        if holder is None:
            raise self._mark_lost("it ran out, or somebody took it away")
        if holder[0].id != self._info.id:
            raise self._mark_lost(f"it is held by {holder[0].describe()} now")
        same = item.revision == self._revision
        self._revision = item.revision
        return same

    def may_write(self, seconds: float) -> float:
        """As `Backend.may_write`: a request may take at most half a lease."""
        self._require_held()
        allowed = min(seconds, self._length / 2)
        if self._expires_at - clock() < allowed:
            raise LeaseLostError(
                f"the lock of {self._location} could not be renewed: {self._expires_at - clock():.0f} s are left",
                hint="Nothing more was begun. Look at the way to that domain, then run: jsplan plan",
            )
        return allowed

    # --- writing under it ------------------------------------------------------------------------------------

    async def write(self, key: str, data: bytes, *, after: KeyRevision | None = None) -> int:
        """Store a value while the lock is ours, and, with `after`, while the key holds just that; its revision.

        Is tried again until the lease is over, which does no harm: the same key gets the same value. Raises LeaseLostError,
        StateError for a key that somebody else wrote, ApiError and ConnectError where trying again would not help.
        """
        while True:
            async with self._write_lock:
                self._require_held()
                try:
                    if (revision := await self._try_store(key, data, after)) is not None:
                        return revision
                except (ApiError, ConnectError) as error:
                    self._last_sequence, self._last_error = None, str(error)
                    if not is_transient(error):
                        raise
            await asyncio.sleep(POLL_INTERVAL / 10)

    async def _try_store(self, key: str, data: bytes, after: KeyRevision | None) -> int | None:
        """One try: the revision, or None where it was refused although the lock is ours."""
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
                self._header = False  # a server before 2.11 takes the condition for one on the key that is written
            return None

    async def _store_by_sequence(self, key: str, data: bytes, after: KeyRevision | None) -> int:
        """The fence of servers before 2.11: nothing at all was stored in the bucket since the lock was seen to be ours."""
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
        """The revision at which the value is there already, since an answer was lost; 0: not yet. Raises StateError for another one."""
        item = await self._bucket.get(key)
        if item.revision == after.revision:
            return 0
        if item.data == data:
            return item.revision
        raise StateError(
            f"the key {key} in bucket {self._bucket.name} was written by something that did not hold the lock",
            hint="Nothing was overwritten. Look at both revisions with nats kv history, then plan again.",
        )

    # --- letting it go ---------------------------------------------------------------------------------------

    async def release(self) -> None:
        """Let go of the lock, if it is still ours. Never raises: one that is not let go runs out."""
        with suppress(RevisionConflict, StateError, ApiError, ConnectError, TimeoutError):
            async with (
                asyncio.timeout(RELEASE_TIMEOUT),
                self._write_lock,
            ):  # not in the middle of a renewal
                self._stop_renewing()
                self._require_held()
                await self._remove_lock()
        self._stop_renewing()
        self._mark_lost("it was let go")

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    async def _remove_lock(self) -> None:
        try:
            await remove_key(self._bucket, self._key, self._revision)
        except RevisionConflict:
            await self._is_still_held()  # by a renewal whose answer was lost
            await remove_key(self._bucket, self._key, self._revision)


async def remove_key(bucket: Bucket, key: str, revision: int) -> None:
    """Take a key away if it is at this revision. Raises Conflict, ApiError and ConnectError.

    The marker that this needs goes away by itself where the server can do that; it is in nobody's way.
    """
    lifetime = {"Nats-TTL": "1s"} if bucket.supports_ttl else {}
    marker = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
    await bucket.put(
        key, b"", expect_revision(revision) | marker | lifetime, timeout=RELEASE_TIMEOUT
    )


async def run_shielded(work: Coroutine[Any, Any, None]) -> None:
    """Carry it to its end also when the task is cancelled meanwhile; the cancellation follows then."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
