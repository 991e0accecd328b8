"""Reads of many objects of one domain: by its lists, 256 to a request, and by INFO of many.

STREAM.LIST and CONSUMER.LIST answer what INFO answers, except for `_nats.*` metadata and for the
name of a server without a cluster (measured in `tests/facts/test_lists.py`). Each page begins at an
offset in the order of names, so an object is on no page if one before it is deleted between two
requests. A cluster lists objects whose servers do not answer with a state of zeros, and names them
in `missing`: they are not taken from the list. An object that no page shows may exist, unless one
page shows all: the caller asks for it by INFO.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from jsplan.address import Address
from jsplan.errors import ApiError
from jsplan.facts.live import DomainFacts, LiveObject, is_backfill_incomplete
from jsplan.facts.reader import parse_consumer, parse_stream, run_parallel
from jsplan.jetstream import DomainApi
from jsplan.topology.routes import is_import

#: Wanted streams from which on a list is shorter, and wanted consumers of one stream.
MIN_STREAMS: Final = 64
MIN_CONSUMERS: Final = 4
#: Wanted objects from which on their INFO is requested together.
MIN_INFOS: Final = 16
#: A list is read if at least one of this many objects in it is wanted.
MAX_UNWANTED: Final = 3
#: Pages of one list that are requested at once: the server makes one after the other.
CONCURRENT_PAGES: Final = 4

Found = dict[Address, LiveObject]


async def list_streams(
    api: DomainApi, facts: DomainFacts, wanted: Collection[Address]
) -> tuple[Found, set[Address]]:
    """Return the wanted streams that the list of the domain shows, and those that do not exist.

    The second only where all streams are on one page. Both are empty where few are wanted, and
    where this user may not list. Raises nothing: an error of the list says little about INFO.
    """
    if len(wanted) < MIN_STREAMS or facts.streams > MAX_UNWANTED * len(wanted):
        return {}, set()
    if is_import(api.domain):  # which may export INFO alone
        return {}, set()
    names = {address.stream: address for address in wanted}
    found: Found = {}
    absent: set[Address] = set()

    def take(page: Mapping[str, Any]) -> None:
        unread = {*(page.get("missing") or ()), *(page.get("offline") or ())}
        listed = page.get("streams") or ()
        for info in listed:
            name = info["config"]["name"]
            address = names.get(name) if name not in unread else None
            if address is not None and not is_backfill_incomplete(info["config"]):
                found[address] = parse_stream(address, info)
        if page.get("total") == len(listed) == len({i["config"]["name"] for i in listed} - unread):
            absent.update(names[name] for name in names.keys() - {a.stream for a in found})

    await _read_pages(api, "STREAM.LIST", "streams", take)
    await _fill_servers(api, found)
    return found, absent


def is_list_shorter(stream: LiveObject | None, wanted: Collection[Address]) -> bool:
    """Return True if the list of a stream's consumers takes less than INFO of the wanted ones."""
    if stream is None or len(wanted) < MIN_CONSUMERS:
        return False
    return int(stream.state.get("consumer_count") or 0) <= MAX_UNWANTED * len(wanted)


async def list_consumers(api: DomainApi, stream: Address, wanted: Collection[Address]) -> Found:
    """Return the wanted consumers of one stream that its list shows, as `list_streams` does."""
    names = {address.consumer: address for address in wanted}
    found: Found = {}

    def take(page: Mapping[str, Any]) -> None:
        unread = {*(page.get("missing") or ()), *(page.get("offline") or ())}
        for info in page.get("consumers") or ():
            if info["name"] not in unread and (address := names.get(info["name"])) is not None:
                found[address] = parse_consumer(address, info)

    await _read_pages(api, f"CONSUMER.LIST.{stream.stream}", "consumers", take)
    return found


async def read_infos(
    api: DomainApi, wanted: Sequence[Address], on_read: Callable[[int], object]
) -> tuple[Found, set[Address]]:
    """Return the wanted streams and consumers, and those that do not exist; asked all at once.

    Neither has what cannot be read, for any reason: the caller asks for it alone. Both are empty
    where few are wanted. `on_read` is called with the number of objects read since its last call.
    """
    found: Found = {}
    absent: set[Address] = set()
    if len(wanted) < MIN_INFOS or any(address.is_content for address in wanted):
        return found, absent

    def take(number: int, answer: dict[str, Any] | None) -> None:
        address = wanted[number]
        if address.kind == "consumer" and answer is not None:
            found[address] = parse_consumer(address, answer)
        elif answer is not None and not is_backfill_incomplete(answer["config"]):
            found[address] = parse_stream(address, answer)
        else:
            absent.add(address)
        on_read(1)

    with contextlib.suppress(ApiError):
        await api.request_infos([_info_api(address) for address in wanted], take)
    return found, absent


def _info_api(address: Address) -> str:
    if address.kind == "consumer":
        return f"CONSUMER.INFO.{address.stream}.{address.consumer}"
    return f"STREAM.INFO.{address.stream}"


async def _read_pages(
    api: DomainApi, verb: str, key: str, take: Callable[[Mapping[str, Any]], None]
) -> None:
    """Read the pages of a list, several at once; stop at the first error."""

    async def read(offset: int) -> None:
        take(await api.request(verb, {"offset": offset}))

    try:
        first = await api.request(verb, {"offset": 0})
        take(first)
        size, total = len(first.get(key) or ()), int(first.get("total") or 0)
        if 0 < size < total:
            await run_parallel(read, range(size, total, size), CONCURRENT_PAGES)
    except ApiError:
        return


async def _fill_servers(api: DomainApi, found: Found) -> None:
    """Set the server of each stream, which the list of a server without a cluster omits.

    It is the same for all of them. Where INFO of one does not show it, none is kept: INFO of each
    does.
    """
    unnamed = [address for address, stream in found.items() if not stream.server]
    if not unnamed:
        return
    try:
        info = await api.stream_info(unnamed[0].stream)
    except ApiError:
        info = None
    server = (info or {}).get("cluster") or {}
    for address in unnamed:
        if server.get("leader") and not server.get("replicas"):
            found[address].server = server
        else:
            del found[address]
