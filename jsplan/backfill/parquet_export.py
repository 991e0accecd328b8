"""Export one stream into an archive, each message once.

The stream is written in chunks. Each is read back, and all are committed in one step.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from jsplan.backfill.parquet.location import name_origin_domain, resolve_store
from jsplan.backfill.parquet.log import (
    Archive,
    ArchivedOrigin,
    ArchiveFile,
    Commit,
    Selection,
    Transformation,
    find_covered_ranges,
    merge_gaps,
    merge_ranges,
    read_receipts,
)
from jsplan.backfill.parquet.reader import read_sequences
from jsplan.backfill.parquet.store import ArchiveError
from jsplan.backfill.pinning import require_same_stream
from jsplan.backfill.retry import Result, retry_while_progressing, watch_progress
from jsplan.backfill.run_context import WRITE_SECONDS
from jsplan.backfill.seq_arrays import subtract_present
from jsplan.backfill.seq_ranges import count_sequences, intersect, subtract
from jsplan.backfill.tasks.archive_writer import ExportChunk, export_chunks, write_empty_receipts
from jsplan.backfill.tasks.origin_task import ExistingMessages, OriginTask
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.documents.apply import MessagesMoved
from jsplan.documents.backfill import OriginResult
from jsplan.errors import JsplanError
from jsplan.identity import KnownObject
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, SeqRange
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from jsplan.backfill.copy_origin import CopyOrigin
    from jsplan.backfill.parquet.store import ArchiveStore
    from jsplan.backfill.run_context import RunContext
    from jsplan.backfill.transforms import TransformSpec
    from jsplan.context import Context

#: Limits of a chunk. A worker that dies loses at most one, and they bound the size of files.
CHUNK_SEQUENCES, CHUNK_BYTES = 1_000_000, 256 << 20
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
        self.origin_state = origin_state = origin.state
        self.endpoints = endpoints = origin.endpoints
        self.reader = origin.reader
        self.result = OriginResult(
            origin_state.origin, origin_state.target, origin_state.first, origin_state.last
        )
        self.results = [self.result]
        self.store = resolve_store(context, origin_state.target)
        self.origin = ArchivedOrigin(
            endpoints.origin_domain_name, origin_state.origin_address.stream, origin_state.created
        )
        domains = context.workspace.domains
        self._origins = sorted(
            {
                f"{name_origin_domain(domains[side.domain])}/{side.stream}"
                for side in run.entry.origins
            }
        )
        self._known = KnownObject(origin_state.created, "")
        self._transforms = transforms
        self._selection = Selection(tuple(sorted(origin_state.filters)), transforms.where)
        subjects = (
            (transforms.subject_transform.src, transforms.subject_transform.dest)
            if transforms.subject_transform is not None
            else ()
        )
        self._transformation = Transformation(
            str(transforms.transform) if transforms.transform is not None else None, subjects
        )

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
        found = await asyncio.to_thread(self._open_archive)
        self._require_same_transformation(found)
        lost = await asyncio.to_thread(self._find_lost_files, found)
        spans, known = await asyncio.to_thread(self._find_unread, found, lost)
        if not spans and self.origin in found.origins:
            await asyncio.to_thread(self._drop_attempts, found, "")
            self._report_gaps(found)
            return
        attempt = os.urandom(6).hex()
        mark = {
            "entry": self.context.entry_id,
            "hash": self._build_fingerprint(found),
            "origin": json.dumps(self.origin),
        }
        place = await asyncio.to_thread(found.begin_attempt, attempt, mark)
        pieces = await asyncio.to_thread(self._adopt_chunks, found, attempt, spans)
        await self._write_chunks(
            subtract(spans, [SeqRange(*piece["span"]) for piece in pieces]), known, place, attempt
        )
        pieces = await asyncio.to_thread(read_receipts, place)
        await self._require_same_stream()
        gaps = await self._find_gaps(spans, found, attempt, pieces, known)
        await self._commit_chunks(found, spans, pieces, attempt, [file.name for file in lost], gaps)

    # --- read the archive ---

    def _open_archive(self) -> Archive:
        found = Archive.read(self.store)
        found.finish_commits()
        return found

    def _require_same_transformation(self, found: Archive) -> None:
        """Raise ArchiveError where the archive has messages of the origin with other changes."""
        other = next(
            (
                commit.transformation
                for commit in found.origins.get(self.origin, [])
                if commit.transformation != self._transformation
            ),
            None,
        )
        if other is not None:
            raise ArchiveError(
                f"{self.store} has messages of {self.origin_state.origin} that were written with "
                f"{other}. This entry has {self._transformation}. "
                "An archive has each message only once",
                hint="Name another folder.",
            )

    def _find_lost_files(self, found: Archive) -> list[ArchiveFile]:
        """Return the missing files of the origin.

        Raises ArchiveError for one that this entry would not write completely again.
        """
        missing = [found.files[name] for name in found.find_missing_files()]
        own = [(commit, file) for commit, file in missing if commit.origin == self.origin]
        for commit, file in own:
            if not self._selection.covers(commit.selection):
                raise ArchiveError(
                    f"{file.name} of the archive {self.store} is missing. "
                    "It had messages that this entry does not select",
                    hint=f"Run {commit.entry}, which wrote it, "
                    "or this entry without filter_subjects and where.",
                )
        return [file for _, file in own]

    def _find_unread(
        self, found: Archive, lost: list[ArchiveFile]
    ) -> tuple[list[SeqRange], ExistingMessages]:
        """Return the ranges to read, and messages in them that the archive already has.

        Those were read with another selection.
        """
        commits = found.origins.get(self.origin, [])
        read, lost_ranges = find_covered_ranges(commits, self._selection, lost)
        whole = [self.origin_state.seq_range] if self.origin_state.seq_range.size > 0 else []
        spans = subtract(whole, subtract(read, lost_ranges))
        present = [
            file
            for file in found.files_of(self.origin)
            if file not in lost and intersect(spans, [SeqRange(file.first_seq, file.last_seq)])
        ]
        return spans, ExistingMessages(*read_sequences((found.store, file) for file in present))

    def _adopt_chunks(
        self, found: Archive, attempt: str, spans: list[SeqRange]
    ) -> list[dict[str, Any]]:
        """Adopt finished chunks of interrupted attempts, where still wanted.

        No process writes to those attempts again.
        """
        place = found.attempt_place(attempt)
        for name, mark, earlier in found.list_attempts(self.context.entry_id):
            if name == attempt or (mark["hash"], mark["origin"]) != (
                self._build_fingerprint(found),
                json.dumps(self.origin),
            ):
                continue
            for piece in read_receipts(earlier):
                span = SeqRange(*piece["span"])
                if intersect(spans, [span]) == [span] and not intersect(
                    [SeqRange(*receipt["span"]) for receipt in read_receipts(place)], [span]
                ):
                    found.move_chunk(piece, name, attempt)
        if receipts := read_receipts(place):
            self.context.observer.phase(
                f"Resuming with {sum(receipt['rows'] for receipt in receipts):,} messages "
                "of an earlier attempt"
            )
        return receipts

    # --- write the archive ---

    async def _write_chunks(
        self, spans: list[SeqRange], known: ExistingMessages, place: ArchiveStore, attempt: str
    ) -> None:
        if not spans:
            return
        chunk = ExportChunk(
            self.endpoints.source_endpoint,
            self.endpoints.origin_domain_name,
            self.origin.stream,
            spans[0],
            tuple(self.origin_state.filters),
            place,
            attempt,
            rate=self.context.entry.rate,
            subject_transform=self._transforms.subject_transform,
            deadline=self.context.deadline,
            known=self._known,
        )
        chunks = [
            replace(chunk, span=span)
            for span in _split_ranges(spans, await self._compute_chunk_sequences(spans))
        ]
        await self.context.runner.start()
        self.context.observer.phase(f"Archiving {self._title}")
        if self._transforms.needs_rows:
            for batch in (
                [[single] for single in chunks] if self.context.deadline is not None else [chunks]
            ):
                await self._write_transformed(
                    [chunk.span for chunk in batch] if self.context.deadline is not None else spans,
                    known,
                    batch,
                    place,
                )
            return
        chunks = [
            replace(single, existing=_slice_range(known.seq, single.span)) for single in chunks
        ]
        tasks = [tuple(chunks)] if chunk.rate else [(single,) for single in chunks]
        job = self.context.runner.run([partial(export_chunks, task) for task in tasks], self._title)
        await self._run_job(job, place, count_sequences(spans))

    async def _write_transformed(
        self,
        spans: list[SeqRange],
        known: ExistingMessages,
        chunks: list[ExportChunk],
        place: ArchiveStore,
    ) -> None:
        """Write chunks of rows that SQL and a function produce.

        A chunk without rows has no writer. Its receipt is written here, after all others.
        """
        transforms, entry, endpoint = (
            self._transforms,
            self.context.entry,
            self.endpoints.source_endpoint,
        )
        filters, deadline = tuple(self.origin_state.filters), self.context.deadline
        origin = OriginTask(
            endpoint,
            self.endpoints.origin_domain_name,
            self.origin.stream,
            tuple(spans),
            filters,
            known,
            deadline=deadline,
            known=self._known,
        )
        cuts = tuple(chunk.span.first for chunk in chunks)
        plan = PartitionPlan(
            (),
            (origin,),
            "stream",
            (),
            transforms.where,
            transforms.transform,
            transforms.subject_transform,
            entry.rate,
            cuts,
        )
        results = await self._run_job(
            self.context.runner.run_export(plan, chunks, self._title), place, count_sequences(spans)
        )
        written = {result["partition"] for result in results}
        await asyncio.to_thread(
            write_empty_receipts,
            [chunk for number, chunk in enumerate(chunks) if number not in written],
        )

    async def _compute_chunk_sequences(self, spans: list[SeqRange]) -> int:
        """Compute the number of sequences of a chunk."""
        state = (await self.reader.fetch_info())["state"]
        each: int = max(1, state["bytes"] // max(1, state["messages"]))
        size = min(CHUNK_BYTES, self.context.portion_bytes or CHUNK_BYTES)
        return max(
            1,
            min(
                CHUNK_SEQUENCES,
                size // each,
                max(MIN_CHUNK_MESSAGES, -(-count_sequences(spans) // PARALLEL_CHUNKS)),
            ),
        )

    async def _run_job(self, job: Awaitable[Result], place: ArchiveStore, messages: int) -> Result:
        """Await a job, and report the messages in the finished chunks."""
        started, title = time.monotonic(), f"{self._title}: archiving"
        known: dict[str, dict[str, Any]] = {}

        async def report() -> None:
            pieces = await asyncio.to_thread(read_receipts, place, known)
            done = sum(piece["rows"] for piece in pieces)
            elapsed = time.monotonic() - started
            self.context.observer.event(
                MessagesMoved(self.origin_state.origin, title, done, messages, elapsed)
            )

        return await watch_progress(job, report)

    async def _commit_chunks(
        self,
        found: Archive,
        spans: list[SeqRange],
        pieces: list[dict[str, Any]],
        attempt: str,
        lost: list[str],
        gaps: list[SeqRange],
    ) -> None:
        """Commit all chunks to the archive, or none."""
        if unwritten := subtract(
            spans, merge_ranges(sorted(SeqRange(*piece["span"]) for piece in pieces))
        ):
            raise JsplanError(
                f"a worker has written sequence {unwritten[0].first:,} of "
                f"{self.origin_state.origin}, but it is not in {self.store}",
                hint="On a cluster, the driver and every worker must reach the archive "
                "under the same path.",
            )
        files = [ArchiveFile(**file) for piece in pieces for file in piece["files"]]
        commit = Commit(
            self.context.entry_id,
            self.origin,
            self.origin_state.first,
            self.origin_state.last,
            list(self.origin_state.filters),
            [list(span) for span in spans],
            attempt,
            format_timestamp(),
            files,
            [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
            count_sequences(gaps),
            self._origins,
            lost,
            self._selection.where,
            self._transformation.transform,
            list(self._transformation.subject_transform) or None,
        )
        self.context.may_write(WRITE_SECONDS)
        done = await asyncio.to_thread(found.commit, commit)
        self.result.copied += sum(file.rows for file in files)
        self.result.bytes += sum(piece["bytes"] for piece in pieces)
        self.result.path, self.result.verified = "spark, as Parquet", bool(files)
        await asyncio.to_thread(self._drop_attempts, done, attempt)
        self._report_gaps(done)

    async def _find_gaps(
        self,
        spans: list[SeqRange],
        found: Archive,
        attempt: str,
        pieces: list[dict[str, Any]],
        known: ExistingMessages,
    ) -> list[SeqRange]:
        """Return the sequences that were deleted before they could be archived.

        With a filter, only deleted sequences count. `known` were archived before.
        """
        place = found.attempt_place(attempt)
        placed = [(place, ArchiveFile(**file)) for piece in pieces for file in piece["files"]]
        seqs, _ = await asyncio.to_thread(read_sequences, placed)
        unread = subtract_present(spans, np.union1d(seqs, known.seq))
        return (
            intersect(unread, await self.reader.find_gone())
            if self.origin_state.filters or self._transforms.needs_rows
            else unread
        )

    def _drop_attempts(self, found: Archive, attempt: str) -> None:
        """Delete the attempts of this entry at this stream: committed, or not usable.

        Also what is left of ended attempts of any entry.
        """
        for name, mark, _ in list(found.list_attempts(self.context.entry_id)):
            if name == attempt or mark["origin"] == json.dumps(self.origin):
                found.drop_attempt(name)
        found.drop_unmarked_attempts()

    def _report_gaps(self, found: Archive) -> None:
        self.result.gaps, self.result.gap_messages = merge_gaps(found.origins[self.origin])

    def _build_fingerprint(self, found: Archive) -> str:
        """Build the fingerprint that a chunk must have been written for.

        It includes the range, the stream and the number of earlier commits.
        """
        state = self.origin_state
        commits = len(found.origins.get(self.origin, []))
        origin = f"{state.created} {state.first} {state.last} {commits}"
        return f"{self.context.config_hash} {origin} {self._transforms.fingerprint}"

    @property
    def _title(self) -> str:
        return f"{self.origin_state.origin} to {self.origin_state.target}"


def _split_ranges(spans: list[SeqRange], step: int) -> Iterator[SeqRange]:
    for span in spans:
        yield from (
            SeqRange(first, min(span.last, first + step - 1))
            for first in range(span.first, span.last + 1, step)
        )


def _slice_range(seqs: np.ndarray[Any, Any], span: SeqRange) -> np.ndarray[Any, Any]:
    return seqs[np.searchsorted(seqs, span.first) : np.searchsorted(seqs, span.last, side="right")]
