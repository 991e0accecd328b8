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
from jsplan.context import Context, open_pool
from jsplan.documents.alert import Alert
from jsplan.documents.drift import Drift
from jsplan.drift.advisory_listener import AdvisoryListener
from jsplan.drift.alerts import (
    WORKSPACE,
    AlertRegister,
    DescribeChange,
    build_alerts,
    check_failed_alert,
)
from jsplan.drift.asyncio_utils import cancel_and_wait
from jsplan.drift.own_change_filter import OwnChangeFilter, has_changed_between
from jsplan.drift.schedule import Schedule
from jsplan.drift.worker import Worker
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.options import DriftOptions, WatchOptions
from jsplan.secrets import conceal
from jsplan.state import State
from jsplan.units import SECOND, format_timestamp
from jsplan.workflows.drift import check_addresses, check_drift, check_replication
from jsplan.workflows.drift_outputs import DriftOutputs

#: Seconds that advisories of one change may take to arrive, and between two glances at least.
DEBOUNCE: Final = 0.02
MIN_INTERVAL: Final = 0.1
#: Seconds until a check that could not be done is tried again: at first, and at most.
RETRY: Final = (1.0, 30.0)
#: Seconds between two full checks at least, however many reasons there are.
MIN_FULL_INTERVAL: Final = 1.0
#: The loop turns at least so often, in seconds, so that a clock that was set is noticed.
MAX_WAIT: Final = 30.0
#: Seconds that reading the files of the workspace may take.
RELOAD_TIMEOUT: Final = 60.0
#: Kinds that a second look settles, since the first may have been taken in the middle of something.
_KINDS_TO_CONFIRM: Final = ("changed", "missing", "unmanaged")


class NullObserver:
    """An observer of looks, of which there are many."""

    def phase(self, text: str) -> None:
        """Say nothing."""

    def event(self, event: object) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""


class DriftChecker:
    """One job. `renew` reads the files again and returns the world anew, or None where they are as they were; `ready` is called once,
    after the first full check.
    """

    def __init__(
        self,
        world: Context,
        options: WatchOptions,
        outlets: DriftOutputs,
        hearing: AdvisoryListener,
        describe: DescribeChange,
        renew: Callable[[], Context | None],
        ready: Callable[[], None],
    ) -> None:
        self.context = world
        self.listener = hearing
        self.register = AlertRegister(world.workspace.name, world.workspace.environment)
        self._options = options
        self._outputs = outlets
        self._describe = describe
        self._reload_context = renew
        self._on_ready = ready
        self._file_worker = Worker("workspace")
        self._schedule: Schedule = options.schedule
        self._state: State | None = None
        self._own_changes = OwnChangeFilter()
        self._pool: Pool | None = None
        self._next_full_check = datetime.now(UTC)
        self._last_full = -MIN_FULL_INTERVAL
        self._last_partial = -MIN_INTERVAL
        self._failing_since: tuple[float, int] | None = None
        self._failed_partials = 0
        self._offline_since: dict[str, float] = {}
        self._replication_task: asyncio.Task[Drift | None] | None = None
        self._state_before_replication: State | None = None
        self._last_replication = Drift("", "", None, "", "")

    # --- the loop --------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Check until told to stop; a check that is under way then is given up: it only reads."""
        ending = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                turn = asyncio.create_task(self._run_next())
                await asyncio.wait({turn, ending}, return_when=asyncio.FIRST_COMPLETED)
                await cancel_and_wait([turn])
                if not turn.cancelled() and (error := turn.exception()) is not None:
                    raise error
        finally:
            await cancel_and_wait(
                [ending, *([self._replication_task] if self._replication_task is not None else [])]
            )
            await self._close_pool()

    async def _run_next(self) -> None:
        """Wait for something to do, and do it."""
        await self._wait_for_work()
        self._outputs.health.last_beat = time.monotonic()
        if self._replication_task is not None and self._replication_task.done():
            await self._take_replication_result(self._replication_task)
        if self._is_full_check_due():
            await self._check_all()
        elif addresses := self._addresses_to_check():
            await self._check_addresses(addresses)

    async def _wait_for_work(self) -> None:
        now = time.monotonic()
        until_due = (self._next_full_check - datetime.now(UTC)).total_seconds()
        if self.listener.has_gap:
            until_due = min(until_due, self._last_full + MIN_FULL_INTERVAL - now)
        timeout = min(until_due, self._own_changes.seconds_until_due(now), MAX_WAIT)
        if timeout > 0 and not self.listener.changed:
            try:
                async with asyncio.timeout(timeout):
                    await self.listener.wake.wait()
            except TimeoutError:
                return
        self.listener.wake.clear()
        if self.listener.changed:
            await asyncio.sleep(max(DEBOUNCE, self._last_partial + MIN_INTERVAL - time.monotonic()))

    def _is_full_check_due(self) -> bool:
        missed = self.listener.has_gap and time.monotonic() >= self._last_full + MIN_FULL_INTERVAL
        return missed or datetime.now(UTC) >= self._next_full_check

    def _addresses_to_check(self) -> set[Address]:
        asked = self.listener.take_changed() | self._own_changes.due(time.monotonic())
        below = (
            {a for a in self._state.resources if a.parent in asked}
            if self._state is not None and asked
            else set[Address]()
        )
        return asked | below

    # --- checks ----------------------------------------------------------------------------------------------

    async def _check_all(self) -> None:
        begun = time.monotonic()
        self.listener.has_gap = False
        self._schedule_next()
        try:
            await self._reload_workspace()
            drift, held = await self._check_with_state(None)
        except JsplanError as error:
            await self._record_failure(error, begun)
            return
        self._last_full = time.monotonic()
        self._record_success(drift, begun)
        found = self._current_alerts(drift)
        news = {s.id for s in self.register.select_new(found) if s.kind in _KINDS_TO_CONFIRM}
        self._own_changes.recheck_now(
            {Address.parse(s.address) for s in found if s.id in news}, time.monotonic()
        )
        unread = _unread_names(drift)
        self._update_alerts(
            drift,
            [
                s
                for s in found
                if s.id not in news and not (s.kind == "interrupted" and held(s.address))
            ],
            lambda s: (
                s.kind != "replication"
                and not {s.id, s.domain, s.address} & (news | unread)
                and not held(s.address)
            ),
        )
        self._start_replication_check()

    async def _check_addresses(self, asked: set[Address]) -> None:
        begun = time.monotonic()
        try:
            drift, held = await self._check_with_state(asked)
        except JsplanError:
            await self._retry_partial(asked, begun)
            return
        self._last_partial, self._failed_partials = time.monotonic(), 0
        self._record_duration("partial", begun, done=True)
        unread, names = _unread_names(drift), {str(a) for a in asked}
        again = {a for a in asked if held(str(a))}
        self._own_changes.clear(asked - again)
        self._own_changes.postpone(
            again | {a for a in asked if a.domain in unread}, time.monotonic()
        )
        found = [
            s
            for s in build_alerts(drift, self._options.notify, self._describe)
            if s.kind in _KINDS_TO_CONFIRM and not held(s.address)
        ]
        quiet = {a for a in asked - again if str(a) not in {s.address for s in found}}
        seen = names - unread - {str(a) for a in asked if a.domain in unread}
        self._update_alerts(
            self._merge_partial(drift, seen),
            found,
            lambda s: s.kind in _KINDS_TO_CONFIRM and s.address in seen and not held(s.address),
        )
        self.listener.forget_actors(asked - again)
        if self._outputs.metrics is not None and (
            own := sum(self._own_changes.take_own_change(a) for a in quiet)
        ):
            self._outputs.metrics.count_advisory(own=own)

    async def _check_with_state(
        self, asked: Collection[Address] | None
    ) -> tuple[Drift, Callable[[str], bool]]:
        """A look, and of which addresses it cannot be trusted, since an apply of ours was at work. Raises JsplanError."""
        world = self.context
        if self._state is None:
            self._state = await world.backend.read()
        world.state = before = self._state
        pool = self._pool = self._pool or open_pool(world, read_only=True, guarded=True)
        options = DriftOptions(replication=False)
        if asked is None:
            drift = await check_drift(world, pool, options, NullObserver())
        else:
            drift = await check_addresses(world, pool, asked, options)
        self._state = await world.backend.read()
        if pool.failures or any(link.is_closed for link in pool.connections.values()):
            await self._close_pool()
        return drift, self._own_changes.untrusted_between(before, self._state, time.monotonic())

    def _start_replication_check(self) -> None:
        """Look at mirrors and sources beside everything else: at one that does not follow it takes several looks."""
        if self._replication_task is None:
            self._state_before_replication = self._state
            self._replication_task = asyncio.create_task(
                self._check_replication(replace(self.context))
            )
            self._replication_task.add_done_callback(lambda _: self.listener.wake.set())

    async def _check_replication(self, world: Context) -> Drift | None:
        """None where it cannot be known now: the next full check looks again."""
        try:
            async with open_pool(world, read_only=True, guarded=True) as pool:
                return await check_replication(world, pool)
        except JsplanError:
            return None

    async def _take_replication_result(self, task: asyncio.Task[Drift | None]) -> None:
        """Take in what became of the flows, unless an apply of ours was at work meanwhile."""
        self._replication_task = None
        before, found = self._state_before_replication, task.result()
        try:
            self._state = now = await self.context.backend.read()
        except JsplanError:
            return
        if found is None or before is None or has_changed_between(before, now):
            return
        self._last_replication = found
        unknown = {str(flow["to"]) for flow in found.replication if flow["healthy"] is None}
        self._update_alerts(
            self._outputs.drift or found,
            [
                s
                for s in build_alerts(found, self._options.notify, self._describe)
                if s.kind == "replication"
            ],
            lambda s: s.kind == "replication" and s.address not in unknown,
        )

    async def _reload_workspace(self) -> None:
        """Take in what the files say now. Raises ConfigError."""
        try:
            fresh = await self._file_worker.run(self._reload_context, RELOAD_TIMEOUT)
        except TimeoutError:
            raise JsplanError(
                f"the files of the workspace could not be read within {RELOAD_TIMEOUT:g} s",
                hint="Does their disk answer?",
            ) from None
        if fresh is None:
            return
        await self._close_pool()
        old, self.context, self._state = self.context, fresh, None
        await old.backend.close()
        self.listener.update_workspace(fresh.workspace, fresh.environ)

    async def _close_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    # --- what came of it -------------------------------------------------------------------------------------

    def _current_alerts(self, drift: Drift) -> list[Alert]:
        """What is found, without domains that are away for no longer than the grace."""
        now, grace = time.monotonic(), self._options.grace / SECOND
        missing = {str(d["domain"]) for d in drift.offline if not d["excused"]}
        self._offline_since = {domain: self._offline_since.get(domain, now) for domain in missing}
        young = {domain for domain, since in self._offline_since.items() if now < since + grace}
        if young:
            self._schedule_within(
                min(self._offline_since[domain] for domain in young) + grace - now
            )
        found = build_alerts(drift, self._options.notify, self._describe)
        return [
            s if s.kind != "offline" else self._conceal_alert(s)
            for s in found
            if s.kind != "offline" or s.address not in young
        ]

    def _update_alerts(
        self, drift: Drift, found: Iterable[Alert], covered: Callable[[Alert], bool]
    ) -> None:
        notices = self.register.update(found, covered, format_timestamp(), self.listener.actors)
        self._publish_report(drift)
        self._outputs.publish(notices)

    def _publish_report(self, drift: Drift) -> None:
        drift = self._with_replication(drift)
        if self._outputs.metrics is not None:
            self._outputs.metrics.set_alerts(item.alert for item in self.register.open.values())
        self._outputs.update_report(drift)

    def _with_replication(self, drift: Drift) -> Drift:
        """With what was found last about mirrors and sources in it."""
        others = [m for m in drift.mutes if m.get("kind") != "replication"]
        muted = [m for m in self._last_replication.mutes if m.get("kind") == "replication"]
        return replace(
            drift, replication=self._last_replication.replication, mutes=[*others, *muted]
        )

    def _merge_partial(self, drift: Drift, names: set[str]) -> Drift:
        """The last full look with what a glance found in its place."""
        full = self._outputs.drift
        if full is None:
            return drift
        return replace(
            full,
            timestamp=drift.timestamp,
            resource_drift=sorted(
                [
                    *(r for r in full.resource_drift if r.address not in names),
                    *drift.resource_drift,
                ],
                key=_address_of,
            ),
            unmanaged=sorted(
                [*(u for u in full.unmanaged if u.address not in names), *drift.unmanaged],
                key=_address_of,
            ),
            mutes=[*(m for m in full.mutes if m["address"] not in names), *drift.mutes],
            declared_at=full.declared_at | drift.declared_at,
        )

    def _record_success(self, drift: Drift, begun: float) -> None:
        if self._outputs.health.last_checked is None:
            self._on_ready()
        self._failing_since, self._outputs.health.last_checked = None, time.monotonic()
        self._outputs.report_check(None)
        self._record_duration("full", begun, done=True)
        if self._outputs.metrics is not None:
            self._outputs.metrics.observe_full_check(
                self._with_replication(drift), self.context.workspace.domains, time.time()
            )

    async def _retry_partial(self, asked: set[Address], begun: float) -> None:
        """A glance that could not be done: once more, and in the end a full check, which says why."""
        self._record_duration("partial", begun, done=False)
        await self._close_pool()
        self._last_partial, self._failed_partials = time.monotonic(), self._failed_partials + 1
        if self._failed_partials > 3:
            self._failed_partials, self.listener.has_gap = 0, True
            self._own_changes.clear(asked)
        else:
            self._own_changes.postpone(asked, time.monotonic())

    async def _record_failure(self, error: JsplanError, begun: float) -> None:
        """A full check that could not be done is tried again soon, and told once it fails for longer than the grace."""
        self._record_duration("full", begun, done=False)
        await self._close_pool()
        now = self._last_full = time.monotonic()
        since, times = self._failing_since or (begun, 0)
        self._failing_since = (since, times + 1)
        self._schedule_within(min(RETRY[0] * 2**times, RETRY[1]))
        reason = conceal(str(error))
        self._outputs.report_check(reason)
        if now - since >= self._options.grace / SECOND and "check" in self._options.notify:
            name = f"{self.register.workspace}.{self.register.environment or ''}"
            self._outputs.publish(
                self.register.update(
                    [check_failed_alert(name, reason)],
                    lambda s: s.address == WORKSPACE,
                    format_timestamp(),
                )
            )

    def _conceal_alert(self, situation: Alert) -> Alert:
        return replace(situation, says=conceal(situation.says))

    def _record_duration(self, scope: str, begun: float, *, done: bool) -> None:
        if self._outputs.metrics is not None:
            self._outputs.metrics.observe_check(scope, time.monotonic() - begun, done=done)

    def _schedule_next(self) -> None:
        self._next_full_check = self._schedule.next_after(datetime.now(UTC))
        if self._outputs.metrics is not None:
            self._outputs.metrics.set_next_check(self._next_full_check.timestamp())

    def _schedule_within(self, seconds: float) -> None:
        self._next_full_check = min(
            self._next_full_check, datetime.now(UTC) + timedelta(seconds=max(0.0, seconds))
        )


def _unread_names(drift: Drift) -> set[str]:
    """Domains and addresses that the look says nothing about."""
    return {str(domain["domain"]) for domain in drift.offline} | {
        item.address for item in drift.deferred
    }


def _address_of(item: object) -> str:
    return str(getattr(item, "address", ""))
