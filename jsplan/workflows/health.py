"""Looks at flows until it is known of each whether it follows its origin. Reads only; the judgement is `health`'s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from jsplan.address import Address
from jsplan.facts.live import Live
from jsplan.facts.replication.flows import Flow, flows_of
from jsplan.facts.replication.looks import Look, first_look
from jsplan.facts.replication.reading import Reading
from jsplan.health import Verdict, causes, element, judge
from jsplan.health.verdict import agrees
from jsplan.jetstream import Pool
from jsplan.workflows.world import World

#: Seconds between the first two looks, between later ones, and after which no more are taken, whatever is known by then.
SHORT, PAUSE, LONGEST = 0.1, 0.6, 14.0
#: Looks further back than so many seconds say nothing about now.
MEMORY: Final = 25.0

#: What was seen of each flow, the oldest look first.
History = dict[Flow, list[Look]]


@dataclass(frozen=True, slots=True)
class Found:
    """One flow, what is known about it, and the newest look at it."""

    flow: Flow
    verdict: Verdict
    look: Look | None = None

    def to_json(self) -> dict[str, Any]:
        """As an element of `replication`."""
        return element(self.flow, self.verdict, self.look)


@dataclass(slots=True)
class Health:
    """The flows of one workspace over open connections. `live` is what was read before, `history` what was seen earlier."""

    world: World
    pool: Pool
    live: Live
    history: History = field(default_factory=dict)
    _gone: dict[str, str] = field(default_factory=dict)
    _lost: set[Flow] = field(default_factory=set)

    async def thorough(self, copies: Iterable[Address], leaving_out: Collection[Address] = ()) -> list[Found]:
        """Look again and again at what does not follow, until it is known why: as long as `LONGEST`. Not at flows from `leaving_out`."""
        flows = [flow for flow in self._begin(copies) if flow.origin not in leaving_out]
        return await self._watched(flows, time.monotonic() + LONGEST)

    async def glance(self, copies: Iterable[Address], leaving_out: Collection[Address] = ()) -> list[Found]:
        """Look once more, if anything does not agree: what that proves, and nothing of the flows that agree."""
        flows = [flow for flow in self._begin(copies) if flow.origin not in leaving_out and self._silent(flow) is None]
        odd = [flow for flow in flows if not (seen := self.history.get(flow)) or not agrees(flow, seen[-1])]
        if odd:
            await self._look(odd)
        return [self._found(flow, glance=True) for flow in odd]

    async def another(self, copies: Iterable[Address]) -> list[Found]:
        """Look once more at what does not follow, and judge by that and what was seen earlier."""
        flows = self._begin(copies)
        if todo := self._unsettled(flows):
            await self._look(todo)
        return [self._found(flow) for flow in flows]

    def _begin(self, copies: Iterable[Address]) -> list[Flow]:
        """The flows, each with what was read already as a look at it."""
        there = (live for address in sorted(set(copies)) if (live := self.live.get(address)) is not None)
        found = flows_of(there, self.world.topology)
        self._lost.clear()
        at = time.monotonic()
        for flow in found:
            look = self._first(flow, at)
            seen = self.history.setdefault(flow, [])
            if seen and look is not None and look.created != seen[-1].created:
                seen.clear()
            seen[:] = [earlier for earlier in seen if at - earlier.at <= MEMORY]
            seen += [look] if look is not None else []
        return found

    def _first(self, flow: Flow, at: float) -> Look | None:
        copy, origin = self.live.get(flow.copy), flow.origin
        if copy is None or origin is None or not self.live.reachable(origin.domain):
            return None
        found = self.live.get(origin)
        if found is None and origin in self.live.broken:
            return first_look(flow, copy, None, at, unread=self.live.broken[origin])
        return first_look(flow, copy, found, at) if found is not None else None

    async def _watched(self, flows: Collection[Flow], end: float) -> list[Found]:
        todo, pause = self._unsettled(flows), SHORT
        while todo:
            await self._look(todo)
            todo = self._unsettled(todo)
            if not todo or time.monotonic() > end:
                break
            await asyncio.sleep(pause)
            pause = PAUSE
        return [self._found(flow) for flow in flows]

    def _unsettled(self, flows: Iterable[Flow]) -> list[Flow]:
        return [flow for flow in flows if self._silent(flow) is None and _is_open(self._found(flow))]

    async def _look(self, flows: Collection[Flow]) -> None:
        reading = Reading(self.pool, self.world.workspace.domains, self._away())
        looks = await reading.look(flows, {flow: seen[-1] for flow in flows if (seen := self.history.get(flow))})
        for key, why in reading.away.items():
            facts = self.live.domains.get(key)
            if facts is None or facts.reachable:
                self._gone[key] = why
        for flow, look in looks.items():
            self.history.setdefault(flow, []).append(look)
        self._lost |= {flow for flow in flows if flow not in looks}

    def _away(self) -> dict[str, str]:
        return {key: facts.reason for key, facts in self.live.domains.items() if not facts.reachable} | self._gone

    def _silent(self, flow: Flow) -> str | None:
        return Reading(self.pool, self.world.workspace.domains, self._away()).silent(flow)

    def _found(self, flow: Flow, *, glance: bool = False) -> Found:
        away, seen = self._silent(flow), self.history.get(flow) or []
        if away is not None:
            return Found(flow, Verdict(None, causes.away("copy" if away == flow.copy.domain else "origin", away)))
        if flow in self._lost:
            return Found(flow, Verdict(None, causes.lost()), seen[-1] if seen else None)
        if not seen:
            return Found(flow, Verdict(None, settled=False))
        return Found(flow, judge(flow, seen, glance=glance), seen[-1])


def _is_open(found: Found) -> bool:
    """Whether another look may tell more: of a source that is believed to follow also where it is, if nobody has searched for that."""
    look = found.look
    unsearched = look is not None and look.origin is not None and look.position is None and not look.searched
    return not found.verdict.settled or (found.verdict.healthy is True and unsearched)
