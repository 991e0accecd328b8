"""Writes accounts: claims, signed with the key of their operator, or files.

A server stores claims of any operator, and then refuses every user of the account (measured on 2.12
to 2.15). So the key is compared with those that the server trusts before anything is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jsplan.applying.contents import require_planned_value
from jsplan.applying.step_context import READ_BACK_TIMEOUT, StepContext, StepFailed
from jsplan.config.model import AccountFiles
from jsplan.disk import display_path
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, NotPermittedError, ServerRefusedError, UsageError
from jsplan.facts.live import LiveObject
from jsplan.jetstream import DomainApi
from jsplan.jetstream.answers import CLAIMS_DELETE, CLAIMS_UPDATE, SERVER_SETTINGS
from jsplan.jetstream.api import request_system
from jsplan.jetstream.contexts import decode_claims
from jsplan.jetstream.jwt import OPERATOR, SigningKey, read_signing_key
from jsplan.jetstream.read_only import server_varz
from jsplan.resources.account import merge_claims
from jsplan.resources.account_file import header_of, render_file
from jsplan.state.files import write_temporary
from jsplan.topology.access import describe_reload


async def write_account(context: StepContext, step: Step) -> None:
    """Create or change an account; what other tools added to it stays. Raises StepFailed."""
    live = await _check(context, step)
    api = context.api(step)
    operator, name = api.domain.accounts, step.target_address.name
    if isinstance(operator, AccountFiles):
        header, path = header_of(name, operator.workspace), operator.path(name)
        content = render_file(step.expect or {}, header).encode()
        await _change_file(context, step, operator, partial(_replace_file, path, content))
        return
    assert operator is not None
    claims = decode_claims(live.content.decode()) if live is not None and live.content else None
    if claims is None:
        claims = {"sub": operator.keys[name]}
    merged = merge_claims(claims, step.expect or {}, operator.mark, operator.keys)
    await _send(context, step, CLAIMS_UPDATE, merged)
    await context.verify_write(step)


async def delete_account(context: StepContext, step: Step) -> None:
    """Delete an account. Raises StepFailed."""
    live = await _check(context, step)
    assert live is not None
    files = context.api(step).domain.accounts
    if isinstance(files, AccountFiles):
        path = files.path(step.target_address.name)
        await _change_file(context, step, files, partial(path.unlink, missing_ok=True))
        return
    nats = {"accounts": [live.created], "type": "generic", "version": 2}
    await _send(context, step, CLAIMS_DELETE, {"nats": nats})
    await context.verify_write(step)


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file that everybody may read, durably and at once. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_temporary(path.with_name(f".{path.name}.tmp"), content) as temporary:
        temporary.chmod(0o644)
        temporary.replace(path)


async def _change_file(
    context: StepContext, step: Step, files: AccountFiles, change: Callable[[], None]
) -> None:
    """Change a file, and note what must be reloaded. Raises StepFailed and NotPermittedError."""
    name = step.target_address.name
    await context.begin(step)

    async def write(_: float) -> None:
        try:
            change()
        except OSError as error:
            shown = display_path(files.path(name))
            text = f"cannot write {shown}: {error.strerror}; nothing was changed"
            hint = "Correct its permissions, or free space, and apply again."
            raise NotPermittedError(text, hint=hint) from None

    await context.write(step, write)
    await context.verify_write(step)
    context.notes[step.id] = describe_reload(files, [name], gone=step.kind.does == "delete")


async def _check(context: StepContext, step: Step) -> LiveObject | None:
    live = await context.check_precondition(step)
    require_planned_value(step, live)
    return live


async def _send(context: StepContext, step: Step, subject: str, claims: dict[str, Any]) -> None:
    api = context.api(step)
    key = await _read_trusted_key(api)
    # A deletion is signed by its subject.
    token = key.sign({"sub": key.public} | claims, int(time.time())).encode()
    await context.begin(step)

    async def push(timeout: float) -> None:
        answer = await request_system(api.connection, subject, subject, token, timeout)
        if (error := answer.get("error")) is not None:
            text = f"the servers refuse {step.address}: {error.get('description')}"
            raise ServerRefusedError.of(text, error)

    await context.write(step, push)
    await _wait_until_stored(context, step, token if subject == CLAIMS_UPDATE else None)


async def _wait_until_stored(context: StepContext, step: Step, token: bytes | None) -> None:
    """Wait until a read finds what was sent. Of several servers another one may answer first."""
    end = time.monotonic() + READ_BACK_TIMEOUT
    while time.monotonic() < end:
        live = await context.read(step.target_address)
        if (live.content if live is not None else None) == token:
            return
        await asyncio.sleep(0.05)


async def _read_trusted_key(api: DomainApi) -> SigningKey:
    """Read the operator's key that the connection names, if its servers trust it.

    Raises StepFailed.
    """
    connection = api.connection
    if (path := connection.settings.operator_key) is None:
        raise StepFailed(f"connection {connection.settings.key} has no `operator_key`")
    try:
        key = read_signing_key(path, OPERATOR)
    except UsageError as error:
        raise StepFailed(f"{error}; nothing was written") from None
    try:
        subject = server_varz(connection.server)
        answer = await request_system(connection, SERVER_SETTINGS, subject, b"")
    except ApiError as error:
        raise StepFailed(f"the operator of the servers is not known: {error}") from None
    trusted: set[str] = set()
    for operator in (answer.get("data") or {}).get("trusted_operators_claim") or ():
        nats = operator.get("nats") or {}
        trusted |= {operator["sub"], *(nats.get("signing_keys") or ())}
    if key.public not in trusted:
        raise StepFailed(
            f"the servers of {connection.settings.key} do not trust the key in {path}: with it "
            "they would refuse every user of the account; nothing was written"
        )
    return key
