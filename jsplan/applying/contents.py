"""Writes of entries, objects and schedules, each only over what was just read.

A reader sees the old object or the new one. The ids of all chunks that a step writes or replaces
are in the journal before the first of them, so what an interrupted upload left is found again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import BinaryIO, Final

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted, closing_lines
from jsplan.config.model import ContentFile
from jsplan.disk import open_regular
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, NotPermittedError, ServerRefusedError
from jsplan.facts.content import read_revision
from jsplan.facts.live import LiveObject
from jsplan.resources.contents import content_subject
from jsplan.resources.error_codes import WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CLUSTER
from jsplan.resources.kv_entry import TTL, VALUE, digest_value, ttl_header
from jsplan.resources.message_schedule import EXPECTED_STREAM, build_headers, other_headers
from jsplan.resources.stored_object import (
    CHUNK_SIZE,
    Upload,
    build_deleted_metadata,
    build_metadata,
    chunk_subject,
    metadata_subject,
)
from jsplan.units import format_timestamp

#: Refuses a write if the key has another revision: `0` is none.
EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"
#: What every client writes to delete a key. Its history stays.
DELETE_MARKER = {"KV-Operation": "DEL"}


async def write_entry(context: StepContext, step: Step) -> None:
    """Put the value of an entry, if its key is still as planned. Raises StepFailed."""
    content = content_of(context, step)
    await publish_value(context, step, content, ttl_header((step.expect or {}).get(TTL) or 0))


async def delete_entry(context: StepContext, step: Step) -> None:
    """Delete a key with a marker, if it is still as planned. Raises StepFailed."""
    await publish_value(context, step, b"", DELETE_MARKER)


def content_of(context: StepContext, step: Step) -> bytes:
    """Return the planned value. Raises StepFailed if the files no longer have it."""
    content = find_content(step, context.contents)
    if content is None:
        raise StepFailed(
            f"{step.address}: its value in the files is no longer the planned one; "
            "nothing was written. Run jsplan plan again"
        )
    return content


def find_content(step: Step, contents: Mapping[Address, bytes | ContentFile]) -> bytes | None:
    """Return the value of the plan, or of the files if the plan only has its digest.

    None if the digest is that of another value.
    """
    text, digest = (step.params or {}).get("text"), (step.expect or {}).get(VALUE)
    content = text.encode() if text is not None else contents.get(Address.parse(step.address))
    return content if isinstance(content, bytes) and digest_value(content) == digest else None


async def publish_value(
    context: StepContext,
    step: Step,
    content: bytes,
    headers: dict[str, str],
    *,
    plainly: bool = False,
) -> None:
    """Publish over the revision that was just read, and record it. Raises StepFailed.

    `plainly`: on the subject itself, as nothing but `$KV.>` has one below an API prefix.
    """
    address = step.target_address
    live = await context.check_precondition(step)
    require_planned_value(step, live)
    revision = (
        live.state["revision"]
        if live is not None
        else (await read_revision(context.api(step), address)).revision
    )
    await context.begin(step)
    subject = content_subject(address)
    stored = await put_over(context, step, subject, content, headers, revision, plainly=plainly)
    if not stored or not await save_acknowledged(context, step, stored):
        await context.verify_write(step)


async def put_over(
    context: StepContext,
    step: Step,
    subject: str,
    content: bytes,
    headers: Mapping[str, str],
    revision: int,
    *,
    plainly: bool = False,
) -> int:
    """Put a message over exactly this revision; return the new one, 0 if no answer came.

    Raises StepFailed if the subject has another revision.
    """
    headers = {**headers, EXPECTED_REVISION: str(revision)}
    api, stored = context.api(step), list[int]()
    send = api.publish_plainly if plainly else api.publish

    async def publish(timeout: float) -> None:
        answer = await send(subject, content, headers, timeout=timeout)
        stored.append(int(answer.get("seq") or 0))

    try:
        await context.write(step, publish)
    except ServerRefusedError as error:
        if error.err_code in (WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CLUSTER):
            raise changed_error(step) from None
        raise
    return stored[0] if stored else 0


async def save_acknowledged(context: StepContext, step: Step, stored: int) -> bool:
    """Record a value that was acknowledged with a revision. False if that is not complete.

    The acknowledgement proves the write, also where an application has overwritten it since. The
    next plan then shows the value of the application.
    """
    if not step.expect:
        return False
    try:
        live = await context.read(step.target_address)
    except StepNotStarted:  # offline since; `verify_write` says so
        return False
    if live is None or live.state["revision"] < stored:
        return False
    if live.state["revision"] > stored:
        live = live.with_raw(dict(step.expect))
    if live.raw != step.expect:
        return False
    context.note_result(step, live)
    await context.save_entry(step, live)
    return True


def require_planned_value(step: Step, live: LiveObject | None) -> None:
    """Check the value where a fingerprint cannot: this plan replaced or relocated its bucket."""
    planned = (step.params or {})["before"] or None
    if (live.value if live is not None else None) != planned:
        raise changed_error(step)


def changed_error(step: Step) -> StepFailed:
    """Return the error of a step whose key or object another client wrote."""
    return StepFailed(
        f"{step.address} was changed by another client since it was planned; nothing was written"
    )


# --- objects of object stores ---------------------------------------------------------------------

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


# --- message schedules ----------------------------------------------------------------------------


async def write_schedule(context: StepContext, step: Step) -> None:
    """Put a schedule, if its subject is still as planned. Raises StepFailed.

    Headers that another client gave it stay: the server copies them to what it publishes.
    """
    live = await context.read(step.target_address)
    kept = other_headers(live.state["headers"]) if live is not None else {}
    stream = {EXPECTED_STREAM: step.target_address.stream}
    headers = kept | build_headers(step.expect or {}) | stream
    await publish_value(context, step, content_of(context, step), headers, plainly=True)


async def delete_schedule(context: StepContext, step: Step) -> None:
    """Purge a schedule up to the revision that was just read, so that a newer one stays.

    Raises StepFailed.
    """
    live = await context.check_precondition(step)
    require_planned_value(step, live)
    assert live is not None
    await context.begin(step)
    payload = {"filter": step.target_address.key, "seq": live.state["revision"] + 1}
    verb = f"STREAM.PURGE.{step.target_address.stream}"
    await context.write(
        step, lambda timeout: context.api(step).request(verb, payload, timeout=timeout)
    )
    await context.verify_write(step)
