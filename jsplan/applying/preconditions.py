"""Check of all preconditions before the first write. The executor checks each again.

The domains of a plan and their objects must be as planned. A stream that the plan does not know
must not read what a step changes, over any number of hops: the plan counted nothing for it, and
what a new source or a recreated stream brings comes to it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import STAGING_PREFIX, Address
from jsplan.applying.recheck_deletions import DeletionCheck
from jsplan.config.model import Domain
from jsplan.documents.plan import Plan, Step
from jsplan.errors import OFFLINE_ERRORS, ApiError, ConnectError, StalePlanError, UsageError
from jsplan.facts.domains import DuplicateServerCheck, Refusals, identify_domains
from jsplan.facts.live import DomainFacts, Live, LiveObject, get_retention, is_durable
from jsplan.facts.reader import parse_stream, read_into, run_parallel
from jsplan.flows.graph import ReaderIndex
from jsplan.jetstream import DomainApi, Pool
from jsplan.planning.guards import is_same_server, server_label
from jsplan.units import count_text


class FirstCheck(Struct):
    """Findings of the check of all preconditions.

    `stale` says what changed since the plan; `lost` are the domains that stopped answering, with
    why. `imports` are the objects that the plan only takes into state, as they were then.
    """

    stale: list[str]
    lost: dict[str, str]
    imports: dict[Address, LiveObject] = field(default_factory=dict)


async def find_changes(plan: Plan, apis: Mapping[str, DomainApi]) -> FirstCheck:
    """Check what changed since the plan.

    Domains that are not in `apis` were offline before. Raises ApiError for other errors.
    """
    first = {step.target_address: step for step in reversed(plan.steps)}
    placeholder = "consumer.create_placeholder"
    wanted = {a: s for a, s in first.items() if _expected_before(s) or s.op == placeholder}
    steps_by_address: dict[Address, list[Step]] = {}
    for step in plan.steps:
        steps_by_address.setdefault(step.target_address, []).append(step)
    expected = _expected_parents(plan.steps)
    parents = {address: parent for address, parent in expected.items() if address not in wanted}
    deletions, found = DeletionCheck(plan, apis), FirstCheck([], {})
    stale, imported = found.stale, _list_imports(plan)
    live = await _read_all({*wanted, *parents}, apis, found.lost)

    async def check(address: Address) -> None:
        if address.domain not in apis or address.domain in found.lost:
            return
        if (why := live.unreadable.get(address)) is not None:
            stale.append(f"{address} cannot be read now: {why}")
            return
        try:
            difference = await _find_difference(
                wanted[address], steps_by_address[address], live.get(address), deletions
            )
        except OFFLINE_ERRORS as error:
            found.lost.setdefault(address.domain, str(error))
            return
        if difference is not None:
            stale.append(f"{address} {difference}".rstrip())
        elif address in imported and (there := live.get(address)) is not None:
            found.imports[address] = there

    await run_parallel(check, wanted)
    for address, parent in parents.items():
        is_read = address.domain in apis and address.domain not in found.lost
        why = stream_difference(parent, live.get(address)) if is_read else None
        stale += [f"{address} {why}"] if why is not None else []
    readers = await NewReaders(plan, apis).find(plan.steps)
    stale += [f"{s.target_address} {readers[s.id]}" for s in plan.steps if s.id in readers]
    stale.sort()
    return found


async def _read_all(
    wanted: Iterable[Address], apis: Mapping[str, DomainApi], lost: dict[str, str]
) -> Live:
    """Read all objects together; add domains that stopped answering to `lost`. Raises ApiError."""
    live, by_domain = Live(), dict[str, list[Address]]()
    for address in wanted:
        by_domain.setdefault(address.domain, []).append(address)

    async def read(domain: str) -> None:
        try:
            await read_into(apis[domain], live, by_domain[domain])
        except OFFLINE_ERRORS as error:
            lost.setdefault(domain, str(error))

    await run_parallel(read, (domain for domain in by_domain if domain in apis))
    return live


async def _find_difference(
    first: Step, steps: Iterable[Step], live: LiveObject | None, deletions: DeletionCheck
) -> str | None:
    """Return how an object differs from the plan, as a phrase; empty if it was changed.

    `first` is the first of the `steps` about it.
    """
    fingerprint = live.fingerprint if live else "absent"
    if (_expected_before(first) or fingerprint) != fingerprint:
        return ""
    if (why := exceeded_bound(first, live)) is not None:
        return why
    for step in steps:
        if (why := await consumer_difference(step, deletions.apis[step.domain])) is not None:
            return why
        if (why := await deletions.describe_excess(step, live, begun=False)) is not None:
            return why
    return None


def _expected_before(step: Step) -> str:
    """Return the fingerprint that an object must have before the first write of the plan."""
    expected = step.precondition
    return str(expected.get("fingerprint") or expected.get("before_apply") or "")


def _list_imports(plan: Plan) -> set[Address]:
    """Return what the plan only takes into state, in streams that no other step touches."""
    imports = {step.target_address for step in plan.steps if step.op == "state.import"}
    others = (step for step in plan.steps if step.op != "state.import")
    touched = {(step.domain, step.target_address.stream) for step in others}
    return {address for address in imports if (address.domain, address.stream) not in touched}


def _expected_parents(steps: Iterable[Step]) -> dict[Address, Mapping[str, Any]]:
    """Return the streams of the plan's consumers, each with what its steps expect of it."""
    found: dict[Address, Mapping[str, Any]] = {}
    for step in steps:
        address, expected = step.target_address.parent, step.precondition.get("parent")
        if address is not None and expected is not None:
            found[address] = expected
    return found


def stream_difference(expected: Mapping[str, Any], live: LiveObject | None) -> str | None:
    """Describe how the stream of a consumer differs from the expected one."""
    if live is None:
        return "was deleted"
    if live.created != expected["created"]:
        return "was recreated"
    now, before = get_retention(live.raw), expected["retention"]
    return f"has {now} retention now, and had {before}" if now != before else None


async def consumer_difference(step: Step, api: DomainApi) -> str | None:
    """Describe how the durable consumers of a stream differ from those of the plan."""
    expected = step.precondition.get("consumers")
    if expected is None:
        return None
    infos = await api.all_consumers(step.target_address.stream)
    existing = {
        info["name"]: info["created"] for info in infos if is_durable(info["name"], info["config"])
    }
    for name in sorted({*expected, *existing}):
        if name not in existing:
            return f"lost its consumer {name}, which was deleted"
        if expected.get(name) != existing[name]:
            made = "recreated" if name in expected else "created"
            return f"has a consumer {name} that was {made}"
    return None


def exceeded_bound(step: Step, live: LiveObject | None) -> str | None:
    """Describe a stream or consumer that has clearly more to delete than planned."""
    if live is None:
        return None
    most, consumers = (step.precondition.get(k) for k in ("max_deleted", "max_consumers"))
    if most is not None and live.messages_at_risk > most:
        found = count_text(live.messages_at_risk, "message")
        return f"holds {found} now; the plan was made for at most {most:,}"
    existing = live.state.get("consumer_count", 0)
    if consumers is not None and existing > consumers:
        return f"has {count_text(existing, 'consumer')} now; the plan was made for {consumers}"
    return None


def has_no_consumers(stream: LiveObject) -> bool:
    """Return True for a stream without consumers, where its INFO says so for certain.

    In a cluster it counts those of one server only.
    """
    return not stream.is_clustered and stream.state.get("consumer_count") == 0


#: The most replicas of a stream.
MAX_REPLICAS: Final = 5


def is_scaled_with_stream(live: LiveObject | None, planned: str, replicas: int | None) -> bool:
    """Check whether a consumer is the planned one, apart from the replicas of its stream.

    `planned` is a fingerprint, `replicas` what a step of this apply scaled the stream to, or None.
    A consumer with replicas of its own gets those of its stream if it has more, and in a work queue
    or interest stream always (tests/clusters). One with `num_replicas` 0 has as many as its stream.
    """
    if live is None or replicas is None or live.raw.get("num_replicas") != replicas:
        return False
    before = (live.raw | {"num_replicas": n} for n in range(1, MAX_REPLICAS + 1))
    return any(live.with_raw(config).fingerprint == planned for config in before)


async def open_domains(
    pool: Pool, plan: Plan, declared: Mapping[str, Domain], known: frozenset[str]
) -> tuple[dict[str, DomainApi], dict[str, str]]:
    """Open the APIs of the plan's domains; return them, and the reasons of offline domains.

    `declared` are the domains of the files, `known` those that answered an apply before.
    """
    touched = {
        key for step in plan.steps if step.op != "state.forget" for key in step.required_domains
    }
    domains = {key: d for key, d in declared.items() if key in touched}
    if missing := sorted(touched - domains.keys()):
        raise UsageError(
            f"the plan touches domain {missing[0]}, which the files no longer declare",
            hint="Plan again.",
        )
    await pool.open(domain.connection for domain in domains.values())
    async with DuplicateServerCheck() as witnesses:
        found = await identify_domains(
            pool, domains.values(), declared, known, witnesses, Refusals()
        )
        await witnesses.require_single_servers()
    _require_same_servers(plan, found)
    apis = {facts.key: pool.api(domains[facts.key]) for facts in found if facts.reachable}
    if touched and not apis:
        raise _no_domain_error(found[0].reason)
    return apis, {facts.key: facts.reason for facts in found if not facts.reachable}


async def require_as_planned(
    plan: Plan, apis: dict[str, DomainApi], lost: dict[str, str]
) -> dict[Address, LiveObject]:
    """Raise StalePlanError for changed objects. Domains that are lost move to `lost`.

    Returns the objects that the plan only takes into state.
    """
    try:
        found = await find_changes(plan, apis)
    except ApiError as error:
        raise ConnectError(f"{error}. Nothing was changed", hint=error.hint) from None
    if stale := found.stale:
        names = ", ".join(stale[:10]) + (f" and {len(stale) - 10} more" if len(stale) > 10 else "")
        raise StalePlanError(
            f"no longer as planned: {names}. Nothing was changed",
            hint="Another process changed them. Plan again and look.",
        )
    for key, reason in found.lost.items():
        del apis[key]
        lost[key] = reason
    if found.lost and not apis:
        raise _no_domain_error(next(iter(found.lost.values())))
    return found.imports


def _require_same_servers(plan: Plan, found: Iterable[DomainFacts]) -> None:
    """Raise StalePlanError if a domain is on another server than when it was planned."""
    for facts in found:
        planned = (plan.domains.get(facts.key) or {}).get("server") or {}
        if not is_same_server(planned, facts.server):
            raise StalePlanError(
                f"domain {facts.key} was {server_label(planned)} when planned"
                f" and is {server_label(facts.server)} now. Nothing was changed",
                hint="Check the connection, then plan again.",
            )


def _no_domain_error(reason: str) -> ConnectError:
    return ConnectError(
        f"no domain of the plan can be reached: {reason}",
        hint="Nothing was changed. Apply it again when they are back.",
    )


class NewReaders:
    """Finds streams that read what a step changes, and were created or changed since the plan.

    Also changed ones that those read. The streams are listed again for each step, before it writes.
    Steps that ask while they are being listed share the next list, so that none gets one that began
    before it asked.
    """

    def __init__(self, plan: Plan, apis: Mapping[str, DomainApi]) -> None:
        self._plan, self._apis = plan, apis
        self._real = {key: api.domain.same_as or key for key, api in apis.items()}
        self._ours = {self._canonicalize(step) for step in plan.steps}
        known = (step.precondition.get("readers", ()) for step in plan.steps)
        self._keys = sorted({key for keys in known for key in keys})
        self._one_list = asyncio.Lock()
        self._next: asyncio.Task[dict[Address, LiveObject]] | None = None

    async def find(self, steps: Iterable[Step]) -> dict[str, str]:
        """Describe by step id a stream that reads what the step changes, and is not as planned.

        Streams that the plan changes are left out, and domains that cannot be listed now.
        """
        wanted = [step for step in steps if "readers" in step.precondition]
        if not wanted:
            return {}
        streams = await self._list()
        readers = ReaderIndex((address, one.raw) for address, one in streams.items())
        found: dict[str, str] = {}
        for step in wanted:
            known = step.precondition["readers"]
            for reader in sorted(readers.find(self._canonicalize(step))):
                is_new = reader.stream not in known.get(reader.domain, [reader.stream])
                is_ours = reader in self._ours or reader.stream.startswith(STAGING_PREFIX)
                if is_new and not is_ours:
                    found[step.id] = f"is read by {reader} now, which the plan does not know"
            for name, planned in step.precondition.get("related", {}).items():
                stream = streams.get(Address.parse(name))
                if stream is not None and stream.flows_fingerprint != planned:
                    found[step.id] = f"is connected with {name}, which was changed since the plan"
        return found

    def _canonicalize(self, step: Step) -> Address:
        domain = self._real.get(step.domain, step.domain)
        return Address.of_stream(domain, step.target_address.stream)

    async def _list(self) -> dict[Address, LiveObject]:
        """Return a list that began after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._list_next())
        return await asyncio.shield(self._next)

    async def _list_next(self) -> dict[Address, LiveObject]:
        async with self._one_list:
            self._next = None
            listed = await asyncio.gather(*map(self._list_streams, self._keys))
        return {address: one for part in listed for address, one in part.items()}

    async def _list_streams(self, key: str) -> dict[Address, LiveObject]:
        """Return the streams of a domain; none where it cannot be listed."""
        if (api := self._find_api(key)) is None:
            return {}
        with contextlib.suppress(ApiError):
            infos, _ = await api.streams()
            named = ((Address.of_stream(key, info["config"]["name"]), info) for info in infos)
            return {address: parse_stream(address, info) for address, info in named}
        return {}

    def _find_api(self, key: str) -> DomainApi | None:
        """Return the API of a domain that the plan read, also if no step touches it."""
        domains = self._plan.domains
        planned = domains.get(key) or {}
        near = (
            api.behind(planned.get("api_prefix"))
            for other, api in self._apis.items()
            if (domains.get(other) or {}).get("connection") == planned.get("connection")
        )
        return self._apis.get(key) or next(near, None)
