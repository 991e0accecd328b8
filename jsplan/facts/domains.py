"""Identifies the domains that answer, all at once, and several servers of one. Never writes.

A request that crosses a leafnode link goes to every server that listens on the domain's prefix. One
JetStream answers once, also as a cluster (measured, 2.10 to 2.15). Two servers with the same
`domain` both answer and both apply a request, while the client sees only the quicker one. So each
domain is asked once more, with an inbox for the second answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import AccountFiles, Domain, Operator
from jsplan.errors import (
    OFFLINE_ERRORS,
    ApiError,
    ConnectError,
    NoRespondersError,
    NotPermittedError,
    ServerRefusedError,
)
from jsplan.facts.live import DomainFacts, Live
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.error_codes import CLUSTER_NOT_AVAILABLE, NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT
from jsplan.resources.server_features import NEWEST_LEVEL, read_level
from jsplan.topology.routes import is_import

#: Seconds for a second answer after the first one. Other reads continue meanwhile.
SECOND_ANSWER_TIMEOUT = 0.05
#: Answers to one request after which reading stops.
MAX_ANSWERS = 100
#: Seconds to wait for the connected server, after a domain behind it did not answer in time.
CHECK_TIMEOUT = 2.0
#: Why a cluster without a majority of its servers does not answer.
NO_LEADER = "its cluster has no leader (10008)"


class Refusals:
    """The domains that may refuse to be read, and the errors of those that did."""

    def __init__(self, may_refuse: Collection[str] = ()) -> None:
        self._may_refuse = may_refuse
        self.errors: list[ApiError | ConnectError] = []

    def note(self, key: str, error: ApiError | ConnectError) -> DomainFacts:
        """Return the facts of a domain that refused. Raises the error where it must not."""
        if key not in self._may_refuse:
            raise error
        self.errors.append(error)
        return DomainFacts(key, reachable=False, reason=str(error), has_error=True)


async def identify_domains(
    pool: Pool,
    asked: Iterable[Domain],
    domains: Mapping[str, Domain],
    known: frozenset[str],
    server_check: DuplicateServerCheck,
    refusals: Refusals,
) -> list[DomainFacts]:
    """Identify the domains, all at once, so offline ones cost one timeout together.

    Raises as `identify_domain` does, but what `refusals` takes. `server_check` listens for a second
    server of each; the caller reads its result.
    """

    async def identify(domain: Domain) -> DomainFacts:
        try:
            facts = await identify_domain(pool, domain, domains, known)
        except (ApiError, ConnectError) as error:
            return refusals.note(domain.key, error)
        if facts.reachable and domain.accounts is None:
            server_check.watch(pool.api(domain), facts)
        return facts

    return list(await asyncio.gather(*(identify(domain) for domain in asked)))


def require_reachable(pool: Pool, live: Live, refusals: Refusals | None = None) -> None:
    """Raise ConnectError where no domain answers, or the first refusal: nothing is known."""
    if live.domains and not any(facts.reachable for facts in live.domains.values()):
        errors = refusals.errors if refusals is not None else []
        raise errors[0] if errors else all_offline_error(pool, live.domains)


def all_offline_error(pool: Pool, facts: Mapping[str, DomainFacts]) -> ConnectError:
    """Build the error for a command none of whose domains answers."""
    reasons = "; ".join(dict.fromkeys(f.reason for f in facts.values()))
    hints = {error.hint for error in pool.failures.values() if error.hint}
    hint = (
        hints.pop() if len(hints) == 1 else "Check the connections in jsplan.yaml, and the servers."
    )
    return ConnectError(f"no domain can be reached: {reasons}", hint=hint)


async def open_answering(pool: Pool, domains: Iterable[Domain]) -> dict[str, DomainApi]:
    """Return the APIs of the domains that answer. Raises nothing for the others."""
    listed = list(domains)
    await pool.open(domain.connection for domain in listed)

    async def open_api(domain: Domain) -> DomainApi | None:
        try:
            api = pool.api(domain)
            await api.request("INFO")
        except (ApiError, ConnectError):
            return None
        return api

    apis = await asyncio.gather(*map(open_api, listed))
    return {domain.key: api for domain, api in zip(listed, apis, strict=True) if api is not None}


async def identify_domain(
    pool: Pool, domain: Domain, domains: Mapping[str, Domain], known: frozenset[str]
) -> DomainFacts:
    """Identify one domain. Raises ConnectError if its connection leads to another server."""
    if isinstance(domain.accounts, AccountFiles):
        return DomainFacts(domain.key, True, level=NEWEST_LEVEL)
    if domain.accounts is not None:
        return _identify_operator(pool, domain)
    try:
        info = await pool.api(domain).request("INFO")
    except ConnectError as error:
        if error.is_refused and _may_be_new(domain, domains, known):
            reason = f"{error}. If this plan creates its account, apply it and plan again"
            return DomainFacts(domain.key, reachable=False, reason=reason, is_refused=True)
        if not error.is_offline:
            raise
        return DomainFacts(domain.key, reachable=False, reason=str(error))
    except ServerRefusedError as error:
        if error.err_code != CLUSTER_NOT_AVAILABLE:
            raise _no_jetstream_error(domain, error) from None
        reason = f"domain {domain.key} does not answer: {NO_LEADER}"
        return DomainFacts(domain.key, reachable=False, reason=reason)
    except NotPermittedError as error:
        raise ConnectError(str(error), hint=error.hint) from None
    except OFFLINE_ERRORS as error:
        if is_import(domain):
            _require_import(domain, domains, known, error)
        else:
            await _require_right_server(pool, domain, domains, known)
        return DomainFacts(domain.key, reachable=False, reason=str(error))
    answered = info.get("domain")
    if domain.js_domain is None and answered:
        raise _wrong_name_error(domain, answered)
    return _build_facts(pool, domain, info)


def _identify_operator(pool: Pool, domain: Domain) -> DomainFacts:
    """Identify the place of the accounts of an operator. Raises ConnectError.

    It has no limits, and knows every field.
    """
    try:
        server = pool.api(domain).connection.server
    except ConnectError as error:
        if not error.is_offline:
            raise
        return DomainFacts(domain.key, reachable=False, reason=str(error))
    return DomainFacts(domain.key, True, level=NEWEST_LEVEL, version=server.get("version"))


def _may_be_new(domain: Domain, domains: Mapping[str, Domain], known: frozenset[str]) -> bool:
    """Check whether the account of a domain that never answered may be one that the files add."""
    return domain.key not in known and any(
        isinstance(each.accounts, Operator) and each.accounts.keys for each in domains.values()
    )


def _build_facts(pool: Pool, domain: Domain, info: dict[str, Any]) -> DomainFacts:
    server = pool.connections[domain.connection].server
    own = (server.get("domain") or None) == (info.get("domain") or None)
    identity = {
        name: str(server[key])
        for name, key in (("name", "server_name"), ("cluster", "cluster"))
        if own and server.get(key)
    }
    level = read_level(info)
    return DomainFacts(
        domain.key,
        True,
        level=level,
        version=server.get("version") if own else None,
        server=identity,
        info=_sign_reservations(info),
        max_payload=int(server.get("max_payload") or 0),
    )


def _sign_reservations(info: dict[str, Any]) -> dict[str, Any]:
    """Return API.INFO with signed reservations, also of its tiers.

    nats-server 2.10 counts a stream without `max_bytes` as -1, and shows a sum below 0 as uint64.
    """
    signed = {
        name: info[name] - 2**64
        for name in ("reserved_memory", "reserved_storage")
        if info.get(name, 0) >= 2**63
    }
    if tiers := info.get("tiers"):
        signed["tiers"] = {name: _sign_reservations(tier) for name, tier in tiers.items()}
    return info | signed


def _no_jetstream_error(domain: Domain, error: ServerRefusedError) -> ConnectError:
    if error.err_code in (NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT):
        return ConnectError(
            f"domain {domain.key}: JetStream is not enabled for this account ({error.description})",
            hint="Enable jetstream in the server's configuration and in the account, "
            "or use another connection.",
        )
    return ConnectError(
        f"domain {domain.key}: {error.description}",
        hint=error.hint,
        is_offline=error.err_code == CLUSTER_NOT_AVAILABLE,
    )


def _require_import(
    domain: Domain, domains: Mapping[str, Domain], known: frozenset[str], error: ApiError
) -> None:
    """Raise ConnectError for an import that never answered: it is missing, not offline.

    Where its account is in a file, the server may have to load that first.
    """
    in_files = any(
        domain.key in keys
        for each in domains.values()
        if isinstance(each.accounts, AccountFiles)
        for keys in each.accounts.domains.values()
    )
    if domain.key not in known and isinstance(error, NoRespondersError) and not in_files:
        raise ConnectError(
            f"domain {domain.key}: no server answers {domain.api_prefix} "
            f"over connection {domain.connection}",
            hint="Its account has to import that prefix from the owner: "
            "jsplan access prints how, and --check tries it.",
        )


async def _require_right_server(
    pool: Pool, domain: Domain, domains: Mapping[str, Domain], known: frozenset[str]
) -> None:
    """Check that the connection of an offline domain leads to the server that the files mean.

    It does when the connected server is the domain of another entry on the same connection, or when
    the domain has answered before.
    """
    link = pool.connections[domain.connection]
    plain = Domain(domain.key, domain.connection, None, "$JS.API")
    try:
        info = await DomainApi(plain, link, read_only=True).request(
            "INFO", timeout=min(link.settings.timeout, CHECK_TIMEOUT)
        )
    except ServerRefusedError as error:
        if error.err_code == CLUSTER_NOT_AVAILABLE:
            return
        raise _no_jetstream_error(domain, error) from None
    except NoRespondersError:
        if (
            not link.server.get("jetstream")
            and domain.key not in known
            and not _others_on_connection(domain, domains)
        ):
            raise ConnectError(
                f"domain {domain.key}: the server at {link.settings.shown} has no JetStream",
                hint="Enable jetstream in the server's configuration, or use another connection.",
            ) from None
        return
    except ApiError:
        return
    answered = info.get("domain") or None
    if answered == domain.js_domain or domain.key in known:
        return  # it answers by now: a cluster has elected its leader
    if any(other.js_domain == answered for other in _others_on_connection(domain, domains)):
        return
    raise _wrong_name_error(domain, answered)


def _others_on_connection(domain: Domain, domains: Mapping[str, Domain]) -> list[Domain]:
    return [
        d for d in domains.values() if d.connection == domain.connection and d.key != domain.key
    ]


def _wrong_name_error(domain: Domain, answered: str | None) -> ConnectError:
    line = f"{domain.key}: {{connection: {domain.connection}, js_domain: {answered or 'null'}}}"
    called = (
        f"calls its JetStream domain {answered}" if answered else "has a JetStream without a domain"
    )
    return ConnectError(
        f"domain {domain.key} does not answer as "
        f"{domain.js_domain or 'a server without a domain'}: "
        f"the server behind connection {domain.connection} {called}",
        hint=f"If that is the one you mean, write under domains:  {line}",
    )


def mark_offline(live: Live, key: str, error: ApiError) -> None:
    """Mark a domain as offline that stopped answering while it was read."""
    live.domains[key] = DomainFacts(
        key, reachable=False, reason=f"{error} (it answered a moment ago)"
    )


async def name_silent_servers(
    pool: Pool, domains: Mapping[str, Domain], live: Live, wanted: Iterable[Address]
) -> None:
    """Add the servers that do not answer to the reason of each domain without a leader.

    A server answers STREAM.INFO without a leader too, and lists the replicas that it hears of
    (measured on 2.15). It says so of one of the `wanted` streams.
    """
    for key, facts in live.domains.items():
        stream = next((a for a in wanted if a.domain == key and a.kind != "consumer"), None)
        if facts.reachable or not facts.reason.endswith(NO_LEADER) or stream is None:
            continue
        try:
            info = await pool.api(domains[key]).request(f"STREAM.INFO.{stream.stream}")
        except ApiError:
            continue
        peers = (info.get("cluster") or {}).get("replicas") or ()
        answers = pool.connections[domains[key].connection].server.get("server_name")
        silent = sorted(
            str(peer["name"])
            for peer in peers
            if not peer.get("current") and peer.get("name") not in (None, answers)
        )
        if silent:
            reason = f"{facts.reason}; no answer from {', '.join(silent)}"
            live.domains[key] = replace(facts, reason=reason)


class DuplicateServerCheck:
    """Collects answers of many domains concurrently; `require_single_servers` gives the result."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[list[bytes]]] = {}
        self._apis: dict[str, DomainApi] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def watch(self, api: DomainApi, facts: DomainFacts) -> None:
        """Collect answers of a domain. The connected server's own needs no check."""
        own = (api.connection.server.get("domain") or None) == (facts.info.get("domain") or None)
        if facts.reachable and not own and facts.key not in self._tasks:
            self._apis[facts.key] = api
            self._tasks[facts.key] = asyncio.create_task(_collect_answers(api, "INFO"))

    async def require_single_servers(self) -> None:
        """Wait for late answers. Raises ConnectError with the domains that have several servers."""
        results = await asyncio.gather(*self._tasks.values())
        answers_by_domain = dict(zip(self._tasks, results, strict=True))
        duplicated = sorted(key for key, answers in answers_by_domain.items() if len(answers) > 1)
        if duplicated:
            names = await asyncio.gather(*(_server_names(self._apis[key]) for key in duplicated))
            raise _duplicate_servers_error(dict(zip(duplicated, names, strict=True)))


async def _collect_answers(api: DomainApi, verb: str) -> list[bytes]:
    """Collect the answers to one request until no more arrive."""
    collected: list[bytes] = []
    try:
        async with api.connection.open_inbox() as inbox:
            await inbox.publish(f"{api.domain.api_prefix}.{verb}", b"")
            while len(collected) < MAX_ANSWERS:
                wait = SECOND_ANSWER_TIMEOUT if collected else api.connection.settings.timeout
                collected.append((await inbox.next(wait, verb)).data)
    except ApiError:
        pass  # a timeout ends the collection; the readers of a domain notice that it is offline
    return collected


async def _server_names(api: DomainApi) -> set[str]:
    """Return the names of the servers, as far as they lead a stream."""
    listed = [answer.get("streams") or [] for answer in await _parse_answers(api, "STREAM.NAMES")]
    streams = sorted({names[0] for names in listed if names})
    answers = [
        answer for name in streams for answer in await _parse_answers(api, f"STREAM.INFO.{name}")
    ]
    return {leader for answer in answers if (leader := (answer.get("cluster") or {}).get("leader"))}


async def _parse_answers(api: DomainApi, verb: str) -> list[dict[str, Any]]:
    """Return all readable answers to one request."""
    parsed: list[dict[str, Any]] = []
    for answer in await _collect_answers(api, verb):
        with contextlib.suppress(ApiError):
            parsed.append(api.parse(verb, answer))
    return parsed


def _duplicate_servers_error(duplicated: dict[str, set[str]]) -> ConnectError:
    listed = [
        f"domain {key}" + (f" ({' and '.join(sorted(names))})" if len(names) > 1 else "")
        for key, names in duplicated.items()
    ]
    others = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ConnectError(
        f"more than one server answers for {', '.join(listed[:5])}{others}. "
        "Each would apply a request, and only one answer would be seen",
        hint="Give each server its own `domain` in its jetstream block, and restart it. "
        f"Until then: --exclude '{next(iter(duplicated))}/**'",
    )
