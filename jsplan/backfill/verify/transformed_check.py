"""Run backfill verify for partitioned or transformed copies.

The expected messages are what the same SQL, function and subject transform produce from the
origins now.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.rows.message_rows import ComparedOrigin, read_origin_rows
from jsplan.backfill.rows.partitioned_rows import read_partitioned_rows, read_presence_rows
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan
from jsplan.backfill.transforms import TransformSpec, build_transform_spec, has_transforms
from jsplan.backfill.verify.command import BackfillCheck
from jsplan.errors import ApiError, ConnectError
from jsplan.planning.backfill.model import BackfillState, SeqRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsplan.backfill.parquet.reader import LocatedFile

ResultDict = dict[str, Any]


class TransformedCheck(BackfillCheck):
    """One comparison of a target with any number of origins.

    Origins that cannot be reached are skipped, with a warning.
    """

    async def load_state(self) -> BackfillState:
        """Return the range of the origins that can be reached.

        If none can be reached, returns all. Raises the errors of `BackfillCheck.load_state`.
        """
        record = await super().load_state()
        keys = list(
            dict.fromkeys(origin_state.origin_address.domain for origin_state in record.origins)
        )
        reachable = dict(zip(keys, await gather_limited(keys, self._is_reachable), strict=True))
        if not any(reachable.values()):
            return record
        for origin_state in record.origins:
            if not reachable[origin_state.origin_address.domain]:
                self.observer.warn(f"{origin_state.origin} cannot be reached. It is not compared")
        return replace(
            record,
            origins=[
                origin_state
                for origin_state in record.origins
                if reachable[origin_state.origin_address.domain]
            ],
        )

    async def _is_reachable(self, key: str) -> bool:
        try:
            await self.pool.api(self.context.workspace.domains[key]).request("INFO")
        except (ApiError, ConnectError):
            return False
        return True

    async def _compare(
        self,
        endpoints: list[Endpoints],
        origins: list[ComparedOrigin],
        state: ResultDict,
        floors: dict[int, int],
    ) -> tuple[list[ResultDict], float]:
        transforms = build_transform_spec(self.context.workspace.root, self.entry)
        session = await self.runner.session()
        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, endpoint, stream = (
            time.monotonic(),
            endpoints[0].target_endpoint,
            self.entry.target.stream,
        )
        first, last, title = (
            max(1, int(state["first_seq"])),
            int(state["last_seq"]),
            f"jsplan backfill verify {self.entry.name}",
        )
        target_side = partial(
            read_partitioned_rows, endpoint, stream, first, last, tuple(origins), transforms.order
        )
        pairs = list(zip(endpoints, origins, strict=True))
        if not has_transforms(self.entry):
            from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415 - PySpark is imported only when needed

            sides = [
                target_side,
                *(
                    partial(read_origin_rows, side.source_endpoint, origin)
                    for side, origin in pairs
                ),
            ]
            results = await self.runner.call_in_thread(
                lambda: compare_sides(session, sides, floors, self.listed, title)
            )
            return results, time.monotonic() - started
        from jsplan.backfill.spark.verify_transformed import compare_transformed  # noqa: PLC0415 - as above

        sides = [
            target_side,
            *(partial(read_presence_rows, side.source_endpoint, origin) for side, origin in pairs),
        ]
        plan, floors = (
            build_expected_plan(
                transforms, [build_read_task(side, origin) for side, origin in pairs]
            ),
            find_expiry_floors(transforms, origins, floors),
        )
        results = await self.runner.call_in_thread(
            lambda: compare_transformed(session, plan, origins, sides, floors, self.listed, title)
        )
        return results, time.monotonic() - started


def build_read_task(
    endpoints: Endpoints, origin: ComparedOrigin, files: tuple[LocatedFile, ...] = ()
) -> OriginTask:
    """Build the task that reads the whole range of an origin, or the files of an archive."""
    spans = (SeqRange(origin.first, origin.last),) if origin.first <= origin.last else ()
    return OriginTask(
        endpoints.source_endpoint,
        origin.domain,
        origin.stream,
        spans,
        origin.filters,
        files=files,
    )


def build_expected_plan(transforms: TransformSpec, tasks: Sequence[OriginTask]) -> PartitionPlan:
    """Build the plan that produces the expected messages."""
    return PartitionPlan(
        (Partition(tasks[0].source, "", ""),),
        tuple(tasks),
        "none",
        (),
        transforms.where,
        transforms.transform,
        transforms.subject_transform,
    )


def find_expiry_floors(
    transforms: TransformSpec, origins: Sequence[ComparedOrigin], floors: dict[int, int]
) -> dict[int, int]:
    """Return the floors of a partitioned copy.

    Without stream order, expired and missing messages cannot be distinguished once any has
    expired.
    """
    return (
        floors
        if transforms.order == "stream"
        else {number: origins[number].last + 1 if floor else 0 for number, floor in floors.items()}
    )
