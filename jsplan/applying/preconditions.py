"""Check of all preconditions before the first write. The executor checks each again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.applying.recheck_deletions import DeletionCheck
from jsplan.documents.plan import Plan, Step
from jsplan.errors import OFFLINE_ERRORS, ApiError
from jsplan.facts.bulk_read import MIN_STREAMS, list_streams, read_infos
from jsplan.facts.live import DomainFacts, LiveObject, get_retention, is_durable
from jsplan.facts.reader import read_object, run_parallel
from jsplan.jetstream import DomainApi
from jsplan.topology.routes import is_import
from jsplan.units import count_text

#: Streams that a plan creates in a domain from which on the names of all are listed.
MIN_NAMES: Final = 20
#: Names of streams that cost a server about as much as one request.
NAMES_PER_REQUEST: Final = 20


class FirstCheck(Struct):
    """Findings of the check of all preconditions.

    `stale` says what changed since the plan; `lost` are the domains that stopped answering, with
    why. `imports` are the objects that the plan only takes into state, as they were then.
    """

    stale: list[str]
    lost: dict[str, str]
    imports: dict[Address, LiveObject] = field(default_factory=dict)


class _Listed(Struct, frozen=True):
    """Answers about many objects: resources that do not exist, and objects that do."""

    absent: set[Address]
    existing: dict[Address, LiveObject]

    async def read_rest(self, wanted: Iterable[Address], apis: Mapping[str, DomainApi]) -> None:
        """Ask each domain for INFO of all that no list has, together."""
        rest: dict[str, list[Address]] = {}
        for address in wanted:
            if (
                address.domain in apis
                and not address.is_content
                and address not in self.absent
                and address not in self.existing
            ):
                rest.setdefault(address.domain, []).append(address)
        answers = (read_infos(apis[key], rest[key], lambda _: None) for key in rest)
        for found, absent in await asyncio.gather(*answers):
            self.existing.update(found)
            self.absent.update(absent)

    async def read(self, api: DomainApi, address: Address) -> LiveObject | None:
        """Return the object, read now if no answer has it. Raises ApiError."""
        if address in self.absent or address in self.existing:
            return self.existing.get(address)
        return await read_object(api, address)


async def find_changes(plan: Plan, apis: Mapping[str, DomainApi]) -> FirstCheck:
    """Check what changed since the plan.

    Domains that are not in `apis` were offline before. Raises ApiError for other errors.
    """
    first = {step.target_address: step for step in reversed(plan.steps)}
    wanted = {
        a: step
        for a, step in first.items()
        if _expected_before(step) or step.op == "consumer.create_placeholder"
    }
    steps_by_address: dict[Address, list[Step]] = {}
    for step in plan.steps:
        steps_by_address.setdefault(step.target_address, []).append(step)
    deletions, found = DeletionCheck(plan, apis), FirstCheck([], {})
    stale, lost, imported = found.stale, found.lost, _list_imports(plan)
    listed = _Listed(await _find_absent(wanted, apis), await _list_existing(wanted, apis))
    await listed.read_rest(wanted, apis)

    async def check(address: Address) -> None:
        if address.domain in lost:
            return
        try:
            live = await listed.read(apis[address.domain], address)
            fingerprint = live.fingerprint if live else "absent"
            if (_expected_before(wanted[address]) or fingerprint) != fingerprint:
                stale.append(str(address))
                return
            difference = exceeded_bound(wanted[address], live) or await _first_difference(
                deletions, steps_by_address[address], live, apis[address.domain]
            )
        except OFFLINE_ERRORS as error:
            lost.setdefault(address.domain, str(error))
            return
        if difference is not None:
            stale.append(f"{address} {difference}")
        elif live is not None and address in imported:
            found.imports[address] = live

    await run_parallel(check, (address for address in wanted if address.domain in apis))
    parents = {
        address: parent
        for address, parent in _expected_parents(plan.steps).items()
        if address not in wanted and address.domain in apis
    }

    async def check_parent(address: Address) -> None:
        if address.domain in lost:
            return
        try:
            live = await read_object(apis[address.domain], address)
        except OFFLINE_ERRORS as error:
            lost.setdefault(address.domain, str(error))
            return
        if (why := stream_difference(parents[address], live)) is not None:
            stale.append(f"{address} {why}")

    await run_parallel(check_parent, parents)
    stale.sort()
    return found


def _expected_before(step: Step) -> str:
    """Return the fingerprint that an object must have before the first write of the plan."""
    expected = step.precondition
    return str(expected.get("fingerprint") or expected.get("before_apply") or "")


def _list_imports(plan: Plan) -> set[Address]:
    """Return what the plan only takes into state, in streams that no other step touches."""
    imports = {step.target_address for step in plan.steps if step.op == "state.import"}
    touched = {
        (step.domain, step.target_address.stream)
        for step in plan.steps
        if step.op != "state.import"
    }
    return {address for address in imports if (address.domain, address.stream) not in touched}


async def _find_absent(
    wanted: Mapping[Address, Step], apis: Mapping[str, DomainApi]
) -> set[Address]:
    """Return resources that the plan creates and whose stream does not exist.

    Where many are created, the names of all streams are fewer requests than one for each. Others
    are asked for one by one, as in a domain that does not list. A stream may be missing in the
    names while others are deleted, and its own step asks again before it creates it.
    """
    created: dict[str, list[Address]] = {}
    for address, step in wanted.items():
        if step.precondition.get("fingerprint") == "absent" and address.domain in apis:
            created.setdefault(address.domain, []).append(address)
    found: set[Address] = set()
    for domain, addresses in created.items():
        streams = {address.stream for address in addresses}
        if len(streams) >= MIN_NAMES and not is_import(apis[domain].domain):
            names = await _list_names(apis[domain], most=len(streams) * NAMES_PER_REQUEST)
            found |= {a for a in addresses if names is not None and a.stream not in names}
    return found


async def _list_existing(
    wanted: Mapping[Address, Step], apis: Mapping[str, DomainApi]
) -> dict[Address, LiveObject]:
    """Read streams that exist by the list of their domain, where the plan touches most of it."""
    existing: dict[str, list[Address]] = {}
    for address, step in wanted.items():
        if (
            address.kind != "consumer"
            and address.domain in apis
            and step.precondition.get("fingerprint") != "absent"
        ):
            existing.setdefault(address.domain, []).append(address)
    found: dict[Address, LiveObject] = {}
    for domain, addresses in existing.items():
        if len(addresses) >= MIN_STREAMS:
            with suppress(ApiError):
                facts = DomainFacts(domain, reachable=True, info=await apis[domain].request("INFO"))
                found |= (await list_streams(apis[domain], facts, addresses))[0]
    return found


async def _list_names(api: DomainApi, most: int) -> set[str] | None:
    """Return the names of all streams of a domain; None for more than `most`, and without them."""
    found: set[str] = set()
    try:
        async for page in api.pages("STREAM.NAMES", "streams"):
            if (page.get("total") or 0) > most:
                return None
            found.update(page.get("streams") or ())
    except ApiError:
        return None
    return found


async def _first_difference(
    deletions: DeletionCheck, steps: Iterable[Step], live: LiveObject | None, api: DomainApi
) -> str | None:
    """Return the first difference from the plan beside the fingerprint, as a phrase."""
    for step in steps:
        if (why := await consumer_difference(step, api)) is not None:
            return why
        if (why := await deletions.describe_excess(step, live, begun=False)) is not None:
            return why
    return None


def _expected_parents(steps: Iterable[Step]) -> dict[Address, Mapping[str, Any]]:
    """Return the streams of the plan's consumers, each with what its steps expect of it."""
    expected = ((step.target_address.parent, step.precondition.get("parent")) for step in steps)
    return {
        address: parent
        for address, parent in expected
        if address is not None and parent is not None
    }


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
            return (
                f"has a consumer {name} that was {'recreated' if name in expected else 'created'}"
            )
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
