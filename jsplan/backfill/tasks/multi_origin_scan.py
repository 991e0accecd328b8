"""Scan a target or a staging stream once for the messages of many origins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import ORIGIN_HEADER, contains_bytes
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.copy import ExistingMessages
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    SOURCE_HEADER,
    BlockHasher,
    encode_canonical,
    strip_transport_headers,
)
from jsplan.backfill.tasks.target_scan import build_existing

_ORIGIN_PATTERN: Final = (
    f"\r\n{ORIGIN_HEADER}: ?(?P<stream>[^/\r]+/[^/\r]+)/(?P<seq>[0-9]+)/(?P<time>[^\r]*)"
)
_SOURCE_PATTERN: Final = f"\r\n{SOURCE_HEADER}: ?(?P<name>[^ \r]+) (?P<seq>[0-9]+)"


@dataclass(frozen=True, slots=True)
class OriginQuery:
    """Origin to search for.

    `origin_name` is as in `Jsplan-Origin` (`domain/stream`); `source_names` and `created_at` are
    as in `TargetScan`.
    """

    origin_name: str
    source_names: tuple[str, ...] = ()
    created_at: int = 0


@dataclass(slots=True)
class _FoundMessages:
    seqs: list[SeqArray] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    times: list[SeqArray] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])

    def to_existing(self) -> ExistingMessages:
        return build_existing(
            np.concatenate(self.seqs).astype(np.int64), np.concatenate(self.times)
        )


def scan_target_origins(
    endpoint: Endpoint, stream: str, first: int, last: int, wanted: Sequence[OriginQuery]
) -> list[ExistingMessages]:
    """Find the messages of each origin, like `scan_target` for one. Raises the errors of `read`."""
    found = [_FoundMessages() for _ in wanted]
    by_stream, by_source = dict[str, list[int]](), dict[str, list[int]]()
    for number, query in enumerate(wanted):
        by_stream.setdefault(query.origin_name, []).append(number)
        for source in query.source_names:
            by_source.setdefault(source, []).append(number)
    for rows in (
        read(
            endpoint.open, ReadRequest(endpoint.api_prefix, stream, first, last, headers_only=True)
        )
        if first <= last
        else ()
    ):
        for name, seqs, times in parse_origins(rows["headers"]):
            for number in by_stream.get(name, ()):
                found[number].seqs.append(seqs)
                found[number].times.append(times)
        for name, seqs, times in _parse_sources(rows):
            for number in by_source.get(name, ()):
                current = times >= wanted[number].created_at
                found[number].seqs.append(seqs[current])
                found[number].times.append(np.zeros(int(current.sum()), dtype=np.int64))
    return [messages.to_existing() for messages in found]


def _parse_sources(rows: pa.RecordBatch) -> Iterator[tuple[str, SeqArray, SeqArray]]:
    """Yield each source of messages that a server copied.

    Each comes as the server names it, with the sequences there and the times of storage here (ns).
    """
    if not contains_bytes(rows["headers"], f"{SOURCE_HEADER}:".encode()):
        return
    found = pc.extract_regex(rows["headers"], pattern=_SOURCE_PATTERN)
    times = rows["time"].filter(found.is_valid()).to_numpy()
    name, seq = (pc.struct_field(found.drop_null(), part) for part in ("name", "seq"))
    seqs, encoded = (
        pc.cast(seq.view(pa.string()), pa.int64()).to_numpy(),
        pc.dictionary_encode(name),
    )
    codes = encoded.indices.to_numpy()
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        of_source = codes == code
        yield text.decode(errors="surrogateescape"), seqs[of_source], times[of_source]


def parse_origins(headers: pa.BinaryArray) -> Iterator[tuple[str, SeqArray, SeqArray]]:
    """Yield each origin of messages with an origin header, in order.

    Each comes as `domain/stream`, with the sequences and times (ns) there.
    """
    if not contains_bytes(headers, f"{ORIGIN_HEADER}:".encode()):
        return
    found = pc.extract_regex(headers, pattern=_ORIGIN_PATTERN).drop_null()
    stream, seq, time = (pc.struct_field(found, part) for part in ("stream", "seq", "time"))
    seqs = pc.cast(seq.view(pa.string()), pa.int64()).to_numpy()
    encoded = pc.dictionary_encode(stream)
    codes = encoded.indices.to_numpy()
    texts: list[Any] = time.to_pylist()
    times = np.fromiter(
        (parse_time(text.decode()) for text in texts), dtype=np.int64, count=len(texts)
    )
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        of_origin = codes == code
        yield name.decode(errors="surrogateescape"), seqs[of_origin], times[of_origin]


@dataclass(slots=True)
class StagedMessages:
    """Content of a staging stream: the hashes and the origins (`domain/stream`) of its messages."""

    hashes: list[str]
    seqs: dict[str, SeqArray]


def read_staged_messages(endpoint: Endpoint, staging_stream: str, count: int) -> StagedMessages:
    """Read a whole staging stream. Raises the errors of `read`."""
    hasher, found = BlockHasher(), dict[str, list[SeqArray]]()
    for rows in read(endpoint.open, ReadRequest(endpoint.api_prefix, staging_stream, 1, count)):
        headers = strip_transport_headers(rows["headers"])
        hasher.add(encode_canonical(rows["subject"], headers, rows["data"]))
        for name, seqs, _ in parse_origins(headers):
            found.setdefault(name, []).append(seqs)
    return StagedMessages(
        hasher.hashes(), {name: np.concatenate(parts) for name, parts in found.items()}
    )


def find_duplicate(partitions: Sequence[dict[str, SeqArray]]) -> tuple[str, int] | None:
    """Return the origin and sequence of a message that the partitions have twice, or None."""
    for name in dict.fromkeys(name for partition in partitions for name in partition):
        seqs = np.sort(
            np.concatenate([partition[name] for partition in partitions if name in partition])
        )
        repeated = np.flatnonzero(np.diff(seqs) == 0)
        if len(repeated):
            return name, int(seqs[repeated[0]])
    return None


def group_by_origin(headers: pa.BinaryArray) -> dict[str, pa.BooleanArray]:
    """Return each origin (`domain/stream`) with a mask of its messages."""
    if not contains_bytes(headers, f"{ORIGIN_HEADER}:".encode()):
        return {}
    encoded = pc.dictionary_encode(
        pc.struct_field(pc.extract_regex(headers, pattern=_ORIGIN_PATTERN), "stream")
    )
    names = [
        (code, name) for code, name in enumerate(encoded.dictionary.to_pylist()) if name is not None
    ]
    codes = pc.fill_null(encoded.indices, -1)
    return {name.decode(errors="surrogateescape"): pc.equal(codes, code) for code, name in names}
