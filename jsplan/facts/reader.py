"""Reads the objects of one domain, by address or all of them. Never writes.

Many are read by the lists of the domain, 256 to a request, or by their INFO together. STREAM.LIST
and CONSUMER.LIST answer what INFO answers, except for `_nats.*` metadata and for the name of a
server without a cluster (measured in `tests/facts/test_lists.py`). Each page begins at an offset in
the order of names, so an object is on no page if one before it is deleted between two requests. An
object that no page shows may exist, unless one page shows all: it is asked for by INFO.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from jsplan.address import Address
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.accounts import read_account
from jsplan.facts.content import read_entry
from jsplan.facts.live import DomainFacts, Live, LiveObject, is_backfill_incomplete
from jsplan.jetstream import DomainApi
from jsplan.resources.error_codes import UNREADABLE
from jsplan.topology.routes import is_import

#: Concurrent requests per domain. The connection limits them again over all domains that share it.
MAX_WORKERS: Final = 64
#: Wanted streams from which on a list is shorter, and wanted consumers of one stream.
MIN_STREAMS: Final = 64
MIN_CONSUMERS: Final = 4
#: Wanted objects from which on their INFO is requested together.
MIN_INFOS: Final = 16
#: A list is read if at least one of this many objects in it is wanted.
MAX_UNWANTED: Final = 3
#: Objects on one page of a list.
PAGE: Final = 256
#: What is kept of INFO of a consumer beside its configuration.
_CONSUMER_STATE: Final = (
    "delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_waiting", "num_pending",
    "push_bound", "priority_groups",
)  # fmt: skip
T = TypeVar("T")
Counter = Callable[[int], object]


def ignore_count(_: int) -> None:
    """Report no progress."""


async def read_into(
    api: DomainApi,
    live: Live,
    addresses: Iterable[Address],
    on_read: Counter = ignore_count,
    workers: int = MAX_WORKERS,
) -> None:
    """Read objects of one domain into `live`; what cannot be read into `live.unreadable`.

    What is in neither does not exist. `on_read` is called with the number of objects that were read
    since its last call. Raises ApiError; where the user may not list, every object is asked for.
    """
    streams, contents = list[Address](), list[Address]()
    consumers: dict[Address, list[Address]] = {}
    for address in addresses:
        parent = address.parent if address.kind == "consumer" else None
        if parent is not None:
            consumers.setdefault(parent, []).append(address)
        else:
            (contents if address.is_content else streams).append(address)

    async def read_list(stream: Address) -> None:
        found = await _list_wanted_consumers(api, stream, consumers[stream])
        live.objects.update(found)
        on_read(len(found))

    absent = await _list_wanted_streams(api, live, streams)
    on_read(len(absent) + sum(address in live.objects for address in streams))
    await _read_rest(api, live, streams, absent, on_read, workers)
    for stream in streams:
        if stream not in live.objects:
            theirs = consumers.pop(stream, [])  # it has no consumers either, or none to read
            if (why := live.unreadable.get(stream)) is not None:
                live.unreadable |= dict.fromkeys(theirs, why)
            on_read(len(theirs))
    lists = [s for s, wanted in consumers.items() if _is_list_shorter(live.get(s), wanted)]
    await run_parallel(read_list, lists, workers)
    rest = [address for wanted in consumers.values() for address in wanted]
    await _read_rest(api, live, rest, (), on_read, workers)
    await _read_rest(api, live, contents, (), on_read, workers)


async def list_streams_into(api: DomainApi, live: Live) -> list[Address]:
    """Read every stream of a domain into `live`, but what is there; return those of the list.

    Those that cannot be read are in `live.unreadable`. Raises ApiError.
    """
    key, found = api.domain.key, list[Address]()
    infos, offline = await api.streams()
    for name, why in offline.items():
        live.unreadable.setdefault(Address.of_stream(key, name), why)
    for info in infos:
        address = Address.of_stream(key, info["config"]["name"])
        live.objects.setdefault(address, parse_stream(address, info))
        found.append(address)
    return found


async def list_consumers_into(
    api: DomainApi, live: Live, streams: Sequence[Address], on_read: Counter = ignore_count
) -> list[Address]:
    """Read every consumer of some streams into `live`, as `list_streams_into` does.

    The first pages are requested together, as most streams have no other. What is refused or fails
    is asked for alone: then the error is that of the stream.
    """
    firsts, found = dict[Address, dict[str, Any]](), list[Address]()

    def take(number: int, page: dict[str, Any] | None) -> None:
        if page is not None:
            firsts[streams[number]] = page
            on_read(len(page.get("consumers") or ()))

    async def read(stream: Address) -> None:
        first = firsts.get(stream, {})
        infos, missing = await api.consumers(stream.stream, first)
        on_read(len(infos) - len(first.get("consumers") or ()))
        for name, why in missing.items():
            live.unreadable.setdefault(_consumer_address(stream, name), why)
        for info in infos:
            address = _consumer_address(stream, info["name"])
            live.objects.setdefault(address, parse_consumer(address, info))
            found.append(address)

    with contextlib.suppress(ApiError):
        lists = [f"CONSUMER.LIST.{stream.stream}" for stream in streams]
        await api.request_infos(lists, take, b'{"offset":0}')
    await run_parallel(read, streams)
    return found


def _consumer_address(stream: Address, name: str) -> Address:
    return Address(stream.domain, "consumer", f"{stream.stream}/{name}")


# --- many by their lists, or by INFO --------------------------------------------------------------


async def _list_wanted_streams(
    api: DomainApi, live: Live, wanted: Collection[Address]
) -> set[Address]:
    """Read the wanted streams that the list of the domain shows; return those that do not exist.

    The second only where all streams are on one page. Nothing is read where few are wanted, and
    where this user may not list. Raises nothing: an error of the list says little about INFO.
    """
    if len(wanted) < MIN_STREAMS or is_import(api.domain):  # which may export INFO alone
        return set()
    try:
        facts = live.domains.get(api.domain.key)
        if facts is None:
            facts = DomainFacts(api.domain.key, reachable=True, info=await api.request("INFO"))
        if facts.streams > MAX_UNWANTED * len(wanted):
            return set()
        infos, offline = await api.streams()
    except ApiError:
        return set()
    names, found = {address.stream: address for address in wanted}, dict[Address, LiveObject]()
    for info in infos:
        address = names.get(info["config"]["name"])
        if address is not None and not is_backfill_incomplete(info["config"]):
            found[address] = parse_stream(address, info)
    listed = {a.stream for a in found} | offline.keys()
    await _fill_servers(api, found)
    live.objects.update(found)
    is_one_page = len(infos) + len(offline) < PAGE
    return {names[name] for name in names.keys() - listed} if is_one_page else set()


def _is_list_shorter(stream: LiveObject | None, wanted: Collection[Address]) -> bool:
    """Return True if the list of a stream's consumers takes less than INFO of the wanted ones."""
    if stream is None or len(wanted) < MIN_CONSUMERS:
        return False
    return int(stream.state.get("consumer_count") or 0) <= MAX_UNWANTED * len(wanted)


async def _list_wanted_consumers(
    api: DomainApi, stream: Address, wanted: Collection[Address]
) -> dict[Address, LiveObject]:
    """Return the wanted consumers of one stream that its list shows. Raises nothing."""
    names = {address.consumer: address for address in wanted}
    try:
        infos, _ = await api.consumers(stream.stream)
    except ApiError:
        return {}
    listed = ((names[info["name"]], info) for info in infos if info["name"] in names)
    return {address: parse_consumer(address, info) for address, info in listed}


async def _read_rest(
    api: DomainApi,
    live: Live,
    wanted: Iterable[Address],
    absent: Collection[Address],
    on_read: Counter,
    workers: int,
) -> None:
    """Read by INFO what no list has: together, and one by one what that does not answer."""
    unread = [a for a in wanted if a not in live.objects and a not in absent]
    found, absent = await read_infos(api, unread, on_read)
    live.objects.update(found)

    async def read(address: Address) -> None:
        try:
            live_object = await read_object(api, address)
        except ServerRefusedError as error:
            if error.err_code not in UNREADABLE:
                raise
            live.unreadable[address] = error.description
        else:
            if live_object is not None:
                live.objects[address] = live_object
        on_read(1)

    alone = [a for a in unread if a not in found and a not in absent]
    await run_parallel(read, alone, workers)


async def read_infos(
    api: DomainApi, wanted: Sequence[Address], on_read: Counter = ignore_count
) -> tuple[dict[Address, LiveObject], set[Address]]:
    """Return the wanted streams and consumers, and those that do not exist; asked all at once.

    Neither has what cannot be read, for any reason: the caller asks for it alone. Both are empty
    where few are wanted. `on_read` is called with the number of objects read since its last call.
    """
    found: dict[Address, LiveObject] = {}
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


async def _fill_servers(api: DomainApi, found: dict[Address, LiveObject]) -> None:
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


# --- one object -----------------------------------------------------------------------------------


async def run_parallel(
    visit: Callable[[T], Awaitable[None]], items: Iterable[T], workers: int = MAX_WORKERS
) -> None:
    """Visit all items with this many tasks. The first error ends all of them and is raised."""
    listed = list(items)
    remaining = iter(listed)

    async def worker() -> None:
        for item in remaining:
            await visit(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(listed))):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def read_object(api: DomainApi, address: Address) -> LiveObject | None:
    """Read INFO of one object; None when the server reports that it does not exist."""
    if address.kind == "consumer":
        answer = await api.consumer_info(address.stream, address.consumer)
        return parse_consumer(address, answer) if answer else None
    if address.kind == "account":
        return await read_account(api, address)
    if address.is_content:
        return await read_entry(api, address)
    answer = await api.stream_info(address.stream)
    if not answer or is_backfill_incomplete(answer["config"]):
        return None
    return parse_stream(address, answer)


def parse_stream(address: Address, answer: dict[str, Any]) -> LiveObject:
    """Parse a stream from its INFO, or from an element of a LIST."""
    flows = [*filter(None, [answer.get("mirror")]), *(answer.get("sources") or ())]
    stream = LiveObject(
        address,
        answer["config"],
        answer["created"],
        answer["state"],
        answer.get("cluster") or {},
        flows,
    )
    stream.answered_at = str(answer.get("ts") or "")
    return stream


def parse_consumer(address: Address, answer: dict[str, Any]) -> LiveObject:
    """Parse a consumer from its INFO, or from an element of a LIST.

    Up to nats-server 2.11 a durable consumer that a client made without `name` has none, also after
    an upgrade; later ones leave it out only of consumers that they named themselves.
    """
    consumer = LiveObject(
        address,
        answer["config"] | {"name": address.consumer},
        answer["created"],
        {name: answer.get(name) for name in _CONSUMER_STATE},
        answer.get("cluster") or {},
    )
    consumer.answered_at = str(answer.get("ts") or "")
    return consumer
