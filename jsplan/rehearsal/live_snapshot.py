"""Reads the surroundings of a plan: its JetStreams and their configurations.

It also finds out which domains share a JetStream. It only reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.config.model import Domain, Workspace
from jsplan.documents.plan import Step, config_of_payload
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.domains import identify_domain
from jsplan.facts.live import DomainFacts, Live, LiveObject
from jsplan.facts.reader import parse_consumer
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.error_codes import INVALID_JSON
from jsplan.resources.fields import Config


class Jetstream(Struct):
    """One account in one JetStream, with all domain keys that lead to it (several by `same_as`).

    `account` identifies the account and `root` the server of the connection; `is_own_domain` is
    True if this is that server's own domain. `advertised` counts the servers that its cluster
    advertises to clients. `strict` is True if unknown fields are refused. `streams` are all of the
    account's, `consumers` those of streams that the plan touches. `unreadable_objects` has a reason
    by address, and `failure` is the reason why nothing could be read.
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
    """Read each JetStream that the steps write to, once, sorted by key. Needs open connections."""
    touched: dict[str, set[str]] = {}
    for step in steps:
        touched.setdefault(step.domain, set()).add(step.target_address.stream)
    await _identify_aliases(pool, workspace, live, touched)
    found: dict[object, Jetstream] = {}
    streams: dict[object, set[str]] = {}
    for key in sorted(touched, key=lambda key: (workspace.domains[key].same_as is not None, key)):
        jetstream = _build_jetstream(pool, workspace, live, key)
        identity = (jetstream.account, jetstream.domain.js_domain)
        found.setdefault(identity, jetstream).keys.add(key)
        streams.setdefault(identity, set()).update(touched[key])
    await asyncio.gather(
        *(
            _read_jetstream(pool.api(each.domain), each, streams[identity])
            for identity, each in found.items()
        )
    )
    return sorted(found.values(), key=lambda each: each.key)


async def _identify_aliases(
    pool: Pool, workspace: Workspace, live: Live, touched: Iterable[str]
) -> None:
    """Identify the `same_as` targets of touched domains, unless they were read already."""
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
    """Build the entry for a domain key. Follow `same_as` to the exporting account."""
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
    advertised = 0
    if own:
        advertised = len({url.rsplit(":", 1)[-1] + url for url in server.get("connect_urls") or ()})
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
    """Return the server's version. Behind a leafnode only stream metadata has it (2.11+)."""
    versions = (o.raw.get("metadata", {}).get("_nats.ver") for o in live.streams(facts.key))
    return facts.version or next((str(version) for version in versions if version), None)


async def _read_jetstream(api: DomainApi, jetstream: Jetstream, touched: set[str]) -> None:
    key = jetstream.key
    try:
        jetstream.strict = await _is_strict(api)
        names = await api.stream_names()
        jetstream.streams = [
            _parse_stream(key, item) for item in await _list_all(api, "STREAM.LIST", "streams")
        ]
        listed = {stream.address.stream for stream in jetstream.streams}
        jetstream.unreadable_objects = {
            Address.of_stream(key, name): "it is offline on its server"
            for name in names
            if name not in listed
        }
        busy = [
            o.address.stream
            for o in jetstream.streams
            if o.address.stream in touched and o.state.get("consumer_count", 1)
        ]
        for name in busy:
            jetstream.consumers += [
                _parse_consumer(key, name, item)
                for item in await _list_all(api, f"CONSUMER.LIST.{name}", "consumers")
            ]
    except ApiError as error:
        jetstream.failure = str(error)
    jetstream.consumers = [
        o
        for o in jetstream.consumers
        if not o.address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
    ]


async def _is_strict(api: DomainApi) -> bool:
    """Return True if the server refuses unknown fields. The probe changes nothing."""
    try:
        await api.request("STREAM.NAMES", {"_probe": 1})
    except ServerRefusedError as error:
        if error.err_code != INVALID_JSON:
            raise
        return True
    return False


async def _list_all(api: DomainApi, request: str, key: str) -> list[dict[str, Any]]:
    """Read all pages of a LIST. Pages are positional, so items may repeat; each is taken once."""
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
    return parse_consumer(Address(key, "consumer", f"{stream}/{item['name']}"), dict(item))


def list_configurations(
    jetstreams: Iterable[Jetstream], steps: Iterable[Step], wanted: Callable[[Step], bool]
) -> list[Config]:
    """List each stream and consumer configuration that exists or that a wanted step sends."""
    live = [o.raw for each in jetstreams for o in (*each.streams, *each.consumers)]
    return live + [
        config for step in steps if wanted(step) and (config := sent_config(step)) is not None
    ]


def sent_config(step: Step) -> Config | None:
    """Return the configuration that a step sends, or None."""
    payload = (step.request or {}).get("payload")
    if not isinstance(payload, dict):
        return None
    config = config_of_payload(payload)
    return config if isinstance(config, dict) and "name" in config else None
