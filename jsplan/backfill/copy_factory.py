"""Who carries out a leg: between two streams, into an archive, or out of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.parquet.export import ParquetExport
from jsplan.backfill.parquet.import_ import ParquetImport
from jsplan.backfill.parquet.location import ParquetOrigin, load_parquet_origin
from jsplan.backfill.pinning import Endpoints, export_domains
from jsplan.backfill.strategy_copy import StrategyCopy
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.transforms import build_transform_spec

if TYPE_CHECKING:
    from jsplan.backfill.origin_copy import OriginCopy, RunContext
    from jsplan.backfill.seq_ranges import OriginState
    from jsplan.context import Context
    from jsplan.jetstream import Pool


async def create_copy(
    world: Context, pool: Pool, work: RunContext, leg: OriginState
) -> OriginCopy | ParquetExport:
    """What runs the leg. Raises ArchiveError where an archive cannot be read."""
    if work.entry.target.parquet is not None:
        return ParquetExport(
            world,
            work,
            leg,
            endpoints_to_parquet(world, pool, leg),
            build_transform_spec(world.workspace.root, work.entry),
        )
    if leg.archive:
        held = await load_parquet_origin(world, leg)
        return ParquetImport(work, leg, endpoints_from_parquet(world, pool, leg, held), held)
    return StrategyCopy(work, leg, Endpoints.of_origin(world, pool, leg))


def endpoints_from_parquet(
    world: Context, pool: Pool, leg: OriginState, held: ParquetOrigin
) -> Endpoints:
    """The ends of a leg out of an archive: nobody but the target is asked for anything."""
    target = world.workspace.domains[leg.target_address.domain]
    export_domains(world, (target,))
    api, way = pool.api(target), Endpoint(target.connection, target.api_prefix)
    return Endpoints(api, api, way, way, held.origin.domain)


def endpoints_to_parquet(world: Context, pool: Pool, leg: OriginState) -> Endpoints:
    """The ends of a leg into an archive: nobody but the origin is asked for anything."""
    origin = world.workspace.domains[leg.origin_address.domain]
    return Endpoints.of_domains(world, pool, origin, origin)
