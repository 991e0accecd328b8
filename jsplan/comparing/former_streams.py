"""Streams before they were moved, or replaced with their messages.

Messages that were copied name their stream as it was then. State has what it was.
"""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

from msgspec import Struct

from jsplan.address import Address
from jsplan.context import Context
from jsplan.resources.source_header import source_name
from jsplan.state.document import former_names
from jsplan.topology.routes import NoRouteError
from jsplan.units import parse_instant

#: Later than every time (ns).
NEVER: Final = 1 << 62
#: From when on and until when (ns) a name was that of one stream; then it was another one's.
Window = tuple[int, int]


class StreamIdentity(NamedTuple):
    """One stream; `created` is empty where that is not known."""

    address: Address
    created: str


class FormerNames(Struct, frozen=True):
    """The names of an origin, now and before, and since when it has had its sequences.

    `origins` are those in `Jsplan-Origin`, that of now last, each with the time (ns) at which it
    became the name of another stream. `sources` are those in `Nats-Stream-Source` of a target that
    may have moved, too. `archived` has domain, stream and `created` as in an archive, the newest
    first. `begin` and `here` (ns) are since when it has had its sequences, and its address.
    """

    origins: dict[str, int] = {}
    sources: dict[str, Window] = {}
    archived: tuple[tuple[str, str, str], ...] = ()
    begin: int = 0
    here: int = 0


def find_former_names(
    context: Context, origin: StreamIdentity, target: StreamIdentity | None
) -> FormerNames:
    """Return the names of an origin, by what state has of it and of the stream that copies it."""
    streams = _list_streams(context, origin)
    readers = _list_streams(context, target) if target is not None else []
    windows, sources = dict[Address, Window](), dict[str, Window]()
    for address, created in streams:
        begin = parse_instant(created) if created else 0
        windows.setdefault(address, (begin, _find_end(context, address, origin.address)))
    for (old, _), (reader, _) in product(streams, readers):
        for api in _list_routes(context, reader.domain, old.domain):
            source = {"name": old.stream} | ({"external": {"api": api}} if api else {})
            sources.setdefault(source_name(source).stream, windows[old])
    origins, archived = dict[str, int](), list[tuple[str, str, str]]()
    for address, created in streams:
        for domain in _list_js_domains(context, address.domain):
            archived.append((domain, address.stream, created))
            origins.setdefault(f"{domain}/{address.stream}", windows[address][1])
    (begin, _), (here, _) = windows[streams[0].address], windows[origin.address]
    return FormerNames(origins, sources, tuple(reversed(archived)), begin, here)


def _find_end(context: Context, former: Address, origin: Address) -> int:
    """Return when another stream got a former address (ns); `NEVER` if none has."""
    entry = context.state.resources.get(former) if former != origin else None
    return parse_instant(entry.created) if entry is not None else NEVER


def _list_streams(context: Context, stream: StreamIdentity) -> list[StreamIdentity]:
    """List the streams that one was before it, the oldest first, and the one itself."""
    entry = context.state.resources.get(stream.address)
    former = entry.former if entry is not None and stream.created in ("", entry.created) else []
    before = (StreamIdentity(Address.parse(one["address"]), one["created"]) for one in former)
    return [*before, stream]


def _list_js_domains(context: Context, key: str) -> list[str]:
    """List the names of a domain in its servers, that of now last.

    One that is the name of another domain now may always have been that of other servers.
    """
    domains = context.workspace.domains
    now = domains[key].js_domain if key in domains else None
    others = {domain.js_domain for other, domain in domains.items() if other != key}
    former = former_names(context.state.domains.get(key, {}))
    return [*(name for name in former if name and name not in others), now or key]


def _list_routes(context: Context, own: str, other: str) -> list[str | None]:
    """List the API prefixes by which streams of a domain may have read another one."""
    if own == other:
        return [None]
    names: list[str | None] = [f"$JS.{name}.API" for name in _list_js_domains(context, other)]
    if {own, other} <= context.workspace.domains.keys():
        try:
            return [context.topology.routes.find_route(own, other).api, *names]
        except NoRouteError:
            return names
    return names
