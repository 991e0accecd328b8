"""Who carries out a leg: between two streams, into an archive, or out of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.job.ways import Way
from jsplan.workflows.backfill.archives import Held, held_by
from jsplan.workflows.backfill.archiving import ArchiveRun
from jsplan.workflows.backfill.freeze import Ends, export_domains
from jsplan.workflows.backfill.restoring import RestoreRun
from jsplan.workflows.backfill.shapes import check_shape
from jsplan.workflows.backfill.tools import ToolRun

if TYPE_CHECKING:
    from jsplan.backfill.ranges import Leg
    from jsplan.jetstream import Pool
    from jsplan.workflows.backfill.leg import LegRun, Work
    from jsplan.workflows.world import World


async def job_of(world: World, pool: Pool, work: Work, leg: Leg) -> LegRun | ArchiveRun:
    """What runs the leg. Raises ArchiveError where an archive cannot be read."""
    if work.entry.target.parquet is not None:
        return ArchiveRun(world, work, leg, ends_into(world, pool, leg), check_shape(world.workspace.root, work.entry))
    if leg.archive:
        held = await held_by(world, leg)
        return RestoreRun(work, leg, ends_from(world, pool, leg, held), held)
    return ToolRun(work, leg, Ends.of_leg(world, pool, leg))


def ends_from(world: World, pool: Pool, leg: Leg, held: Held) -> Ends:
    """The ends of a leg out of an archive: nobody but the target is asked for anything."""
    target = world.workspace.domains[leg.target_address.domain]
    export_domains(world, (target,))
    api, way = pool.api(target), Way(target.connection, target.api_prefix)
    return Ends(api, api, way, way, held.origin.domain)


def ends_into(world: World, pool: Pool, leg: Leg) -> Ends:
    """The ends of a leg into an archive: nobody but the origin is asked for anything."""
    origin = world.workspace.domains[leg.origin_address.domain]
    return Ends.of(world, pool, origin, origin)
