"""An origin of a copy: its pinned range, both sides, and how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from jsplan.backfill.endpoints import Endpoints
from jsplan.backfill.origin_reader import OriginReader, ParquetReader, StreamReader
from jsplan.backfill.parquet.location import ParquetOrigin, load_parquet_origin
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsplan.context import Context
    from jsplan.jetstream import Pool
    from jsplan.planning.backfill.model import OriginState, SeqRange


class CopyOrigin(Struct, frozen=True):
    """One origin of a copy, a stream or one stream of an archive."""

    state: OriginState
    endpoints: Endpoints
    reader: OriginReader
    archive: ParquetOrigin | None = None

    @property
    def name(self) -> str:
        """The origin as in `Jsplan-Origin`: `domain/stream`."""
        return f"{self.endpoints.origin_domain_name}/{self.state.origin_address.stream}"

    @property
    def has_domain(self) -> bool:
        """True if the workspace has its domain, so that a source of the target may read from it."""
        return self.archive is None or self.archive.has_declared_domain

    @property
    def recorded_gaps(self) -> tuple[list[list[int]], int] | None:
        """The gaps of an archive, and the number of their sequences; None: the copy finds them."""
        if self.archive is None:
            return None
        content = self.archive.content
        return [list(gap) for gap in content.gaps], content.gap_messages

    def build_task(self, spans: Sequence[SeqRange]) -> OriginTask:
        """Build the task that reads these ranges, with the filters of the origin."""
        return OriginTask(
            self.endpoints.source_endpoint,
            self.endpoints.origin_domain_name,
            self.state.origin_address.stream,
            tuple(spans),
            tuple(self.state.filters),
            files=self.archive.files if self.archive is not None else (),
        )


async def load_origin(
    world: Context, pool: Pool, state: OriginState, *, into_archive: bool = False
) -> CopyOrigin:
    """Build an origin from its state. Raises ArchiveError if its archive cannot be read.

    Of a copy `into_archive` only the origin is a server.
    """
    domains = world.workspace.domains
    if state.archive:
        archive = await load_parquet_origin(world, state)
        target = domains[state.target_address.domain]
        endpoints = Endpoints.of_domains(world, pool, target, target)
        endpoints.origin_domain_name = archive.origin.domain
        return CopyOrigin(state, endpoints, ParquetReader(state, archive), archive)
    origin = domains[state.origin_address.domain]
    target = origin if into_archive else domains[state.target_address.domain]
    endpoints = Endpoints.of_domains(world, pool, origin, target)
    return CopyOrigin(state, endpoints, StreamReader(state, endpoints))


def require_distinct(entry: str, origins: Sequence[CopyOrigin]) -> None:
    """Raise RefusedError if two archives are of one stream, so that sequences are ambiguous."""
    names = [origin.name for origin in origins]
    if duplicate := next((name for n, name in enumerate(names) if name in names[:n]), None):
        raise RefusedError(
            f"backfill {entry} reads more than one archive of {duplicate}, "
            "and a sequence means another message in each",
            hint="Make an entry of each archive. Archives of a recreated stream can only be copied "
            "without order, where, transform and subject_transform.",
        )
