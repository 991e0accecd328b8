"""Streams that read what a step changes, over any number of hops, unknown to the plan.

It counted nothing for them: what a new source or a recreated stream brings comes to them, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from itertools import chain

from jsplan.address import STAGING_PREFIX, Address
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError
from jsplan.flows.graph import ReaderIndex
from jsplan.jetstream import DomainApi
from jsplan.resources.fields import Config


class NewReaders:
    """Finds streams that read what a step changes, and were created since the plan.

    The streams are listed again for each step, before it writes. Steps that ask while they are
    being listed share the next list, so that none gets one that began before it asked.
    """

    def __init__(self, plan: Plan, apis: Mapping[str, DomainApi]) -> None:
        self._plan, self._apis = plan, apis
        self._real = {key: api.domain.same_as or key for key, api in apis.items()}
        self._ours = {self._canonicalize(step) for step in plan.steps}
        known = (step.precondition.get("readers", ()) for step in plan.steps)
        self._keys = sorted({key for keys in known for key in keys})
        self._one_list = asyncio.Lock()
        self._next: asyncio.Task[ReaderIndex] | None = None

    async def find(self, steps: Iterable[Step]) -> dict[str, str]:
        """Describe by step id a stream that reads what the step changes, and was created since.

        Streams that the plan changes are left out, and domains that cannot be listed now.
        """
        wanted = [step for step in steps if "readers" in step.precondition]
        if not wanted:
            return {}
        readers = await self._list()
        found: dict[str, str] = {}
        for step in wanted:
            known = step.precondition["readers"]
            for reader in sorted(readers.find(self._canonicalize(step))):
                is_new = reader.stream not in known.get(reader.domain, [reader.stream])
                is_ours = reader in self._ours or reader.stream.startswith(STAGING_PREFIX)
                if is_new and not is_ours:
                    found[step.id] = f"is read by {reader} now, which the plan does not know"
        return found

    def _canonicalize(self, step: Step) -> Address:
        domain = self._real.get(step.domain, step.domain)
        return Address.of_stream(domain, step.target_address.stream)

    async def _list(self) -> ReaderIndex:
        """Return a list that began after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._list_next())
        return await asyncio.shield(self._next)

    async def _list_next(self) -> ReaderIndex:
        async with self._one_list:
            self._next = None
            listed = await asyncio.gather(*map(self._list_streams, self._keys))
        return ReaderIndex(chain.from_iterable(part.items() for part in listed))

    async def _list_streams(self, key: str) -> dict[Address, Config]:
        """Return the configurations of a domain; none where it cannot be listed."""
        if (api := self._find_api(key)) is None:
            return {}
        with contextlib.suppress(ApiError):
            infos, _ = await api.streams()
            return {Address.of_stream(key, i["config"]["name"]): i["config"] for i in infos}
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
