"""backfill verify of what was copied in lanes: what is expected is what the same SQL, function and mapping make of the origins now."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.seq_ranges import BackfillState, SeqRange
from jsplan.backfill.tasks.copy import CopyTask
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan
from jsplan.backfill.transforms import TransformSpec, build_transform_spec, has_transforms
from jsplan.backfill.verify.command import BackfillCheck
from jsplan.backfill.verify.message_rows import ComparedOrigin, read_origin_rows
from jsplan.backfill.verify.partitioned_rows import read_partitioned_rows, read_presence_rows
from jsplan.errors import ApiError, ConnectError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsplan.backfill.parquet.reader import LocatedFile

ResultDict = dict[str, Any]


class TransformedCheck(BackfillCheck):
    """One comparison of a target with any number of origins. Origins that cannot be reached are left out, and named."""

    async def load_state(self) -> BackfillState:
        """The record, with the origins that can be reached. Raises as `Check.load_state` where none can."""
        record = await super().load_state()
        keys = list(dict.fromkeys(leg.origin_address.domain for leg in record.origins))
        there = dict(zip(keys, await gather_limited(keys, self._is_reachable), strict=True))
        if not any(there.values()):
            return record
        for leg in record.origins:
            if not there[leg.origin_address.domain]:
                self.observer.warn(f"{leg.origin} cannot be reached, and is not compared")
        return replace(
            record, origins=[leg for leg in record.origins if there[leg.origin_address.domain]]
        )

    async def _is_reachable(self, key: str) -> bool:
        try:
            await self.pool.api(self.world.workspace.domains[key]).request("INFO")
        except (ApiError, ConnectError):
            return False
        return True

    async def _compare(
        self,
        ends: list[Endpoints],
        legs: list[ComparedOrigin],
        state: ResultDict,
        floors: dict[int, int],
    ) -> tuple[list[ResultDict], float]:
        shape = build_transform_spec(self.world.workspace.root, self.entry)
        session = await self.runner.session()
        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, way, stream = time.monotonic(), ends[0].target_endpoint, self.entry.target.stream
        first, last, title = (
            max(1, int(state["first_seq"])),
            int(state["last_seq"]),
            f"jsplan backfill verify {self.entry.name}",
        )
        there = partial(read_partitioned_rows, way, stream, first, last, tuple(legs), shape.order)
        pairs = list(zip(ends, legs, strict=True))
        if not has_transforms(self.entry):
            from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415 - PySpark is imported when it is needed

            sides = [
                there,
                *(partial(read_origin_rows, end.source_endpoint, leg) for end, leg in pairs),
            ]
            said = await self.runner.call_in_thread(
                lambda: compare_sides(session, sides, floors, self.listed, title)
            )
            return said, time.monotonic() - started
        from jsplan.backfill.spark.verify_transformed import compare_transformed  # noqa: PLC0415 - as above

        sides = [
            there,
            *(partial(read_presence_rows, end.source_endpoint, leg) for end, leg in pairs),
        ]
        job, floors = (
            build_expected_plan(shape, [build_read_task(end, leg) for end, leg in pairs]),
            find_expiry_floors(shape, legs, floors),
        )
        said = await self.runner.call_in_thread(
            lambda: compare_transformed(session, job, legs, sides, floors, self.listed, title)
        )
        return said, time.monotonic() - started


def build_read_task(
    ends: Endpoints, leg: ComparedOrigin, files: tuple[LocatedFile, ...] = ()
) -> CopyTask:
    """How an origin is read, or the files of an archive in its place: all of its range."""
    spans = (SeqRange(leg.first, leg.last),) if leg.first <= leg.last else ()
    return CopyTask(
        ends.source_endpoint,
        leg.domain,
        leg.stream,
        spans,
        leg.filters,
        ends.target_endpoint,
        "",
        "",
        files=files,
    )


def build_expected_plan(shape: TransformSpec, copies: Sequence[CopyTask]) -> PartitionPlan:
    """What makes of messages what is expected."""
    return PartitionPlan(
        (Partition(copies[0].target, "", ""),),
        tuple(copies),
        "none",
        (),
        shape.where,
        shape.transform,
        shape.subject_transform,
    )


def find_expiry_floors(
    shape: TransformSpec, legs: Sequence[ComparedOrigin], floors: dict[int, int]
) -> dict[int, int]:
    """In lanes nobody can tell what has expired from what is missing, once anything has."""
    return (
        floors
        if shape.order == "stream"
        else {number: legs[number].last + 1 if floor else 0 for number, floor in floors.items()}
    )
