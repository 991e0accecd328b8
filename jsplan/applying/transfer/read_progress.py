"""The transfers that are not finished, with their progress as the servers show it now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from jsplan.address import Address
from jsplan.errors import ApiError
from jsplan.facts.live import LiveObject
from jsplan.planning.transfer.progress import Transfer, determine_progress, is_transfer

Read = Callable[[Address], Awaitable[LiveObject | None]]


async def read_transfers(
    records: Iterable[Mapping[str, Any]], online: Callable[[str], bool], read: Read
) -> list[Transfer]:
    """Read the streams of all recorded transfers whose origin can be read.

    `records` are those of state. `online` says whether a domain answers. A stream whose domain
    fails meanwhile leaves its transfer out.
    """
    found = []
    for record in filter(is_transfer, records):
        known = Transfer.of_record(record)
        if not online(known.origin.domain):
            continue
        with suppress(ApiError):
            origin = await read(known.origin)
            if not online(known.target.domain):
                found.append(known.with_origin_alone(origin))
                continue
            target = await read(known.target) if known.is_relocation else origin
            staging = await read(known.staging) if known.staging is not None else None
            found.append(determine_progress(known, origin, target, staging))
    return found
