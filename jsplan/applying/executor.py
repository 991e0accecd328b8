"""Carries out exactly the steps of a plan. It knows no JetStream rules: the plan says each call and what must hold.

Steps run as soon as what they depend on is done, a bounded number at once per domain. Each one is recorded
before its call and after it. What is shown of it is left to whoever takes the events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jsplan.address import Address
from jsplan.applying.preconditions import outgrown
from jsplan.applying.readback import describe, not_kept
from jsplan.applying.remeasure import Deletions
from jsplan.documents.apply import ApplyEvent, ApplyStarted, StepFinished, StepResult, StepStarted, StepStatus
from jsplan.documents.plan import Plan, Step
from jsplan.errors import ApiError, ApiTimeoutError, JsplanError, NoRespondersError, NotPermittedError, ServerRefusedError, StateError
from jsplan.facts.live import LiveObject
from jsplan.facts.survey import read_object
from jsplan.jetstream import DomainApi
from jsplan.state import Entry, LocalBackend, State

#: Writes may take longer than reads: a restore or a large trim. Seconds.
WRITE_TIMEOUT = 30.0
#: How long a step waits for a cluster that is moving or scaling the stream. Seconds.
SETTLE_TIMEOUT = 600.0
INTERRUPTED = "interrupted before it began"


class StepFailed(JsplanError):
    """One step could not be done; `status` is `failed`, or `unknown` when the call was sent and no answer came."""

    def __init__(self, message: str, status: StepStatus = "failed") -> None:
        super().__init__(message)
        self.status: StepStatus = status


class NotBegun(Exception):
    """A step was not sent after all: Ctrl-C came while its precondition was read, or its domain went away."""


@dataclass
class Execution:
    """One run of a plan's steps. `stop` is set by Ctrl-C: calls under way are finished, no new one begins.

    `apis` has the API of each domain that the plan touches and that is reachable now. `lost` are domains that
    stopped answering meanwhile, with what they said last: each is waited for once, not once per step.
    `failure` is why state could not be written any more: then nothing more begins either.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    backend: LocalBackend
    state: State
    emit: Callable[[ApplyEvent], None]
    stop: asyncio.Event
    parallelism: int = 10
    results: dict[str, StepResult] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    failure: StateError | None = None
    _prints: dict[str, str] = field(default_factory=dict)
    _deletions: Deletions = field(init=False)

    def __post_init__(self) -> None:
        self._deletions = Deletions(self.plan, self.apis)

    async def run(self) -> list[StepResult]:
        """Do every step whose dependencies are done, `parallelism` of them at once per domain; results in the plan's order."""
        self.emit(ApplyStarted(len(self.plan.steps)))
        slots = {key: asyncio.Semaphore(max(1, self.parallelism)) for key in {_domain(step) for step in self.plan.steps}}
        waiting = {step.id: asyncio.Event() for step in self.plan.steps}

        async def one(step: Step) -> None:
            for other in step.depends_on:
                await waiting[other].wait()
            async with slots[_domain(step)]:
                await self._settle(step)
            waiting[step.id].set()

        try:
            async with asyncio.TaskGroup() as group:
                for step in self.plan.steps:
                    group.create_task(one(step))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [self.results[step.id] for step in self.plan.steps]

    async def _settle(self, step: Step) -> None:
        """Run or skip one step and record how it ended; only a bug is raised."""
        started = time.monotonic()
        if (reason := self._why_skipped(step)) is not None:
            self._end(step, "skipped", reason, started)
            return
        self.emit(StepStarted(step.id, step.address, step.title))
        try:
            await self._do(step)
        except NotBegun:
            self._end(step, "skipped", self._why_skipped(step), started)
        except StepFailed as error:
            self._end(step, error.status, str(error), started)
        except StateError as error:
            self.failure = error
            self._end(step, "unknown", str(error), started)
        except ApiError as error:
            self._end(step, "failed", f"{error}. {error.hint}" if error.hint else str(error), started)
        else:
            self._end(step, "done", None, started)

    def _why_skipped(self, step: Step) -> str | None:
        blocker = next((d for d in step.depends_on if self.results[d].status != "done"), None)
        domain = _domain(step)
        if self.stop.is_set():
            return INTERRUPTED
        if self.failure is not None:
            return "state cannot be written any more"
        if blocker is not None:
            return f"{self.results[blocker].address} was not done"
        if step.op != "state.forget" and domain in self.lost:
            return f"domain {domain} went away: {self.lost[domain]}"
        if step.op != "state.forget" and domain not in self.apis:
            return f"domain {domain} is away"
        return None

    def _end(self, step: Step, status: StepStatus, error: str | None, started: float) -> None:
        result = StepResult(step.id, step.address, step.op, status, error)
        self.results[step.id] = result
        if error != INTERRUPTED:
            self.emit(StepFinished(result, step.title, time.monotonic() - started))

    # --- one step --------------------------------------------------------------------------------------------

    async def _do(self, step: Step) -> None:
        address = Address.parse(step.address)
        if step.op == "state.forget":
            await self._record(*_gone(step))
            return
        api = self.apis[address.domain]
        live = await self._check(step, api, address)
        if step.request is None:
            await (self._remember(step, live) if live is not None and step.record else self._record({"end": step.address}))
            return
        if self.stop.is_set():
            raise NotBegun
        begun = {"id": step.id, "address": step.address, "op": step.op, "expect": step.expect, "record": step.record}
        try:
            await self._record({"begin": begun}, durable=False)
        except StateError as error:
            self.failure = error
            raise StepFailed(f"{error}; nothing was written") from None
        await self._call(step, api, address)
        await self._read_back(step, api, address)

    async def _check(self, step: Step, api: DomainApi, address: Address) -> LiveObject | None:
        """The precondition, once more, just before the write (promise 2)."""
        try:
            await self._settled(step, api)
            live = await read_object(api, address)
            more = outgrown(step, live) or await self._deletions.more_than_planned(step, live)
        except (NoRespondersError, ApiTimeoutError) as error:
            self.lost.setdefault(address.domain, str(error))
            raise NotBegun from None
        wanted = step.precondition.get("fingerprint") or self._prints.get(step.precondition.get("after_step", ""))
        found = live.fingerprint if live else "absent"
        if wanted is not None and found != wanted:
            raise StepFailed(f"{step.address} was changed by somebody else since it was planned; nothing was written")
        if more is not None:
            raise StepFailed(f"{step.address} {more}; nothing was written")
        return live

    async def _settled(self, step: Step, api: DomainApi) -> None:
        """Wait, where the step asks for it, until a cluster has done with a stream what it was told before."""
        stream, end, pause = step.precondition.get("settled"), time.monotonic() + SETTLE_TIMEOUT, 0.05
        while stream and (live := await read_object(api, Address.parse(stream))) is not None and not live.settled:
            if self.stop.is_set():
                raise NotBegun
            if time.monotonic() > end:
                raise StepFailed(f"{stream} is still being moved or scaled after {SETTLE_TIMEOUT:.0f}s; the next plan goes on from there")
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.5)

    async def _call(self, step: Step, api: DomainApi, address: Address) -> None:
        assert step.request is not None
        try:
            await self._answered(api, step.request["api"], step.request["payload"])
        except (ServerRefusedError, NotPermittedError):
            await self._record({"end": step.address}, durable=False)
            raise
        except NoRespondersError as error:
            await self._record({"end": step.address}, durable=False)
            raise StepFailed(f"{error}; nothing was written") from None
        except ApiError as error:
            if not await self._arrived(step, api, address):
                raise StepFailed(f"{error}; whether it was carried out is not known, the next plan will tell", "unknown") from None

    async def _answered(self, api: DomainApi, request: str, payload: dict[str, Any] | None) -> None:
        """Wait for one write, at most `WRITE_TIMEOUT`, and for as long only as the domain answers anything at all."""
        call = asyncio.ensure_future(api.request(request, payload, timeout=WRITE_TIMEOUT))
        try:
            while not (await asyncio.wait({call}, timeout=api.link.target.timeout))[0]:
                await self._still_there(api)
            call.result()
        finally:
            call.cancel()

    async def _still_there(self, api: DomainApi) -> None:
        try:
            await api.request("INFO")
        except ApiError as error:
            self.lost.setdefault(api.domain.key, str(error))
            raise ApiTimeoutError(str(error)) from None

    async def _arrived(self, step: Step, api: DomainApi, address: Address) -> bool:
        """Whether a call without an answer was carried out after all."""
        if address.domain in self.lost:
            return False
        try:
            live = await read_object(api, address)
        except ApiError as error:
            self.lost.setdefault(address.domain, str(error))
            return False
        if step.op.endswith(".delete"):
            return live is None
        before = step.precondition.get("fingerprint")
        return live is not None and live.fingerprint != before and not not_kept(step, live)

    async def _read_back(self, step: Step, api: DomainApi, address: Address) -> None:
        """Prove that the server kept what was sent, and remember what it has now."""
        try:
            live = await read_object(api, address)
        except ApiError as error:
            raise StepFailed(f"written, but it could not be read back: {error}", "unknown") from None
        if step.op.endswith(".delete"):
            await self._record(*_gone(step))
            if live is not None:
                raise StepFailed(f"{step.address} is there again: somebody else made it at the same moment")
            return
        if live is None:
            await self._record({"end": step.address})
            raise StepFailed(f"{step.address} is gone again: somebody else deleted it at the same moment")
        self._prints[step.id] = live.fingerprint
        lost = not_kept(step, live)
        await (self._remember(step, live, lost) if step.record else self._record({"end": step.address}, durable=False))
        if lost:
            raise StepFailed(f"{step.address}: the server did not keep {describe(step, live, lost)}")

    async def _remember(self, step: Step, live: LiveObject, lost: Collection[str] = ()) -> None:
        """Put the object into state. What the server did not keep counts as not applied, so that the next plan shows it."""
        assert step.record is not None
        record = step.record
        entry = Entry(
            config=live.config, declared={name: value for name, value in record["declared"].items() if name not in lost},
            created=live.created, origin=record["origin"], prevent_destroy=record["prevent_destroy"], depends_on=record["depends_on"],
            applied_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )  # fmt: skip
        put = {"put": {"address": step.address, "entry": entry.to_json()}}
        await self._record(*_renamed(step), put, durable=step.request is not None)

    async def _record(self, *changes: dict[str, Any], durable: bool = True) -> None:
        self.backend.append(self.state, *changes)
        if durable:
            await self.backend.sync()


def _domain(step: Step) -> str:
    return Address.parse(step.address).domain


def _renamed(step: Step) -> list[dict[str, Any]]:
    """A resource that a `moved` block renamed is dropped under its old name."""
    previous = (step.record or {}).get("previous_address")
    return [{"drop": previous}] if previous else []


def _gone(step: Step) -> list[dict[str, Any]]:
    return [*_renamed(step), {"drop": step.address}]
