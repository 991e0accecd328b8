"""Carries out exactly the steps of a plan. It knows no JetStream rules: the plan says each call and what must hold.

Steps run as soon as what they depend on is done, a bounded number at once per domain. What a step does is left to
`operations`, what is shown of it to whoever takes the events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from jsplan.applying.operations import Operation, run_step
from jsplan.applying.replication_wait import record_pending_checks
from jsplan.applying.step_context import BeforeWrite, StepContext, StepFailed, StepNotStarted
from jsplan.documents.apply import (
    ApplyEvent,
    ApplyStarted,
    StepFinished,
    StepResult,
    StepStarted,
    StepStatus,
)
from jsplan.documents.plan import VERIFY_OP, Plan, Step
from jsplan.errors import ApiError, StateError
from jsplan.jetstream import DomainApi
from jsplan.state import Journal, State

INTERRUPTED = "interrupted before it began"


@dataclass
class Execution:
    """One run of a plan's steps. `stop` is set by Ctrl-C: calls under way are finished, no new one begins.

    `apis` has the API of each domain that the plan touches and that is reachable now. `before_write` is asked right before each
    write (see `StepContext`); `operations` do kinds of steps that only the caller has the means for, by `op`.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    backend: Journal
    state: State
    emit: Callable[[ApplyEvent], None]
    stop: asyncio.Event
    parallelism: int = 10
    before_write: BeforeWrite | None = None
    operations: Mapping[str, Operation] = field(default_factory=dict)
    results: dict[str, StepResult] = field(default_factory=dict)
    context: StepContext = field(init=False)

    def __post_init__(self) -> None:
        self.context = StepContext(
            self.plan, self.apis, self.backend, self.state, self.stop, self.before_write
        )

    @property
    def lost_domains(self) -> dict[str, str]:
        """Domains that stopped answering meanwhile, with what they said last."""
        return self.context.lost_domains

    async def run(self, some: Collection[Step] | None = None) -> list[StepResult]:
        """Do every step whose dependencies are done, `parallelism` of them at once per domain; results in the plan's order.

        Those that only look at copies, and may have to wait for long, hold up nobody.

        With `some` only those, after what they depend on outside of them: the results then are those of everything so far.
        """
        chosen = self.plan.steps if some is None else some
        if not self.results:
            self.emit(ApplyStarted(len(self.plan.steps)))
        slots = {
            key: asyncio.Semaphore(max(1, self.parallelism))
            for key in {step.domain for step in chosen}
        }
        waiting = {step.id: asyncio.Event() for step in chosen}

        async def one(step: Step) -> None:
            for other in step.depends_on:
                if other in waiting:
                    await waiting[other].wait()
            async with nullcontext() if step.op == VERIFY_OP else slots[step.domain]:
                await self._run_step(step)
            waiting[step.id].set()

        try:
            async with asyncio.TaskGroup() as group:
                for step in chosen:
                    group.create_task(one(step))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return self.collect_results()

    def collect_results(self) -> list[StepResult]:
        """The results so far, in the plan's order."""
        return [self.results[step.id] for step in self.plan.steps if step.id in self.results]

    def skip(self, steps: Collection[Step], reason: str) -> None:
        """Give up steps that were not begun, without a word for each."""
        for step in steps:
            self.results.setdefault(
                step.id, StepResult(step.id, step.address, step.op, "skipped", reason)
            )

    async def _run_step(self, step: Step) -> None:
        """Run or skip one step and record how it ended; only a bug is raised."""
        started = time.monotonic()
        if (reason := self._skip_reason(step)) is not None:
            self._record_result(step, "skipped", reason, started)
            return
        self.emit(StepStarted(step.id, step.address, step.title))
        try:
            await run_step(self.context, step, self.operations)
            await record_pending_checks(self.context, step)
        except StepNotStarted:
            self._record_result(step, "skipped", self._skip_reason(step), started)
        except StepFailed as error:
            self._record_result(step, error.status, str(error), started)
        except StateError as error:
            self.context.state_failure = error
            self._record_result(step, "unknown", str(error), started)
        except ApiError as error:
            self._record_result(step, "failed", error.full_text, started)
        else:
            self._record_result(step, "done", None, started)

    def _skip_reason(self, step: Step) -> str | None:
        blocker = next(
            (
                d
                for d in step.depends_on
                if self.results[d].status != "done" and not self._is_dependency_optional(step, d)
            ),
            None,
        )
        if self.stop.is_set():
            return INTERRUPTED
        if self.context.state_failure is not None:
            return "state cannot be written any more"
        if blocker is not None:
            return f"{self.results[blocker].address} was not done"
        if step.op != "state.forget" and step.domain in self.lost_domains:
            return f"domain {step.domain} went away: {self.lost_domains[step.domain]}"
        if step.op != "state.forget" and step.domain not in self.apis:
            return f"domain {step.domain} is away"
        return None

    def _is_dependency_optional(self, step: Step, other: str) -> bool:
        """Check whether a step does not need another one, whose domain is offline, however that one ended."""
        domain = self.results[other].address.partition("/")[0]
        return other in step.optional_if_offline and (
            domain in self.lost_domains or domain not in self.apis
        )

    def _record_result(
        self, step: Step, status: StepStatus, error: str | None, started: float
    ) -> None:
        result = StepResult(step.id, step.address, step.op, status, error)
        self.results[step.id] = result
        if error != INTERRUPTED:
            self.emit(StepFinished(result, step.title, time.monotonic() - started))
