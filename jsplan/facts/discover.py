"""Discovery of the JetStream domains behind a connection.

Every server that shares the account, or whose system account is joined, answers
`$SYS.REQ.ACCOUNT.PING.CONNZ` to an ordinary user, also across leafnode links, and reports its
domain (measured, 2.10 to 2.15). With the system account they are asked directly. Mirrors and
sources name domains that are offline now. A domain exists once its API answers the account.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct, field

from jsplan.config.connections import NAME_PATTERN
from jsplan.config.model import Domain
from jsplan.errors import ApiError, ApiTimeoutError, JsplanError, NotPermittedError
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.read_only import ACCOUNT_PING
from jsplan.resources.server_features import read_level

#: Seconds after the last answer until no more are expected.
NEXT_ANSWER_TIMEOUT: Final = 1.0
#: Seconds that a domain has to answer. All are asked at once.
ANSWER_TIMEOUT: Final = 2.0
#: Servers after which no more answers are read.
MAX_SERVERS: Final = 100_000
SYSTEM_PING: Final = "$SYS.REQ.SERVER.PING"
#: Request for the server without its connections, as far as possible.
_LIMIT_ONE: Final = b'{"limit": 1}'
_EXTERNAL = re.compile(r"\$JS\.([^.*>\s]+)\.API")


class VisibleDomain(Struct):
    """One domain over one connection. `name` None is a JetStream without a domain.

    `servers` are those that report this domain, as name and version; `reported_by` lists the
    sources of the name. `failure` says why it does not answer; else `streams` and `level` (the API
    level) are from its INFO.
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
        """Its API prefix, as the account knows it."""
        return f"$JS.{self.name}.API" if self.name else "$JS.API"


async def find_domains(
    link: NatsConnection, system: NatsConnection | None = None
) -> list[VisibleDomain]:
    """Find every domain over an open connection: the connected server's first, then by name.

    `system` is an open connection to the system account of the same servers. Raises ApiError when a
    connection is lost.
    """
    found: dict[str | None, VisibleDomain] = {}

    def add(name: str | None, reporter: str, server: dict[str, Any] | None = None) -> None:
        visible = found.setdefault(name, VisibleDomain(name, link.settings.key))
        visible.reported_by += [reporter] if reporter not in visible.reported_by else []
        if server is not None and server.get("name"):
            visible.servers[str(server["name"])] = str(server.get("ver") or "")

    own = link.server
    if own.get("jetstream"):
        add(
            own.get("domain") or None,
            "the connected server",
            {"name": own.get("server_name"), "ver": own.get("version")},
        )
    requests = [
        (link, ACCOUNT_PING, "servers that answer the account"),
        *([(system, SYSTEM_PING, "the system account")] if system is not None else []),
    ]
    for (_, _, reporter), answers in zip(
        requests,
        await asyncio.gather(*(_ask_all_servers(to, subject) for to, subject, _ in requests)),
        strict=True,
    ):
        for server in answers:
            if server.get("jetstream"):
                add(server.get("domain") or None, reporter, server)
    await asyncio.gather(*(_probe_api(link, visible) for visible in found.values()))
    reached = [visible for visible in found.values() if not visible.failure]
    for name, stream in await _domains_in_origins(link, reached):
        add(name, f"stream {stream}")
    await asyncio.gather(
        *(
            _probe_api(link, visible)
            for visible in found.values()
            if visible not in reached and not visible.failure
        )
    )
    first = own.get("domain") or None
    return sorted(found.values(), key=lambda visible: (visible.name != first, visible.name or ""))


async def list_visible_domains(pool: Pool, connections: Iterable[str]) -> dict[str, list[str]]:
    """List the JetStream domains that servers report, by open connection; none if they do not."""
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
    """Return the `server` part of every answer to one request; none where it is not permitted."""
    servers: list[dict[str, Any]] = []
    async with link.open_inbox() as inbox:
        await inbox.publish(subject, _LIMIT_ONE)
        while len(servers) < MAX_SERVERS:
            try:
                arrived = await inbox.next(
                    ANSWER_TIMEOUT if not servers else NEXT_ANSWER_TIMEOUT, subject
                )
            except (ApiTimeoutError, NotPermittedError):
                return servers
            if arrived.status:
                return servers
            try:
                server = orjson.loads(arrived.data).get("server")
            except (orjson.JSONDecodeError, AttributeError):
                continue
            servers += [server] if isinstance(server, dict) and _is_valid_server(server) else []
    return servers


def _is_valid_server(server: dict[str, Any]) -> bool:
    """Return True if the fields that are used are text."""
    return all(isinstance(server.get(name, ""), str) for name in ("name", "ver", "domain"))


def _domain_api(link: NatsConnection, visible: VisibleDomain) -> DomainApi:
    return DomainApi(
        Domain(visible.name or "without a name", link.settings.key, visible.name, visible.prefix),
        link,
        read_only=True,
    )


async def _probe_api(link: NatsConnection, visible: VisibleDomain) -> None:
    """Request INFO from its API, and record the result."""
    try:
        info = await _domain_api(link, visible).request(
            "INFO", timeout=min(link.settings.timeout, ANSWER_TIMEOUT)
        )
    except ApiError as error:
        visible.failure = str(error)
        return
    visible.streams = int(info.get("streams") or 0)
    visible.level = read_level(info)


async def _domains_in_origins(
    link: NatsConnection, domains: Iterable[VisibleDomain]
) -> list[tuple[str, str]]:
    """Return the domains that mirrors and sources name, each with such a stream."""
    found: dict[str, str] = {}
    for visible in domains:
        try:
            infos, _ = await _domain_api(link, visible).streams()
        except JsplanError:
            continue  # without permission to list streams, fewer domains are found
        for config in (info["config"] for info in infos):
            for origin in (config.get("mirror") or {}, *(config.get("sources") or ())):
                match = _EXTERNAL.fullmatch((origin.get("external") or {}).get("api") or "")
                if match:
                    found.setdefault(match[1], str(config.get("name")))
    return sorted(found.items())


# --- proposed keys --------------------------------------------------------------------------------


class ProposedDomain(Struct):
    """One domain with its key in the files, or a proposed one; `declared` if in the files."""

    key: str
    visible: VisibleDomain
    declared: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return an element of `domains`."""
        seen = self.visible
        return {
            "key": self.key,
            "connection": seen.connection,
            "js_domain": seen.name,
            "api_prefix": seen.prefix,
            "declared": self.declared,
            "reachable": not seen.failure,
            "reason": seen.failure or None,
            "streams": seen.streams,
            "api_level": seen.level,
            "servers": [
                {"name": name, "version": version} for name, version in sorted(seen.servers.items())
            ],
            "seen_by": seen.reported_by,
        }


class DiscoverResult(Struct):
    """The domains behind all connections; `failures` by key of connections that did not open."""

    domains: list[ProposedDomain] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    with_system: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the document, as `--json` prints it."""
        return {
            "format_version": "1.0",
            "kind": "domains",
            "with_system_account": self.with_system,
            "domains": [domain.to_json() for domain in self.domains],
            "failures": self.failures,
        }


def assign_keys(
    found: Iterable[VisibleDomain], declared: Mapping[str, Domain]
) -> list[ProposedDomain]:
    """Assign keys: that of the files, else the domain's name, else that with its connection."""
    known = {(d.connection, d.js_domain): key for key, d in declared.items() if d.is_own}
    taken, out = set(declared), []
    for seen in found:
        key = known.get((seen.connection, seen.name))
        if key is not None:
            out.append(ProposedDomain(key, seen, declared=True))
            continue
        plain = re.sub(r"[^A-Za-z0-9_-]", "-", seen.name or seen.connection)
        plain = plain if NAME_PATTERN.fullmatch(plain) else f"d{plain}"
        choices = (
            plain,
            f"{plain}-{seen.connection}",
            *(f"{plain}-{number}" for number in range(2, 1000)),
        )
        key = next(choice for choice in choices if choice not in taken)
        taken.add(key)
        out.append(ProposedDomain(key, seen))
    return out
