"""What is missing of one of many origins: what the target has is found for all of them in one reading of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jsplan.backfill.job import promoting
from jsplan.backfill.job.copying import Known
from jsplan.backfill.job.fleets import Wanted
from jsplan.backfill.wire.asking import from_text
from jsplan.resources.nested import header_of
from jsplan.workflows.backfill.missing import Missing
from jsplan.workflows.backfill.restoring import InArchive

if TYPE_CHECKING:
    from jsplan.backfill.ranges import Leg, Span
    from jsplan.topology import Topology
    from jsplan.workflows.backfill.archives import Held
    from jsplan.workflows.backfill.freeze import Ends


@dataclass(slots=True)
class Shared(Missing):
    """What is missing of one of many origins. `mixed`: its messages are not in the order of their sequences at the target."""

    found: Known = field(default_factory=Known)
    brought: tuple[Any, ...] = ()
    mixed: bool = False

    async def asked(self, info: dict[str, Any]) -> Wanted:
        """What is to be looked for at the target."""
        sources = [source for source in info["config"].get("sources") or [] if self._is_origin(source)]
        self.brought = tuple(await asyncio.gather(*(self._claim(source) for source in sources)))
        names = {header_of(source)[0] for source in [*sources, self._as_source()]}
        return Wanted(f"{self.ends.identity}/{self.leg.origin_address.stream}", tuple(sorted(names)), from_text(self.leg.created))

    async def _known(self) -> tuple[Known, tuple[Any, ...]]:
        return self.found, self.brought

    async def _not_expired(self, spans: list[Span], known: Known) -> list[Span]:
        """As for one origin; where lanes were by subject, what has expired looks like anything else that is missing."""
        info = await promoting.target_info(self.ends.target, self.leg.target_address.stream)
        if self.mixed and int(info["state"]["first_seq"]) > self.leg.target_next:
            return []
        return await Missing._not_expired(self, spans, known)  # noqa: SLF001 - a dataclass with slots has no super()


class SharedInArchive(Shared, InArchive):
    """The same of a stream that an archive has."""

    def __init__(self, leg: Leg, ends: Ends, topology: Topology, held: Held, *, mixed: bool) -> None:
        InArchive.__init__(self, leg, ends, topology, held)
        self.found, self.brought, self.mixed = Known(), (), mixed
