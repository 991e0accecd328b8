"""Streams whole snapshots and restores of one domain with bounded memory.

Uses STREAM.SNAPSHOT and STREAM.RESTORE. Configuration and state stay as the server sent them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from typing import Any, Final, TypeVar

from msgspec import Struct

from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    JsplanError,
    NoRespondersError,
    ServerRefusedError,
)
from jsplan.jetstream.answers import RESTORE_DONE
from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.connection import Inbox, InboxMessage
from jsplan.jetstream.leftovers import REMOVAL_TIMEOUT
from jsplan.jetstream.s2_frames import S2Frames
from jsplan.resources.error_codes import (
    RESTORE_FAILED,
    RESTORED_STREAM_EXISTS,
    SNAPSHOT_FAILED,
    STREAM_EXISTS,
)

#: Bytes of one chunk, in both directions, unless the server's `max_payload` is smaller. A leafnode
#: link may allow less than the server of the connection, so only its own domain gets larger ones.
CHUNK_BYTES = 128 * 1024
OWN_CHUNK_BYTES = 512 * 1024
#: Bytes in flight at once, which bounds the memory.
WINDOW_BYTES = 4 * 1024 * 1024
#: Seconds without data before a transfer fails; servers give up after 5 s (2.10: 2 s).
IDLE_TIMEOUT = 30.0
#: Seconds between two requests to a domain that restores an archive; it answers at the end only.
POLL_INTERVAL = 10.0
#: A restore that takes more seconds per byte than this was lost.
SECONDS_PER_BYTE = 1 / (2 * 1024 * 1024)
#: Seconds for the interest in a restore to propagate over a leafnode.
INTEREST_TIMEOUT = 5.0

#: Seconds for an abandoned snapshot of the stream to end; before 2.15 a stream has one at a time.
SNAPSHOT_WAIT = 15.0

#: `err_code` of a restore under a name that is in use.
NAME_IN_USE = (STREAM_EXISTS, RESTORED_STREAM_EXISTS)

Progress = Callable[[int], None]


class Snapshot(Struct, frozen=True):
    """A running snapshot. `config` and `state` are the server's (times RFC 3339, sizes bytes).

    `chunks` yields the archive once. `frames` follows it: `frames.bytes` have arrived, and
    `frames.uncompressed_bytes` ends near `state.bytes`. `frames.archive_format` is known after the
    first frame: `natsarc1` (2.15 and later: restored under any name, into any storage) or `tar`
    (same name, file storage only).
    """

    config: dict[str, Any]
    state: dict[str, Any]
    chunks: AsyncGenerator[bytes, None]
    frames: S2Frames


@contextlib.asynccontextmanager
async def open_snapshot(
    api: DomainApi,
    stream: str,
    *,
    consumers: bool = True,
    check: bool = False,
    idle: float = IDLE_TIMEOUT,
) -> AsyncIterator[Snapshot]:
    """Take a snapshot of one stream, with its consumers.

    Chunks are acknowledged when they are consumed, so a slow reader slows the server. A reader that
    takes nothing for 5 s (2.10: 2 s) loses the snapshot: the server ends it with 408. `check` makes
    the server verify all checksums first. Nothing on the server changes.

    Raises ServerRefusedError (see `is_memory_stream`), the errors of `DomainApi.request`, and while
    chunks are read ApiError for an incomplete archive. See `_receive_chunks` for how it ends.
    """
    async with api.connection.open_inbox() as inbox:
        payload = {"deliver_subject": inbox.subject, "no_consumers": not consumers, "jsck": check}
        payload |= {"chunk_size": _chunk_size(api), "window_size": WINDOW_BYTES}
        answer = await _request_snapshot(api, stream, payload, idle)
        frames = S2Frames()
        what = f"the snapshot of stream {stream} in domain {api.domain.key}"
        snapshot = Snapshot(
            answer.get("config") or {},
            answer.get("state") or {},
            _receive_chunks(inbox, frames, what, idle),
            frames,
        )
        try:
            yield snapshot
        finally:
            await snapshot.chunks.aclose()


def is_memory_stream(error: ServerRefusedError) -> bool:
    """Return True if a server before 2.15 refused a snapshot of a stream in memory storage."""
    return error.err_code == SNAPSHOT_FAILED and "no impl" in error.description


async def _request_snapshot(
    api: DomainApi, stream: str, payload: dict[str, Any], idle: float
) -> dict[str, Any]:
    """Request a snapshot; wait for one that a killed process left running for some seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SNAPSHOT_WAIT
    while True:
        try:
            return await api.request_snapshot(stream, payload, timeout=idle)
        except ServerRefusedError as error:
            if "snapshot in progress" not in error.description or loop.time() > end:
                raise
        await asyncio.sleep(0.2)


async def _receive_chunks(
    inbox: Inbox, frames: S2Frames, what: str, idle: float
) -> AsyncGenerator[bytes, None]:
    """Yield chunks until the empty message, and acknowledge them.

    The status of the empty message is 204, or none if no chunk asked for an ack; 408 and 500 are
    failures. The reply subject of a chunk ends with its number, so a lost chunk is noticed. The
    last chunk may have none; its completeness shows in the frames.
    """
    number = 0
    while True:
        arrived = await _next_chunk(inbox, what, idle, first=number == 0)
        if not arrived.data:
            _require_complete(arrived, frames, what)
            return
        number += 1
        if arrived.reply and arrived.reply.rpartition(".")[2] != str(number):
            raise ApiError(
                f"{what} lost a chunk on the way, after {frames.bytes} bytes",
                hint="Run the command again.",
            )
        frames.feed(arrived.data)
        yield arrived.data
        if arrived.reply:
            await inbox.publish(arrived.reply, b"", wants_answer=False)


async def _next_chunk(inbox: Inbox, what: str, idle: float, *, first: bool) -> InboxMessage:
    try:
        return await inbox.next(idle, what)
    except ApiTimeoutError as error:
        hint = "Check the domain's server and the network to it. Then run the command again."
        if first:
            hint = (
                "Snapshots do not pass an import of another account."
                " Use a connection of the stream's own account."
            )
        raise ApiTimeoutError(str(error), hint=hint) from None


def _require_complete(arrived: InboxMessage, frames: S2Frames, what: str) -> None:
    if arrived.status not in ("", "204"):
        hint = "Look at the server's log."
        if arrived.status.startswith("408"):
            hint = "The server had to wait too long for this side."
        raise ApiError(
            f"{what} was ended by the server after {frames.bytes} bytes: {arrived.status}",
            hint=hint,
        )
    if not frames.is_complete:
        raise ApiError(
            f"{what} ended in the middle, after {frames.bytes} bytes", hint="Run the command again."
        )


async def restore_stream(
    api: DomainApi,
    config: dict[str, Any],
    state: dict[str, Any],
    chunks: AsyncIterable[bytes],
    *,
    on_progress: Progress | None = None,
    idle: float = IDLE_TIMEOUT,
) -> dict[str, Any]:
    """Restore the stream that `config` names; return its `STREAM.INFO` without `domain`.

    `config` and `state` are those of the snapshot. The server decides which fields of the
    configuration may differ (2.15 archives: name, subjects, storage, retention, limits; older:
    everything but name and storage). **The server accepts a `tar` archive for memory storage, and
    the stream is empty**: do not do that. `on_progress` gets the bytes that the server has so far.

    Call it by `repeat_restore`, which lets no other restore run.

    All or nothing: after any failure, also of `chunks` and by cancellation, the partial stream is
    deleted (2.15 leaves an empty stream when a consumer is refused; 2.12 and later finish what they
    have when nothing comes for 5 s). It deletes only what this restore created: the name was free
    when the server accepted it. Raises ServerRefusedError (`NAME_IN_USE`, `SUBJECTS_OVERLAP`,
    `RESTORE_FAILED`), the errors of `DomainApi.request`, ApiTimeoutError, and the errors of
    `chunks`.
    """
    name = str(config["name"])
    answer = await api.request(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
    async with api.connection.open_inbox() as inbox:
        transfer = _RestoreTransfer(
            api, name, str(answer["deliver_subject"]), inbox, idle, on_progress
        )
        try:
            await transfer.send_all(chunks)
            return await transfer.finish()
        except BaseException as error:
            await _clean_up_failed(transfer, error)
            raise


async def _clean_up_failed(transfer: _RestoreTransfer, error: BaseException) -> None:
    """Delete the rest of a failed restore, shielded against a second cancellation."""
    cleaning = asyncio.ensure_future(transfer.abandon(error))
    try:
        problem = await asyncio.shield(cleaning)
    except asyncio.CancelledError:
        problem = await cleaning
    if problem:
        error.add_note(problem)
        if isinstance(error, JsplanError):
            error.hint = f"{error.hint} {problem}" if error.hint else problem


class _RestoreTransfer:
    """One running restore: chunks are sent in order, each is answered with an empty message."""

    def __init__(
        self,
        api: DomainApi,
        name: str,
        subject: str,
        inbox: Inbox,
        idle: float,
        on_progress: Progress | None,
    ) -> None:
        self.api = api
        self.name = name
        self.subject = subject
        self.inbox = inbox
        self.idle = idle
        self.on_progress = on_progress or (lambda _: None)
        self.description = f"the restore of stream {name} in domain {api.domain.key}"
        self.unacknowledged: list[int] = []  # bytes of each unacknowledged chunk
        self.bytes = 0
        self.ended = False  # the server has answered with a result, good or bad

    async def send_all(self, chunks: AsyncIterable[bytes]) -> None:
        """Send everything, with at most `WINDOW_BYTES` unacknowledged."""
        async for chunk in chunks:
            for piece in _split_chunk(chunk, _chunk_size(self.api)):
                if not self.bytes and not self.unacknowledged:
                    await self._send_first(piece)
                    continue
                await self.inbox.publish(self.subject, piece)
                self.unacknowledged.append(len(piece))
                while sum(self.unacknowledged) > WINDOW_BYTES:
                    await self._await_ack()
        while self.unacknowledged:
            await self._await_ack()

    async def _send_first(self, piece: bytes) -> None:
        """Send the first chunk again until interest in it has propagated over a leafnode."""
        loop = asyncio.get_running_loop()
        end = loop.time() + INTEREST_TIMEOUT
        while True:
            await self.inbox.publish(self.subject, piece)
            self.unacknowledged.append(len(piece))
            try:
                return await self._await_ack()
            except NoRespondersError:
                self.unacknowledged.clear()
                if loop.time() > end:
                    raise
                await asyncio.sleep(0.05)

    async def _await_ack(self) -> None:
        arrived = await self.inbox.next(self.idle, self.description)
        if arrived.status.startswith("503"):
            raise NoRespondersError(
                f"{self.description}: the server no longer takes its chunks",
                hint="Look at the server's log; then run it again.",
            )
        if arrived.data:
            self.ended = True
            raise self._refused_error(arrived.data)
        self.bytes += self.unacknowledged.pop(0)
        self.on_progress(self.bytes)

    def _refused_error(self, data: bytes) -> ApiError:
        """Map an answer that is not empty: JSON, or a line of text when the server's disk fails."""
        try:
            self.api.parse(f"STREAM.RESTORE.{self.name}", data)
        except ServerRefusedError as error:
            return error
        except ApiError:
            pass
        return ApiError(
            f"{self.description}: the server answered a chunk with {data[:80]!r}",
            hint="Look at the server's log.",
        )

    async def finish(self) -> dict[str, Any]:
        """Send the empty request and wait; the server answers when the stream is restored."""
        await self.inbox.publish(self.subject, b"")
        loop = asyncio.get_running_loop()
        end = loop.time() + self.idle + self.bytes * SECONDS_PER_BYTE
        while True:
            try:
                arrived = await self.inbox.next(POLL_INTERVAL, self.description)
                break
            except ApiTimeoutError:
                await self.api.request("INFO")  # raises if the domain is offline
                if loop.time() > end:
                    raise
        self.ended = True
        if arrived.status.startswith("503"):
            raise NoRespondersError(
                f"{self.description}: the server did not confirm its end",
                hint="Look at the server's log; then run it again.",
            )
        return self.api.parse(f"STREAM.RESTORE.{self.name}", arrived.data, RESTORE_DONE)

    async def abandon(self, error: BaseException) -> str:
        """Delete the partial stream; return an error text. Does not wait for the server's 5 s."""
        if isinstance(error, ServerRefusedError) and error.err_code in NAME_IN_USE:
            return ""  # the stream is not from this restore
        try:
            if not self.ended:
                await self._end_upload()
            if await self.api.stream_info(self.name) is not None:
                await self.api.request(f"STREAM.DELETE.{self.name}")
        except JsplanError as failure:
            return (
                f"Part of stream {self.name} may be left in domain {self.api.domain.key},"
                f" and could not be removed: {failure}"
            )
        return ""

    async def _end_upload(self) -> None:
        await self.inbox.publish(self.subject, b"")
        while (
            not (arrived := await self.inbox.next(self.idle, self.description)).data
            and not arrived.status
        ):
            pass  # acks of chunks in flight


def _chunk_size(api: DomainApi) -> int:
    server, domain = api.connection.server, api.domain.js_domain
    is_own = domain is not None and server.get("domain") == domain
    size = OWN_CHUNK_BYTES if is_own else CHUNK_BYTES
    return min(size, int(server.get("max_payload") or CHUNK_BYTES))


def _split_chunk(chunk: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(chunk), size):
        yield chunk[start : start + size]


# --- a restore that is repeated -------------------------------------------------------------------

T = TypeVar("T")

#: In the error of a restore over messages of a deleted stream.
_MISMATCH: Final = "expected sequence does not match store"
#: In the error of a snapshot with a consumer that was just created.
_NEW_CONSUMER: Final = "failed to get consumer state"


async def repeat_restore(
    api: DomainApi, restore: Callable[[], Awaitable[T]], *, name_is_ours: bool = False
) -> T:
    """Call `restore` until no reason that passes refuses it, for up to 20 s; return its result.

    `api` is that of the new stream. It waits until no other restore runs there: a server may die of
    two at once (see `restore_lock`).

    A server since 2.15 refuses a restore over messages that an earlier stream of the name left (see
    `leftovers`) when all chunks have arrived, and the failed restore has deleted them. A name that
    no other client can have may still be held by a restore of ours that was killed: `restore` then
    begins with deleting what that one left. Raises what `restore` raises, at last this refusal too.
    """
    async with api.restore_lock.restore():
        end = time.monotonic() + REMOVAL_TIMEOUT
        while True:
            try:
                return await restore()
            except ApiError as error:
                if not _passes(error, name_is_ours=name_is_ours) or time.monotonic() > end:
                    raise
            await asyncio.sleep(0.1)


def _passes(error: ApiError, *, name_is_ours: bool) -> bool:
    if not isinstance(error, ServerRefusedError):
        return _NEW_CONSUMER in str(error)
    if error.err_code == RESTORE_FAILED:
        return name_is_ours or _MISMATCH in error.description
    return name_is_ours and error.err_code in NAME_IN_USE
