"""One origin of a backfill, from whatever an earlier attempt left to the proof that everything has arrived.

Nothing reaches the target but from a sealed staging stream, all of it, one after the other. So what the target has is always a beginning
of what is to come, and whoever takes over asks only for what is not there yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from jsplan.address import Address
from jsplan.backfill.job import promoting, stages
from jsplan.backfill.job.copying import Copy, copy
from jsplan.backfill.job.reading import Follow, follow, read_stage
from jsplan.backfill.job.stages import Stage
from jsplan.backfill.ranges import LISTED, Leg, Span, common, total, without
from jsplan.config.model import Backfill
from jsplan.documents.backfill import LegResult, MessagesMoved
from jsplan.errors import ApiError, ConnectError, JsplanError, RefusedError
from jsplan.jetstream import DomainApi
from jsplan.topology import Topology
from jsplan.workflows.backfill.engine import Engine
from jsplan.workflows.backfill.freeze import Ends, refuse_target, require_same
from jsplan.workflows.backfill.missing import Missing, Todo
from jsplan.workflows.options import Observer

#: How often a copy that makes no progress is begun again, and how long an end that does not answer is waited for. Seconds.
ATTEMPTS: Final = 5
PATIENCE: Final = 120.0
#: Between two looks at how far it is. Seconds.
PERIOD: Final = 0.5

MayWrite = Callable[[float], float]


@dataclass(slots=True)
class Work:
    """What all legs of a run share. `entry_id` names the entry and its workspace on the servers."""

    entry: Backfill
    entry_id: str
    text: str
    topology: Topology
    apis: dict[str, DomainApi]
    engine: Engine
    observer: Observer
    may_write: MayWrite
    allowed: Callable[[str, str], bool]


@dataclass(slots=True)
class LegRun:
    """Carries out one leg."""

    work: Work
    leg: Leg
    ends: Ends
    result: LegResult = field(init=False)
    missing: Missing = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        leg = self.leg
        self.result = LegResult(leg.origin, leg.target, leg.first, leg.last)
        self.missing = Missing(leg, self.ends, self.work.topology)

    # --- the sequence -------------------------------------------------------------------------------------------

    async def run(self) -> LegResult:
        """Copy what is missing and prove it. Raises RefusedError, JsplanError and ApiError; then it can be run again."""
        origin, target = await self._infos()
        require_same(self.leg, origin, target)
        refuse_target(self.leg.target, target["config"])
        await self._take_over()
        fruitless = 0
        while fruitless < ATTEMPTS:
            before = self.result.copied
            try:
                await self._attempt()
                break
            except (ApiError, ConnectError) as error:
                fruitless = fruitless + 1 if self.result.copied == before else 1
                if fruitless == ATTEMPTS:
                    raise
                self.work.observer.warn(f"{self._title}: {error.in_full}. It goes on from where it is.")
                await self._take_over()
        await self._gaps_without_copy()
        self.result.seconds = time.monotonic() - self._started
        return self.result

    async def _infos(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return (
            await self._patiently(partial(promoting.target_info, self.ends.origin, self._origin.stream)),
            await self._patiently(partial(promoting.target_info, self.ends.target, self._target.stream)),
        )

    async def _take_over(self) -> None:
        """Bring in what attempts before this one wrote, and leave nothing of them behind."""
        api = self.ends.target
        for stage in await self._patiently(partial(stages.find, api, self.work.entry_id)):
            if stage.origin != self.leg.origin:
                continue
            sealed = await self._patiently(partial(stages.seal, api, stage))
            info = await promoting.target_info(api, self._target.stream)
            begun = stage.name in promoting.own_sources(info["config"])
            if sealed.messages and (begun or stage.text == self.work.text):
                self.work.observer.phase(f"Taking over {sealed.messages:,} messages that an earlier attempt had written")
                hashes = await asyncio.to_thread(read_stage, self.ends.target_way, stage.name, sealed.messages)
                await self._promote(sealed, hashes, self.leg.target_next if begun else None, ())
            await self._drop(sealed)

    async def _attempt(self) -> None:
        """Copy what is not there yet. Raises ApiError and ConnectError for what another attempt may not meet."""
        self.result.attempts += 1
        todo = await self.missing.todo()
        if not todo.spans:
            return
        await self._check_room(todo.messages)
        target = await promoting.target_info(self.ends.target, self._target.stream)
        self.work.may_write(30.0)
        stage = await stages.create(self.ends.target, self.work.entry_id, self.leg.origin, self.work.text, target["config"])
        said = await self._copied(stage, self._copy(stage, todo, target["config"]))
        stage = await stages.seal(self.ends.target, stage)
        if stage.messages != said["messages"]:
            raise ApiError(f"staging stream {stage.name} has {stage.messages:,} messages where {said['messages']:,} were written")
        self.result.skipped, self.result.skipped_count = said["skipped"], said["skipped_count"]
        self.result.path = "spark, by way of a staging stream"
        await self._promote(stage, said["hashes"], None, await self._expected(todo))
        await self._drop(stage)

    async def _check_room(self, messages: int) -> None:
        """Raise RefusedError where the target would delete messages of its own to take these, unless that is allowed."""
        info = await promoting.target_info(self.ends.target, self._target.stream)
        config, state = info["config"], info["state"]
        address, most = self.leg.target, config.get("max_msgs", -1)
        text = None
        if most >= 0 and state["messages"] + messages > most:
            text = f"{address} keeps {most:,} messages and has {state['messages']:,}: {messages:,} more push out as many of the oldest"
        elif config.get("max_msgs_per_subject", -1) > 0:
            text = f"{address} keeps {config['max_msgs_per_subject']:,} messages per subject, and what is copied counts as the newest"
        if text is not None and not self.work.allowed("DELETES_MESSAGES", address):
            raise RefusedError(f"{text}. Nothing was changed", hint=f"To allow it: --allow-hazard DELETES_MESSAGES:{address}")

    # --- doing it -----------------------------------------------------------------------------------------------

    def _copy(self, stage: Stage, todo: Todo, target: dict[str, Any]) -> Copy:
        entry, leg, largest = self.work.entry, self.leg, int(target.get("max_msg_size", -1))
        return Copy(
            self.ends.source_way, self.ends.identity, self._origin.stream, todo.spans, tuple(leg.filters), self.ends.target_way,
            stage.ingest, stage.name, todo.known, todo.claims, entry.oversize, largest, entry.rate,
        )  # fmt: skip

    async def _copied(self, stage: Stage, task: Copy) -> dict[str, Any]:
        """Let Spark copy into the stage, telling how far it is. A stage that nothing good can come of is taken away again."""
        try:
            await stages.nobody_else_listens(self.work.apis, stage)
            await self.work.engine.session()
            self.work.observer.phase(f"Copying {self._title}")
            job = self.work.engine.run([partial(copy, task)], self._title)
            said = await self._watched(job, "copying", total(task.spans), partial(stages.refresh, self.ends.target, stage))
            return dict(said[0][-1])
        except JsplanError as error:
            if not isinstance(error, (ApiError, ConnectError)):
                await self._drop(stage)
            raise

    async def _promote(self, stage: Stage, hashes: list[str], since: int | None, expected: tuple[Span, ...]) -> None:
        """Let the target take all of a sealed stage, and prove that it has. Raises ApiError where it has not."""
        api, stream = self.ends.target, self._target.stream
        self.work.may_write(30.0)
        place = await self._patiently(partial(promoting.attach, api, stream, stage))
        task = Follow(
            self.ends.target_way, stream, since or place, stage.name, stage.messages, self.ends.identity, self._origin.stream, expected
        )
        self.work.observer.phase(f"Bringing {stage.messages:,} messages into {self.leg.target} and comparing them")
        said = (await self.work.engine.near(partial(follow, task), f"{self._title}: comparing"))[-1]
        self._require_all(stage, said, hashes)
        self.result.copied += stage.messages
        self.result.bytes += stage.bytes
        self.result.verified = True
        self.result.gaps, self.result.gap_messages = said["gaps"], said["gap_messages"]
        self.leg.target_last = max(self.leg.target_last, said["last"])

    def _require_all(self, stage: Stage, said: dict[str, Any], hashes: list[str]) -> None:
        if said["messages"] < stage.messages:
            raise JsplanError(
                f"{self.leg.target} took {said['messages']:,} of {stage.messages:,} messages of staging stream {stage.name} and no more",
                hint="Look at its limits and at the server's log. Nothing is lost: run the backfill again when it takes messages.",
            )
        if said["twice"] or said["hashes"] != hashes:
            block = next((n for n, (one, other) in enumerate(zip(said["hashes"], hashes, strict=False)) if one != other), 0)
            raise JsplanError(
                f"what {self.leg.target} stored from sequence {said['first']:,} on is not what {self.leg.origin} has: "
                f"{said['twice']:,} messages twice, first difference in block {block:,}",
                hint=f"Look at both: jsplan backfill verify {self.work.entry.name}",
            )

    async def _drop(self, stage: Stage) -> None:
        await self._patiently(partial(promoting.detach, self.ends.target, self._target.stream))
        await self._patiently(partial(stages.remove, self.ends.target, stage))

    async def _expected(self, todo: Todo) -> tuple[Span, ...]:
        """Sequences that must have been copied, or else are gone at the origin. With a filter only what is gone counts."""
        left = without(todo.spans, todo.known.seq)
        if not self.leg.filters and not todo.claims:
            return tuple(without(left, np.array(sorted(self.result.skipped), dtype=np.int64)))
        return tuple(common(left, await self.missing.gone()))

    async def _gaps_without_copy(self) -> None:
        """Where nothing was copied: what of the range is in neither stream."""
        if self.result.copied or self.leg.first > self.leg.last:
            return
        known = (await self.missing.todo()).known
        gaps = common(without([self.leg.span], known.seq), await self.missing.gone())
        self.result.gaps, self.result.gap_messages = [list(gap) for gap in gaps[:LISTED]], total(gaps)

    # --- waiting ------------------------------------------------------------------------------------------------

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

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Ask until there is an answer: a server that is restarted comes back. Raises ApiError after `PATIENCE`."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return await ask()
            except ApiError as error:
                if getattr(error, "err_code", None) or time.monotonic() > end:
                    raise
                await asyncio.sleep(PERIOD)

    # --- names --------------------------------------------------------------------------------------------------

    @property
    def _origin(self) -> Address:
        return Address.parse(self.leg.origin)

    @property
    def _target(self) -> Address:
        return Address.parse(self.leg.target)

    @property
    def _title(self) -> str:
        return f"{self.leg.origin} to {self.leg.target}"
