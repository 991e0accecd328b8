"""Steps of one request each: check, journal, send, read back, journal.

Steps that create or adopt run together, those of one domain that begin at the same time: each of
these phases is one for all of them, with its requests sent together and its lines journaled in one
write. A step that fails is left out of what follows, and changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.applying.contents import require_planned_value
from jsplan.applying.preconditions import has_no_consumers
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted, closing_lines
from jsplan.applying.transfer.hold import wake_consumers
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, NotPermittedError, ServerRefusedError, StateError
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_infos, run_parallel

#: What ends one step. Anything else is a bug, and ends the apply.
FAILURES: Final = (StepNotStarted, StepFailed, ApiError, StateError)
#: Preconditions that one read of the object and of its stream decides.
_PLAIN_PRECONDITIONS: Final = frozenset({"fingerprint", "parent"})


def may_run_together(step: Step) -> bool:
    """Return True for a step whose check is quick, so that no other one waits for it."""
    return (
        step.kind.runs_together
        and step.precondition.keys() <= _PLAIN_PRECONDITIONS
        and not step.deletions
    )


async def run_requests(context: StepContext, steps: Sequence[Step]) -> dict[str, Exception]:
    """Run one step, or several of one domain that may run together; return failures by step id."""
    batch = _Requests(context, steps)
    await batch.check()
    await batch.record_unwritten()
    if batch.steps:
        await batch.begin()
        await batch.send()
        await batch.verify()
    return batch.failures


class _Requests(Struct):
    """Steps on their way. `steps` are those that have not failed; `live` what they found."""

    context: StepContext
    steps: Sequence[Step]
    failures: dict[str, Exception] = field(default_factory=dict)
    live: dict[str, LiveObject | None] = field(default_factory=dict)

    async def check(self) -> None:
        """Check the precondition of each step, just before its write."""
        context = self.context
        unread = [step for step in self.steps if step.target_address not in context.imports]
        known = dict[Address, LiveObject | None]()

        async def check(step: Step) -> None:
            live = context.imports.pop(step.target_address, None)
            if live is None and step.domain in context.lost_domains:
                raise StepNotStarted
            self.live[step.id] = live or await context.check_precondition(step, known)

        with suppress(StepNotStarted):
            if len(unread) > 1:
                known |= await self._read_preconditions(unread)
        await self._visit(check)

    async def _read_preconditions(self, steps: Iterable[Step]) -> dict[Address, LiveObject | None]:
        """Read together what the preconditions compare; a step reads what is missing alone."""
        parents = {step.target_address: self.context.deciding_parent(step) for step in steps}
        known = await self._read({parent for parent in parents.values() if parent is not None})
        streams = {address: known.get(parent) for address, parent in parents.items() if parent}
        return known | await self._read(
            address
            for address in parents
            if (stream := streams.get(address)) is None or not has_no_consumers(stream)
        )

    async def _read(self, addresses: Iterable[Address]) -> dict[Address, LiveObject | None]:
        """Read objects of one domain together. What is refused is missing in the result.

        Raises StepNotStarted where the domain stops answering.
        """
        wanted, known = list(addresses), dict[Address, LiveObject | None]()
        if not wanted:
            return known
        api = self.context.apis[wanted[0].domain]
        found, absent = await read_infos(api, wanted, lambda _: None)
        known |= found
        known |= dict.fromkeys(absent)

        async def read_alone(address: Address) -> None:
            with suppress(ServerRefusedError, NotPermittedError):
                known[address] = await self.context.read(address)

        await run_parallel(read_alone, (address for address in wanted if address not in known))
        return known

    async def record_unwritten(self) -> None:
        """Record the steps that write to no server. The executor waits for no disk."""
        done = [step for step in self.steps if step.request is None]
        self.steps = [step for step in self.steps if step.request is not None]
        lines = list[dict[str, object]]()
        for step in done:
            live = self.live[step.id]
            try:
                if "before" in (step.params or {}):
                    require_planned_value(step, live)
            except StepFailed as error:
                self.failures[step.id] = error
            else:
                lines += (
                    self.context.entry_lines(step, live)
                    if live is not None and step.record
                    else closing_lines(step, live)
                )
        await self._record(done, lines)

    async def begin(self) -> None:
        """Journal that all of them begin, in one write."""
        steps = ((s, None if s.kind.does == "delete" else self.live[s.id]) for s in self.steps)
        await self._all(self.context.begin_together(steps))

    async def send(self) -> None:
        """Send the requests."""
        if len(self.steps) > 1:
            await self._all(self.context.create_together(self.steps, self._visit_one))
            return

        async def call(step: Step) -> None:
            if step.op == "consumer.pause" and step.request and not step.request["payload"]:
                await wake_consumers(self.context, step, {step.target_address: None})
            await self.context.call(step)

        await self._visit(call)

    async def verify(self) -> None:
        """Read back what was written, compare it with what was sent, and record all in one write.

        The executor waits until the journal is on the disk.
        """
        known: dict[Address, LiveObject | None] = {}
        if len(self.steps) > 1:
            with suppress(StepNotStarted):
                known = await self._read(step.target_address for step in self.steps)
        lines = list[dict[str, object]]()

        async def verify(step: Step) -> None:
            live = known.get(step.target_address) or await self.context.read_back(step)
            ended, failure = self.context.judge_write(step, live)
            lines.extend(ended)
            if failure is not None:
                raise failure

        written = self.steps
        await self._visit(verify)
        await self._record(written, lines)

    async def _record(self, steps: Iterable[Step], lines: Collection[dict[str, object]]) -> None:
        """Journal lines of these steps; without the journal the result of each is unknown."""
        try:
            if lines:
                await self.context.record(*lines, durable=False)
        except StateError as error:
            self.failures |= {step.id: error for step in steps}

    async def _all(self, doing: Awaitable[None]) -> None:
        """Await what fails for all steps or for none."""
        try:
            await doing
        except FAILURES as error:
            self.failures |= {step.id: error for step in self.steps}
        self._leave_out_failed()

    async def _visit(self, visit: Callable[[Step], Awaitable[None]]) -> None:
        """Visit the steps one after the other."""
        for step in self.steps:
            await self._visit_one(step, visit(step))
        self._leave_out_failed()

    async def _visit_one(self, step: Step, doing: Awaitable[None]) -> None:
        try:
            await doing
        except FAILURES as error:
            self.failures[step.id] = error

    def _leave_out_failed(self) -> None:
        self.steps = [step for step in self.steps if step.id not in self.failures]
