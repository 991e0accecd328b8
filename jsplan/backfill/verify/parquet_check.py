"""backfill verify where one side is an archive: the same comparison, with files in the place of a stream."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.copy_factory import endpoints_from_parquet, endpoints_to_parquet
from jsplan.backfill.parquet.location import load_parquet_origin, resolve_folder
from jsplan.backfill.parquet.log import Archive, ArchivedOrigin, Transformation
from jsplan.backfill.partitioned_run import load_parquet_origins
from jsplan.backfill.pinning import Endpoints, load_stored_state, pin_ranges
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.transforms import TransformSpec, build_transform_spec, has_transforms
from jsplan.backfill.verify.command import BackfillCheck, build_verification, find_expiry_floor
from jsplan.backfill.verify.message_rows import ComparedOrigin, read_origin_rows, read_target_rows
from jsplan.backfill.verify.parquet_rows import (
    read_archived_origin_rows,
    read_archived_presence,
    read_archived_target_rows,
)
from jsplan.backfill.verify.partitioned_rows import read_partitioned_rows, read_presence_rows
from jsplan.backfill.verify.transformed_check import (
    build_expected_plan,
    build_read_task,
    find_expiry_floors,
)
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.backfill.parquet.log import Commit
    from jsplan.backfill.seq_ranges import OriginState
    from jsplan.backfill.spark.verify_join import SideReader
    from jsplan.backfill.tasks.copy import CopyTask
    from jsplan.documents.backfill import Verification

#: What is not in an archive may be in the stream for other reasons: nothing there is impossible.
_NO_LAST_SEQ: Final = 1 << 62


@dataclass(slots=True)
class _ComparisonSides:
    """What is compared. `expected_tasks`: how the origins are read where that is shaped, of which `readers` say only what they have; `is_transformed`: the
    archive has not what its origin has, so a source of the target brings something else of it.
    """

    origins: list[ComparedOrigin] = field(default_factory=list)
    readers: list[SideReader] = field(default_factory=list)
    expected_tasks: list[CopyTask] = field(default_factory=list)
    expiry_floors: dict[int, int] = field(default_factory=dict)
    is_transformed: bool = False


class ParquetCheck(BackfillCheck):
    """One comparison of an archive with streams."""

    async def execute(self) -> Verification:
        """Read both sides once. Raises what `verify` raises, and ArchiveError."""
        record = load_stored_state(self.world, self.entry) or await pin_ranges(
            self.world, self.pool, self.entry
        )
        shape = build_transform_spec(self.world.workspace.root, self.entry)
        into = self.entry.target.parquet is not None
        found = await (
            self._collect_export_sides(record.origins)
            if into
            else self._collect_import_sides(record.origins, shape)
        )
        session = await self.runner.session()
        from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415 - PySpark is imported when it is needed
        from jsplan.backfill.spark.verify_transformed import compare_transformed  # noqa: PLC0415 - as above

        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, title = time.monotonic(), f"jsplan backfill verify {self.entry.name}"
        if has_transforms(self.entry) and found.expected_tasks:
            job, floors = (
                build_expected_plan(shape, found.expected_tasks),
                find_expiry_floors(shape, found.origins, found.expiry_floors),
            )
            said = await self.runner.call_in_thread(
                lambda: compare_transformed(
                    session, job, found.origins, found.readers, floors, self.listed, title
                )
            )
        else:
            shaped = found.is_transformed
            said = await self.runner.call_in_thread(
                lambda: compare_sides(
                    session,
                    found.readers,
                    found.expiry_floors,
                    self.listed,
                    title,
                    transformed=shaped,
                )
            )
        return build_verification(
            self.entry.name, record.origins, said, time.monotonic() - started, self.listed
        )

    async def _collect_export_sides(self, legs: list[OriginState]) -> _ComparisonSides:
        folder = resolve_folder(self.world, self.entry.target.parquet or "")
        archive = await asyncio.to_thread(Archive.read, folder)
        gone = await asyncio.to_thread(archive.find_missing_files)
        found, shaped = (
            _ComparisonSides(expiry_floors=dict.fromkeys(range(len(legs)), 0)),
            has_transforms(self.entry),
        )
        for number, leg in enumerate(legs):
            ends = endpoints_to_parquet(self.world, self.pool, leg)
            info = await require_stream_info(ends.origin, leg.origin_address.stream)
            if info["created"] != leg.created:
                raise JsplanError(
                    f"{leg.origin} was made anew ({info['created']}) since it was archived: there is nothing to compare with"
                )
            compared = _build_compared_origin(number, leg, ends, int(info["state"]["last_seq"]))
            origin = ArchivedOrigin(ends.origin_domain_name, leg.origin_address.stream, leg.created)
            placed = tuple(
                (str(folder / file.name), file)
                for file in archive.files_of(origin)
                if file.name not in gone
            )
            found.origins.append(compared)
            found.readers.append(partial(read_archived_target_rows, placed, compared))
            if not shaped:
                found.readers.append(partial(read_origin_rows, ends.source_endpoint, compared))
                continue
            found.expected_tasks.append(build_read_task(ends, compared))
            if all(
                one.where == self.entry.where for one in archive.origins.get(origin, [])
            ):  # else others may want what this does not
                found.readers.append(partial(read_presence_rows, ends.source_endpoint, compared))
        return found

    async def _collect_import_sides(
        self, legs: list[OriginState], shape: TransformSpec
    ) -> _ComparisonSides:
        found, shaped, stream = (
            _ComparisonSides(),
            has_transforms(self.entry),
            self.entry.target.stream,
        )
        every = (
            await load_parquet_origins(self.world, self.entry, legs)
            if shaped
            else [await load_parquet_origin(self.world, leg) for leg in legs]
        )
        ends: Endpoints | None = None
        for number, (leg, held) in enumerate(zip(legs, every, strict=True)):
            ends = endpoints_from_parquet(self.world, self.pool, leg, held)
            target = await require_stream_info(ends.target, stream)
            compared = _build_compared_origin(
                number,
                leg,
                ends,
                _NO_LAST_SEQ,
                self.list_source_names(leg, target["config"]) if held.has_declared_domain else (),
            )
            found.origins.append(compared)
            found.expiry_floors[number] = await asyncio.to_thread(
                find_expiry_floor, compared, leg, ends, target
            )
            found.expected_tasks.append(build_read_task(ends, compared, held.files))
            found.readers.append(
                partial(
                    read_archived_presence if shaped else read_archived_origin_rows,
                    held.files,
                    compared,
                )
            )
            found.is_transformed |= _is_transformed(held.archive.origins[held.origin])
        if ends is not None:
            state = (await require_stream_info(ends.target, stream))["state"]
            what = (
                ends.target_endpoint,
                stream,
                int(state["first_seq"]),
                int(state["last_seq"]),
                tuple(found.origins),
            )
            found.readers.append(
                partial(read_partitioned_rows, *what, shape.order)
                if shaped
                else partial(read_target_rows, *what)
            )
        return found


def _is_transformed(commits: Iterable[Commit]) -> bool:
    return any(commit.transformation != Transformation() for commit in commits)


def _build_compared_origin(
    number: int, leg: OriginState, ends: Endpoints, ceiling: int, natives: tuple[str, ...] = ()
) -> ComparedOrigin:
    more: dict[str, Any] = {
        "natives": natives,
        "loose": bool(natives),
        "skipped": tuple(leg.skipped),
    }
    stream, since = leg.origin_address.stream, parse_time(leg.created)
    return ComparedOrigin(
        number,
        ends.origin_domain_name,
        stream,
        leg.first,
        leg.last,
        tuple(leg.filters),
        since,
        ceiling,
        **more,
    )
