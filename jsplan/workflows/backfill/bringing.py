"""Brings what is staged into the target: what this run has copied, and what attempts before it left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from jsplan.address import Address
from jsplan.backfill.job import promoting, stages
from jsplan.backfill.job.abandoned import Tail, read_stage
from jsplan.backfill.job.reading import Follow, follow
from jsplan.backfill.job.stages import Stage
from jsplan.backfill.ranges import Leg, Span
from jsplan.backfill.wire.asking import first_at, from_text
from jsplan.documents.backfill import LegResult
from jsplan.errors import JsplanError
from jsplan.units import SECOND
from jsplan.workflows.backfill.engine import Engine
from jsplan.workflows.backfill.freeze import Ends
from jsplan.workflows.backfill.waiting import patiently
from jsplan.workflows.options import Observer

MayWrite = Callable[[float], float]
#: Whether the tail of a sealed stage lacks nothing.
IsWhole = Callable[[Stage, Tail], Awaitable[bool]]
#: How long a request that writes may take at most: the lock must be ours for as long. Seconds.
WRITING: Final = 30.0
#: By how much the clocks of the servers of one domain may differ.
SKEW: Final = 60 * SECOND


async def _has_no_tail(_stage: Stage, tail: Tail) -> bool:
    return not len(tail.seqs)


@dataclass(slots=True)
class Bringing:
    """What one leg needs for it. `entry` names the entry and its workspace on the servers, `text` what a stage must have been made for."""

    leg: Leg
    ends: Ends
    engine: Engine
    observer: Observer
    may_write: MayWrite
    entry: str
    text: str
    result: LegResult
    is_whole: IsWhole = _has_no_tail

    async def take_over(self) -> None:
        """Bring in what attempts before this one wrote, and leave nothing of them behind.

        A stage that the target has as a source was begun to be brought in; one that has not been may be of another text of the entry,
        or of a stream that its origin was before, and is dropped then. Raises LeaseLostError, JsplanError and ApiError.
        """
        self.may_write(WRITING)
        for stage in await patiently(self.ends.target, partial(stages.find, self.ends.target, self.entry)):
            if stage.origin == self.leg.origin:
                await self._take_over(stage)
        await self._written(partial(promoting.detach, self.ends.target, self.stream))

    async def _take_over(self, stage: Stage) -> None:
        sealed = await self.sealed(stage)
        info = await patiently(self.ends.target, partial(promoting.target_info, self.ends.target, self.stream))
        begun = stage.name in promoting.own_sources(info["config"])
        if sealed.messages and (begun or stage.text == self.text):
            self.observer.phase(f"Resuming with {sealed.messages:,} messages of an earlier attempt")
            origin = Address.parse(self.leg.origin).stream
            hashes, tail = await asyncio.to_thread(
                read_stage, self.ends.target_way, stage.name, sealed.messages, self.ends.identity, origin, sealed.base
            )
            if begun or await self.is_whole(sealed, tail):  # who began had made sure of it
                await self.bring(sealed, hashes, since=await asyncio.to_thread(self._since, stage), may_lack=True)
            else:
                self.observer.warn(f"a message was lost on its way to staging stream {stage.name}; it is dropped, and copied again")
        await self.drop(sealed)

    def _since(self, stage: Stage) -> int:
        """The target's sequence from which on it may have something of a stage: none is older than the stage is."""
        way = self.ends.target_way
        wire = way.open()
        try:
            return first_at(wire, way.api_prefix, self.stream, from_text(stage.created) - SKEW)
        finally:
            wire.close()

    async def bring(
        self, stage: Stage, hashes: list[str], *, expected: tuple[Span, ...] = (), since: int | None = None, may_lack: bool = False
    ) -> None:
        """Let the target take all of a sealed stage, and prove that it has. `since`: some of it may be there, from that sequence on;
        `may_lack`: the target may have deleted some of it again. Raises ApiError, and JsplanError where it did not take everything.
        """
        await self._brought([stage], [hashes], "comparing", expected, since, may_lack=may_lack)

    async def bring_lanes(self, staged: Sequence[Stage], hashes: Sequence[list[str]], *, may_lack: bool) -> bool:
        """The same for several sealed stages at once: each time that a target gets a source its server looks through all that it has, and
        one reading shows all of them. Whether all of it is there.
        """
        return await self._brought(staged, hashes, f"comparing {len(staged)} partitions", may_lack=may_lack)

    async def _brought(
        self, staged: Sequence[Stage], hashes: Sequence[list[str]], doing: str, expected: tuple[Span, ...] = (), since: int | None = None,
        *, may_lack: bool,
    ) -> bool:  # fmt: skip
        ends, origin, equal = self.ends, Address.parse(self.leg.origin).stream, True
        next_place = await patiently(ends.target, partial(promoting.next_place, ends.target, self.stream))
        if some := [stage for stage in staged if stage.messages]:
            await self._written(partial(promoting.attach, ends.target, self.stream, some))
        first = next_place if since is None else min(since, next_place)
        tasks = [
            Follow(ends.target_way, self.stream, first, one.name, one.messages, ends.identity, origin, expected, one.base, one.numbered)
            for one in staged
        ]
        self.observer.phase(f"Promoting {sum(stage.messages for stage in staged):,} messages into {self.leg.target} and comparing them")
        told = await self.engine.near(partial(follow, tasks), f"{self.leg.origin} to {self.leg.target}: {doing}")
        for stage, said, wanted in zip(staged, told, hashes, strict=True):
            lacks = may_lack and (said["reached"] >= stage.messages or await self._has_deleted(first))
            equal &= self._is_equal(stage, said, wanted, may_lack=lacks)
            self._count(stage, said)
        return equal

    async def _has_deleted(self, first: int) -> bool:
        """Whether the target has lost messages from a sequence on: then nobody can tell what arrived, and what is missing is looked for."""
        state = (await patiently(self.ends.target, partial(promoting.target_info, self.ends.target, self.stream)))["state"]
        return bool(state["first_seq"] > first or state.get("num_deleted"))

    def _count(self, stage: Stage, said: dict[str, Any]) -> None:
        self.result.copied += stage.messages
        self.result.bytes += stage.bytes
        self.result.natively += said["natively"]
        self.result.gaps, self.result.gap_messages = said["gaps"], said["gap_messages"]
        self.leg.target_last = max(self.leg.target_last, said["last"])

    def _is_equal(self, stage: Stage, said: dict[str, Any], hashes: list[str], *, may_lack: bool) -> bool:
        """Whether all of a stage is there; raises JsplanError where that must be and is not."""
        if said["reached"] < stage.messages and not may_lack:
            raise JsplanError(
                f"{self.leg.target} took {said['messages']:,} of {stage.messages:,} messages of staging stream {stage.name} and no more",
                hint="Look at its limits and at the server's log. Nothing is lost: run the backfill again when it takes messages.",
            )
        if said["messages"] < stage.messages and may_lack:
            gone = stage.messages - said["messages"]
            self.observer.warn(f"{self.leg.target} took {stage.messages:,} messages, and {gone:,} of them are not there any more")
            return False
        if said["twice"] or said["hashes"] != hashes:
            raise self._differs(stage, said, hashes)
        self.result.verified = True
        return True

    def _differs(self, stage: Stage, said: dict[str, Any], hashes: list[str]) -> JsplanError:
        block = next((n for n, (one, other) in enumerate(zip(said["hashes"], hashes, strict=False)) if one != other), len(said["hashes"]))
        return JsplanError(
            f"what {self.leg.target} stored from sequence {said['first']:,} on is not what {self.leg.origin} has: "
            f"{said['messages']:,} of {stage.messages:,} messages, {said['twice']:,} of them twice, first difference in block {block:,}",
            hint="Did somebody delete messages there meanwhile? Run the backfill again: it looks for what is missing and copies that.",
        )

    async def sealed(self, stage: Stage) -> Stage:
        """The stage as it is and remains: it takes nothing any more. Raises ApiError where it is gone."""
        found: Stage = await self._written(partial(stages.seal, self.ends.target, stage))
        return found

    async def drop(self, *staged: Stage) -> None:
        """Leave nothing of stages. The streams go first: as long as one is there it is known whether it was begun to be brought in."""
        for stage in staged:
            await self._written(partial(stages.remove, self.ends.target, stage))
        await self._written(partial(promoting.detach, self.ends.target, self.stream))

    async def _written(self, ask: Callable[[], Any]) -> Any:
        """Ask for something that writes, each time only if the lock is still ours."""

        async def once() -> Any:
            self.may_write(WRITING)
            return await ask()

        return await patiently(self.ends.target, once)

    @property
    def stream(self) -> str:
        """The target's name."""
        return Address.parse(self.leg.target).stream
