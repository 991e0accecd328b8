"""Selects the domains and streams that the addresses of a backup name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from jsplan.address import Address, is_glob, matches
from jsplan.config.model import Domain
from jsplan.diagnostics import did_you_mean
from jsplan.errors import ConnectError, JsplanError, UsageError
from jsplan.facts.domains import identify_domain
from jsplan.facts.live import DomainFacts
from jsplan.facts.reader import read_object, run_parallel
from jsplan.facts.unmanaged import OWN_STREAMS, is_state_bucket
from jsplan.jetstream import DomainApi, Pool
from jsplan.subjects import is_valid


def select_domains(declared: Mapping[str, Domain], texts: Iterable[str]) -> dict[str, Domain]:
    """Select the domains of the addresses. Globs skip `same_as` domains."""
    found = dict[str, Domain]()
    for text in texts:
        domain, _, rest = text.partition("/")
        if rest.startswith("consumer/"):
            raise UsageError(
                f"{text}: consumers are saved with their stream",
                hint=f"Name the stream: {domain}/stream/{_stream_name(rest)}",
            )
        keys = (
            [key for key, each in declared.items() if each.is_own and _matches_domain(domain, key)]
            if is_glob(domain)
            else [domain]
        )
        if missing := [key for key in keys if key not in declared] or (not keys and [domain]):
            raise UsageError(
                f"there is no domain {missing[0]}.{did_you_mean(missing[0], declared)}"
            )
        found |= {key: declared[key] for key in keys}
    return found


def _stream_name(rest: str) -> str:
    return rest.split("/")[1] or "NAME"


def _matches_domain(glob: str, key: str) -> bool:
    return matches(glob, key)


async def identify_all(
    pool: Pool,
    domains: Mapping[str, Domain],
    declared: Mapping[str, Domain],
    known: frozenset[str],
) -> dict[str, DomainFacts]:
    """Read the facts of all domains. Raises ConnectError if none can be reached."""
    await pool.open(domain.connection for domain in domains.values())
    found = await asyncio.gather(
        *(identify_domain(pool, domain, declared, known) for domain in domains.values())
    )
    if not any(facts.reachable for facts in found):
        raise ConnectError(
            f"no domain can be reached: {found[0].reason}",
            hint="Nothing was saved. Look at the connections and servers.",
        )
    return {facts.key: facts for facts in found}


async def select_streams(
    pool: Pool,
    facts: Mapping[str, DomainFacts],
    domains: Mapping[str, Domain],
    texts: Iterable[str],
    is_own_state: Callable[[Address], bool],
) -> list[Address]:
    """Select existing streams. Raises JsplanError for an address or glob without a match.

    Globs omit states of workspaces: `is_own_state` names that of this one.
    """
    reachable = [key for key, each in facts.items() if each.reachable]
    existing = [
        address
        for found in await asyncio.gather(
            *(_list_streams(pool.api(domains[key]), texts) for key in reachable)
        )
        for address in found
    ]
    found: set[Address] = set()
    states = await _find_state_buckets(
        pool,
        domains,
        [a for a in existing if any(is_glob(text) and matches(text, a) for text in texts)],
        is_own_state,
    )
    for text in texts:
        matching = [
            address
            for address in existing
            if matches(text, address) and not (is_glob(text) and address in states)
        ]
        offline = [
            key
            for key, each in facts.items()
            if not each.reachable and (_matches_domain(text.partition("/")[0], key))
        ]
        if not matching and not offline:
            raise JsplanError(
                f"{text} matches no stream",
                hint="Globs go over what is on the servers: hub/**, hub/kv/*",
            )
        found |= set(matching)
    return sorted(found)


async def _list_streams(api: DomainApi, texts: Iterable[str]) -> list[Address]:
    """List candidates in a domain; all of them only for a glob, as some users may not list."""
    key = api.domain.key
    if any(is_glob(text) and _matches_domain(text.partition("/")[0], key) for text in texts):
        return [
            Address.of_stream(key, name)
            for name in await api.stream_names()
            if not name.startswith(OWN_STREAMS)
        ]
    wanted = {
        address
        for text in texts
        if (address := _parse_stream_address(text)) is not None and address.domain == key
    }
    return [
        address for address in sorted(wanted) if await api.stream_info(address.stream) is not None
    ]


def _parse_stream_address(text: str) -> Address | None:
    """Return the stream that an address names, or None for a name that no stream can have."""
    try:
        address = Address.parse(text)
    except ValueError:
        return None
    usual = Address.of_stream(
        address.domain, address.stream
    ) == address and not address.stream.startswith(OWN_STREAMS)
    return address if usual and is_valid(address.stream) and "." not in address.stream else None


async def _find_state_buckets(
    pool: Pool,
    domains: Mapping[str, Domain],
    found: Iterable[Address],
    is_own_state: Callable[[Address], bool],
) -> set[Address]:
    """Find buckets with states of workspaces. Globs omit them: each lock changes the state."""
    states = {address for address in found if is_own_state(address)}

    async def check(address: Address) -> None:
        live = await read_object(pool.api(domains[address.domain]), address)
        if live is not None and is_state_bucket(live):
            states.add(address)

    await run_parallel(
        check, [address for address in found if address.kind == "kv" and address not in states]
    )
    return states
