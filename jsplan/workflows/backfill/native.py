"""strategy native: the target gets the origin as a source for a while, and what it brought is compared with the origin before it goes.

The server says of each message where it comes from (`Nats-Stream-Source`), so whoever takes over sees what is there already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from jsplan.address import Address
from jsplan.backfill.job.comparing import Compared
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.job.reading import STRIDE
from jsplan.backfill.job.room import growth, shortage
from jsplan.backfill.job.sourcing import attach, detach, marked, own_source
from jsplan.backfill.job.tallying import Tally, Verdict, at_origin, judged, sourced_into
from jsplan.backfill.ranges import LISTED, Leg, common, total
from jsplan.backfill.sequence_arrays import without
from jsplan.backfill.wire.asking import from_text
from jsplan.documents.backfill import LegResult, MessagesMoved
from jsplan.errors import JsplanError, RefusedError
from jsplan.resources.nested import header_of
from jsplan.topology.reach import NoWay
from jsplan.workflows.backfill.bringing import WRITING
from jsplan.workflows.backfill.freeze import Ends, refuse_target, require_same
from jsplan.workflows.backfill.leg import Work
from jsplan.workflows.backfill.missing import Missing
from jsplan.workflows.backfill.waiting import PERIOD, patiently

#: For how long a source may bring nothing before what it lacks counts as not coming; for how long if the server says that it is not
#: behind: it dropped messages whose ids it knows. Seconds.
PATIENCE: Final = 120.0
SETTLED: Final = 5.0
BY_SOURCE: Final = "a source of the server"

Result = TypeVar("Result")


@dataclass(slots=True)
class NativeRun:
    """Carries out one leg. `result` says what it brought; what it could not bring is left to Spark."""

    work: Work
    leg: Leg
    ends: Ends
    patience: float = PATIENCE
    result: LegResult = field(init=False)
    missing: Missing = field(init=False)
    brought: Tally = field(default_factory=Tally)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.result = LegResult(self.leg.origin, self.leg.target, self.leg.first, self.leg.last)
        self.missing = Missing(self.leg, self.ends, self.work.topology)

    async def run(self) -> bool:
        """Let the server copy and compare; whether nothing is left to do. Raises RefusedError, JsplanError and ApiError."""
        origin, target = await self._info(self.leg.origin), await self._info(self.leg.target)
        require_same(self.leg, origin, target)
        refuse_target(self.leg.target, target["config"])
        if marked(target["config"]) != self.whose and not await self._begun(origin, target):
            return False
        self.work.observer.phase(f"The server copies {self.leg.origin} to {self.leg.target}")
        found, self.brought = await self._watched()
        await self._written(self._detach)
        self._tell(found)
        if found.missing:
            words = f"{self.leg.target} did not take {total(found.missing):,} messages from its source; they are copied by Spark"
            self.work.observer.warn(words)
        return not found.missing

    # --- the source ---------------------------------------------------------------------------------------------

    async def _begun(self, origin: dict[str, Any], target: dict[str, Any]) -> bool:
        """Attach the source; False where that would not do: something of the origin is there already, so that the server would bring it
        again, or there may not be room for all of it, which Spark looks at more closely.
        """
        if self.leg.first > self.leg.last or len((await self.missing.todo()).known.seq):
            return False
        if marked(target["config"]) is not None:
            raise RefusedError(
                f"another backfill has a source in {self.leg.target}: {marked(target['config'])}",
                hint="Let that one come to its end first.",
            )
        state = origin["state"]
        messages = int(state["messages"])
        if shortage(self.leg.target, target, messages, int(state["bytes"]) + growth(messages)) is not None:
            return False
        self.leg.target_next = int(target["state"]["last_seq"]) + 1
        await self._written(partial(self._attach, self.source()))
        return True

    async def _attach(self, source: dict[str, Any]) -> None:
        """An update that is asked for a second time, since no answer came, finds its mark."""
        config = (await self._info(self.leg.target))["config"]
        if marked(config) is None:
            await attach(self.ends.target, config, source, self.whose)

    async def _detach(self) -> None:
        await detach(self.ends.target, (await self._info(self.leg.target))["config"])

    def source(self) -> dict[str, Any]:
        """The origin as the target's source. Raises JsplanError where its servers cannot reach it."""
        origin, target = self.leg.origin_address, self.leg.target_address
        found: dict[str, Any] = {"name": origin.stream, "opt_start_seq": self.leg.first}
        if self.leg.filters:
            found["filter_subject"] = self.leg.filters[0]
        try:
            way = self.work.topology.reach.way(target.domain, origin.domain)
        except NoWay as error:
            raise JsplanError(str(error), hint=error.detail) from None
        if way.api is not None:
            deliver = f"{way.deliver}.{target.domain}.{target.stream}.{origin.stream}" if way.deliver else ""
            found["external"] = {"api": way.api, "deliver": deliver}
        return found

    # --- comparing ----------------------------------------------------------------------------------------------

    async def _watched(self) -> tuple[Verdict, Tally]:
        """Read along until everything has come, or nothing comes any more; what both sides say then."""
        config = (await self._info(self.leg.target))["config"]
        state = (await self._info(self.leg.origin))["state"]
        compared = self._compared(config, state)
        reading = asyncio.ensure_future(asyncio.to_thread(at_origin, self.ends.source_way, compared))
        brought, place, before, since = Tally(), self.leg.target_next, -1, time.monotonic()
        try:
            while True:
                info = await self._info(self.leg.target)
                last = int(info["state"]["last_seq"])
                there = (self.ends.target_way, self.leg.target_address.stream, place, last, compared)
                if place <= last and (last == before or last - place >= STRIDE):
                    if await asyncio.to_thread(sourced_into, brought, *there):
                        since = time.monotonic()
                        self._moved(brought)
                    place = last + 1
                before = last
                if reading.done() and (brought.last >= reading.result().last or self._is_over(info, time.monotonic() - since)):
                    break
                await asyncio.sleep(PERIOD / 5)
        finally:
            origin = await reading
        self.result.bytes = len(brought.seqs) * int(state["bytes"]) // max(1, int(state["messages"]))
        return judged(origin, brought), brought

    def _is_over(self, info: dict[str, Any], idle: float) -> bool:
        """Whether nothing more is to be waited for."""
        name, own = self.leg.origin_address.stream, own_source(info["config"]) or {}
        api = (own.get("external") or {}).get("api")
        flows = [one for one in info.get("sources") or () if one["name"] == name and (one.get("external") or {}).get("api") == api]
        behind = any(one.get("lag") or int(one.get("active") or -1) < 0 for one in flows) or not flows
        return idle > (self.patience if behind else min(self.patience, SETTLED))

    def _moved(self, brought: Tally) -> None:
        title = f"{self.leg.origin} to {self.leg.target}: copying"
        done, seconds = len(brought.seqs), time.monotonic() - self._started
        self.work.observer.event(MessagesMoved(self.leg.origin, title, done, self.leg.span.size, seconds))

    def _compared(self, config: dict[str, Any], state: dict[str, Any]) -> Compared:
        leg, source = self.leg, own_source(config) or self.source()
        return Compared(
            0, self.ends.identity, leg.origin_address.stream, leg.first, leg.last, tuple(leg.filters), from_text(leg.created),
            int(state["last_seq"]), (header_of(source)[0],), loose=True,
        )  # fmt: skip

    def _tell(self, found: Verdict) -> None:
        leg, result = self.leg, self.result
        if found.different or found.twice or not found.in_order:
            what = f"message {found.different:,} differs" if found.different else "some are there twice, or out of order"
            raise JsplanError(
                f"what {leg.target} got from its source is not what {leg.origin} has: {what}",
                hint=f"Look at it: jsplan backfill verify {self.work.entry.name}",
            )
        result.copied, result.attempts, result.path = len(self.brought.seqs), 1, BY_SOURCE
        result.verified = not found.missing
        result.seconds = time.monotonic() - self._started

    async def settle(self) -> LegResult:
        """What a finished leg reports, with the sequences of the range that neither came nor are at the origin any more."""
        left = without([self.leg.span], np.unique(self.brought.seqs)) if self.leg.first <= self.leg.last else []
        gaps = common(left, await self.missing.gone()) if left else []
        self.result.gaps, self.result.gap_messages = [list(gap) for gap in gaps[:LISTED]], total(gaps)
        return self.result

    # --- asking -------------------------------------------------------------------------------------------------

    @property
    def whose(self) -> str:
        """How its source is marked: by the entry, and by which stream of the origin's name it is of."""
        return f"{self.work.entry_id} {self.leg.origin} {self.leg.created}"

    async def _info(self, address: str) -> dict[str, Any]:
        api = self.ends.origin if address == self.leg.origin else self.ends.target
        return await patiently(api, partial(target_info, api, Address.parse(address).stream))

    async def _written(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask for something that writes, each time only if the lock is still ours."""

        async def once() -> Result:
            self.work.may_write(WRITING)
            return await ask()

        return await patiently(self.ends.target, once)
