"""Which JetStream domains are behind a connection. Never writes; what is proposed for the files is left to `workflows`.

Every server that shares the account, or whose system account is joined, answers `$SYS.REQ.ACCOUNT.PING.CONNZ` to an ordinary
user, also across leafnode links, and says its domain (measured, 2.10 to 2.15). With the system account they are asked
directly. Mirrors and sources name domains that are away just now. A domain counts as there once its API answers the account.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from jsplan.config.model import Domain
from jsplan.errors import ApiError, ApiTimeoutError, JsplanError
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.read_only import ACCOUNT_PING

#: Seconds after the last answer until no more are waited for.
NEXT_ANSWER_TIMEOUT: Final = 1.0
#: Seconds that a domain has to answer; all are asked at once.
ANSWER_TIMEOUT: Final = 2.0
#: Servers after which no more are waited for.
MAX_SERVERS: Final = 100_000
SYSTEM_PING: Final = "$SYS.REQ.SERVER.PING"
#: Asks for the server and not for its connections, as far as that is possible.
_LIMIT_ONE: Final = b'{"limit": 1}'
_EXTERNAL = re.compile(r"\$JS\.([^.*>\s]+)\.API")


@dataclass(slots=True)
class VisibleDomain:
    """One domain over one connection. `name` None is a JetStream without a domain.

    `servers` are those that say they are in it, as name and version; `reported_by` is who said that it exists. `failure` says why it
    does not answer; else `streams` and `level` (the API level) are what its INFO shows.
    """

    name: str | None
    connection: str
    servers: dict[str, str] = field(default_factory=dict)
    reported_by: list[str] = field(default_factory=list)
    failure: str = ""
    streams: int = 0
    level: int = 0

    @property
    def prefix(self) -> str:
        """Its API prefix, as the account sees it."""
        return f"$JS.{self.name}.API" if self.name else "$JS.API"


async def find_domains(
    link: NatsConnection, system: NatsConnection | None = None
) -> list[VisibleDomain]:
    """Every domain that is visible over an open connection, the connected server's own first, then by name.

    `system` is an open connection to the system account of the same servers. Raises ApiError when a connection is lost.
    """
    found: dict[str | None, VisibleDomain] = {}

    def tell(name: str | None, who: str, server: dict[str, Any] | None = None) -> None:
        seen = found.setdefault(name, VisibleDomain(name, link.settings.key))
        seen.reported_by += [who] if who not in seen.reported_by else []
        if server is not None and server.get("name"):
            seen.servers[str(server["name"])] = str(server.get("ver") or "")

    own = link.server
    if own.get("jetstream"):
        tell(
            own.get("domain") or None,
            "the connected server",
            {"name": own.get("server_name"), "ver": own.get("version")},
        )
    asked = [
        (link, ACCOUNT_PING, "servers that answer the account"),
        *([(system, SYSTEM_PING, "the system account")] if system is not None else []),
    ]
    for (_, _, who), answers in zip(
        asked,
        await asyncio.gather(*(_ask_all_servers(to, subject) for to, subject, _ in asked)),
        strict=True,
    ):
        for server in answers:
            if server.get("jetstream"):
                tell(server.get("domain") or None, who, server)
    await asyncio.gather(*(_probe_api(link, seen) for seen in found.values()))
    reached = [seen for seen in found.values() if not seen.failure]
    for name, stream in await _domains_in_origins(link, reached):
        tell(name, f"stream {stream}")
    await asyncio.gather(
        *(
            _probe_api(link, seen)
            for seen in found.values()
            if seen not in reached and not seen.failure
        )
    )
    first = own.get("domain") or None
    return sorted(found.values(), key=lambda seen: (seen.name != first, seen.name or ""))


async def list_visible_domains(pool: Pool, connections: Iterable[str]) -> dict[str, list[str]]:
    """The JetStream domains that servers name, by each of the connections that is open; none where they do not say."""
    links = [pool.connections[key] for key in sorted(set(connections)) if key in pool.connections]
    answers = await asyncio.gather(
        *(_ask_all_servers(link, ACCOUNT_PING) for link in links), return_exceptions=True
    )
    found: dict[str, list[str]] = {}
    for link, servers in zip(links, answers, strict=True):
        if isinstance(servers, BaseException):
            if not isinstance(servers, ApiError):
                raise servers
            continue
        found[link.settings.key] = sorted(
            {str(s["domain"]) for s in servers if s.get("jetstream") and s.get("domain")}
        )
    return found


async def _ask_all_servers(link: NatsConnection, subject: str) -> list[dict[str, Any]]:
    """The `server` part of every answer to one request; none where nobody may ask that."""
    found: list[dict[str, Any]] = []
    async with link.open_inbox() as inbox:
        await link.publish(subject, _LIMIT_ONE, inbox.subject)
        while len(found) < MAX_SERVERS:
            try:
                arrived = await inbox.next(
                    ANSWER_TIMEOUT if not found else NEXT_ANSWER_TIMEOUT, subject
                )
            except ApiTimeoutError:
                return found
            if arrived.status:
                return found
            try:
                server = orjson.loads(arrived.data).get("server")
            except (orjson.JSONDecodeError, AttributeError):
                continue
            found += [server] if isinstance(server, dict) and _is_valid_server(server) else []
    return found


def _is_valid_server(server: dict[str, Any]) -> bool:
    """Whether what is read of it is text, as a server's is."""
    return all(isinstance(server.get(name, ""), str) for name in ("name", "ver", "domain"))


def _domain_api(link: NatsConnection, seen: VisibleDomain) -> DomainApi:
    return DomainApi(
        Domain(seen.name or "without a name", link.settings.key, seen.name, seen.prefix),
        link,
        read_only=True,
    )


async def _probe_api(link: NatsConnection, seen: VisibleDomain) -> None:
    """Whether its API answers the account."""
    try:
        info = await _domain_api(link, seen).request(
            "INFO", timeout=min(link.settings.timeout, ANSWER_TIMEOUT)
        )
    except ApiError as error:
        seen.failure = str(error)
        return
    seen.streams, seen.level = (
        int(info.get("streams") or 0),
        int((info.get("api") or {}).get("level") or 0),
    )


async def _domains_in_origins(
    link: NatsConnection, domains: Iterable[VisibleDomain]
) -> list[tuple[str, str]]:
    """Domains that mirrors and sources name, each with a stream that does."""
    found: dict[str, str] = {}
    for seen in domains:
        try:
            streams = await _list_stream_configs(_domain_api(link, seen))
        except JsplanError:
            continue  # who may not list streams sees a little less
        for config in streams:
            for origin in (config.get("mirror") or {}, *(config.get("sources") or ())):
                match = _EXTERNAL.fullmatch((origin.get("external") or {}).get("api") or "")
                if match:
                    found.setdefault(match[1], str(config.get("name")))
    return sorted(found.items())


async def _list_stream_configs(api: DomainApi) -> list[dict[str, Any]]:
    infos, _ = await api.streams()
    return [info["config"] for info in infos]
