"""Writes of the entries of KV buckets, each only over the revision that was just read."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted
from jsplan.config.model import ContentFile
from jsplan.documents.plan import Step
from jsplan.errors import ServerRefusedError
from jsplan.facts.content import read_revision
from jsplan.facts.live import LiveObject
from jsplan.resources.contents import content_subject
from jsplan.resources.error_codes import WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CLUSTER
from jsplan.resources.kv_entry import TTL, VALUE, digest_value, ttl_header

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
