"""The scheduled drift job itself: full checks by schedule, glances at what advisories name, and what of it is news.

An apply of our own is no drift, and is recognised by its state: a look counts only if state was the same before and after it, and
no step was under way. Whatever is in doubt is looked at again instead of being told. What is told to whom is left to `drift_outlets`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from jsplan.address import Address
from jsplan.documents.drift import Drift
from jsplan.documents.notice import Situation
from jsplan.drift.doubt import Doubt, moved_between
from jsplan.drift.hearing import Hearing
from jsplan.drift.schedule import Schedule
from jsplan.drift.situations import WORKSPACE, Describe, Register, failing, situations_of
from jsplan.drift.tasks import end
from jsplan.drift.worker import Worker
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.secrets import conceal
from jsplan.state import State
from jsplan.units import SECOND, stamp
from jsplan.workflows.drift import glance, look, replication
from jsplan.workflows.drift_outlets import Outlets
from jsplan.workflows.options import DriftOptions, WatchOptions
from jsplan.workflows.world import World, open_pool

#: Seconds that advisories of one change may take to arrive, and between two glances at least.
DEBOUNCE: Final = 0.02
BETWEEN: Final = 0.1
#: Seconds until a check that could not be done is tried again: at first, and at most.
RETRY: Final = (1.0, 30.0)
#: Seconds between two full checks at least, however many reasons there are.
CALM: Final = 1.0
#: The loop turns at least so often, in seconds, so that a clock that was set is noticed.
TURN: Final = 30.0
#: Seconds that reading the files of the workspace may take.
READING: Final = 60.0
#: Kinds that a second look settles, since the first may have been taken in the middle of something.
_CONFIRMED: Final = ("changed", "missing", "unmanaged")


class Silent:
    """An observer of looks, of which there are many."""

    def phase(self, text: str) -> None:
        """Say nothing."""

    def event(self, event: object) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""


class Watcher:
    """One job. `renew` reads the files again and returns the world anew, or None where they are as they were; `ready` is called once,
    after the first full check.
    """

    def __init__(
        self,
        world: World,
        options: WatchOptions,
        outlets: Outlets,
        hearing: Hearing,
        describe: Describe,
        renew: Callable[[], World | None],
        ready: Callable[[], None],
    ) -> None:
        self.world = world
        self.hearing = hearing
        self.register = Register(world.workspace.name, world.workspace.environment)
        self._options = options
        self._outlets = outlets
        self._describe = describe
        self._renew = renew
        self._ready = ready
        self._files = Worker("workspace")
        self._schedule: Schedule = options.schedule
        self._state: State | None = None
        self._doubt = Doubt()
        self._pool: Pool | None = None
        self._due = datetime.now(UTC)
        self._looked = -CALM
        self._glanced = -BETWEEN
        self._failing: tuple[float, int] | None = None
        self._misses = 0
        self._gone: dict[str, float] = {}
        self._flows: asyncio.Task[Drift | None] | None = None
        self._flows_before: State | None = None
        self._replication = Drift("", "", None, "", "")

    # --- the loop --------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Check until told to stop; a check that is under way then is given up: it only reads."""
        ending = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                turn = asyncio.create_task(self._turn())
                await asyncio.wait({turn, ending}, return_when=asyncio.FIRST_COMPLETED)
                await end([turn])
                if not turn.cancelled() and (error := turn.exception()) is not None:
                    raise error
        finally:
            await end([ending, *([self._flows] if self._flows is not None else [])])
            await self._drop_pool()

    async def _turn(self) -> None:
        """Wait for something to do, and do it."""
        await self._wait()
        self._outlets.health.beat = time.monotonic()
        if self._flows is not None and self._flows.done():
            await self._flows_seen(self._flows)
        if self._full_is_due():
            await self._full()
        elif addresses := self._to_glance_at():
            await self._partial(addresses)

    async def _wait(self) -> None:
        now = time.monotonic()
        until_due = (self._due - datetime.now(UTC)).total_seconds()
        if self.hearing.missed:
            until_due = min(until_due, self._looked + CALM - now)
        timeout = min(until_due, self._doubt.wait(now), TURN)
        if timeout > 0 and not self.hearing.dirty:
            try:
                async with asyncio.timeout(timeout):
                    await self.hearing.wake.wait()
            except TimeoutError:
                return
        self.hearing.wake.clear()
        if self.hearing.dirty:
            await asyncio.sleep(max(DEBOUNCE, self._glanced + BETWEEN - time.monotonic()))

    def _full_is_due(self) -> bool:
        missed = self.hearing.missed and time.monotonic() >= self._looked + CALM
        return missed or datetime.now(UTC) >= self._due

    def _to_glance_at(self) -> set[Address]:
        asked = self.hearing.take() | self._doubt.due(time.monotonic())
        below = {a for a in self._state.resources if a.parent in asked} if self._state is not None and asked else set[Address]()
        return asked | below

    # --- checks ----------------------------------------------------------------------------------------------

    async def _full(self) -> None:
        begun = time.monotonic()
        self.hearing.missed = False
        self._plan_next()
        try:
            await self._reload()
            drift, held = await self._consistently(None)
        except JsplanError as error:
            await self._failed(error, begun)
            return
        self._looked = time.monotonic()
        self._succeeded(drift, begun)
        found = self._present(drift)
        news = {s.id for s in self.register.news(found) if s.kind in _CONFIRMED}
        self._doubt.add({Address.parse(s.address) for s in found if s.id in news}, time.monotonic())
        unread = _unread(drift)
        self._settle(
            drift,
            [s for s in found if s.id not in news and not (s.kind == "interrupted" and held(s.address))],
            lambda s: s.kind != "replication" and not {s.id, s.domain, s.address} & (news | unread) and not held(s.address),
        )
        self._follow_flows()

    async def _partial(self, asked: set[Address]) -> None:
        begun = time.monotonic()
        try:
            drift, held = await self._consistently(asked)
        except JsplanError:
            await self._missed(asked, begun)
            return
        self._glanced, self._misses = time.monotonic(), 0
        self._measured("partial", begun, done=True)
        unread, names = _unread(drift), {str(a) for a in asked}
        again = {a for a in asked if held(str(a))}
        self._doubt.settled(asked - again)
        self._doubt.held(again | {a for a in asked if a.domain in unread}, time.monotonic())
        found = [s for s in situations_of(drift, self._options.notify, self._describe) if s.kind in _CONFIRMED and not held(s.address)]
        quiet = {a for a in asked - again if str(a) not in {s.address for s in found}}
        seen = names - unread - {str(a) for a in asked if a.domain in unread}
        self._settle(self._merged(drift, seen), found, lambda s: s.kind in _CONFIRMED and s.address in seen and not held(s.address))
        self.hearing.forget(asked - again)
        if self._outlets.metrics is not None and (own := sum(self._doubt.was_ours(a) for a in quiet)):
            self._outlets.metrics.heard(own=own)

    async def _consistently(self, asked: Collection[Address] | None) -> tuple[Drift, Callable[[str], bool]]:
        """A look, and of which addresses it cannot be trusted, since an apply of ours was at work. Raises JsplanError."""
        world = self.world
        if self._state is None:
            self._state = await world.backend.read()
        world.state = before = self._state
        pool = self._pool = self._pool or open_pool(world, read_only=True, sealed=True)
        options = DriftOptions(replication=False)
        if asked is None:
            drift = await look(world, pool, options, Silent())
        else:
            drift = await glance(world, pool, asked, options)
        self._state = await world.backend.read()
        if pool.failures or any(link.is_closed for link in pool.links.values()):
            await self._drop_pool()
        return drift, self._doubt.about(before, self._state, time.monotonic())

    def _follow_flows(self) -> None:
        """Look at mirrors and sources beside everything else: at one that does not follow it takes several looks."""
        if self._flows is None:
            self._flows_before = self._state
            self._flows = asyncio.create_task(self._look_at_flows(replace(self.world)))
            self._flows.add_done_callback(lambda _: self.hearing.wake.set())

    async def _look_at_flows(self, world: World) -> Drift | None:
        """None where it cannot be known now: the next full check looks again."""
        try:
            async with open_pool(world, read_only=True, sealed=True) as pool:
                return await replication(world, pool)
        except JsplanError:
            return None

    async def _flows_seen(self, task: asyncio.Task[Drift | None]) -> None:
        """Take in what became of the flows, unless an apply of ours was at work meanwhile."""
        self._flows = None
        before, found = self._flows_before, task.result()
        try:
            self._state = now = await self.world.backend.read()
        except JsplanError:
            return
        if found is None or before is None or moved_between(before, now):
            return
        self._replication = found
        unknown = {str(flow["to"]) for flow in found.replication if flow["healthy"] is None}
        self._settle(
            self._outlets.drift or found,
            [s for s in situations_of(found, self._options.notify, self._describe) if s.kind == "replication"],
            lambda s: s.kind == "replication" and s.address not in unknown,
        )

    async def _reload(self) -> None:
        """Take in what the files say now. Raises ConfigError."""
        try:
            fresh = await self._files.run(self._renew, READING)
        except TimeoutError:
            raise JsplanError(
                f"the files of the workspace could not be read within {READING:g} s", hint="Does their disk answer?"
            ) from None
        if fresh is None:
            return
        await self._drop_pool()
        old, self.world, self._state = self.world, fresh, None
        await old.backend.close()
        self.hearing.renew(fresh.workspace, fresh.environ)

    async def _drop_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    # --- what came of it -------------------------------------------------------------------------------------

    def _present(self, drift: Drift) -> list[Situation]:
        """What is found, without domains that are away for no longer than the grace."""
        now, grace = time.monotonic(), self._options.grace / SECOND
        missing = {str(d["domain"]) for d in drift.offline if not d["excused"]}
        self._gone = {domain: self._gone.get(domain, now) for domain in missing}
        young = {domain for domain, since in self._gone.items() if now < since + grace}
        if young:
            self._sooner(min(self._gone[domain] for domain in young) + grace - now)
        found = situations_of(drift, self._options.notify, self._describe)
        return [s if s.kind != "offline" else self._scrubbed(s) for s in found if s.kind != "offline" or s.address not in young]

    def _settle(self, drift: Drift, found: Iterable[Situation], covered: Callable[[Situation], bool]) -> None:
        notices = self.register.settle(found, covered, stamp(), self.hearing.who)
        self._show(drift)
        self._outlets.tell(notices)

    def _show(self, drift: Drift) -> None:
        drift = self._with_flows(drift)
        if self._outlets.metrics is not None:
            self._outlets.metrics.situations(item.situation for item in self.register.open.values())
        self._outlets.show(drift)

    def _with_flows(self, drift: Drift) -> Drift:
        """With what was found last about mirrors and sources in it."""
        others = [m for m in drift.mutes if m.get("kind") != "replication"]
        muted = [m for m in self._replication.mutes if m.get("kind") == "replication"]
        return replace(drift, replication=self._replication.replication, mutes=[*others, *muted])

    def _merged(self, drift: Drift, names: set[str]) -> Drift:
        """The last full look with what a glance found in its place."""
        full = self._outlets.drift
        if full is None:
            return drift
        return replace(
            full,
            timestamp=drift.timestamp,
            resource_drift=sorted([*(r for r in full.resource_drift if r.address not in names), *drift.resource_drift], key=_address),
            unmanaged=sorted([*(u for u in full.unmanaged if u.address not in names), *drift.unmanaged], key=_address),
            mutes=[*(m for m in full.mutes if m["address"] not in names), *drift.mutes],
            places=full.places | drift.places,
        )

    def _succeeded(self, drift: Drift, begun: float) -> None:
        if self._outlets.health.checked is None:
            self._ready()
        self._failing, self._outlets.health.checked = None, time.monotonic()
        self._outlets.checked(None)
        self._measured("full", begun, done=True)
        if self._outlets.metrics is not None:
            self._outlets.metrics.looked(self._with_flows(drift), self.world.workspace.domains, time.time())

    async def _missed(self, asked: set[Address], begun: float) -> None:
        """A glance that could not be done: once more, and in the end a full check, which says why."""
        self._measured("partial", begun, done=False)
        await self._drop_pool()
        self._glanced, self._misses = time.monotonic(), self._misses + 1
        if self._misses > 3:
            self._misses, self.hearing.missed = 0, True
            self._doubt.settled(asked)
        else:
            self._doubt.held(asked, time.monotonic())

    async def _failed(self, error: JsplanError, begun: float) -> None:
        """A full check that could not be done is tried again soon, and told once it fails for longer than the grace."""
        self._measured("full", begun, done=False)
        await self._drop_pool()
        now = self._looked = time.monotonic()
        since, times = self._failing or (begun, 0)
        self._failing = (since, times + 1)
        self._sooner(min(RETRY[0] * 2**times, RETRY[1]))
        reason = conceal(str(error))
        self._outlets.checked(reason)
        if now - since >= self._options.grace / SECOND and "check" in self._options.notify:
            name = f"{self.register.workspace}.{self.register.environment or ''}"
            self._outlets.tell(self.register.settle([failing(name, reason)], lambda s: s.address == WORKSPACE, stamp()))

    def _scrubbed(self, situation: Situation) -> Situation:
        return replace(situation, says=conceal(situation.says))

    def _measured(self, scope: str, begun: float, *, done: bool) -> None:
        if self._outlets.metrics is not None:
            self._outlets.metrics.checked(scope, time.monotonic() - begun, done=done)

    def _plan_next(self) -> None:
        self._due = self._schedule.after(datetime.now(UTC))
        if self._outlets.metrics is not None:
            self._outlets.metrics.due(self._due.timestamp())

    def _sooner(self, seconds: float) -> None:
        self._due = min(self._due, datetime.now(UTC) + timedelta(seconds=max(0.0, seconds)))


def _unread(drift: Drift) -> set[str]:
    """Domains and addresses that the look says nothing about."""
    return {str(domain["domain"]) for domain in drift.offline} | {item.address for item in drift.deferred}


def _address(item: object) -> str:
    return str(getattr(item, "address", ""))
