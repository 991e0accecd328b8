"""The drift job: full checks by schedule, partial checks by advisories, and alerts.

Changes by an apply of this workspace are no drift. The state shows them: a check counts only if the
state was equal before and after it, and not for what a running apply has begun. Doubtful addresses
are checked again before they are reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.context import Context, Session, open_pool
from jsplan.documents.drift import Drift
from jsplan.drift.check import check_addresses, check_drift, check_replication
from jsplan.drift.service.advisories import AdvisoryListener
from jsplan.drift.service.alerts import (
    WORKSPACE,
    AlertRegister,
    DescribeChange,
    Finding,
    build_alerts,
    check_failed_alert,
    group_unmanaged,
)
from jsplan.drift.service.options import Schedule, WatchOptions
from jsplan.drift.service.outputs import DriftOutputs
from jsplan.drift.service.worker import Worker, cancel_and_wait
from jsplan.drift.watermarks import WatermarkFile
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.options import DriftOptions, NullObserver
from jsplan.plan_inputs import is_being_applied
from jsplan.secrets import conceal
from jsplan.state import State
from jsplan.units import SECOND, format_timestamp

Result = TypeVar("Result")

#: Seconds in which advisories of one change may arrive, and between two partial checks.
DEBOUNCE: Final = 0.02
MIN_INTERVAL: Final = 0.1
#: Seconds until a failed check is retried, and one of doubtful addresses: first and maximum.
RETRY: Final = (1.0, 30.0)
RECHECK: Final = (0.25, 2.0)
#: Failed partial checks after which everything is checked, which reports why.
MAX_FAILED_PARTIALS: Final = 3
#: Seconds between two full checks at least.
MIN_FULL_INTERVAL: Final = 1.0
#: Seconds of one turn of the loop at most, so that a changed system clock is noticed.
MAX_WAIT: Final = 30.0
#: Seconds for reading the files of the workspace, or writing the watermarks.
RELOAD_TIMEOUT: Final = 60.0
#: Kinds that need a second check, since the first may have been in the middle of a change.
_KINDS_TO_CONFIRM: Final = ("changed", "missing", "unmanaged")


class DriftChecker:
    """One job. `reload_context` reads the files again and returns a context if they changed.

    `on_ready` is called once, after the first full check.
    """

    def __init__(
        self,
        context: Context,
        options: WatchOptions,
        outputs: DriftOutputs,
        listener: AdvisoryListener,
        describe: DescribeChange,
        reload_context: Callable[[], Context | None],
        on_ready: Callable[[], None],
    ) -> None:
        self.context = context
        self.listener = listener
        self.register = AlertRegister(context.workspace.name, context.workspace.environment)
        self._options = options
        self._outputs = outputs
        self._describe = describe
        self._reload_context = reload_context
        self._on_ready = on_ready
        self._file_worker = Worker("workspace")
        self._marks = WatermarkFile(context.workspace).read()
        self._schedule: Schedule = options.schedule
        self._state: State | None = None
        # Addresses to check, not before this time, and the pause after a check of doubtful ones.
        self._waiting: set[Address] = set()
        self._partial_at = 0.0
        self._pause = RECHECK[0]
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

    # --- the loop ---

    async def run(self, stop: asyncio.Event) -> None:
        """Check until stopped. A running check is cancelled then: it only reads."""
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
        """Wait for work, and do it."""
        await self._wait_for_work()
        self._outputs.health.last_beat = time.monotonic()
        if self._replication_task is not None and self._replication_task.done():
            await self._take_replication_result(self._replication_task)
        if self._is_full_check_due():
            await self._check_all()
        elif self._waiting and time.monotonic() >= self._partial_at:
            addresses, self._waiting = self._waiting, set()
            await self._check_addresses(addresses)

    async def _wait_for_work(self) -> None:
        now = time.monotonic()
        until_due = (self._next_full_check - datetime.now(UTC)).total_seconds()
        if self.listener.has_gap:
            until_due = min(until_due, self._last_full + MIN_FULL_INTERVAL - now)
        if self._waiting:
            until_due = min(until_due, self._partial_at - now)
        if until_due > 0 and not self.listener.changed:
            try:
                async with asyncio.timeout(min(until_due, MAX_WAIT)):
                    await self.listener.wake.wait()
            except TimeoutError:
                return
        self.listener.wake.clear()
        if self.listener.changed:
            await asyncio.sleep(max(DEBOUNCE, self._last_partial + MIN_INTERVAL - time.monotonic()))
            self._wait_for_check(self.listener.take_changed())

    def _is_full_check_due(self) -> bool:
        missed = self.listener.has_gap and time.monotonic() >= self._last_full + MIN_FULL_INTERVAL
        return missed or datetime.now(UTC) >= self._next_full_check

    def _wait_for_check(self, changed: set[Address]) -> None:
        """Check these, and the consumers of these, when the next partial check is due."""
        known = self._state.resources if self._state is not None else {}
        self._waiting |= changed | {a for a in known if a.parent in changed}

    def _check_again(self, addresses: Iterable[Address]) -> None:
        """Check these again, with a growing pause as long as there are some."""
        doubtful = set(addresses)
        if doubtful:
            self._partial_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, RECHECK[1]) if doubtful else RECHECK[0]
        self._waiting |= doubtful

    # --- checks ---

    async def _check_all(self) -> None:
        begun = time.monotonic()
        self.listener.has_gap = False
        self._schedule_next()
        try:
            await self._reload_workspace()
            drift, is_untrusted = await self._check_with_state(None)
        except JsplanError as error:
            await self._record_failure(error, begun)
            return
        self._last_full = time.monotonic()
        self._record_success(drift, begun)
        found = self._current_alerts(drift)
        unconfirmed = {s.id for s in self.register.select_new(found) if s.kind in _KINDS_TO_CONFIRM}
        self._waiting |= {Address.parse(s.address) for s in found if s.id in unconfirmed}
        unread = _unread_names(drift)
        self._update_alerts(
            [
                s
                for s in found
                if s.id not in unconfirmed
                and not (s.kind == "interrupted" and is_untrusted(s.address))
            ],
            lambda s: (
                s.kind != "replication"
                and not {s.id, s.domain, s.address} & (unconfirmed | unread)
                and not is_untrusted(s.address)
            ),
        )
        self._start_replication_check()

    async def _check_addresses(self, addresses: set[Address]) -> None:
        begun = time.monotonic()
        try:
            drift, is_untrusted = await self._check_with_state(addresses)
        except JsplanError:
            await self._retry_partial(addresses, begun)
            return
        self._last_partial, self._failed_partials = time.monotonic(), 0
        self._record_duration("partial", begun, done=True)
        unread, names = _unread_names(drift), {str(a) for a in addresses}
        untrusted = {a for a in addresses if is_untrusted(str(a))}
        self._check_again(a for a in addresses if a in untrusted or a.domain in unread)
        found = [
            s
            for s in build_alerts(drift, self._options.notify, self._describe)
            if s.kind in _KINDS_TO_CONFIRM and not is_untrusted(s.address)
        ]
        seen = names - unread - {str(a) for a in addresses if a.domain in unread}
        self._update_alerts(
            found,
            lambda s: (
                s.kind in _KINDS_TO_CONFIRM and s.address in seen and not is_untrusted(s.address)
            ),
        )
        self.listener.forget_actors(addresses - untrusted)

    async def _check_with_state(
        self, addresses: Collection[Address] | None
    ) -> tuple[Drift, Callable[[str], bool]]:
        """Check, and return a predicate for addresses that a running apply may have changed.

        None checks everything. Raises JsplanError.
        """
        context = self.context
        if self._state is None:
            self._state = await context.backend.read()
        context.state = before = self._state
        pool = self._pool = self._pool or open_pool(context, read_only=True, guarded=True)
        session, options = Session(context, pool, NullObserver()), DriftOptions(replication=False)
        if addresses is None:
            drift = await check_drift(session, options, self._marks)
            await self._use_disk(self._marks.save, "the watermarks could not be written")
        else:
            drift = await check_addresses(session, addresses, options)
        self._state = await context.backend.read()
        if pool.failures or any(each.is_closed for each in pool.connections.values()):
            await self._close_pool()
        begun = self._state.pending or self._state.replacements
        running = bool(begun) and await is_being_applied(context)
        return drift, find_doubtful(before, self._state, is_running=running)

    def _start_replication_check(self) -> None:
        """Check mirrors and sources in the background: a stalled one takes several samples."""
        if self._replication_task is None:
            self._state_before_replication = self._state
            self._replication_task = asyncio.create_task(
                self._check_replication(replace(self.context))
            )
            self._replication_task.add_done_callback(lambda _: self.listener.wake.set())

    async def _check_replication(self, context: Context) -> Drift | None:
        """Return None if it cannot be known now: the next full check tries again."""
        try:
            async with open_pool(context, read_only=True, guarded=True) as pool:
                return await check_replication(Session(context, pool, NullObserver()))
        except JsplanError:
            return None

    async def _take_replication_result(self, task: asyncio.Task[Drift | None]) -> None:
        """Use the result of a replication check, unless an apply of this workspace ran."""
        self._replication_task = None
        before, found = self._state_before_replication, task.result()
        try:
            self._state = now = await self.context.backend.read()
        except JsplanError:
            return
        if found is None or before is None or now.pending or has_changed_between(before, now):
            return
        self._last_replication = found
        unknown = {str(flow["to"]) for flow in found.replication if flow["healthy"] is None}
        self._update_alerts(
            [
                s
                for s in build_alerts(found, self._options.notify, self._describe)
                if s.kind == "replication"
            ],
            lambda s: s.kind == "replication" and s.address not in unknown,
        )

    async def _reload_workspace(self) -> None:
        """Load changed files. Raises ConfigError."""
        reloaded = await self._use_disk(
            self._reload_context, "the files of the workspace could not be read"
        )
        if reloaded is None:
            return
        await self._close_pool()
        old, self.context, self._state = self.context, reloaded, None
        if reloaded.workspace.drift.watermarks != old.workspace.drift.watermarks:
            self._marks = WatermarkFile(reloaded.workspace).read()
        await old.backend.close()
        self.listener.update_workspace(reloaded.workspace, reloaded.environ)

    async def _use_disk(self, work: Callable[[], Result], failure: str) -> Result:
        """Read or write files, in bounded time. Raises what `work` raises, and JsplanError."""
        try:
            return await self._file_worker.run(work, RELOAD_TIMEOUT)
        except TimeoutError:
            raise JsplanError(
                f"{failure} within {RELOAD_TIMEOUT:g} s", hint="Does their disk answer?"
            ) from None

    async def _close_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    # --- results ---

    def _current_alerts(self, drift: Drift) -> list[Finding]:
        """Return the alerts, without domains that are offline for less than the grace."""
        now, grace = time.monotonic(), self._options.grace / SECOND
        missing = {str(d["domain"]) for d in drift.offline if not d["excused"]}
        self._offline_since = {domain: self._offline_since.get(domain, now) for domain in missing}
        recent = {domain for domain, since in self._offline_since.items() if now < since + grace}
        if recent:
            self._schedule_within(
                min(self._offline_since[domain] for domain in recent) + grace - now
            )
        found = build_alerts(drift, self._options.notify, self._describe)
        return [
            s if s.kind != "offline" else replace(s, summary=conceal(s.summary))
            for s in found
            if s.kind != "offline" or s.address not in recent
        ]

    def _update_alerts(self, found: Iterable[Finding], covered: Callable[[Finding], bool]) -> None:
        events = self.register.update(found, covered, format_timestamp(), self.listener.actors)
        if self._outputs.metrics is not None:
            self._outputs.metrics.set_alerts(item.alert for item in self.register.open.values())
        self._outputs.publish(group_unmanaged(events))

    def _with_replication(self, drift: Drift) -> Drift:
        """Return the document with the last replication results."""
        others = [m for m in drift.mutes if m.get("kind") != "replication"]
        muted = [m for m in self._last_replication.mutes if m.get("kind") == "replication"]
        return replace(
            drift, replication=self._last_replication.replication, mutes=[*others, *muted]
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

    async def _retry_partial(self, addresses: set[Address], begun: float) -> None:
        """Retry a failed partial check; after several, make a full check, which reports why."""
        self._record_duration("partial", begun, done=False)
        await self._close_pool()
        self._last_partial, self._failed_partials = time.monotonic(), self._failed_partials + 1
        if self._failed_partials > MAX_FAILED_PARTIALS:
            self._failed_partials, self.listener.has_gap = 0, True
        else:
            self._check_again(addresses)

    async def _record_failure(self, error: JsplanError, begun: float) -> None:
        """Retry a failed full check soon, and open an alert when it fails beyond the grace."""
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
    """Return the domains and addresses that the check could not read."""
    return {str(domain["domain"]) for domain in drift.offline} | {
        item.address for item in drift.deferred
    }


def find_doubtful(before: State, after: State, *, is_running: bool) -> Callable[[str], bool]:
    """Return a predicate for addresses, from the states before and after a check.

    `is_running`: a process holds the lock. What it has begun is doubtful until it ends, or dies.
    """
    if has_changed_between(before, after):
        return lambda _: True
    busy = {*after.pending, *after.replacements} if is_running else set[str]()
    return lambda address: address in busy or _parent_address(address) in busy


def has_changed_between(before: State, after: State) -> bool:
    """Return True if an apply changed the state between two reads, or began a step."""
    return before.serial != after.serial or any(
        getattr(before, name) != getattr(after, name)
        for name in ("resources", "pending", "replacements")
    )


def _parent_address(address: str) -> str:
    try:
        return str(Address.parse(address).parent)
    except ValueError:
        return ""
