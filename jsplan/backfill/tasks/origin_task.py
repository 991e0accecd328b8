"""The part of a copy that reads one origin: its pending messages, in order.

It does not depend on Spark, and reads a stream or the files of an archive.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from jsplan.backfill.message_schema import add_origin_header, build_origin_parts
from jsplan.backfill.parquet.reader import LocatedFile, read_batches, require_unchanged_files
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.columns import find_unended_headers
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.errors import RefusedError
from jsplan.identity import KnownObject
from jsplan.planning.backfill.model import Deadline, SeqRange
from jsplan.subjects import is_subset

#: Each range is a consumer at the origin. More ranges are read as one and filtered here.
MAX_READ_RANGES: Final = 16
#: Most bytes that a server adds when it sources a message, besides the names of subject and staging
#: stream. The fence header is shorter. All has to fit into max_payload: since nats-server 2.12 a
#: leafnode link that transfers a larger message closes.
SOURCE_HEADER_BYTES = 96


class ExistingMessages(Struct, frozen=True):
    """Messages of the target: origin sequences and times (ns; 0: any time), sorted by both.

    A recreated stream repeats sequences, so a sequence may be there with several times. `former` is
    the highest sequence that a source brought of an earlier stream of the origin's name; 0: none.
    """

    seq: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    time: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    former: int = 0


class SourceCoverage(Struct, frozen=True):
    """Messages that a native source of the target delivers by itself.

    From sequence `first` on, the subjects that match one of `filters` (none: all).
    """

    first: int
    filters: tuple[str, ...] = ()


class OriginTask(Struct, frozen=True):
    """The messages of one origin that a copy reads: `spans` that match one of `filters`.

    Messages that are `existing` at the target or in `coverage` are left out. `max_msg_size` is the
    limit of the target for one message in bytes (-1: none). The task reads `files` instead of
    `source`, if there are any, and stops at `deadline`. `known` is the stream that was pinned.
    """

    source: Endpoint
    domain: str
    stream: str
    spans: tuple[SeqRange, ...]
    filters: tuple[str, ...] = ()
    existing: ExistingMessages = field(default_factory=ExistingMessages)
    coverage: tuple[SourceCoverage, ...] = ()
    oversize: str = "error"
    max_msg_size: int = -1
    files: tuple[LocatedFile, ...] = ()
    deadline: Deadline | None = None
    known: KnownObject | None = None


class RateLimiter:
    """Limit the bytes sent per second to a share of `rate` (None: no limit)."""

    def __init__(self, rate: int | None, shares: int = 1) -> None:
        self._rate = max(1, rate // shares) if rate else None
        self._started = time.monotonic()
        self.sent_bytes = 0

    def throttle(self, count: int) -> None:
        """Count sent bytes, and sleep where the rate is exceeded."""
        self.sent_bytes += count
        if self._rate:
            time.sleep(max(0.0, self.sent_bytes / self._rate - (time.monotonic() - self._started)))


def select_fitting(
    task: OriginTask, rows: pa.RecordBatch, block: pa.BinaryArray, stream: str, max_payload: int
) -> np.ndarray[Any, Any] | None:
    """Return a mask of the rows that are not too large for the target; None: all of them.

    `block` are their header blocks there, `stream` is the staging stream, and `max_payload` that of
    the server, in bytes. Raises RefusedError for `oversize: error`.
    """
    limit = min(max_payload, task.max_msg_size) if task.max_msg_size >= 0 else max_payload
    columns = (rows["subject"], block, rows["data"])
    size: Any = sum(pc.binary_length(column).to_numpy().astype(np.int64) for column in columns)
    size += SOURCE_HEADER_BYTES + len(stream)
    fits: np.ndarray[Any, Any] = size <= limit
    if fits.all():
        return None
    if task.oversize == "error":
        place = int(np.argmin(fits))
        raise RefusedError(
            f"message {rows['seq'][place].as_py():,} of stream {task.stream} may have "
            f"{size[place]:,} bytes with the headers that the copy adds. The target accepts at "
            f"most {limit:,}. Nothing of this attempt was copied into it",
            hint="Raise max_payload (or max_msg_size of the target). "
            "Or set `oversize: skip` to skip such messages.",
        )
    return fits


def build_target_headers(task: OriginTask, rows: pa.RecordBatch) -> pa.BinaryArray:
    """Build the header blocks of rows at the target.

    Raises RefusedError for headers that cannot name their origin.
    """
    if (place := find_unended_headers(rows["headers"])) is not None:
        raise RefusedError(
            f"message {rows['seq'][place].as_py():,} of stream {task.stream} has headers without "
            f"an end: {rows['headers'][place].as_py()!r:.80}. A copy could not name its origin. "
            "Nothing of this attempt was copied",
            hint="Delete it at the origin, or leave it out of the range.",
        )
    return add_origin_header(
        rows["headers"], *build_origin_parts(task.domain, task.stream, rows["seq"], rows["time"])
    )


def read_messages(
    task: OriginTask, *, headers_only: bool = False
) -> Generator[pa.RecordBatch, None, None]:
    """Read the messages to copy, in the columns of `MESSAGE_SCHEMA`, in order.

    With `headers_only` messages of a stream come without payload. Raises DeadlinePassedError where
    the window closes early.
    """
    require_unchanged_files(task.files)
    is_whole = len(task.spans) > MAX_READ_RANGES
    spans = (SeqRange(task.spans[0].first, task.spans[-1].last),) if is_whole else task.spans
    for span in spans:
        request = ReadRequest(
            task.source.api_prefix,
            task.stream,
            span.first,
            span.last,
            task.filters,
            headers_only,
            task.known,
        )
        for rows in (
            read_batches(task.files, span) if task.files else read(task.source.open, request)
        ):
            wanted = _select_wanted(task, rows, is_whole=is_whole)
            if wanted is not None:
                rows = rows.filter(pa.array(wanted))  # noqa: PLW2901 - the rest of the batch
            if task.deadline is not None:
                task.deadline.require_open()
            if rows.num_rows:
                yield rows


def _select_wanted(
    task: OriginTask, rows: pa.RecordBatch, *, is_whole: bool
) -> np.ndarray[Any, Any] | None:
    """Return a mask of the rows to copy; None: all of them. `is_whole`: all ranges were read."""
    seq = rows["seq"].to_numpy()
    wanted = np.ones(len(seq), dtype=bool)
    if is_whole:
        wanted &= select_inside(seq, task.spans)
    if len(task.existing.seq):
        wanted &= ~find_existing(task.existing, seq, rows["time"].to_numpy())
    for claim in task.coverage:
        wanted &= ~((seq >= claim.first) & _match_filters(rows["subject"], claim.filters))
    return None if wanted.all() else wanted


def select_inside(
    seq: np.ndarray[Any, Any], spans: Sequence[tuple[int, int]]
) -> np.ndarray[Any, Any]:
    """Return a mask of the sequences that are in one of these ranges, which are in order."""
    firsts, lasts = (np.array([span[end] for span in spans], dtype=np.int64) for end in (0, 1))
    place = np.searchsorted(firsts, seq, side="right") - 1
    inside: np.ndarray[Any, Any] = place >= 0
    inside[inside] = seq[inside] <= lasts[place[inside]]
    return inside


def find_existing(
    existing: ExistingMessages, seq: np.ndarray[Any, Any], times: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return a mask of the messages that already exist."""
    first, after = (np.searchsorted(existing.seq, seq, side=side) for side in ("left", "right"))
    found = np.zeros(len(seq), dtype=bool)
    # one round for each time that a sequence exists with
    for later in range(int((after - first).max(initial=0))):
        place = np.minimum(first + later, len(existing.seq) - 1)
        when = existing.time[place]
        found |= (first + later < after) & ((when == times) | (when == 0))
    return found


def _match_filters(subjects: pa.BinaryArray, filters: tuple[str, ...]) -> np.ndarray[Any, Any]:
    if not filters:
        return np.ones(len(subjects), dtype=bool)
    encoded = pc.dictionary_encode(subjects)
    texts = [text.decode(errors="surrogateescape") for text in encoded.dictionary.to_pylist()]
    matches = np.fromiter(
        (any(is_subset(text, subject_filter) for subject_filter in filters) for text in texts),
        dtype=bool,
        count=len(texts),
    )
    selected: np.ndarray[Any, Any] = matches[encoded.indices.to_numpy()]
    return selected
