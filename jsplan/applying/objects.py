"""Writes of objects of an object store: chunks, then metadata over the revision just read.

A reader sees the old object or the new one. The ids of all chunks that a step writes or replaces
are in the journal before the first of them, so what an interrupted upload left is found again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import BinaryIO, Final

from jsplan.applying.kv_entries import put_over, require_planned_value, save_acknowledged
from jsplan.applying.step_context import StepContext, StepFailed, closing_lines
from jsplan.config.model import ContentFile
from jsplan.disk import open_regular
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, NotPermittedError, ServerRefusedError
from jsplan.facts.content import read_revision
from jsplan.facts.live import LiveObject
from jsplan.resources.kv_entry import VALUE
from jsplan.resources.stored_object import (
    CHUNK_SIZE,
    Upload,
    build_deleted_metadata,
    build_metadata,
    chunk_subject,
    metadata_subject,
)
from jsplan.units import format_timestamp

#: Deletes the earlier metadata of the object, as all clients do.
_ROLLUP: Final = {"Nats-Rollup": "sub"}
#: Bytes that headers and subject may need besides a chunk.
_OVERHEAD: Final = 1024


async def upload_object(context: StepContext, step: Step) -> None:
    """Upload the file of an object, if the object is still as planned. Raises StepFailed."""
    bucket, name = _names(step)
    live = await context.check_precondition(step)
    require_planned_value(step, live)
    file = context.contents.get(step.target_address)
    if not isinstance(file, ContentFile):
        raise StepFailed(f"{step.address}: no file has its content; nothing was written")
    revision = await _read_revision(context, step, live)
    upload, replaced = secrets.token_hex(11), _uploads_of(live)
    await context.begin(step, uploads=(upload, *replaced, *_leftovers(step)))
    await _purge(context, step, _leftovers(step))

    async def send() -> int:
        found = await _send_chunks(context, step, file, upload)
        if found.digest != (step.expect or {}).get(VALUE):
            raise StepFailed(
                f"{step.address}: its file changed while it was read; nothing was written"
            )
        before = live.state["metadata"] if live is not None else {}
        metadata = build_metadata(bucket, name, before, found, format_timestamp())
        return await _write_metadata(context, step, metadata, revision)

    stored = await _without_leftovers(context, step, upload, send)
    await _purge(context, step, replaced)
    if not stored or not await save_acknowledged(context, step, stored):
        await context.verify_write(step)


async def delete_object(context: StepContext, step: Step) -> None:
    """Delete an object as clients do, if it is still as planned. Raises StepFailed."""
    live = await context.check_precondition(step)
    require_planned_value(step, live)
    assert live is not None
    uploads = (*_uploads_of(live), *_leftovers(step))
    await context.begin(step, uploads=uploads)
    metadata = build_deleted_metadata(live.state["metadata"], format_timestamp())
    await _write_metadata(context, step, metadata, live.state["revision"])
    await _purge(context, step, uploads)
    await context.verify_write(step)


async def clean_object(context: StepContext, step: Step) -> None:
    """Purge the chunks that an interrupted upload left, and record the object."""
    live = await context.check_precondition(step)
    await _purge(context, step, _leftovers(step))
    if live is not None and step.record:
        await context.save_entry(step, live)
    else:
        await context.record(*closing_lines(step, live))


def _names(step: Step) -> tuple[str, str]:
    return step.target_address.name.partition("/")[0], step.target_address.key


def _uploads_of(live: LiveObject | None) -> tuple[str, ...]:
    """Return the upload that the live object has, if any."""
    return (live.state["upload"],) if live is not None and live.state["upload"] else ()


def _leftovers(step: Step) -> tuple[str, ...]:
    return tuple((step.params or {}).get("leftovers", ()))


async def _read_revision(context: StepContext, step: Step, live: LiveObject | None) -> int:
    """Return the revision of the metadata, also of those of a deleted object."""
    if live is not None:
        return int(live.state["revision"])
    return (await read_revision(context.api(step), step.target_address)).revision


async def _purge(context: StepContext, step: Step, uploads: Iterable[str]) -> None:
    """Delete the chunks of these uploads."""
    bucket, _ = _names(step)
    for upload in uploads:
        payload = {"filter": chunk_subject(bucket, upload)}
        await context.send(step, f"STREAM.PURGE.{step.target_address.stream}", payload)


async def _without_leftovers(
    context: StepContext, step: Step, upload: str, send: Callable[[], Awaitable[int]]
) -> int:
    """Send, and delete the chunks again if it fails for good.

    Where it is not known what was stored, the journal still has the upload: the next plan purges
    it.
    """
    try:
        return await send()
    except (ServerRefusedError, NotPermittedError, StepFailed) as error:
        if isinstance(error, StepFailed) and error.status == "unknown":
            raise
        with suppress(ApiError, StepFailed):
            await _purge(context, step, [upload])
            await context.record({"end": step.address}, durable=False)
        raise


async def _send_chunks(context: StepContext, step: Step, file: ContentFile, upload: str) -> Upload:
    """Store the chunks in order. Raises StepFailed, ServerRefusedError and NotPermittedError."""
    bucket, _ = _names(step)
    size, digest, chunks, total = _chunk_size(context, step), hashlib.sha256(), 0, 0
    subject = chunk_subject(bucket, upload)
    try:
        source: BinaryIO = open_regular(file.path)
    except OSError as error:
        raise StepFailed(f"{step.address}: cannot read its file: {error.strerror}") from None
    with source:
        while chunk := await asyncio.to_thread(source.read, size):
            digest.update(chunk)
            await context.send_message(step, subject, chunk)
            chunks, total = chunks + 1, total + len(chunk)
    return Upload(upload, chunks, total, f"sha256:{digest.hexdigest()}")


def _chunk_size(context: StepContext, step: Step) -> int:
    """Return the bytes of a chunk, less where the server takes no such message."""
    most = int(context.api(step).connection.server.get("max_payload") or 0)
    return CHUNK_SIZE if most <= 0 else max(1, min(CHUNK_SIZE, most - _OVERHEAD))


async def _write_metadata(context: StepContext, step: Step, metadata: bytes, revision: int) -> int:
    """Put metadata as `put_over` does."""
    subject = metadata_subject(*_names(step))
    return await put_over(context, step, subject, metadata, _ROLLUP, revision, plainly=True)
