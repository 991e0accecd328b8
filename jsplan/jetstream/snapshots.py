"""Whole streams over the wire: STREAM.SNAPSHOT and STREAM.RESTORE of one domain, streamed with bounded memory.

What both say of a stream is left as it came; where archives are kept, whether a target fits and whether what came
back is equal is left to `archives` and the workflows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    JsplanError,
    NoRespondersError,
    ServerRefusedError,
)
from jsplan.jetstream.answer_schema import RESTORE_DONE
from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.connection import Inbox, InboxMessage
from jsplan.jetstream.s2_frames import S2Frames

#: Bytes of one chunk, in both directions; less where the connected server's `max_payload` is smaller.
CHUNK_BYTES = 128 * 1024
#: Bytes under way at once, so the most that is held in memory.
WINDOW_BYTES = 4 * 1024 * 1024
#: Seconds without a sign of life before a transfer is given up; servers themselves give up after 5 s (2.10: 2 s).
IDLE_TIMEOUT = 30.0
#: Seconds between two looks at the domain while it puts an archive together; it answers only when it is done.
POLL_INTERVAL = 10.0
#: Restores that the server could still be busy with after this many seconds per byte have been lost on the way.
SECONDS_PER_BYTE = 1 / (2 * 1024 * 1024)
#: Seconds for the interest in a restore to travel over a leafnode.
INTEREST_TIMEOUT = 5.0

#: Seconds for an abandoned snapshot of the same stream to end; before 2.15 a stream has one at a time.
SNAPSHOT_WAIT = 15.0

#: `ServerRefusedError.err_code` of what snapshots and restores are refused with.
NAME_IN_USE = (10058, 10130)
RESTORE_FAILED = 10062
SNAPSHOT_FAILED = 10064

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot under way. `config` and `state` are the server's own (times RFC 3339, sizes bytes); `chunks` is the archive, once.

    `frames` follows it: `passed.bytes` have come, `passed.unpacked` is what they hold, which ends near `state.bytes`, and
    `passed.archive` is known after the first frame: `natsarc1` (2.15 and later: restored under any name, into any storage)
    or `tar` (same name, file storage only).
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
    """A snapshot of one stream, with its consumers. Chunks are acknowledged as they are taken, so a slow taker slows the server.

    A taker that takes nothing for 5 s (2.10: 2 s) loses the snapshot: the server ends it with 408. `check` makes the server verify
    all checksums first. Nothing on the server changes. Raises ServerRefusedError (see `is_memory_stream`), the errors of
    `DomainApi.request`, and while chunks are taken ApiError for an archive that is not whole. Rests on `STREAM.SNAPSHOT`;
    see `_receive_chunks` for how it ends.
    """
    async with api.connection.open_inbox() as inbox:
        payload = {"deliver_subject": inbox.subject, "no_consumers": not consumers, "jsck": check}
        payload |= {"chunk_size": _chunk_size(api), "window_size": WINDOW_BYTES}
        answer = await _request_snapshot(api, stream, payload, idle)
        frames = S2Frames()
        what = f"the snapshot of stream {stream} in domain {api.domain.key}"
        taken = Snapshot(
            answer.get("config") or {},
            answer.get("state") or {},
            _receive_chunks(api, inbox, frames, what, idle),
            frames,
        )
        try:
            yield taken
        finally:
            await taken.chunks.aclose()


def is_memory_stream(error: ServerRefusedError) -> bool:
    """Whether a snapshot was refused because servers before 2.15 cannot take any of a stream in memory storage."""
    return error.err_code == SNAPSHOT_FAILED and "no impl" in error.description


async def _request_snapshot(
    api: DomainApi, stream: str, payload: dict[str, Any], idle: float
) -> dict[str, Any]:
    """The server's answer; one who was killed in the middle has left a snapshot that goes on for seconds, and is waited for."""
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
    api: DomainApi, inbox: Inbox, frames: S2Frames, what: str, idle: float
) -> AsyncGenerator[bytes, None]:
    """Chunks until the empty message. Its status is 204, or none if no chunk asked for an ack; 408 and 500 are failures.

    A chunk's reply subject ends with its number, so that one lost on the way is noticed; the last chunk may have none, and that it
    came whole shows in the framing of the compression.
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
            await api.connection.publish(arrived.reply, b"")


async def _next_chunk(inbox: Inbox, what: str, idle: float, *, first: bool) -> InboxMessage:
    try:
        return await inbox.next(idle, what)
    except ApiTimeoutError as error:
        hint = "Does the domain's server still run, and the link to it? Then run the command again."
        if first:
            hint = "Snapshots do not come over another account's import; use a connection of the stream's own account."
        raise ApiTimeoutError(str(error), hint=hint) from None


def _require_complete(arrived: InboxMessage, frames: S2Frames, what: str) -> None:
    if arrived.status not in ("", "204"):
        hint = (
            "The server had to wait too long for this side."
            if arrived.status.startswith("408")
            else "Look at the server's log."
        )
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
    """Make the stream that `config` names from an archive, and return the server's answer (`STREAM.INFO` without `domain`).

    `config` and `state` are those of the snapshot; what of the configuration may differ is the server's business (2.15 archives:
    name, subjects, storage, limits; older: everything but name and storage). **A `tar` archive restored into
    memory storage is accepted and comes out empty**: do not. `on_progress` gets the bytes that the server has so far.

    All or nothing: after any failure, also of `chunks` and by cancellation, what the restore left is deleted (2.15 leaves an empty
    stream when a consumer is refused, 2.12 and later finish what they have when nothing comes for 5 s). Only what this
    restore made: the name was free when the server accepted it. Raises ServerRefusedError (`NAME_IN_USE`, 10065 for
    subjects, `RESTORE_FAILED`), the errors of `DomainApi.request`, ApiTimeoutError, and whatever `chunks` raises.
    """
    name = str(config["name"])
    answer = await api.request(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
    async with api.connection.open_inbox() as inbox:
        sending = _RestoreTransfer(
            api, name, str(answer["deliver_subject"]), inbox, idle, on_progress
        )
        try:
            await sending.send_all(chunks)
            return await sending.finish()
        except BaseException as error:
            await _clean_up_failed(sending, error)
            raise


async def _clean_up_failed(sending: _RestoreTransfer, error: BaseException) -> None:
    """Leave nothing of a failed restore; shielded, so that a second cancellation does not leave half of it."""
    cleaning = asyncio.ensure_future(sending.abandon(error))
    try:
        left = await asyncio.shield(cleaning)
    except asyncio.CancelledError:
        left = await cleaning
    if left:
        error.add_note(left)
        if isinstance(error, JsplanError):
            error.hint = f"{error.hint} {left}" if error.hint else left


class _RestoreTransfer:
    """One restore under way: chunks go out in order, each is answered with an empty message, in the same order."""

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
        self.unacknowledged: list[int] = []  # bytes of each chunk that is not answered yet
        self.bytes = 0
        self.ended = False  # the server has answered with a result, good or bad

    async def send_all(self, chunks: AsyncIterable[bytes]) -> None:
        """Send everything, at most `WINDOW_BYTES` bytes ahead of the answers."""
        async for chunk in chunks:
            for piece in _split_chunk(chunk, _chunk_size(self.api)):
                if not self.bytes and not self.unacknowledged:
                    await self._send_first(piece)
                    continue
                await self.api.connection.publish(self.subject, piece, self.inbox.subject)
                self.unacknowledged.append(len(piece))
                while sum(self.unacknowledged) > WINDOW_BYTES:
                    await self._await_ack()
        while self.unacknowledged:
            await self._await_ack()

    async def _send_first(self, piece: bytes) -> None:
        """The domain answered, but its interest in the chunks may still be on its way over a leafnode; nobody has got it then."""
        loop = asyncio.get_running_loop()
        end = loop.time() + INTEREST_TIMEOUT
        while True:
            await self.api.connection.publish(self.subject, piece, self.inbox.subject)
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
                f"{self.description}: nobody takes its chunks any more",
                hint="Look at the server's log; then run it again.",
            )
        if arrived.data:
            self.ended = True
            raise self._refused_error(arrived.data)
        self.bytes += self.unacknowledged.pop(0)
        self.on_progress(self.bytes)

    def _refused_error(self, data: bytes) -> ApiError:
        """What the server says instead of an empty message: its JSON, or a line of text when its disk fails."""
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
        """The empty request, and its answer: the server now puts it all together, and says nothing before it is done."""
        await self.api.connection.publish(self.subject, b"", self.inbox.subject)
        loop = asyncio.get_running_loop()
        end = loop.time() + self.idle + self.bytes * SECONDS_PER_BYTE
        while True:
            try:
                arrived = await self.inbox.next(POLL_INTERVAL, self.description)
                break
            except ApiTimeoutError:
                await self.api.request("INFO")  # a domain that is gone ends the wait
                if loop.time() > end:
                    raise
        self.ended = True
        if arrived.status.startswith("503"):
            raise NoRespondersError(
                f"{self.description}: nobody takes its end",
                hint="Look at the server's log; then run it again.",
            )
        return self.api.parse(f"STREAM.RESTORE.{self.name}", arrived.data, RESTORE_DONE)

    async def abandon(self, error: BaseException) -> str:
        """Nothing of it stays; returns what could not be made sure. Ending it at once is quicker than the server's 5 s."""
        if isinstance(error, ServerRefusedError) and error.err_code in NAME_IN_USE:
            return ""  # somebody else's
        try:
            if not self.ended:
                await self._end_upload()
            if await self.api.stream_info(self.name) is not None:
                await self.api.request(f"STREAM.DELETE.{self.name}")
        except JsplanError as failure:
            return f"Part of stream {self.name} may be left in domain {self.api.domain.key}, and could not be removed: {failure}"
        return ""

    async def _end_upload(self) -> None:
        await self.api.connection.publish(self.subject, b"", self.inbox.subject)
        while (
            not (arrived := await self.inbox.next(self.idle, self.description)).data
            and not arrived.status
        ):
            pass  # answers to chunks that were under way


def _chunk_size(api: DomainApi) -> int:
    return min(CHUNK_BYTES, int(api.connection.server.get("max_payload") or CHUNK_BYTES))


def _split_chunk(chunk: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(chunk), size):
        yield chunk[start : start + size]
