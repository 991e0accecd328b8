"""backfill verify of what was copied in lanes: what is expected is what the same SQL, function and mapping make of the origins now."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jsplan.backfill.job.comparing import Compared, origin_rows
from jsplan.backfill.job.comparing_lanes import lane_rows, present_rows
from jsplan.backfill.job.copying import Copy
from jsplan.backfill.job.lanes import Job, Lane
from jsplan.backfill.ranges import Record, Span
from jsplan.errors import ApiError, ConnectError
from jsplan.workflows.backfill.freeze import Ends
from jsplan.workflows.backfill.shapes import Shape, check_shape, is_shaped
from jsplan.workflows.backfill.verifying import Check
from jsplan.workflows.backfill.waiting import at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsplan.backfill.job.archived import Placed

Said = dict[str, Any]


class ShapedCheck(Check):
    """One comparison of a target with any number of origins. Origins that cannot be reached are left out, and named."""

    async def record(self) -> Record:
        """The record, with the origins that can be reached. Raises as `Check.record` where none can."""
        record = await super().record()
        keys = list(dict.fromkeys(leg.origin_address.domain for leg in record.origins))
        there = dict(zip(keys, await at_once(keys, self._answers), strict=True))
        if not any(there.values()):
            return record
        for leg in record.origins:
            if not there[leg.origin_address.domain]:
                self.observer.warn(f"{leg.origin} cannot be reached, and is not compared")
        return replace(record, origins=[leg for leg in record.origins if there[leg.origin_address.domain]])

    async def _answers(self, key: str) -> bool:
        try:
            await self.pool.api(self.world.workspace.domains[key]).request("INFO")
        except (ApiError, ConnectError):
            return False
        return True

    async def _compare(self, ends: list[Ends], legs: list[Compared], state: Said, floors: dict[int, int]) -> tuple[list[Said], float]:
        shape = check_shape(self.world.workspace.root, self.entry)
        session = await self.engine.session()
        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, way, stream = time.monotonic(), ends[0].target_way, self.entry.target.stream
        first, last, title = max(1, int(state["first_seq"])), int(state["last_seq"]), f"jsplan backfill verify {self.entry.name}"
        there = partial(lane_rows, way, stream, first, last, tuple(legs), shape.order)
        pairs = list(zip(ends, legs, strict=True))
        if not is_shaped(self.entry):
            from jsplan.backfill.spark.verify import compare  # noqa: PLC0415 - PySpark is imported when it is needed

            sides = [there, *(partial(origin_rows, end.source_way, leg) for end, leg in pairs)]
            said = await self.engine.call(lambda: compare(session, sides, floors, self.listed, title))
            return said, time.monotonic() - started
        from jsplan.backfill.spark.verify_shaped import compare_shaped  # noqa: PLC0415 - as above

        sides = [there, *(partial(present_rows, end.source_way, leg) for end, leg in pairs)]
        job, floors = job_of(shape, [read_as(end, leg) for end, leg in pairs]), floors_of(shape, legs, floors)
        said = await self.engine.call(lambda: compare_shaped(session, job, legs, sides, floors, self.listed, title))
        return said, time.monotonic() - started


def read_as(ends: Ends, leg: Compared, files: tuple[Placed, ...] = ()) -> Copy:
    """How an origin is read, or the files of an archive in its place: all of its range."""
    spans = (Span(leg.first, leg.last),) if leg.first <= leg.last else ()
    return Copy(ends.source_way, leg.domain, leg.stream, spans, leg.filters, ends.target_way, "", "", archive=files)


def job_of(shape: Shape, copies: Sequence[Copy]) -> Job:
    """What makes of messages what is expected."""
    return Job((Lane(copies[0].target, "", ""),), tuple(copies), "none", (), shape.where, shape.transform, shape.mapping)


def floors_of(shape: Shape, legs: Sequence[Compared], floors: dict[int, int]) -> dict[int, int]:
    """In lanes nobody can tell what has expired from what is missing, once anything has."""
    return floors if shape.order == "stream" else {number: legs[number].last + 1 if floor else 0 for number, floor in floors.items()}
