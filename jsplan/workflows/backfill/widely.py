"""Carries out a copy in lanes: what an earlier attempt left is brought in first, then what is missing is staged, lane by lane sealed,
brought in by the server, and compared.

Each lane is an exact beginning of what it would become, and nothing new is staged before everything old is in: so the order within a
lane survives every death.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jsplan.backfill.job import promoting, stages
from jsplan.backfill.job.copying import Copy
from jsplan.backfill.job.fleets import look_many, read_staged, several
from jsplan.backfill.job.lane_writing import made_twice, sequences_of
from jsplan.backfill.job.lanes import Job, Lane, homes
from jsplan.backfill.job.room import growth
from jsplan.backfill.job.stages import Stage
from jsplan.backfill.ranges import LISTED, NAMED, Leg, Span, common, minus, sequences, total
from jsplan.backfill.sequence_arrays import Sequences, runs, without
from jsplan.backfill.windows import WindowClosedError
from jsplan.documents.backfill import LegResult, MessagesMoved
from jsplan.errors import ApiError, ConnectError, JsplanError
from jsplan.workflows.backfill.bringing import WRITING, Bringing
from jsplan.workflows.backfill.freeze import Ends
from jsplan.workflows.backfill.hours import portion, portions
from jsplan.workflows.backfill.leg import Work
from jsplan.workflows.backfill.missing import Todo
from jsplan.workflows.backfill.shapes import Shape
from jsplan.workflows.backfill.shared import Shared, SharedInArchive
from jsplan.workflows.backfill.waiting import PERIOD, at_once, patiently, until_done

if TYPE_CHECKING:
    from jsplan.workflows.backfill.archives import Held

#: More lanes than these gain nothing: a target takes what comes with one core.
LANES: Final = 8
Said = dict[str, Any]


@dataclass(slots=True)
class Wide:
    """One copy of any number of origins. `results` say at any time how far each of them is; `text` is what stages must be made for.

    `held` is there where all of it comes out of an archive: what that has of each origin.
    """

    work: Work
    shape: Shape
    origins: list[Leg]
    ends: list[Ends]
    text: str
    held: Sequence[Held] = ()
    results: list[LegResult] = field(init=False)
    all: LegResult = field(init=False)
    bringing: Bringing = field(init=False)

    def __post_init__(self) -> None:
        first, work = self.origins[0], self.work
        self.results = [LegResult(leg.origin, leg.target, leg.first, leg.last) for leg in self.origins]
        self.all = LegResult(first.origin, first.target, 0, 0)
        self.bringing = Bringing(
            replace(first), self.ends[0], work.engine, work.observer, work.may_write, work.entry_id, self.text, self.all
        )  # fmt: skip

    # --- the sequence -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy what is missing and prove it. Raises RefusedError, JsplanError and ApiError; then it can be run again."""

        async def attempt() -> None:
            await self._take_over()
            await self._attempt()

        try:
            await until_done(attempt, lambda: self.all.copied, self.work.observer, self._title)
        except WindowClosedError:
            await self._take_over()
            raise

    async def _take_over(self) -> None:
        """Bring in what attempts before this one staged: all of their lanes, before anything new is staged."""
        self.work.may_write(WRITING)
        found = await patiently(self.ends[0].target, partial(stages.find, self.ends[0].target, self.work.entry_id))
        sealed = [await self.bringing.sealed(stage) for stage in found]
        taken = await self._settle(sealed) if sealed else []
        for origin in dict.fromkeys([*(stage.origin for stage in sealed), self.origins[0].origin]):
            self.bringing.leg.origin = origin
            await self.bringing.take_over()
        self.bringing.leg.origin = self.origins[0].origin
        for copied in taken:
            self._count(copied)

    async def _settle(self, found: Sequence[Stage]) -> list[dict[str, int]]:
        """How many messages of which origins the lanes have that are brought in now. They are dropped where nobody had made sure that
        each message is there once: that is done before the first lane is attached.
        """
        info = await self._target_info()
        attached = set(promoting.own_sources(info["config"]))
        mine = [stage for stage in found if stage.messages and (stage.name in attached or stage.text == self.text)]
        way = self.ends[0].target_way
        staged = [await asyncio.to_thread(read_staged, way, stage.name, stage.messages) for stage in mine]
        if not attached.intersection(stage.name for stage in mine) and several([one.seqs for one in staged]) is not None:
            self.work.observer.warn("What an earlier attempt had staged has several messages of one: it is dropped")
            for stage in mine:
                await self.bringing.drop(stage)
            return []
        return [{name: len(seqs) for name, seqs in one.seqs.items()} for one in staged]

    def _count(self, copied: dict[str, int]) -> None:
        """So many messages of origins, which are named as in `Jsplan-Origin`, have come in."""
        for leg, ends, result in zip(self.origins, self.ends, self.results, strict=True):
            result.copied += copied.get(f"{ends.identity}/{leg.origin_address.stream}", 0)

    async def _attempt(self) -> None:
        """Copy what is not there yet. Raises ApiError and ConnectError for what another attempt may not meet."""
        self.work.require_open()
        for result in self.results:
            result.attempts += 1
        missing, todos = await self._todos()
        if not any(todo.spans for todo in todos):
            return
        await self._require_room_for(todos)
        every: list[Said] = []
        for part in portions(todos, await self._most()):
            self.work.require_open()
            every += await self._portion(part)
        for number, result in enumerate(self.results):
            skipped = self._skipped(number, every)
            result.skipped, result.skipped_count = sequences(skipped, NAMED), total(skipped)
        await self._note_gaps(missing, todos, every)

    async def _most(self) -> int | None:
        """So many sequences are copied in one go: of what passes the shuffle nothing is kept when the window closes meanwhile."""
        size = portion(self.work.entry)
        if size is None or not (self.shape.needs_rows or self.shape.order == "subject"):
            return None
        states = [info["state"] for info in await self._origin_infos()]
        messages, bytes_ = (sum(int(state[name]) for state in states) for name in ("messages", "bytes"))
        return max(1, size * messages // max(1, bytes_))

    async def _portion(self, todos: Sequence[Todo]) -> list[Said]:
        """Stage these, bring them in, prove them; what the lanes said."""
        target = await self._target_info()
        job, made = await self._job(todos, target["config"])
        said: list[Said] = await self._dropping(made, self._copied(job, made, sum(todo.messages for todo in todos)))
        staged = await self._sealed(job, made, said)
        deletes = await self._dropping(made, self._require_room(sum(s.messages for s in staged), sum(s.bytes for s in staged)))
        equal = await self._brought(staged, said, may_lack=deletes)
        self._note(said, equal=equal)
        return said

    # --- what is to be done -------------------------------------------------------------------------------------

    async def _todos(self) -> tuple[list[Shared], list[Todo]]:
        info = await self._target_info()
        found = [self._shared(number) for number in range(len(self.origins))]
        wanted = await at_once(found, lambda one: one.asked(info))
        if (state := info["state"])["messages"]:
            first, last, way = int(state["first_seq"]), int(state["last_seq"]), self.ends[0].target_way
            known = await asyncio.to_thread(look_many, way, self.origins[0].target_address.stream, first, last, wanted)
            for one, there in zip(found, known, strict=True):
                one.found = there
        return found, await at_once(found, lambda one: one.todo())

    def _shared(self, number: int) -> Shared:
        leg, ends, mixed = self.origins[number], self.ends[number], self.shape.order != "stream"
        if not self.held:
            return Shared(leg, ends, self.work.topology, mixed=mixed)
        return SharedInArchive(leg, ends, self.work.topology, self.held[number], mixed=mixed)

    async def _origin_infos(self) -> list[Said]:
        if self.held:
            return [held.info for held in self.held]
        pairs = list(zip(self.origins, self.ends, strict=True))
        return await at_once(pairs, lambda one: promoting.target_info(one[1].origin, one[0].origin_address.stream))

    async def _job(self, todos: Sequence[Todo], target: dict[str, Any]) -> tuple[Job, list[Stage]]:
        """The lanes of an attempt, with the staging streams that it may write to."""
        shape, largest = self.shape, int(target.get("max_msg_size", -1))
        busy = sum(bool(todo.spans) for todo in todos)
        most = min(LANES, await self.work.engine.slots(), max(1, sum(todo.messages for todo in todos)))
        count = min(most, busy) if shape.order == "stream" else most
        made: list[Stage] = []
        for _ in range(count):
            self.work.may_write(WRITING)
            made.append(await stages.create(self.ends[0].target, self.work.entry_id, self.origins[0].origin, self.text, target))
        way = self.ends[0].target_way
        legs = tuple(
            Copy(
                source=ends.source_way, domain=ends.identity, stream=leg.origin_address.stream, spans=todo.spans,
                filters=tuple(leg.filters), target=way, ingest="", stage=made[0].name, known=todo.known, claims=todo.claims,
                oversize=self.work.entry.oversize, largest=largest, archive=self.held[number].files if self.held else (),
                until=self.work.until,
            )
            for number, (leg, ends, todo) in enumerate(zip(self.origins, self.ends, todos, strict=True))
        )  # fmt: skip
        lanes = tuple(Lane(way, stage.name, stage.ingest) for stage in made)
        dealt = homes([todo.messages for todo in todos], count) if shape.order == "stream" else ()
        return Job(lanes, legs, shape.order, dealt, shape.where, shape.transform, shape.mapping, self.work.entry.rate), made

    async def _require_room_for(self, todos: Sequence[Todo]) -> None:
        """Raise RefusedError before anything is staged if there will be no room for it: as far as that can be told then, which with SQL
        or a function is not at all.
        """
        if self.shape.needs_rows:
            return
        infos = await self._origin_infos()
        messages = size = 0
        for todo, info in zip(todos, infos, strict=True):
            count = min(todo.messages, int(info["state"]["messages"]))
            messages, size = messages + count, size + count * (info["state"]["bytes"] // max(1, info["state"]["messages"]))
        if not any(leg.filters for leg in self.origins):  # of what matches a filter nobody knows how much that is
            await self._require_room(messages, size)

    async def _require_room(self, messages: int, size: int) -> bool:
        return self.work.require_room(self.origins[0].target, await self._target_info(), messages, size + growth(messages))

    # --- doing it -----------------------------------------------------------------------------------------------

    async def _copied(self, job: Job, made: Sequence[Stage], messages: int) -> list[Said]:
        """Let Spark stage everything, telling how far it is. Raises RefusedError where a message came out more than once."""
        work = self.work
        await asyncio.gather(*(stages.nobody_else_listens({key: api}, made[0]) for key, api in work.apis.items()))
        work.observer.phase(f"Copying {self._title}, in {len(made)} partition{'' if len(made) == 1 else 's'}")
        said: list[Said] = await self._watched(work.engine.lanes(job, self._title), made, messages)
        if job.transform is not None:
            lanes = [{leg: sequences_of(told["seqs"]) for leg, told in one["origins"].items()} for one in said]
            if (found := several(lanes)) is not None:
                raise made_twice(job, int(found[0]), found[1])
        return said

    async def _watched(self, job: Any, made: Sequence[Stage], messages: int) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=PERIOD))[0]:
            try:
                now = [await stages.refresh(self.ends[0].target, stage) for stage in made]
            except ApiError:
                continue  # the copy itself says what is wrong
            done = sum(stage.messages for stage in now)
            self.work.observer.event(MessagesMoved(self._title, f"{self._title}: copying", done, messages, time.monotonic() - started))
        return task.result()

    async def _sealed(self, job: Job, made: Sequence[Stage], said: Sequence[Said]) -> list[Stage]:
        """The stages as they remain. Raises ApiError where one does not have what its lane has written."""
        wrote = {one["lane"]: one["messages"] for one in said}
        found = [await self.bringing.sealed(stage) for stage in made]
        for number, stage in enumerate(found):
            if stage.messages != wrote.get(number, 0):
                raise ApiError(
                    f"staging stream {stage.name} has {stage.messages:,} messages where {wrote.get(number, 0):,} were written by partition "
                    f"{number} of {len(job.lanes)}"
                )
        return found

    async def _brought(self, staged: Sequence[Stage], said: Sequence[Said], *, may_lack: bool) -> bool:
        """Let the target take all lanes, and prove each; whether all of it is there."""
        hashes = {one["lane"]: one["hashes"] for one in said}
        some = [(stage, hashes[number]) for number, stage in enumerate(staged) if stage.messages]
        equal = not some or await self.bringing.bring_lanes([stage for stage, _ in some], [one for _, one in some], may_lack=may_lack)
        await self.bringing.drop(*staged)
        return equal

    async def _dropping(self, made: Sequence[Stage], job: Any) -> Any:
        """Take the stages away again that nothing good can come of: after what will be no other in the next attempt."""
        try:
            return await job
        except JsplanError as error:
            if not isinstance(error, ApiError | ConnectError):
                for stage in made:
                    await self.bringing.drop(stage)
            raise

    # --- what became of it --------------------------------------------------------------------------------------

    def _note(self, said: Sequence[Said], *, equal: bool) -> None:
        path = f"spark, in {len(said)} partition{'' if len(said) == 1 else 's'}, via staging streams"
        if self.held:
            path += f", from {self.origins[0].archive}"
        for one in said:
            for leg, told in one["origins"].items():
                self.results[int(leg)].copied += told["messages"]
                self.results[int(leg)].bytes += told["bytes"]
        for result in self.results:
            if result.copied:
                result.verified, result.path = equal, path

    async def _note_gaps(self, missing: Sequence[Shared], todos: Sequence[Todo], said: Sequence[Said]) -> None:
        """What is gone at an origin and was not copied is a gap. What was left out by SQL or a function was there; what has gone since
        counts as a gap: nobody can tell any more.
        """
        gone = await at_once(missing, lambda one: one.gone())
        for number, (leg, todo) in enumerate(zip(self.origins, todos, strict=True)):
            if leg.status == "done":
                continue
            left = without(todo.spans, todo.known.seq) if todo.whole else list(todo.spans)
            written = runs(self._written(number, said))
            gaps = common(minus(minus(left, self._skipped(number, said)), written), gone[number])
            self.results[number].gaps, self.results[number].gap_messages = [list(gap) for gap in gaps[:LISTED]], total(gaps)

    def _skipped(self, leg: int, said: Sequence[Said]) -> list[Span]:
        found = [np.arange(first, last + 1) for one in said for first, last in one["skipped"].get(str(leg), [])]
        return runs(np.sort(np.concatenate(found))) if found else []

    def _written(self, leg: int, said: Sequence[Said]) -> Sequences:
        found = [sequences_of(one["origins"][str(leg)]["seqs"]) for one in said if str(leg) in one["origins"]]
        return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    # --- names --------------------------------------------------------------------------------------------------

    async def _target_info(self) -> Said:
        target = self.origins[0].target_address.stream
        return await patiently(self.ends[0].target, partial(promoting.target_info, self.ends[0].target, target))

    @property
    def _title(self) -> str:
        first = self.origins[0]
        return f"{first.origin if len(self.origins) == 1 else f'{len(self.origins)} origins'} to {first.target}"
