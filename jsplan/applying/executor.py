"""Execution of exactly the steps of a plan, which defines each call and its preconditions.

Steps run as soon as their dependencies are done, a bounded number at once per domain (`Schedule`).
It knows no JetStream rules.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jsplan.address import Address
from jsplan.applying.follow_move import follow_move
from jsplan.applying.operations import Operation, group_steps, run_steps
from jsplan.applying.step_context import BeforeWrite, StepContext, StepFailed, StepNotStarted
from jsplan.config.model import ContentFile
from jsplan.documents.apply import (
    ApplyEvent,
    ApplyStarted,
    StepFinished,
    StepResult,
    StepStarted,
    StepStatus,
)
from jsplan.documents.plan import Plan, Step
from jsplan.documents.step_kinds import VERIFY_OP
from jsplan.errors import ApiError, ServerRefusedError, StateError
from jsplan.facts.live import LiveObject
from jsplan.jetstream import DomainApi
from jsplan.resources.error_codes import REFUSAL_HINT, REFUSAL_HINTS
from jsplan.state import Journal, State

INTERRUPTED = "interrupted before it began"
#: Status and error of a step.
Outcome = tuple[StepStatus, str | None]


@dataclass
class Execution:
    """One run of a plan's steps.

    `stop` is set by Ctrl-C: running calls are finished, no new one begins. `apis` has the API of
    each domain that the plan touches and that is reachable now. `running` are the titles of the
    steps that have begun, by id. `before_write` is called right
    before each write (see `StepContext`). `operations` run kinds of steps that only the caller has
    the means for, by `op`. `imports` are objects that were checked and are only taken into state,
    `contents` the values of entries in the files. With `follow` a step that lets a cluster move a
    stream is done when the cluster is; at most `moves` of them run at once per domain.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    backend: Journal
    state: State
    emit: Callable[[ApplyEvent], None]
    stop: asyncio.Event
    parallelism: int = 10
    moves: int = 2
    follow: bool = True
    before_write: BeforeWrite | None = None
    operations: Mapping[str, Operation] = field(default_factory=dict)
    imports: dict[Address, LiveObject] = field(default_factory=dict)
    contents: Mapping[Address, bytes | ContentFile] = field(default_factory=dict)
    results: dict[str, StepResult] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    context: StepContext = field(init=False)

    def __post_init__(self) -> None:
        shared = (self.plan, self.backend, self.state, self.stop, self.apis, self.before_write)
        self.context = StepContext(*shared, self.imports, contents=self.contents)

    @property
    def lost_domains(self) -> dict[str, str]:
        """Domains that stopped answering during the run, with their last error."""
        return self.context.lost_domains

    async def run(self, some: Collection[Step] | None = None) -> list[StepResult]:
        """Run every step whose dependencies are done; return results in the plan's order.

        At most `parallelism` steps run at once per domain (see `Schedule`). With `some`, run only
        those, after their dependencies outside of them; the results then are all results so far.
        """
        chosen = self.plan.steps if some is None else some
        if not self.results:
            self.emit(ApplyStarted(len(self.plan.steps)))
        schedule = Schedule(chosen, self.parallelism, self.moves)

        async def run_to_end(steps: Sequence[Step]) -> None:
            started = time.monotonic()
            outcomes = await self._run_together(steps)
            begin(schedule.release(steps))
            outcomes |= await self._wait_until_durable(steps, outcomes)
            for step in steps:
                (status, error), note = outcomes[step.id], self.context.notes.get(step.id)
                if status == "done" and step.moves_in_cluster and self.follow:
                    status, error, note = await self._follow(step)
                self._record_result(step, status, error, started, note)
            begin(schedule.finish(steps))

        def begin(steps: Iterable[Step]) -> None:
            # Two groups at least, so that the server works on one while the other is compared.
            most = max(1, self.parallelism // 2)
            for together in group_steps(steps, self.operations, most):
                group.create_task(run_to_end(together))

        try:
            async with asyncio.TaskGroup() as group:
                begin(schedule.start())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return self.collect_results()

    def collect_results(self) -> list[StepResult]:
        """Return the results so far, in the plan's order."""
        return [self.results[step.id] for step in self.plan.steps if step.id in self.results]

    def skip(self, steps: Collection[Step], reason: str) -> None:
        """Skip steps that were not started, without an event for each."""
        for step in steps:
            self.results.setdefault(
                step.id, StepResult(step.id, step.address, step.op, "skipped", reason)
            )

    async def _run_together(self, steps: Sequence[Step]) -> dict[str, Outcome]:
        """Run or skip one step, or several that run together. Raises only on a bug."""
        skipped = {s.id: reason for s in steps if (reason := self._skip_reason(s)) is not None}
        begun = [step for step in steps if step.id not in skipped]
        for step in begun:
            self.running[step.id] = step.title
            self.emit(StepStarted(step.id, step.address, step.title))
        failures = await run_steps(self.context, begun, self.operations) if begun else {}
        outcomes: dict[str, Outcome] = {id_: ("skipped", reason) for id_, reason in skipped.items()}
        for step in begun:
            failure = failures.get(step.id)
            try:
                if failure is None and (checks := self.context.check_lines(step)):
                    await self.context.record(*checks, durable=False)
            except StateError as error:
                failure = error
            outcomes[step.id] = ("done", None) if failure is None else self._judge(step, failure)
        return outcomes

    def _judge(self, step: Step, failure: Exception) -> Outcome:
        """Return the status of a step that failed, and why."""
        match failure:
            case StepNotStarted():
                return "skipped", self._skip_reason(step)
            case StepFailed():
                return failure.status, str(failure)
            case StateError():
                self.context.state_failure = failure
                return "unknown", str(failure)
            case ServerRefusedError() if not failure.hint:
                hint = REFUSAL_HINTS.get(failure.err_code, REFUSAL_HINT)
                return "failed", f"{failure}. {hint}."
            case ApiError():
                return "failed", failure.full_text
        raise failure

    async def _follow(self, step: Step) -> tuple[StepStatus, str | None, str | None]:
        """Wait for the cluster: status, error and note of the step, which is already in state."""
        self.running.pop(step.id, None)  # nothing that a Ctrl-C has to wait for
        try:
            return "done", None, await follow_move(self.context, step, self.emit)
        except StepFailed as error:
            return error.status, str(error), None

    async def _wait_until_durable(
        self, steps: Iterable[Step], outcomes: Mapping[str, Outcome]
    ) -> dict[str, Outcome]:
        """Wait until what the steps wrote is on the disk, as steps that depend on them require.

        Their slots are free meanwhile, so many share one wait, whatever `parallelism` is. Returns
        the outcomes that are other ones now.
        """
        written = [s for s in steps if s.request is not None and outcomes[s.id][0] != "skipped"]
        if not written:
            return {}
        try:
            await self.backend.sync()
        except StateError as failure:
            self.context.state_failure = failure
            lost: Outcome = ("unknown", str(failure))
            return {s.id: lost for s in written if outcomes[s.id][0] == "done"}
        return {}

    def _skip_reason(self, step: Step) -> str | None:
        undone = (d for d in step.depends_on if self.results[d].status != "done")
        blocker = next((d for d in undone if not self._is_dependency_optional(step, d)), None)
        is_cutover = step.kind.is_cutover and blocker is None and bool(step.depends_on)
        if self.stop.is_set() and not is_cutover:
            return INTERRUPTED
        if self.context.state_failure is not None:
            return "state can no longer be written"
        if blocker is not None:
            return f"{self.results[blocker].address} was not done"
        if is_cutover:
            return None  # it is finished, or fails and gives the origin its subjects back
        for domain in step.required_domains - {step.domain} if step.op != VERIFY_OP else ():
            if domain in self.lost_domains or domain not in self.apis:
                return f"domain {domain} is offline"
        if step.op != "state.forget" and step.domain in self.lost_domains:
            return f"domain {step.domain} went offline: {self.lost_domains[step.domain]}"
        if step.op != "state.forget" and step.domain not in self.apis:
            return f"domain {step.domain} is offline"
        return None

    def _is_dependency_optional(self, step: Step, other: str) -> bool:
        """Check whether a step may run although another one, in an offline domain, did not."""
        domain = self.results[other].address.partition("/")[0]
        return other in step.optional_if_offline and (
            domain in self.lost_domains or domain not in self.apis
        )

    def _record_result(
        self,
        step: Step,
        status: StepStatus,
        error: str | None,
        started: float,
        note: str | None = None,
    ) -> None:
        self.running.pop(step.id, None)
        result = StepResult(step.id, step.address, step.op, status, error, note)
        self.results[step.id] = result
        if error != INTERRUPTED:
            self.emit(StepFinished(result, step.title, time.monotonic() - started))


# --- the steps that begin next --------------------------------------------------------------------


class Schedule:
    """The order of some steps of a plan. Each method returns the steps that begin now.

    A step holds one of `parallelism` slots of its domain from its begin to `release`. A step that
    lets a cluster move a stream also holds one of `moves` slots of its domain, until `finish`.
    Steps that only verify replication may wait for long, so they take no slot. Dependencies outside
    of these steps are done.
    """

    def __init__(self, steps: Collection[Step], parallelism: int, moves: int = 2) -> None:
        self._steps = steps
        self._parallelism, self._moves = max(1, parallelism), max(1, moves)
        self._waiting_for = dict.fromkeys((step.id for step in steps), 0)
        self._dependents: dict[str, list[Step]] = {}
        for step in steps:
            for other in self._waiting_for.keys() & step.depends_on:
                self._waiting_for[step.id] += 1
                self._dependents.setdefault(other, []).append(step)
        self._ready: dict[str, deque[Step]] = defaultdict(deque)
        self._ready_moves: dict[str, deque[Step]] = defaultdict(deque)
        self._active: Counter[str] = Counter()
        self._moving: Counter[str] = Counter()

    def start(self) -> list[Step]:
        """Begin with the steps that wait for none."""
        return self._begin(step for step in self._steps if not self._waiting_for[step.id])

    def release(self, steps: Iterable[Step]) -> list[Step]:
        """Give the slots of these steps to the next ones. Their dependents wait for `finish`."""
        freed = [step.domain for step in steps if step.op != VERIFY_OP]
        self._active.subtract(freed)
        return [step for domain in dict.fromkeys(freed) for step in self._fill_slots(domain)]

    def finish(self, steps: Iterable[Step]) -> list[Step]:
        """Let the steps begin that waited only for these."""
        begun, ready = list[Step](), list[Step]()
        for step in steps:
            for other in self._dependents.pop(step.id, ()):
                self._waiting_for[other.id] -= 1
                if not self._waiting_for[other.id]:
                    ready.append(other)
            if step.moves_in_cluster:
                self._moving[step.domain] -= 1
                begun += self._fill_slots(step.domain)
        return begun + self._begin(ready)

    def _begin(self, steps: Iterable[Step]) -> list[Step]:
        begun: list[Step] = []
        for step in steps:
            if step.op == VERIFY_OP:
                begun.append(step)
            else:
                waiting = self._ready_moves if step.moves_in_cluster else self._ready
                waiting[step.domain].append(step)
                begun += self._fill_slots(step.domain)
        return begun

    def _fill_slots(self, domain: str) -> list[Step]:
        free = self._parallelism - self._active[domain]
        ready, moves = self._ready[domain], self._ready_moves[domain]
        begun = [
            moves.popleft()
            for _ in range(min(free, len(moves), self._moves - self._moving[domain]))
        ]
        self._moving[domain] += len(begun)
        begun += [ready.popleft() for _ in range(min(free - len(begun), len(ready)))]
        self._active[domain] += len(begun)
        return begun
