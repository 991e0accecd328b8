"""All preconditions of a plan, checked before its first write; each is checked again by the executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.applying.recheck_deletions import DeletionCheck
from jsplan.documents.plan import Plan, Step
from jsplan.errors import OFFLINE_ERRORS
from jsplan.facts.live import LiveObject, get_retention, is_durable
from jsplan.facts.reader import read_object, run_parallel
from jsplan.jetstream import DomainApi


async def find_changes(
    plan: Plan, apis: Mapping[str, DomainApi]
) -> tuple[list[str], dict[str, str]]:
    """What is no longer as it was when planned, in words and in order; and the domains that stopped answering, with why.

    Domains that are not in `apis` are away already. Raises ApiError for anything but silence.
    """
    first = {step.target_address: step for step in reversed(plan.steps)}
    wanted = {
        a: step
        for a, step in first.items()
        if "fingerprint" in step.precondition or step.op == "consumer.create_placeholder"
    }
    of_one: dict[Address, list[Step]] = {}
    for step in plan.steps:
        of_one.setdefault(step.target_address, []).append(step)
    deletions, stale = DeletionCheck(plan, apis), list[str]()
    lost: dict[str, str] = {}

    async def check(address: Address) -> None:
        if address.domain in lost:
            return
        try:
            live = await read_object(apis[address.domain], address)
            more = exceeded_bound(wanted[address], live) or await _first_difference(
                deletions, of_one[address], live, apis[address.domain]
            )
        except OFFLINE_ERRORS as error:
            lost.setdefault(address.domain, str(error))
            return
        found = live.fingerprint if live else "absent"
        if wanted[address].precondition.get("fingerprint", found) != found:
            stale.append(str(address))
        elif more is not None:
            stale.append(f"{address} {more}")

    await run_parallel(check, (address for address in wanted if address.domain in apis))
    parents = {
        address: one
        for address, one in _expected_parents(plan.steps).items()
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
    return sorted(stale), lost


async def _first_difference(
    deletions: DeletionCheck, steps: Iterable[Step], live: LiveObject | None, api: DomainApi
) -> str | None:
    """Compare what the steps of one object rest on beside its fingerprint; the first difference in words."""
    for step in steps:
        if (why := await consumer_difference(step, api)) is not None:
            return why
        if (
            not deletions.is_decided_earlier(step.target_address)
            and (why := await deletions.describe_excess(step, live)) is not None
        ):
            return why
    return None


def _expected_parents(steps: Iterable[Step]) -> dict[Address, Mapping[str, Any]]:
    """The streams of the consumers that the plan touches, each with what its steps expect of it."""
    expected = ((step.target_address.parent, step.precondition.get("parent")) for step in steps)
    return {
        address: parent
        for address, parent in expected
        if address is not None and parent is not None
    }


def stream_difference(expected: Mapping[str, Any], live: LiveObject | None) -> str | None:
    """What is another than expected of the stream of a consumer, in words."""
    if live is None:
        return "was deleted"
    if live.created != expected["created"]:
        return "was recreated"
    now, before = get_retention(live.compact), expected["retention"]
    return f"has {now} retention now, and had {before}" if now != before else None


async def consumer_difference(step: Step, api: DomainApi) -> str | None:
    """Compare the durable consumers of a stream with those that were planned with; the difference in words."""
    expected = step.precondition.get("consumers")
    if expected is None:
        return None
    infos = await api.consumers(step.target_address.stream)
    there = {
        info["name"]: info["created"] for info in infos if is_durable(info["name"], info["config"])
    }
    for name in sorted({*expected, *there}):
        if name not in there:
            return f"lost its consumer {name}, which was deleted"
        if expected.get(name) != there[name]:
            return (
                f"has a consumer {name} that was {'recreated' if name in expected else 'created'}"
            )
    return None


def exceeded_bound(step: Step, live: LiveObject | None) -> str | None:
    """Whether the deletion of a whole stream or consumer would by now delete clearly more than the plan said, in words."""
    most = step.precondition.get("max_deleted")
    if most is None or live is None or live.messages_at_risk <= most:
        return None
    return (
        f"holds {live.messages_at_risk:,} messages by now; the plan was made for at most {most:,}"
    )
