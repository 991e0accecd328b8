"""One origin of a backfill, from whatever an earlier attempt left to the proof that everything has arrived.

Nothing reaches the target but from a sealed staging stream, all of it, one after the other. So what the target has is always a beginning
of what is to come, and whoever takes over asks only for what is not there yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jsplan.backfill.job import promoting, stages
from jsplan.backfill.job.abandoned import Tail, lacks
from jsplan.backfill.job.copying import Copy, copy
from jsplan.backfill.job.oversize import copy_natively
from jsplan.backfill.job.room import growth, shortage
from jsplan.backfill.job.stages import Numbering, Stage, mark_of
from jsplan.backfill.ranges import BEYOND, LISTED, NAMED, Leg, Span, common, minus, sequences, total
from jsplan.backfill.sequence_arrays import without
from jsplan.backfill.windows import Deadline, WindowClosedError
from jsplan.config.model import Backfill
from jsplan.diagnostics import shell_word
from jsplan.documents.backfill import LegResult, MessagesMoved
from jsplan.errors import ApiError, ConnectError, JsplanError, RefusedError
from jsplan.jetstream import DomainApi
from jsplan.topology import Topology
from jsplan.workflows.backfill.bringing import WRITING, Bringing, MayWrite
from jsplan.workflows.backfill.engine import Engine
from jsplan.workflows.backfill.freeze import Ends, refuse_target, require_same
from jsplan.workflows.backfill.missing import Missing, Todo
from jsplan.workflows.backfill.waiting import PERIOD, patiently, until_done
from jsplan.workflows.options import Observer


@dataclass(slots=True)
class Work:
    """What all legs of a run share. `entry_id` names the entry and its workspace on the servers; at `until` copying stops."""

    entry: Backfill
    entry_id: str
    text: str
    topology: Topology
    apis: dict[str, DomainApi]
    engine: Engine
    observer: Observer
    may_write: MayWrite
    allowed: Callable[[str, str], bool]
    until: Deadline | None = None

    def require_open(self) -> None:
        """Raise WindowClosedError where nothing more may be copied now."""
        if self.until is not None:
            self.until.require_open()

    def require_room(self, address: str, info: dict[str, Any], messages: int, size: int) -> bool:
        """Raise RefusedError where a target takes no more, or would delete messages of its own to take these and that is not allowed;
        whether it will. `info` is its STREAM.INFO.
        """
        found = shortage(address, info, messages, size)
        if found is None:
            return False
        if not found.deletes:
            raise RefusedError(f"{found.text}. Nothing was changed", hint="Make room there, or raise its limits.")
        if not self.allowed("DELETES_MESSAGES", address):
            raise RefusedError(
                f"{found.text}. Nothing was changed", hint="To allow it: --allow-hazard " + shell_word(f"DELETES_MESSAGES:{address}")
            )
        return True


class Told:
    """What a result says of several parts that were copied one after the other: gaps and what was too large of all of them."""

    def __init__(self, result: LegResult) -> None:
        self._result = result
        self._gaps = list[list[int]]()
        self._skipped = list[Span]()
        self._gone = 0

    def add(self, skipped: list[Span]) -> None:
        """One more part was brought in, and the result has the gaps of it."""
        result = self._result
        self._gaps, self._gone = [*self._gaps, *result.gaps][:LISTED], self._gone + result.gap_messages
        self._skipped += skipped
        result.gaps, result.gap_messages = self._gaps, self._gone
        result.skipped, result.skipped_count = sequences(self._skipped, NAMED), total(self._skipped)


@dataclass(slots=True)
class LegRun:
    """Carries out one leg. `result` says at any time how far it is."""

    work: Work
    leg: Leg
    ends: Ends
    result: LegResult = field(init=False)
    missing: Missing = field(init=False)
    bringing: Bringing = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        leg, work = self.leg, self.work
        self.result = LegResult(leg.origin, leg.target, leg.first, leg.last)
        self.missing = Missing(leg, self.ends, work.topology)
        text = f"{work.text} {leg.created}"
        self.bringing = Bringing(
            leg, self.ends, work.engine, work.observer, work.may_write, work.entry_id, text, self.result, self._is_whole
        )  # fmt: skip

    # --- the sequence -------------------------------------------------------------------------------------------

    async def run(self) -> LegResult:
        """Copy what is missing and prove it. Raises RefusedError, JsplanError and ApiError; then it can be run again."""
        origin, target = await self._origin_info(), await self._target_info()
        require_same(self.leg, origin, target)
        refuse_target(self.leg.target, target["config"])
        await self._until_done()
        self._warn_of_natives()
        if self.leg.status == "done":  # what is gone on both sides by now was there once
            self.result.gaps, self.result.gap_messages = self.leg.gaps, self.leg.gap_messages
        self.result.seconds = time.monotonic() - self._started
        return self.result

    def _warn_of_natives(self) -> None:
        if count := self.result.natively:
            what = "1 message is" if count == 1 else f"{count:,} messages are"
            self.work.observer.warn(
                f"{what} larger in {self.leg.target} than max_payload, by a line that servers add. Since nats-server 2.12 a leafnode link "
                "closes when such a message is read over it: raise max_payload by 1 KiB on both sides of each link to there"
            )

    async def _until_done(self) -> None:
        async def attempt() -> None:
            await self.bringing.take_over()
            await self._attempt()

        await until_done(attempt, lambda: self.result.copied, self.work.observer, self._title)

    async def _attempt(self) -> None:
        """Copy what is not there yet. Raises ApiError and ConnectError for what another attempt may not meet."""
        self.work.require_open()
        self.result.attempts += 1
        await self._origin_info()  # it may have gone away since, and come back
        todo = await self.missing.todo()
        if not todo.spans:
            return
        await self._require_room_for(todo)
        told = Told(self.result)
        while todo.spans:
            said = await self._part(todo, told)
            todo = todo.cut(said.get("left") or BEYOND, BEYOND)
            if todo.spans and said.get("closed"):  # by the clock of whoever copies, which need not be ours
                raise WindowClosedError("the window closed", hint="The next one goes on from there.")

    async def _part(self, todo: Todo, told: Told) -> dict[str, Any]:
        """Copy and prove what one staging stream takes: all of it, as a rule. What the task said, with the sequence that comes next."""
        target = await self._target_info()
        self.work.may_write(WRITING)
        stage = await self._stage(todo, target["config"])
        said: dict[str, Any] = await self._dropping(stage, self._copied(stage, self._copy(stage, todo, target["config"])))
        left: int | None = said.get("left")
        stage = await self.bringing.sealed(stage)
        if stage.messages != said["messages"]:
            raise ApiError(f"staging stream {stage.name} has {stage.messages:,} messages where {said['messages']:,} were written")
        skipped = [Span(*span) for span in said["skipped"]]
        self.result.path = "spark, via a staging stream"
        deletes = await self._dropping(stage, self._require_room(stage.messages, stage.bytes + growth(stage.messages)))
        expected = await self._expected(todo.cut(0, left - 1) if left is not None else todo, skipped)
        await self.bringing.bring(stage, said["hashes"], expected=expected, may_lack=deletes)
        told.add(skipped)
        await self.bringing.drop(stage)
        return said

    async def _stage(self, todo: Todo, target: dict[str, Any]) -> Stage:
        leg, entry = self.leg, self.work.entry
        mark = mark_of(self.ends.identity, leg.origin_address.stream, leg.created)
        numbering = Numbering(mark, todo.spans[0].first) if entry.oversize == "native" else None
        return await stages.create(self.ends.target, self.work.entry_id, leg.origin, self.bringing.text, target, numbering)

    async def _require_room_for(self, todo: Todo) -> None:
        """Raise RefusedError before anything is copied if there will be no room for it: as far as that can be told then."""
        info, target = await self._origin_info(), await self._target_info()
        each = info["state"]["bytes"] // max(1, info["state"]["messages"])
        if shortage(self.leg.target, target, todo.messages, todo.messages * each) is not None:
            messages = min(todo.messages, await self.missing.counted())
            await self._require_room(messages, messages * each)

    async def _require_room(self, messages: int, size: int) -> bool:
        return self.work.require_room(self.leg.target, await self._target_info(), messages, size)

    # --- doing it -----------------------------------------------------------------------------------------------

    def _copy(self, stage: Stage, todo: Todo, target: dict[str, Any]) -> Copy:
        entry, leg, largest = self.work.entry, self.leg, int(target.get("max_msg_size", -1))
        return Copy(
            self.ends.source_way, self.ends.identity, self.leg.origin_address.stream, todo.spans, tuple(leg.filters), self.ends.target_way,
            stage.ingest, stage.name, todo.known, todo.claims, entry.oversize, largest, entry.rate, until=self.work.until,
            first=stage.base + 1,
        )  # fmt: skip

    async def _copied(self, stage: Stage, task: Copy) -> dict[str, Any]:
        """Let Spark copy into the stage, telling how far it is."""
        await stages.nobody_else_listens(self.work.apis, stage)
        await self.work.engine.session()
        self.work.observer.phase(f"Copying {self._title}")
        carry_out = copy_natively if task.oversize == "native" else copy
        job = self.work.engine.run([partial(carry_out, task)], self._title)
        said = await self._watched(job, "copying", total(task.spans), partial(stages.refresh, self.ends.target, stage))
        return dict(said[0][-1])

    async def _dropping(self, stage: Stage, job: Any) -> Any:
        """Take a stage away again that nothing good can come of: after what will be no other in the next attempt."""
        try:
            return await job
        except JsplanError as error:
            if not isinstance(error, ApiError | ConnectError):
                await self.bringing.drop(stage)
            raise

    async def _is_whole(self, stage: Stage, tail: Tail) -> bool:
        """Whether nothing was lost on the way to a stage of an earlier attempt. Asks the origin for what its last messages are among."""
        if not len(tail.seqs):
            return True
        todo = (await self.missing.todo()).cut(tail.after + 1, int(tail.seqs.max()))
        task = replace(self._copy(stage, todo, (await self._target_info())["config"]), until=None)
        return not await asyncio.to_thread(lacks, task, tail)

    async def _expected(self, todo: Todo, skipped: list[Span]) -> tuple[Span, ...]:
        """Sequences that must have been copied, or else are gone at the origin. Of what is chosen by subject only what is gone counts."""
        if self.leg.status == "done":
            return ()
        left = minus(without(todo.spans, todo.known.seq) if todo.whole else todo.spans, skipped)
        if not self.leg.filters and not todo.claims and todo.whole:
            return tuple(left)
        return tuple(common(left, await self.missing.gone()))

    async def _watched(self, job: Any, what: str, messages: int, look_at: Callable[[], Any]) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=PERIOD))[0]:
            try:
                stage = await look_at()
            except ApiError:
                continue  # the copy itself says what is wrong
            self.work.observer.event(
                MessagesMoved(self.leg.origin, f"{self._title}: {what}", stage.messages, messages, time.monotonic() - started)
            )
        return task.result()

    # --- names --------------------------------------------------------------------------------------------------

    async def _origin_info(self) -> dict[str, Any]:
        return await patiently(self.ends.origin, partial(promoting.target_info, self.ends.origin, self.leg.origin_address.stream))

    async def _target_info(self) -> dict[str, Any]:
        return await patiently(self.ends.target, partial(promoting.target_info, self.ends.target, self.leg.target_address.stream))

    @property
    def _title(self) -> str:
        return f"{self.leg.origin} to {self.leg.target}"
