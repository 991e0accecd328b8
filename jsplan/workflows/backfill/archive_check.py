"""backfill verify where one side is an archive: the same comparison, with files in the place of a stream."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.job.archive import Archive, Origin
from jsplan.backfill.job.comparing import Compared, origin_rows, target_rows
from jsplan.backfill.job.comparing_archives import archive_as_origin, archive_as_target
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.wire.asking import from_text
from jsplan.errors import JsplanError
from jsplan.workflows.backfill.archives import folder_of, held_by
from jsplan.workflows.backfill.freeze import Ends, freeze, record_of
from jsplan.workflows.backfill.jobs import ends_from, ends_into
from jsplan.workflows.backfill.verifying import Check, floor_of, told

if TYPE_CHECKING:
    from jsplan.backfill.ranges import Leg
    from jsplan.backfill.spark.verify import Side
    from jsplan.documents.backfill import Verification
    from jsplan.workflows.backfill.archives import Held

#: What is not in an archive may be in the stream for other reasons: nothing there is impossible.
_NO_CEILING: Final = 1 << 62


class ArchiveCheck(Check):
    """One comparison of an archive with streams."""

    async def all(self) -> Verification:
        """Read both sides once. Raises what `verify` raises, and ArchiveError."""
        record = record_of(self.world, self.entry) or await freeze(self.world, self.pool, self.entry)
        into = self.entry.target.parquet is not None
        sides, floors = await (self._into(record.legs) if into else self._out_of(record.legs))
        session = await self.engine.session()
        from jsplan.backfill.spark.verify import compare  # noqa: PLC0415 - PySpark is imported when it is needed

        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, title = time.monotonic(), f"jsplan backfill verify {self.entry.name}"
        said = await self.engine.call(lambda: compare(session, sides, floors, self.listed, title))
        return told(self.entry.name, record.legs, said, time.monotonic() - started, self.listed)

    async def _into(self, legs: list[Leg]) -> tuple[list[Side], dict[int, int]]:
        folder = folder_of(self.world, self.entry.target.parquet or "")
        archive = await asyncio.to_thread(Archive.read, folder)
        gone = await asyncio.to_thread(archive.gone)
        sides: list[Side] = []
        for number, leg in enumerate(legs):
            ends = ends_into(self.world, self.pool, leg)
            info = await target_info(ends.origin, leg.origin_address.stream)
            if info["created"] != leg.created:
                raise JsplanError(f"{leg.origin} was made anew ({info['created']}) since it was archived: there is nothing to compare with")
            compared = _compared(number, leg, ends, int(info["state"]["last_seq"]))
            files = archive.of(Origin(ends.identity, leg.origin_address.stream, leg.created))
            placed = tuple((str(folder / file.name), file) for file in files if file.name not in gone)
            sides += [partial(archive_as_target, placed, compared), partial(origin_rows, ends.source_way, compared)]
        return sides, dict.fromkeys(range(len(legs)), 0)

    async def _out_of(self, legs: list[Leg]) -> tuple[list[Side], dict[int, int]]:
        every: list[tuple[Compared, Ends, Held]] = []
        floors: dict[int, int] = {}
        stream = self.entry.target.stream
        for number, leg in enumerate(legs):
            held = await held_by(self.world, leg)
            ends = ends_from(self.world, self.pool, leg, held)
            target = await target_info(ends.target, stream)
            declared = leg.origin_address.domain in self.world.workspace.domains
            natives = self.natives(leg, target["config"]) if declared else ()
            every.append((_compared(number, leg, ends, _NO_CEILING, natives), ends, held))
            floors[number] = await asyncio.to_thread(floor_of, every[-1][0], leg, ends, target)
        state = (await target_info(every[0][1].target, stream))["state"] if every else {}
        sides: list[Side] = [partial(archive_as_origin, held.files, compared) for compared, _, held in every]
        if every:
            first, last = int(state["first_seq"]), int(state["last_seq"])
            sides.append(partial(target_rows, every[0][1].target_way, stream, first, last, tuple(one for one, _, _ in every)))
        return sides, floors


def _compared(number: int, leg: Leg, ends: Ends, ceiling: int, natives: tuple[str, ...] = ()) -> Compared:
    more: dict[str, Any] = {"natives": natives, "loose": bool(natives), "skipped": tuple(leg.skipped)}
    stream, since = leg.origin_address.stream, from_text(leg.created)
    return Compared(number, ends.identity, stream, leg.first, leg.last, tuple(leg.filters), since, ceiling, **more)
