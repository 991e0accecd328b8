"""All preconditions of a plan, checked before its first write; each is checked again by the executor."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.address import Address
from jsplan.documents.plan import Plan
from jsplan.facts.live import LiveObject
from jsplan.facts.survey import in_parallel, read_object
from jsplan.jetstream import DomainApi


async def changed_since(plan: Plan, apis: Mapping[str, DomainApi]) -> list[str]:
    """The addresses that are no longer as they were when planned, in order. Domains not in `apis` are away."""
    first = {step.address: step.precondition.get("fingerprint") for step in reversed(plan.steps)}
    wanted = {Address.parse(text): fingerprint for text, fingerprint in first.items() if fingerprint}
    wanted = {address: fingerprint for address, fingerprint in wanted.items() if address.domain in apis}
    stale: list[str] = []

    async def check(address: Address) -> None:
        live: LiveObject | None = await read_object(apis[address.domain], address)
        if (live.fingerprint if live else "absent") != wanted[address]:
            stale.append(str(address))

    await in_parallel(check, wanted)
    return sorted(stale)
