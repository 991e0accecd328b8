"""Run backfill verify where one side is an archive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.copy_origin import load_origin, require_distinct
from jsplan.backfill.parquet.location import load_parquet_origin, resolve_folder
from jsplan.backfill.parquet.log import Archive, ArchivedOrigin, Transformation
from jsplan.backfill.pinning import Endpoints, load_stored_state, pin_ranges
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.rows.message_rows import ComparedOrigin, read_origin_rows, read_target_rows
from jsplan.backfill.rows.parquet_rows import (
    read_archived_origin_rows,
    read_archived_presence,
    read_archived_target_rows,
)
from jsplan.backfill.rows.partitioned_rows import read_partitioned_rows, read_presence_rows
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.transforms import TransformSpec, build_transform_spec, has_transforms
from jsplan.backfill.verify.command import BackfillCheck, build_verification, find_expiry_floor
from jsplan.backfill.verify.transformed_check import (
    build_expected_plan,
    build_read_task,
    find_expiry_floors,
)
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.backfill.parquet.log import Commit
    from jsplan.backfill.spark.verify_join import SideReader
    from jsplan.backfill.tasks.origin_task import OriginTask
    from jsplan.documents.backfill import Verification
    from jsplan.planning.backfill.model import OriginState

#: The stream may have messages that the archive does not have: no sequence is impossible.
_NO_LAST_SEQ: Final = 1 << 62


@dataclass(slots=True)
class _ComparisonSides:
    """Sides to compare.

    `expected_tasks` read the origins whose messages are transformed; `readers` then read only
    their presence. `is_transformed`: the archive has changed messages, so a source of the target
    delivers other ones.
    """

    origins: list[ComparedOrigin] = field(default_factory=list)
    readers: list[SideReader] = field(default_factory=list)
    expected_tasks: list[OriginTask] = field(default_factory=list)
    expiry_floors: dict[int, int] = field(default_factory=dict)
    is_transformed: bool = False


class ParquetCheck(BackfillCheck):
    """One comparison of an archive with streams."""

    async def execute(self) -> Verification:
        """Read both sides once. Raises the errors of `verify_backfill`, and ArchiveError."""
        record = load_stored_state(self.context, self.entry) or await pin_ranges(
            self.context, self.pool, self.entry
        )
        transforms = build_transform_spec(self.context.workspace.root, self.entry)
        is_export = self.entry.target.parquet is not None
        sides = await (
            self._collect_export_sides(record.origins)
            if is_export
            else self._collect_import_sides(record.origins, transforms)
        )
        session = await self.runner.session()
        from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415 - PySpark is imported only when needed
        from jsplan.backfill.spark.verify_transformed import compare_transformed  # noqa: PLC0415 - as above

        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, title = time.monotonic(), f"jsplan backfill verify {self.entry.name}"
        if has_transforms(self.entry) and sides.expected_tasks:
            plan, floors = (
                build_expected_plan(transforms, sides.expected_tasks),
                find_expiry_floors(transforms, sides.origins, sides.expiry_floors),
            )
            results = await self.runner.call_in_thread(
                lambda: compare_transformed(
                    session, plan, sides.origins, sides.readers, floors, self.listed, title
                )
            )
        else:
            is_transformed = sides.is_transformed
            results = await self.runner.call_in_thread(
                lambda: compare_sides(
                    session,
                    sides.readers,
                    sides.expiry_floors,
                    self.listed,
                    title,
                    transformed=is_transformed,
                )
            )
        return build_verification(
            self.entry.name, record.origins, results, time.monotonic() - started, self.listed
        )

    async def _collect_export_sides(self, origin_states: list[OriginState]) -> _ComparisonSides:
        folder = resolve_folder(self.context, self.entry.target.parquet or "")
        archive = await asyncio.to_thread(Archive.read, folder)
        missing = await asyncio.to_thread(archive.find_missing_files)
        sides, is_transformed = (
            _ComparisonSides(expiry_floors=dict.fromkeys(range(len(origin_states)), 0)),
            has_transforms(self.entry),
        )
        for number, origin_state in enumerate(origin_states):
            endpoints = (
                await load_origin(self.context, self.pool, origin_state, into_archive=True)
            ).endpoints
            info = await require_stream_info(endpoints.origin, origin_state.origin_address.stream)
            if info["created"] != origin_state.created:
                raise JsplanError(
                    f"{origin_state.origin} was recreated ({info['created']}) after it was "
                    "archived. Its messages cannot be compared"
                )
            compared = _build_compared_origin(
                number, origin_state, endpoints, int(info["state"]["last_seq"])
            )
            origin = ArchivedOrigin(
                endpoints.origin_domain_name,
                origin_state.origin_address.stream,
                origin_state.created,
            )
            placed = tuple(
                (str(folder / file.name), file)
                for file in archive.files_of(origin)
                if file.name not in missing
            )
            sides.origins.append(compared)
            sides.readers.append(partial(read_archived_target_rows, placed, compared))
            if not is_transformed:
                sides.readers.append(partial(read_origin_rows, endpoints.source_endpoint, compared))
                continue
            sides.expected_tasks.append(build_read_task(endpoints, compared))
            # other entries may have archived messages that this one does not select
            if all(commit.where == self.entry.where for commit in archive.origins.get(origin, [])):
                sides.readers.append(
                    partial(read_presence_rows, endpoints.source_endpoint, compared)
                )
        return sides

    async def _collect_import_sides(
        self, origin_states: list[OriginState], transforms: TransformSpec
    ) -> _ComparisonSides:
        sides, transformed, stream = (
            _ComparisonSides(),
            has_transforms(self.entry),
            self.entry.target.stream,
        )
        origins = [await load_origin(self.context, self.pool, state) for state in origin_states]
        if transformed:
            require_distinct(self.entry.name, origins)
        endpoints: Endpoints | None = None
        for number, origin in enumerate(origins):
            origin_state, endpoints, files = origin.state, origin.endpoints, origin.reader.files
            target = await require_stream_info(endpoints.target, stream)
            compared = _build_compared_origin(
                number,
                origin_state,
                endpoints,
                _NO_LAST_SEQ,
                self.list_source_names(origin_state, target["config"])
                if origin.reader.has_domain
                else (),
            )
            sides.origins.append(compared)
            sides.expiry_floors[number] = await asyncio.to_thread(
                find_expiry_floor, compared, origin_state, endpoints, target
            )
            sides.expected_tasks.append(build_read_task(endpoints, compared, files))
            sides.readers.append(
                partial(
                    read_archived_presence if transformed else read_archived_origin_rows,
                    files,
                    compared,
                )
            )
            archive = await load_parquet_origin(self.context, origin_state)
            sides.is_transformed |= _is_transformed(archive.archive.origins[archive.origin])
        if endpoints is not None:
            state = (await require_stream_info(endpoints.target, stream))["state"]
            request = (
                endpoints.target_endpoint,
                stream,
                int(state["first_seq"]),
                int(state["last_seq"]),
                tuple(sides.origins),
            )
            sides.readers.append(
                partial(read_partitioned_rows, *request, transforms.order)
                if transformed
                else partial(read_target_rows, *request)
            )
        return sides


def _is_transformed(commits: Iterable[Commit]) -> bool:
    return any(commit.transformation != Transformation() for commit in commits)


def _build_compared_origin(
    number: int,
    origin_state: OriginState,
    endpoints: Endpoints,
    last_possible_seq: int,
    source_names: tuple[str, ...] = (),
) -> ComparedOrigin:
    options: dict[str, Any] = {
        "source_names": source_names,
        "ignores_dropped_headers": bool(source_names),
        "skipped": tuple(origin_state.skipped),
    }
    stream, created_at = origin_state.origin_address.stream, parse_time(origin_state.created)
    return ComparedOrigin(
        number,
        endpoints.origin_domain_name,
        stream,
        origin_state.first,
        origin_state.last,
        tuple(origin_state.filters),
        created_at,
        last_possible_seq,
        **options,
    )
