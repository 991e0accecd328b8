"""backfill verify where one side is an archive: the same comparison, with files in the place of a stream."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.job.archive import Archive, Made, Origin
from jsplan.backfill.job.comparing import Compared, origin_rows, target_rows
from jsplan.backfill.job.comparing_archives import archive_as_origin, archive_as_target, present_in_archive
from jsplan.backfill.job.comparing_lanes import lane_rows, present_rows
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.wire.asking import from_text
from jsplan.errors import JsplanError
from jsplan.workflows.backfill.archives import folder_of, held_by
from jsplan.workflows.backfill.freeze import Ends, freeze, record_of
from jsplan.workflows.backfill.jobs import ends_from, ends_into
from jsplan.workflows.backfill.shaped_check import floors_of, job_of, read_as
from jsplan.workflows.backfill.shapes import Shape, check_shape, is_shaped
from jsplan.workflows.backfill.verifying import Check, floor_of, told
from jsplan.workflows.backfill.wide import held_of_legs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.backfill.job.archive import Commit
    from jsplan.backfill.job.copying import Copy
    from jsplan.backfill.ranges import Leg
    from jsplan.backfill.spark.verify import Side
    from jsplan.documents.backfill import Verification

#: What is not in an archive may be in the stream for other reasons: nothing there is impossible.
_NO_CEILING: Final = 1 << 62


@dataclass(slots=True)
class _Sides:
    """What is compared. `expected`: how the origins are read where that is shaped, of which `sides` say only what they have; `changed`: the
    archive has not what its origin has, so a source of the target brings something else of it.
    """

    origins: list[Compared] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)
    expected: list[Copy] = field(default_factory=list)
    floors: dict[int, int] = field(default_factory=dict)
    changed: bool = False


class ArchiveCheck(Check):
    """One comparison of an archive with streams."""

    async def all(self) -> Verification:
        """Read both sides once. Raises what `verify` raises, and ArchiveError."""
        record = record_of(self.world, self.entry) or await freeze(self.world, self.pool, self.entry)
        shape = check_shape(self.world.workspace.root, self.entry)
        into = self.entry.target.parquet is not None
        found = await (self._into(record.origins) if into else self._out_of(record.origins, shape))
        session = await self.engine.session()
        from jsplan.backfill.spark.verify import compare  # noqa: PLC0415 - PySpark is imported when it is needed
        from jsplan.backfill.spark.verify_shaped import compare_shaped  # noqa: PLC0415 - as above

        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, title = time.monotonic(), f"jsplan backfill verify {self.entry.name}"
        if is_shaped(self.entry) and found.expected:
            job, floors = job_of(shape, found.expected), floors_of(shape, found.origins, found.floors)
            said = await self.engine.call(lambda: compare_shaped(session, job, found.origins, found.sides, floors, self.listed, title))
        else:
            shaped = found.changed
            said = await self.engine.call(lambda: compare(session, found.sides, found.floors, self.listed, title, shaped=shaped))
        return told(self.entry.name, record.origins, said, time.monotonic() - started, self.listed)

    async def _into(self, legs: list[Leg]) -> _Sides:
        folder = folder_of(self.world, self.entry.target.parquet or "")
        archive = await asyncio.to_thread(Archive.read, folder)
        gone = await asyncio.to_thread(archive.gone)
        found, shaped = _Sides(floors=dict.fromkeys(range(len(legs)), 0)), is_shaped(self.entry)
        for number, leg in enumerate(legs):
            ends = ends_into(self.world, self.pool, leg)
            info = await target_info(ends.origin, leg.origin_address.stream)
            if info["created"] != leg.created:
                raise JsplanError(f"{leg.origin} was made anew ({info['created']}) since it was archived: there is nothing to compare with")
            compared = _compared(number, leg, ends, int(info["state"]["last_seq"]))
            origin = Origin(ends.identity, leg.origin_address.stream, leg.created)
            placed = tuple((str(folder / file.name), file) for file in archive.of(origin) if file.name not in gone)
            found.origins.append(compared)
            found.sides.append(partial(archive_as_target, placed, compared))
            if not shaped:
                found.sides.append(partial(origin_rows, ends.source_way, compared))
                continue
            found.expected.append(read_as(ends, compared))
            if all(one.where == self.entry.where for one in archive.origins.get(origin, [])):  # else others may want what this does not
                found.sides.append(partial(present_rows, ends.source_way, compared))
        return found

    async def _out_of(self, legs: list[Leg], shape: Shape) -> _Sides:
        found, shaped, stream = _Sides(), is_shaped(self.entry), self.entry.target.stream
        every = await held_of_legs(self.world, self.entry, legs) if shaped else [await held_by(self.world, leg) for leg in legs]
        ends: Ends | None = None
        for number, (leg, held) in enumerate(zip(legs, every, strict=True)):
            ends = ends_from(self.world, self.pool, leg, held)
            target = await target_info(ends.target, stream)
            compared = _compared(number, leg, ends, _NO_CEILING, self.natives(leg, target["config"]) if held.declared else ())
            found.origins.append(compared)
            found.floors[number] = await asyncio.to_thread(floor_of, compared, leg, ends, target)
            found.expected.append(read_as(ends, compared, held.files))
            found.sides.append(partial(present_in_archive if shaped else archive_as_origin, held.files, compared))
            found.changed |= _is_changed(held.archive.origins[held.origin])
        if ends is not None:
            state = (await target_info(ends.target, stream))["state"]
            what = (ends.target_way, stream, int(state["first_seq"]), int(state["last_seq"]), tuple(found.origins))
            found.sides.append(partial(lane_rows, *what, shape.order) if shaped else partial(target_rows, *what))
        return found


def _is_changed(commits: Iterable[Commit]) -> bool:
    return any(commit.made != Made() for commit in commits)


def _compared(number: int, leg: Leg, ends: Ends, ceiling: int, natives: tuple[str, ...] = ()) -> Compared:
    more: dict[str, Any] = {"natives": natives, "loose": bool(natives), "skipped": tuple(leg.skipped)}
    stream, since = leg.origin_address.stream, from_text(leg.created)
    return Compared(number, ends.identity, stream, leg.first, leg.last, tuple(leg.filters), since, ceiling, **more)
