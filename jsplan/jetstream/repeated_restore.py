"""Repeats a restore that a server refuses for a reason that passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from jsplan.errors import ApiError, ServerRefusedError
from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.leftovers import REMOVAL_TIMEOUT
from jsplan.jetstream.snapshots import NAME_IN_USE
from jsplan.resources.error_codes import RESTORE_FAILED

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
