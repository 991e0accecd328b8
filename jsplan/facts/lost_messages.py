"""Reads what a list of streams does not show: lost messages, and positions that are behind."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import OFFLINE_ERRORS, ApiError
from jsplan.facts.domains import mark_offline, require_reachable
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.reader import read_into
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.api import message_headers
from jsplan.resources.source_header import parse_source_header
from jsplan.units import parse_instant

#: Servers name lost messages only together with each deleted sequence; of more, they are not asked.
MAX_DELETED: Final = 20_000
#: Streams of which a message is read at once.
MAX_ASKED: Final = 200
_DETAILS: Final = b'{"deleted_details":true}'


class MarkedMessage(NamedTuple):
    """The message at the watermark of a stream, with the time that it had (RFC 3339).

    `deleted` is the last sequence before the first one of the only origin (0: there is none).
    """

    seq: int
    time: str
    deleted: int = 0


async def read_losses(
    pool: Pool,
    domains: Mapping[str, Domain],
    live: Live,
    addresses: Collection[Address],
    marked: Mapping[Address, MarkedMessage],
) -> None:
    """Add what streams in `live` lost to their state; read consumers behind their stream again.

    `state.lost` is what its server says. A stream with another message than the `marked` one
    (`state.replaced_seq`) went back, and has received new ones since. One that sources all of a
    stream, and left out messages since, has the sequence at its origin and their number in
    `state.left_out`.

    A consumer that was read before its stream may only look as if it were behind the first message.
    A domain that stops answering is offline from here on. Raises ApiError, and ConnectError where
    none is left.
    """
    reachable = {a.domain for a in addresses if live.is_reachable(a.domain)}
    await asyncio.gather(
        *(
            _read_domain(pool.api(domains[key]), live, [a for a in addresses if a.domain == key])
            for key in sorted(reachable)
        )
    )
    await _read_marked(pool, domains, live, marked)
    require_reachable(pool, live)


async def _read_domain(api: DomainApi, live: Live, addresses: Iterable[Address]) -> None:
    known = {a: one for a in addresses if (one := live.get(a)) is not None}
    streams = [a for a, one in known.items() if _may_have_lost(one)]
    found: dict[Address, dict[str, Any]] = {}

    def take(number: int, answer: dict[str, Any] | None) -> None:
        if answer is not None and (lost := answer["state"].get("lost")):
            found[streams[number]] = lost

    try:
        await api.request_infos([f"STREAM.INFO.{a.stream}" for a in streams], take, _DETAILS)
        await read_into(api, live, _list_behind(live, known.values()))
    except OFFLINE_ERRORS as error:
        mark_offline(live, api.domain.key, error)
    for address, lost in found.items():
        stream = known[address]
        live.objects[address] = dataclasses.replace(stream, state=stream.state | {"lost": lost})


async def _read_marked(
    pool: Pool,
    domains: Mapping[str, Domain],
    live: Live,
    marked: Mapping[Address, MarkedMessage],
) -> None:
    """Read the messages at these sequences. One that is not there or not readable says nothing."""

    async def look(address: Address) -> None:
        stream, mark = live.objects[address], marked[address]
        try:
            more = await _compare_marked(pool.api(domains[address.domain]), stream, mark)
        except ApiError:  # it may also be too large for an answer, or this user may not read it
            return
        live.objects[address] = dataclasses.replace(stream, state=stream.state | more)

    asked = [a for a in marked if live.get(a) is not None and live.is_reachable(a.domain)]
    for start in range(0, len(asked), MAX_ASKED):
        await asyncio.gather(*(look(address) for address in asked[start : start + MAX_ASKED]))


async def _compare_marked(
    api: DomainApi, stream: LiveObject, mark: MarkedMessage
) -> dict[str, Any]:
    """Return what a marked message, and the last one, add to the state. Raises ApiError."""
    message = await api.get_message(stream.address.stream, {"seq": mark.seq})
    if message is None:
        return {}
    if parse_instant(message["time"]) != parse_instant(mark.time):
        return {"replaced_seq": mark.seq}
    source = parse_source_header(message_headers(message)) if mark.deleted else None
    if source is None or mark.deleted <= source.seq:
        return {}
    end = int(stream.state["last_seq"])
    newest = await api.get_message(stream.address.stream, {"seq": end})
    found = parse_source_header(message_headers(newest)) if newest is not None else None
    if found is None or found.source != source.source:
        return {}
    return {"left_out": (source.seq, (found.seq - source.seq) - (end - mark.seq))}


def _may_have_lost(found: LiveObject) -> bool:
    return (
        found.address.is_stream
        and not found.address.is_content
        and found.raw.get("storage") != "memory"
        and int(found.state.get("num_deleted") or 0) <= MAX_DELETED
    )


def _list_behind(live: Live, objects: Iterable[LiveObject]) -> list[Address]:
    """Return the consumers whose next message was deleted from their stream."""
    found: list[Address] = []
    for consumer in objects:
        parent = consumer.address.parent
        stream = live.get(parent) if parent is not None else None
        position = int((consumer.state.get("delivered") or {}).get("stream_seq") or 0)
        if stream is not None and position + 1 < int(stream.state.get("first_seq") or 0):
            found.append(consumer.address)
    return found
