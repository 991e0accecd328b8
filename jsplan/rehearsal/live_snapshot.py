"""Reads what surrounds a plan: each JetStream that it writes to, who shares it, and the configuration of all that is in it.

Only reads. Copying it to embedded servers is left to `shape` (which servers) and `seeding` (what is on them).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.config.model import Domain, Workspace
from jsplan.documents.plan import Step, config_of_payload
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.live import DomainFacts, Live, LiveObject
from jsplan.facts.reader import identify_domain
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.fields import Config

UNKNOWN_FIELD = 10025


@dataclass(slots=True)
class Jetstream:
    """One account in one JetStream, as it is now, with all domain keys that lead to it (several by `same_as`).

    `account` tells accounts apart and `root` the server that the connection leads to; `is_own_domain` says that this is its own
    domain. `advertised` counts the servers of its cluster that it tells clients about. `strict` is whether unknown fields
    are refused. `streams` are all of the account's, `consumers` those of streams that the plan touches; `unreadable_objects` says
    what could not be read, and `failure` why nothing could.
    """

    key: str
    domain: Domain
    account: object
    root: str
    is_own_domain: bool
    facts: DomainFacts
    keys: set[str] = field(default_factory=set)
    advertised: int = 0
    version: str | None = None
    strict: bool | None = None
    streams: list[LiveObject] = field(default_factory=list)
    consumers: list[LiveObject] = field(default_factory=list)
    unreadable_objects: dict[Address, str] = field(default_factory=dict)
    failure: str | None = None


async def read_jetstreams(
    pool: Pool, workspace: Workspace, live: Live, steps: Iterable[Step]
) -> list[Jetstream]:
    """Every JetStream that the steps write to, each once, in the order of their keys. Connections must be open."""
    touched: dict[str, set[str]] = {}
    for step in steps:
        touched.setdefault(step.domain, set()).add(step.target_address.stream)
    await _identify_aliases(pool, workspace, live, touched)
    found: dict[object, Jetstream] = {}
    streams: dict[object, set[str]] = {}
    for key in sorted(touched, key=lambda key: (workspace.domains[key].same_as is not None, key)):
        one = _build_jetstream(pool, workspace, live, key)
        identity = (one.account, one.domain.js_domain)
        found.setdefault(identity, one).keys.add(key)
        streams.setdefault(identity, set()).update(touched[key])
    await asyncio.gather(
        *(
            _read_jetstream(pool.api(one.domain), one, streams[identity])
            for identity, one in found.items()
        )
    )
    return sorted(found.values(), key=lambda one: one.key)


async def _identify_aliases(
    pool: Pool, workspace: Workspace, live: Live, touched: Iterable[str]
) -> None:
    """Ask the domains that touched ones are only other ways to who they are, unless they were read anyway."""
    targets = {workspace.domains[key].same_as for key in touched} - live.domains.keys() - {None}
    wanted = [
        workspace.domains[key] for key in sorted(filter(None, targets)) if key in workspace.domains
    ]
    await pool.open(domain.connection for domain in wanted)
    found = await asyncio.gather(
        *(
            identify_domain(pool, domain, workspace.domains, frozenset(workspace.domains))
            for domain in wanted
        )
    )
    live.domains |= {facts.key: facts for facts in found}


def _build_jetstream(pool: Pool, workspace: Workspace, live: Live, key: str) -> Jetstream:
    """Where the files make a domain another way to one that was reached too, that one is meant: its account is the exporting one."""
    domain = workspace.domains[key]
    while domain.same_as is not None and live.is_reachable(domain.same_as):
        domain = workspace.domains[domain.same_as]
    connection, server = (
        workspace.connections[domain.connection],
        pool.connections[domain.connection].server,
    )
    login = (
        connection.url,
        connection.context,
        connection.user,
        connection.token,
        connection.creds,
        connection.nkey,
    )
    usual = domain.api_prefix in ("$JS.API", f"$JS.{domain.js_domain}.API")
    facts = live.domains[domain.key]
    own = bool(facts.info) and (server.get("domain") or None) == (facts.info.get("domain") or None)
    advertised = (
        len({url.rsplit(":", 1)[-1] + url for url in server.get("connect_urls") or ()})
        if own
        else 0
    )
    root = str(server.get("cluster") or server.get("server_name") or domain.connection)
    account = (root, connection.account or login, None if usual else domain.api_prefix)
    return Jetstream(
        domain.key,
        domain,
        account,
        root,
        own,
        facts,
        advertised=advertised,
        version=_server_version(facts, live),
    )


def _server_version(facts: DomainFacts, live: Live) -> str | None:
    """The server's version, which behind a leafnode link is told only by what it writes into the metadata of its streams (2.11+)."""
    told = (o.raw.get("metadata", {}).get("_nats.ver") for o in live.streams(facts.key))
    return facts.version or next((str(version) for version in told if version), None)


async def _read_jetstream(api: DomainApi, one: Jetstream, touched: set[str]) -> None:
    try:
        one.strict = await _is_strict(api)
        names = await api.stream_names()
        one.streams = [
            _parse_stream(one.key, item) for item in await _list_all(api, "STREAM.LIST", "streams")
        ]
        there = {stream.address.stream for stream in one.streams}
        one.unreadable_objects = {
            Address.of_stream(one.key, name): "it is offline on its server"
            for name in names
            if name not in there
        }
        busy = [
            o.address.stream
            for o in one.streams
            if o.address.stream in touched and o.state.get("consumer_count", 1)
        ]
        for name in busy:
            one.consumers += [
                _parse_consumer(one.key, name, item)
                for item in await _list_all(api, f"CONSUMER.LIST.{name}", "consumers")
            ]
    except ApiError as error:
        one.failure = str(error)
    one.consumers = [
        o for o in one.consumers if not o.address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
    ]


async def _is_strict(api: DomainApi) -> bool:
    """Whether unknown fields are refused, found out with a question that changes nothing."""
    try:
        await api.request("STREAM.NAMES", {"_probe": 1})
    except ServerRefusedError as error:
        if error.err_code != UNKNOWN_FIELD:
            raise
        return True
    return False


async def _list_all(api: DomainApi, request: str, key: str) -> list[dict[str, Any]]:
    """All pages of a LIST. Pages are positional: what two of them have is taken once."""
    found: dict[str, dict[str, Any]] = {}
    offset = 0
    while True:
        page = await api.request(request, {"offset": offset})
        got = page.get(key) or []
        found |= {item.get("name") or item["config"]["name"]: item for item in got}
        offset += len(got)
        if not got or offset >= int(page.get("total", 0)):
            return list(found.values())


def _parse_stream(key: str, item: Mapping[str, Any]) -> LiveObject:
    address = Address.of_stream(key, item["config"]["name"])
    return LiveObject(
        address, item["config"], item["created"], item.get("state") or {}, item.get("cluster") or {}
    )


def _parse_consumer(key: str, stream: str, item: Mapping[str, Any]) -> LiveObject:
    address = Address(key, "consumer", f"{stream}/{item['name']}")
    return LiveObject(address, item["config"], item["created"], {}, item.get("cluster") or {})


def list_configurations(
    ones: Iterable[Jetstream], steps: Iterable[Step], wanted: Callable[[Step], bool]
) -> list[Config]:
    """Every stream and consumer configuration that is there, or that a wanted step would send."""
    live = [o.raw for one in ones for o in (*one.streams, *one.consumers)]
    return live + [
        config for step in steps if wanted(step) and (config := sent_config(step)) is not None
    ]


def sent_config(step: Step) -> Config | None:
    """The configuration that a step sends, None where it sends none."""
    payload = (step.request or {}).get("payload")
    if not isinstance(payload, dict):
        return None
    config = config_of_payload(payload)
    return config if isinstance(config, dict) and "name" in config else None
