"""Scan a target: which messages of an origin it has, and which of a staging stream arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import fetch_stream_info, parse_time
from jsplan.backfill.seq_arrays import SeqArray, subtract_present
from jsplan.backfill.seq_ranges import MAX_LISTED_RANGES, SeqRange, count_sequences
from jsplan.backfill.tasks.copy import ExistingMessages
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    BlockHasher,
    encode_canonical,
    extract_sourced,
    parse_origin_header,
    parse_source_header,
)
from jsplan.errors import ApiTimeoutError

#: Seconds between two checks of an unchanged target, and until the scan gives up.
POLL_PAUSE: Final = 0.1
IDLE_TIMEOUT: Final = 120.0
#: Messages per read while more arrive. Frequent reads slow down the server that stores them: with
#: 32,768 a million messages of 128 bytes took 5 % longer. Reading all at the end took as long.
READ_STRIDE: Final = 200_000


@dataclass(frozen=True, slots=True)
class TargetScan:
    """Find the messages of an origin in a target: those copied and those of its own sources.

    Copied messages have `Jsplan-Origin`. `source_names` are names as `Nats-Stream-Source` has
    them; messages that a source stored before `created_at` (ns) are of another stream of that
    name. `is_restored`: the target was created from a snapshot, so sequence and time identify its
    messages.
    """

    target: Endpoint
    stream: str
    first: int
    last: int
    domain: str
    origin: str
    source_names: tuple[str, ...] = ()
    created_at: int = 0
    is_restored: bool = False


def scan_target(task: TargetScan) -> ExistingMessages:
    """Scan the target. A message that is there twice counts once. Raises the errors of `read`."""
    seqs, times = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    request = ReadRequest(
        task.target.api_prefix, task.stream, task.first, task.last, headers_only=True
    )
    for rows in read(task.target.open, request):
        headers = rows["headers"]
        seq, text = parse_origin_header(headers, task.domain, task.origin)
        present = pc.is_valid(seq)
        seqs.append(seq.filter(present).to_numpy())
        times.append(
            np.fromiter(
                (parse_time(timestamp) for timestamp in text.filter(present).to_pylist()),
                dtype=np.int64,
            )
        )
        if task.is_restored:
            seqs.append(rows["seq"].to_numpy())
            times.append(rows["time"].to_numpy())
        for source in task.source_names:
            sourced = parse_source_header(headers, source)
            present = pc.and_(pc.is_valid(sourced), pc.greater_equal(rows["time"], task.created_at))
            seqs.append(sourced.filter(present).to_numpy())
            times.append(np.zeros(len(seqs[-1]), dtype=np.int64))
    return build_existing(np.concatenate(seqs).astype(np.int64), np.concatenate(times))


def build_existing(seqs: SeqArray, times: SeqArray) -> ExistingMessages:
    """Sort by sequence and time, and remove repeated pairs."""
    order = np.lexsort((times, seqs))
    seqs, times = seqs[order], times[order]
    first = np.ones(len(seqs), dtype=bool)
    first[1:] = (np.diff(seqs) != 0) | (np.diff(times) != 0)
    return ExistingMessages(seqs[first], times[first])


@dataclass(frozen=True, slots=True)
class PromotionScan:
    """Read the messages that a target receives from a staging stream, until all have arrived.

    The staging stream has `messages` messages; the scan begins at sequence `first` of the target.
    `expected` are sequences of the origin that should be among them; the others are returned as
    gaps.
    """

    target: Endpoint
    stream: str
    first: int
    staging_stream: str
    messages: int
    domain: str
    origin: str
    expected: tuple[SeqRange, ...] = ()


@dataclass(slots=True)
class _PromotionProgress:
    hasher: BlockHasher
    last_staged_seq: int = 0
    duplicates: int = 0
    first_target_seq: int = 0
    last_target_seq: int = 0


def scan_promotions(
    tasks: Sequence[PromotionScan], patience: float = IDLE_TIMEOUT
) -> Iterator[dict[str, Any]]:
    """Scan the target once for several staging streams that it receives at the same time.

    Yields for each task the hashes of the arrived messages, in order, and the gaps. Ends without
    an error when no message arrives for `patience` seconds. `messages` then says how many arrived,
    and `reached` is the last sequence of the staging stream that arrived.
    """
    scans = [
        (task, _PromotionProgress(BlockHasher()), [np.empty(0, dtype=np.int64)]) for task in tasks
    ]
    first, place, last_arrival = tasks[0], tasks[0].first, time.monotonic()
    while (
        pending := sum(task.messages - progress.last_staged_seq for task, progress, _ in scans)
    ) > 0 and time.monotonic() - last_arrival < patience:
        end = _await_messages(first, place, min(READ_STRIDE, pending))
        if end < place:
            continue
        for rows in read(
            first.target.open, ReadRequest(first.target.api_prefix, first.stream, place, end)
        ):
            if any([_add_rows(task, rows, progress, origins) for task, progress, origins in scans]):  # noqa: C419 - each task has to see the rows
                last_arrival = time.monotonic()
        place = end + 1
    yield from (_to_result(task, progress, origins) for task, progress, origins in scans)


def _to_result(
    task: PromotionScan, progress: _PromotionProgress, origins: list[np.ndarray[Any, Any]]
) -> dict[str, Any]:
    gaps = (
        subtract_present(task.expected, np.unique(np.concatenate(origins)))
        if _may_have_gaps(task)
        else []
    )
    return {
        "messages": progress.hasher.count,
        "hashes": progress.hasher.hashes(),
        "twice": progress.duplicates,
        "reached": progress.last_staged_seq,
        "first": progress.first_target_seq,
        "last": progress.last_target_seq,
        "gaps": [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
        "gap_messages": count_sequences(gaps),
    }


def _may_have_gaps(task: PromotionScan) -> bool:
    """Return True if expected messages may be missing. Messages arrive once; the count decides."""
    return bool(task.expected) and count_sequences(task.expected) != task.messages


def _await_messages(task: PromotionScan, place: int, wanted: int) -> int:
    """Wait for messages, and return the last sequence of the target; 0 if it does not answer.

    Returns once `wanted` messages from `place` on are there, or when no more arrive for a moment.
    """
    connection = task.target.open()
    try:
        end = fetch_stream_info(connection, task.target.api_prefix, task.stream).last
        while end - place + 1 < wanted:
            time.sleep(POLL_PAUSE)
            before, end = (
                end,
                fetch_stream_info(connection, task.target.api_prefix, task.stream).last,
            )
            if end == before:
                break
    except ApiTimeoutError:
        time.sleep(POLL_PAUSE)
        return 0
    finally:
        connection.close()
    return end


def _add_rows(
    task: PromotionScan,
    rows: pa.RecordBatch,
    progress: _PromotionProgress,
    origins: list[np.ndarray[Any, Any]],
) -> bool:
    """Add the rows that came from the staging stream. Returns False if there are none."""
    sourced, block, number = extract_sourced(rows, task.staging_stream)
    if not len(number):
        return False
    progress.first_target_seq = progress.first_target_seq or int(sourced["seq"][0].as_py())
    progress.last_target_seq = int(sourced["seq"][-1].as_py())
    highest = np.maximum.accumulate(np.concatenate([[progress.last_staged_seq], number]))
    progress.duplicates += int((number <= highest[:-1]).sum())
    progress.last_staged_seq = int(highest[-1])
    progress.hasher.add(encode_canonical(sourced["subject"], block, sourced["data"]))
    if _may_have_gaps(task):
        seqs, _ = parse_origin_header(block, task.domain, task.origin)
        origins.append(seqs.drop_null().to_numpy())
    return True
