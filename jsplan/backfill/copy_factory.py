"""The copy of one origin: between two streams, into an archive, or out of one."""

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
    world: Context, pool: Pool, context: RunContext, origin_state: OriginState
) -> OriginCopy | ParquetExport:
    """Build the copy of one origin. Raises ArchiveError if an archive cannot be read."""
    if context.entry.target.parquet is not None:
        return ParquetExport(
            world,
            context,
            origin_state,
            endpoints_to_parquet(world, pool, origin_state),
            build_transform_spec(world.workspace.root, context.entry),
        )
    if origin_state.archive:
        archive = await load_parquet_origin(world, origin_state)
        return ParquetImport(
            context,
            origin_state,
            endpoints_from_parquet(world, pool, origin_state, archive),
            archive,
        )
    return StrategyCopy(context, origin_state, Endpoints.of_origin(world, pool, origin_state))


def endpoints_from_parquet(
    world: Context, pool: Pool, origin_state: OriginState, archive: ParquetOrigin
) -> Endpoints:
    """Build the endpoints of a copy out of an archive: only the target is a server."""
    target = world.workspace.domains[origin_state.target_address.domain]
    export_domains(world, (target,))
    api, endpoint = pool.api(target), Endpoint(target.connection, target.api_prefix)
    return Endpoints(api, api, endpoint, endpoint, archive.origin.domain)


def endpoints_to_parquet(world: Context, pool: Pool, origin_state: OriginState) -> Endpoints:
    """Build the endpoints of a copy into an archive: only the origin is a server."""
    origin = world.workspace.domains[origin_state.origin_address.domain]
    return Endpoints.of_domains(world, pool, origin, origin)
