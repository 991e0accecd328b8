"""Export one stream into an archive, each message once.

The ranges of chunks are pinned in the manifest. Each chunk becomes one file, which is read back.
When all are there, the manifest is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.backfill.endpoints import require_same_stream
from jsplan.backfill.parquet.location import resolve_store
from jsplan.backfill.parquet.manifest import (
    Archive,
    ArchivedOrigin,
    ArchiveFile,
    Chunk,
    OriginContent,
    explain_errors,
)
from jsplan.backfill.parquet.reader import describe_file, read_sequences
from jsplan.backfill.parquet.store import ArchiveError
from jsplan.backfill.retry import Result, retry_while_progressing, watch_progress
from jsplan.backfill.run_context import WRITE_SECONDS
from jsplan.backfill.seq_arrays import subtract_present
from jsplan.backfill.seq_ranges import count_sequences, intersect, subtract
from jsplan.backfill.tasks.archive_writer import ChunkWriter, export_chunks
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.comparing.former_streams import StreamIdentity, find_former_names
from jsplan.documents.backfill import OriginResult
from jsplan.errors import JsplanError
from jsplan.identity import KnownObject
from jsplan.planning.backfill.model import SeqRange, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from jsplan.backfill.origin_reader import CopyOrigin
    from jsplan.backfill.run_context import RunContext
    from jsplan.backfill.tasks.partitioning import TransformSpec
    from jsplan.context import Context

#: Limits of a chunk. A worker that dies loses at most one, and they bound the size of files.
CHUNK_SEQUENCES, CHUNK_BYTES = 1_000_000, 128 << 20
#: Number of chunks of a range, if each has at least this number of messages.
PARALLEL_CHUNKS, MIN_CHUNK_MESSAGES = 4, 50_000


class ParquetExport:
    """Export of one origin into an archive. `results` has its current progress."""

    found_existing = False  # only this command writes into an archive

    def __init__(
        self,
        context: Context,
        run: RunContext,
        origin: CopyOrigin,
        transforms: TransformSpec,
    ) -> None:
        self.context = run
        self.origin_state = state = origin.state
        self.origin_of_copy = origin
        self.reader = origin.reader
        self.result = OriginResult(state.origin, state.target, state.first, state.last)
        self.results = [self.result]
        self.store = resolve_store(context, state.target)
        subjects = transforms.subject_transform
        self.origin = ArchivedOrigin(
            origin.endpoints.origin_domain_name,
            state.origin_address.stream,
            state.created,
            tuple(sorted(state.filters)),
            transforms.where,
            str(transforms.transform) if transforms.transform is not None else None,
            (subjects.src, subjects.dest) if subjects is not None else (),
        )
        sides = [Address.of_stream(side.domain, side.stream) for side in run.entry.origins]
        #: The names of each origin of the entry, that of now last.
        self._names = [
            [*find_former_names(context, StreamIdentity(side, ""), None).origins] for side in sides
        ]
        self._known = KnownObject(state.created, "")
        self._transforms = transforms

    async def run(self) -> None:
        """Archive the pending messages, and verify them.

        Raises JsplanError and ApiError. It can then run again.
        """
        await retry_while_progressing(
            self._attempt, lambda: self.result.copied, self.context.observer, self._title
        )

    async def _require_same_stream(self) -> None:
        info = await self.reader.fetch_info()
        self._known = require_same_stream(self.origin_state.origin, self._known, info)

    async def _attempt(self) -> None:
        await self._require_same_stream()
        self.context.require_open()
        self.result.attempts += 1
        self.context.may_write(WRITE_SECONDS)
        step = await self._compute_chunk_sequences()
        archive = await asyncio.to_thread(self._pin_chunks, step)
        content = archive.find(self.origin.identity)
        assert content is not None, "pinned above"
        if content.pending:
            files = await self._write_chunks(content.pending)
            await self._require_same_stream()
            await asyncio.to_thread(self._require_reachable, files)
            gaps = await self._find_gaps(content, files)
            self.context.may_write(WRITE_SECONDS)
            content = content.complete(files, gaps)
            archive = await asyncio.to_thread(archive.put(content).save)
            self.result.copied += sum(file.rows for file in files)
            self.result.bytes += sum(file.content for file in files)
            self.result.path = "spark, as Parquet"
            self.result.verified = any(file.rows for file in files)
        await asyncio.to_thread(archive.clean)
        self.result.gaps = [list(gap) for gap in content.gaps]
        self.result.gap_messages = content.gap_messages

    # --- pin ---

    def _name_as_in(self, archive: Archive) -> ArchivedOrigin:
        """Return the origin as the archive names it: maybe by what it was before it was moved."""
        known = archive.find(*self.origin_of_copy.former.archived)
        if known is None:
            return self.origin
        domain, stream, created = known.origin.identity
        return replace(self.origin, domain=domain, stream=stream, created=created)

    def _pin_chunks(self, step: int) -> Archive:
        """Return the archive, whose pending chunks of this origin are what is to be written.

        Chunks that an earlier run pinned are kept, so their files are found. Raises ArchiveError.
        """
        archive = Archive.read(self.store)
        self.origin = self._name_as_in(archive)
        missing = {*archive.find_missing_files()}
        found = archive.find(self.origin.identity) or OriginContent(self.origin)
        if found.origin != self.origin and any(chunk.file is not None for chunk in found.chunks):
            raise ArchiveError(
                f"{self.store} has messages of {self.origin_state.origin} that were written with "
                f"{found.origin.describe_selection()}. This entry has "
                f"{self.origin.describe_selection()}. An archive has each message only once",
                hint="Name another folder.",
            )
        chunks = [
            replace(chunk, file=None) if chunk.name in missing else chunk for chunk in found.chunks
        ]
        kept = [
            chunk
            for chunk in chunks
            if chunk.file is not None or chunk.name == self._name_chunk(chunk.span)
        ]
        dropped = [chunk for chunk in chunks if chunk not in kept]
        whole = [self.origin_state.seq_range] if self.origin_state.seq_range.size > 0 else []
        new = subtract(
            merge_ranges([*whole, *(chunk.span for chunk in dropped)]),
            merge_ranges(chunk.span for chunk in kept),
        )
        kept += [Chunk(self._name_chunk(span), *span) for span in _split_ranges(new, step)]
        pinned = replace(
            found, origin=self.origin, chunks=tuple(sorted(kept, key=lambda chunk: chunk.first))
        )
        names = {*archive.dropped, *(chunk.name for chunk in dropped)}
        archived = {str(self.origin), *(str(content.origin) for content in archive.origins)}
        expected = [next((n for n in each if n in archived), each[-1]) for each in self._names]
        updated = replace(
            self._end_predecessors(archive).put(pinned),
            expected=tuple(sorted({*archive.expected, *expected})),
            dropped=tuple(sorted(names - {chunk.name for chunk in kept})),
        )
        if updated != archive:
            archive = updated.save()
        archive.clean()
        return archive

    def _end_predecessors(self, archive: Archive) -> Archive:
        """Keep of recreated streams what is written: the rest can never be read."""
        for content in archive.origins:
            origin = content.origin
            if str(origin) == str(self.origin) and origin.created != self.origin.created:
                present = self.store.list() if content.pending else {}
                chunks = tuple(
                    replace(chunk, file=describe_file(self.store, chunk.name, chunk.name))
                    if chunk.file is None
                    else chunk
                    for chunk in content.chunks
                    if chunk.file is not None or chunk.name in present
                )
                archive = archive.put(replace(content, chunks=chunks))
        return archive

    def _name_chunk(self, span: SeqRange) -> str:
        return self.origin.name_chunk(span, self._transforms.fingerprint)

    # --- write ---

    async def _write_chunks(self, chunks: list[Chunk]) -> list[ArchiveFile]:
        """Write the files that are not there, and return the entries of all."""
        runner, needs_rows = self.context.runner, self._transforms.needs_rows
        present = await asyncio.to_thread(self.store.list)
        done = [chunk for chunk in chunks if chunk.name in present]
        if done:
            self.context.observer.phase(
                f"Resuming: an earlier run has written {len(done):,} of {len(chunks):,} files"
            )
        await runner.start()
        self.context.observer.phase(f"Archiving {self._title}")
        direct, files = done if needs_rows else chunks, list[ArchiveFile]()
        if direct:
            groups = [direct] if self.context.entry.rate else [[chunk] for chunk in direct]
            tasks = [partial(export_chunks, self._build_plan(group)) for group in groups]
            for found in await self._run_job(runner.run(tasks, self._title), chunks):
                files += found
        new = [chunk for chunk in chunks if chunk not in direct]
        # A shuffle loses its work at the deadline, so each chunk has its own.
        batches = [[chunk] for chunk in new] if self.context.deadline is not None else [new]
        for plan in map(self._build_plan, filter(None, batches)):
            files += await self._run_job(runner.run_partitions(plan, self._title), chunks)
            written = {file.name for file in files}
            for number, chunk in enumerate(plan.chunks):
                if chunk.name not in written:  # it has no rows, so no task wrote it
                    files.append(await asyncio.to_thread(_write_empty, plan, number))
        return files

    def _build_plan(self, chunks: list[Chunk]) -> PartitionPlan:
        task = replace(
            self.origin_of_copy.build_task(merge_ranges(chunk.span for chunk in chunks)),
            deadline=self.context.deadline,
            known=self._known,
        )
        rate = self.context.entry.rate
        return PartitionPlan(
            (), (task,), self._transforms, rate=rate, chunks=tuple(chunks), store=self.store
        )

    async def _compute_chunk_sequences(self) -> int:
        """Compute the number of sequences of a chunk."""
        state = (await self.reader.fetch_info())["state"]
        each: int = max(1, state["bytes"] // max(1, state["messages"]))
        size = min(CHUNK_BYTES, self.context.portion_bytes or CHUNK_BYTES)
        part = max(MIN_CHUNK_MESSAGES, -(-self.origin_state.seq_range.size // PARALLEL_CHUNKS))
        return max(1, min(CHUNK_SEQUENCES, size // each, part))

    async def _run_job(self, job: Awaitable[Result], chunks: list[Chunk]) -> Result:
        """Await a job, and report the sequences of the finished chunks."""

        async def count() -> int:
            present = await asyncio.to_thread(self.store.list)
            return count_sequences(chunk.span for chunk in chunks if chunk.name in present)

        names = self.origin_state.origin, f"{self._title}: archiving"
        total = count_sequences(chunk.span for chunk in chunks)
        return await watch_progress(job, self.context.observer, names, count, total)

    def _require_reachable(self, files: list[ArchiveFile]) -> None:
        """Raise JsplanError where workers wrote to another place than this process sees."""
        with explain_errors(self.store, "read"):
            present = self.store.list()
        if (file := next((file for file in files if file.name not in present), None)) is not None:
            raise JsplanError(
                f"a worker has written {file.name} of {self.origin_state.origin}, but it is not "
                f"in {self.store}",
                hint="On a cluster, the driver and every worker must reach the archive "
                "under the same path.",
            )

    async def _find_gaps(self, content: OriginContent, files: list[ArchiveFile]) -> list[SeqRange]:
        """Return the sequences that were deleted before they could be archived.

        With a filter, only deleted sequences count.
        """
        placed = [(self.store, file) for file in files]
        seqs, _ = await asyncio.to_thread(read_sequences, placed)
        unread = subtract_present(merge_ranges(chunk.span for chunk in content.pending), seqs)
        if self.origin_state.filters or self._transforms.needs_rows:
            return intersect(unread, await self.reader.find_gone())
        return unread

    @property
    def _title(self) -> str:
        return f"{self.origin_state.origin} to {self.origin_state.target}"


def _split_ranges(spans: list[SeqRange], step: int) -> Iterator[SeqRange]:
    for span in spans:
        yield from (
            SeqRange(first, min(span.last, first + step - 1))
            for first in range(span.first, span.last + 1, step)
        )


def _write_empty(plan: PartitionPlan, number: int) -> ArchiveFile:
    with contextlib.closing(ChunkWriter(plan, number)) as writer:
        return writer.finish()
