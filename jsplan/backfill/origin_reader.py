"""An origin of a copy: its pinned range, both sides, and its reader."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from msgspec import Struct

from jsplan.backfill.endpoints import Endpoints
from jsplan.backfill.parquet.location import ParquetOrigin, load_parquet_origin
from jsplan.backfill.parquet.reader import read_sequences
from jsplan.backfill.pending_ranges import PendingRanges
from jsplan.backfill.protocol import RawConnection
from jsplan.backfill.protocol.stream_info import count_pending, find_first_seq_at
from jsplan.backfill.seq_arrays import SeqArray, group_into_ranges, subtract_present
from jsplan.backfill.seq_ranges import subtract
from jsplan.backfill.tasks.origin_task import (
    MAX_READ_RANGES,
    ExistingMessages,
    OriginTask,
    find_existing,
    select_inside,
)
from jsplan.backfill.tasks.staging_streams import await_stream_info, require_stream_info
from jsplan.comparing.former_streams import (
    NEVER,
    FormerNames,
    StreamIdentity,
    Window,
    find_former_names,
)
from jsplan.errors import RefusedError, ServerRefusedError
from jsplan.planning.backfill.model import SeqRange
from jsplan.resources.error_codes import STREAM_NOT_FOUND
from jsplan.units import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jsplan.backfill.tasks.endpoints import Endpoint
    from jsplan.context import Context
    from jsplan.jetstream import Pool
    from jsplan.planning.backfill.model import OriginState


#: Shorter runs of existing messages are read again and dropped one by one. The second number is for
#: the longest runs, which cost no more than a range each.
MIN_SKIPPED_RUN, MIN_SKIPPED_LONGEST_RUN = 10_000, 100
#: Limit for a list of deleted sequences: a larger one may exceed the payload limit of a link.
MAX_DELETED_DETAILS: Final = 50_000
#: Attempts to find a message that both the target and the origin have.
MAX_TRIES: Final = 20


class OriginReader(Protocol):
    """One origin of a copy, with its pinned range.

    The methods raise ApiError, those of an archive ArchiveError.
    """

    async def fetch_info(self) -> dict[str, Any]:
        """Return `created` and `state` of STREAM.INFO, and reconnect first if it was offline."""

    async def count_messages(self) -> int:
        """Count the messages of the range."""

    async def find_gone(self) -> list[SeqRange]:
        """Find the sequences that are deleted at the origin."""

    async def fetch_time(self, seq: int) -> int | None:
        """Return the time of a message (ns), or None."""

    async def find_first_seq_at(self, time: int) -> int:
        """Return the first sequence that was stored at this time (ns) or later."""

    async def find_unread(
        self, wanted: list[SeqRange], existing: ExistingMessages
    ) -> PendingRanges:
        """Find the parts of the wanted ranges to read, without regard to sources."""


def find_skippable_runs(known: ExistingMessages) -> list[SeqRange]:
    """Find long runs of existing messages, which are not read again.

    Their number is limited to the ranges that one task reads, unless all are long.
    """
    largest = sorted(group_into_ranges(known.seq), key=lambda run: -run.size)
    worth = (
        run
        for n, run in enumerate(largest)
        if run.size >= (MIN_SKIPPED_LONGEST_RUN if n < MAX_READ_RANGES - 1 else MIN_SKIPPED_RUN)
    )
    return sorted(worth)


class StreamReader(Struct):
    """An origin that is a stream."""

    state: OriginState
    endpoints: Endpoints

    @property
    def _stream(self) -> str:
        return self.state.origin_address.stream

    async def fetch_info(self) -> dict[str, Any]:
        """Return STREAM.INFO."""
        return await await_stream_info(self.endpoints.origin, self._stream)

    async def count_messages(self) -> int:
        """Count the messages of the range that match the filters."""

        def count(connection: RawConnection) -> int:
            prefix, filters = self.endpoints.source_endpoint.api_prefix, tuple(self.state.filters)
            first, after = (
                count_pending(connection, prefix, self._stream, seq, filters)
                for seq in (self.state.first, self.state.last + 1)
            )
            return first - after

        return await asyncio.to_thread(self._ask, count)

    async def find_gone(self) -> list[SeqRange]:
        """Find the sequences that are deleted at the origin, of the pinned range where many are."""
        state = (await require_stream_info(self.endpoints.origin, self._stream))["state"]
        gone = [SeqRange(1, int(state["first_seq"]) - 1)] if state["first_seq"] > 1 else []
        deleted = int(state.get("num_deleted") or 0)
        if deleted > MAX_DELETED_DETAILS:
            first = max(self.state.first, int(state["first_seq"]))
            last = min(self.state.last, int(state["last_seq"]))
            pinned = [SeqRange(first, last)] if first <= last else []
            return gone + subtract(pinned, await asyncio.to_thread(self._list_present))
        if deleted:
            detailed = await self.endpoints.origin.request(
                f"STREAM.INFO.{self._stream}", {"deleted_details": True}
            )
            gone += group_into_ranges(
                np.array(sorted(detailed["state"].get("deleted") or []), dtype=np.int64)
            )
        return gone

    def _list_present(self) -> list[SeqRange]:
        endpoint, state = self.endpoints.source_endpoint, self.state
        batches = endpoint.read(self._stream, state.first, state.last, headers_only=True)
        seqs = [rows["seq"].to_numpy() for rows in batches]
        return group_into_ranges(np.concatenate(seqs or [np.empty(0, dtype=np.int64)]))

    async def fetch_time(self, seq: int) -> int | None:
        """Return the time of a message (ns), or None."""
        return await fetch_time(self.endpoints.source_endpoint, self._stream, seq)

    async def find_first_seq_at(self, time: int) -> int:
        """Return the first sequence that was stored at this time (ns) or later."""
        prefix = self.endpoints.source_endpoint.api_prefix
        return await asyncio.to_thread(
            self._ask, lambda connection: find_first_seq_at(connection, prefix, self._stream, time)
        )

    def _ask(self, question: Callable[[RawConnection], int]) -> int:
        with contextlib.closing(self.endpoints.source_endpoint.open()) as connection:
            return question(connection)

    async def find_unread(
        self, wanted: list[SeqRange], existing: ExistingMessages
    ) -> PendingRanges:
        """Find the wanted ranges without long runs of existing messages."""
        if not await self._is_origin_of(existing):
            return PendingRanges(tuple(wanted), existing, is_exact=False)
        if not subtract_present(wanted, existing.seq):
            return PendingRanges((), existing)
        return PendingRanges(tuple(subtract(wanted, find_skippable_runs(existing))), existing)

    async def _is_origin_of(self, existing: ExistingMessages) -> bool:
        """Check that all existing messages come from this origin.

        Others are of a deleted stream, which are older, or of the time after both streams parted: a
        restored target, or an origin that lost messages and gave their sequences to new ones. Times
        grow with sequences in all of them, so that both ends show it.
        """
        dated = existing.time > 0
        seqs, times = existing.seq[dated], existing.time[dated]
        if not len(times):
            return True
        if (np.diff(existing.seq) == 0).any() or (np.diff(times) < 0).any():
            return False
        return await self._has_same_first(seqs, times) and await self._has_same_last(seqs, times)

    async def _has_same_last(self, seqs: SeqArray, times: SeqArray) -> bool:
        """Compare the last existing message that the origin still has; False if none is found."""
        state = (await self.fetch_info())["state"]
        known = (seqs >= int(state["first_seq"])) & (seqs <= int(state["last_seq"]))
        seqs, times = seqs[known], times[known]
        for seq, time in [*zip(seqs[-MAX_TRIES:], times[-MAX_TRIES:], strict=True)][::-1]:
            if (found := await self.fetch_time(int(seq))) is not None:
                return bool(found == time)
        return not len(seqs)

    async def _has_same_first(self, seqs: SeqArray, times: SeqArray) -> bool:
        """Compare the first existing message that the origin still has."""
        place, endpoint = 0, self.endpoints.source_endpoint
        for _ in range(MAX_TRIES):
            found = await fetch_first(endpoint, self._stream, int(seqs[place]), int(seqs[-1]))
            if found is None:
                return True  # the origin has none of them, so none can be copied twice
            place = int(np.searchsorted(seqs, found[0]))
            if seqs[place] == found[0]:
                return bool(found[1] == times[place])
        return False


class ParquetReader(Struct):
    """An origin that is one stream of an archive."""

    state: OriginState
    archive: ParquetOrigin

    async def fetch_info(self) -> dict[str, Any]:
        """Return `created` and `state` as STREAM.INFO would have them."""
        return self.archive.stream_info

    async def count_messages(self) -> int:
        """Count the messages of the archive."""
        return int(self.archive.stream_info["state"]["messages"])

    async def find_gone(self) -> list[SeqRange]:
        """Return no range: an archive deletes nothing during a copy."""
        return []

    async def fetch_time(self, seq: int) -> int | None:
        """Return the time of a message (ns), or None."""
        seqs, times = await asyncio.to_thread(read_sequences, self.archive.files)
        place = int(np.searchsorted(seqs, seq))
        return int(times[place]) if place < len(seqs) and seqs[place] == seq else None

    async def find_first_seq_at(self, time: int) -> int:
        """Return the first sequence that was stored at this time (ns) or later."""
        seqs, times = await asyncio.to_thread(read_sequences, self.archive.files)
        later = np.flatnonzero(times >= time)
        return int(seqs[later[0]]) if len(later) else self.state.last + 1

    async def find_unread(
        self, wanted: list[SeqRange], existing: ExistingMessages
    ) -> PendingRanges:
        """Find the archived messages that the target does not have, by sequence and time."""
        return await asyncio.to_thread(self._find_unread, wanted, existing)

    def _find_unread(self, wanted: list[SeqRange], existing: ExistingMessages) -> PendingRanges:
        seqs, times = read_sequences(self.archive.files)
        is_pending = select_inside(seqs, wanted)
        if len(existing.seq):
            is_pending &= ~find_existing(existing, seqs, times)
        return PendingRanges(tuple(group_into_ranges(seqs[is_pending])), ExistingMessages())


async def fetch_time(endpoint: Endpoint, stream: str, seq: int) -> int | None:
    """Return the time of a message (ns) without its payload, or None."""
    found = await fetch_first(endpoint, stream, seq, seq)
    return found[1] if found is not None else None


async def fetch_first(
    endpoint: Endpoint, stream: str, first: int, last: int
) -> tuple[int, int] | None:
    """Return sequence and time (ns) of the first message of a range, or None."""

    def read_first() -> tuple[int, int] | None:
        with contextlib.closing(endpoint.read(stream, first, last, headers_only=True)) as batches:
            for rows in batches:
                return rows["seq"][0].as_py(), rows["time"][0].as_py()
        return None

    try:
        return await asyncio.to_thread(read_first)
    except ServerRefusedError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return None
        raise


class CopyOrigin(Struct, frozen=True):
    """One origin of a copy, a stream or one stream of an archive."""

    state: OriginState
    endpoints: Endpoints
    reader: OriginReader
    former: FormerNames = FormerNames()
    archive: ParquetOrigin | None = None

    @property
    def name(self) -> str:
        """The origin as in `Jsplan-Origin`: `domain/stream`."""
        return f"{self.endpoints.origin_domain_name}/{self.state.origin_address.stream}"

    @property
    def names(self) -> dict[str, int]:
        """The names that it had before, and its name: so they follow each other in a target.

        Each comes with the time (ns) at which it became the name of another stream.
        """
        return {**self.former.origins, self.name: NEVER}

    @property
    def created_at(self) -> int:
        """Since when it has had its sequences (ns)."""
        return self.former.begin or parse_instant(self.state.created)

    @property
    def own_window(self) -> Window:
        """From when on and until when (ns) sources have brought messages by its name of now."""
        return self.former.here or parse_instant(self.state.created), NEVER

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
        return CopyOrigin(state, endpoints, ParquetReader(state, archive), archive=archive)
    origin = domains[state.origin_address.domain]
    target = origin if into_archive else domains[state.target_address.domain]
    endpoints = Endpoints.of_domains(world, pool, origin, target)
    reader = None
    if not into_archive:
        reader = StreamIdentity(state.target_address, state.target_created)
    former = find_former_names(world, StreamIdentity(state.origin_address, state.created), reader)
    return CopyOrigin(state, endpoints, StreamReader(state, endpoints), former)


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
