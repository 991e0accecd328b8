"""Streams that read what a step deletes or replaces, and that the plan does not know.

It counted nothing for them: since nats-server 2.15 a source copies a new origin from its start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from jsplan.address import STAGING_PREFIX, Address
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError
from jsplan.flows.graph import may_read
from jsplan.jetstream import DomainApi
from jsplan.resources.fields import Config


async def find_new_readers(
    plan: Plan, apis: Mapping[str, DomainApi], steps: Iterable[Step]
) -> dict[str, str]:
    """Describe by step id a stream that reads what the step deletes, and was created since.

    Streams that the plan changes are left out, and domains that cannot be listed now.
    """
    wanted = [step for step in steps if "readers" in step.precondition]
    configs: dict[tuple[str, str], Config] = {}
    for key in sorted({key for step in wanted for key in step.precondition["readers"]}):
        if (api := _find_api(plan, apis, key)) is not None:
            with contextlib.suppress(ApiError):
                infos, _ = await api.streams()
                configs |= {(key, info["config"]["name"]): info["config"] for info in infos}
    real = {key: api.domain.same_as or key for key, api in apis.items()}
    ours = {(real.get(step.domain, step.domain), step.target_address.stream) for step in plan.steps}
    found: dict[str, str] = {}
    for step in wanted:
        known, name = step.precondition["readers"], step.target_address.stream
        origin = configs.get((real.get(step.domain, step.domain), name), {"name": name})
        for (key, stream), config in configs.items():
            is_new = key in known and stream not in known[key] and (key, stream) not in ours
            if is_new and not stream.startswith(STAGING_PREFIX) and may_read(config, origin):
                reader = Address.of_stream(key, stream)
                found[step.id] = f"is read by {reader} now, which the plan does not know"
    return found


def _find_api(plan: Plan, apis: Mapping[str, DomainApi], key: str) -> DomainApi | None:
    """Return the API of a domain that the plan read, also if no step touches it."""
    planned = plan.domains.get(key) or {}
    near = (
        api.behind(planned.get("api_prefix"))
        for other, api in apis.items()
        if (plan.domains.get(other) or {}).get("connection") == planned.get("connection")
    )
    return apis.get(key) or next(near, None)
