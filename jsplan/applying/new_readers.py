"""Streams that read what a step deletes or replaces, and that the plan does not know.

It counted nothing for them: since nats-server 2.15 a source copies a new origin from its start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from jsplan.address import STAGING_PREFIX, Address
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError
from jsplan.flows.graph import ReaderIndex
from jsplan.jetstream import DomainApi
from jsplan.resources.fields import Config


async def find_new_readers(
    plan: Plan, apis: Mapping[str, DomainApi], steps: Iterable[Step]
) -> dict[str, str]:
    """Describe by step id a stream that reads what the step deletes, and was created since.

    Streams that the plan changes are left out, and domains that cannot be listed now.
    """
    wanted = [step for step in steps if "readers" in step.precondition]
    if not wanted:
        return {}
    keys = sorted({key for step in wanted for key in step.precondition["readers"]})
    listed = await asyncio.gather(*(_list_streams(plan, apis, key) for key in keys))
    configs = {address: config for part in listed for address, config in part.items()}
    readers = ReaderIndex(configs)
    real = {key: api.domain.same_as or key for key, api in apis.items()}

    def canonicalize(step: Step) -> Address:
        target = step.target_address
        return Address.of_stream(real.get(step.domain, step.domain), target.stream)

    ours = {canonicalize(step) for step in plan.steps}
    found: dict[str, str] = {}
    for step in wanted:
        known, address = step.precondition["readers"], canonicalize(step)
        for reader in readers.find(configs.get(address, {"name": address.stream})):
            is_new = reader.stream not in known.get(reader.domain, [reader.stream])
            if is_new and reader not in ours and not reader.stream.startswith(STAGING_PREFIX):
                found[step.id] = f"is read by {reader} now, which the plan does not know"
    return found


async def _list_streams(
    plan: Plan, apis: Mapping[str, DomainApi], key: str
) -> dict[Address, Config]:
    """Return the configurations of a domain; none where it cannot be listed."""
    if (api := _find_api(plan, apis, key)) is None:
        return {}
    with contextlib.suppress(ApiError):
        infos, _ = await api.streams()
        return {Address.of_stream(key, i["config"]["name"]): i["config"] for i in infos}
    return {}


def _find_api(plan: Plan, apis: Mapping[str, DomainApi], key: str) -> DomainApi | None:
    """Return the API of a domain that the plan read, also if no step touches it."""
    planned = plan.domains.get(key) or {}
    near = (
        api.behind(planned.get("api_prefix"))
        for other, api in apis.items()
        if (plan.domains.get(other) or {}).get("connection") == planned.get("connection")
    )
    return apis.get(key) or next(near, None)
