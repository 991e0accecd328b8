"""What a target, or a staging stream, has of many origins: found in one reading, however many they are."""

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
    """An origin: `origin_name` as in `Jsplan-Origin` (`domain/stream`); `source_names` and `created_at` as in `reading.Look`."""

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
    """What of each origin is there, as `reading.look` finds it for one. Raises what `wire.read` raises."""
    found = [_FoundMessages() for _ in wanted]
    by_stream, by_source = dict[str, list[int]](), dict[str, list[int]]()
    for number, one in enumerate(wanted):
        by_stream.setdefault(one.origin_name, []).append(number)
        for source in one.source_names:
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
                mine = times >= wanted[number].created_at
                found[number].seqs.append(seqs[mine])
                found[number].times.append(np.zeros(int(mine.sum()), dtype=np.int64))
    return [pairs.to_existing() for pairs in found]


def _parse_sources(rows: pa.RecordBatch) -> Iterator[tuple[str, SeqArray, SeqArray]]:
    """Of messages that a server copied: the source as it names it, with the sequences there, and when each was stored here (ns)."""
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
        mine = codes == code
        yield text.decode(errors="surrogateescape"), seqs[mine], times[mine]


def parse_origins(headers: pa.BinaryArray) -> Iterator[tuple[str, SeqArray, SeqArray]]:
    """Of messages that say where they come from: `domain/stream`, with the sequences and times (ns) there, in their order."""
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
        mine = codes == code
        yield name.decode(errors="surrogateescape"), seqs[mine], times[mine]


@dataclass(slots=True)
class StagedMessages:
    """What a staging stream has: the hashes of its messages, and of which origins (`domain/stream`) they are."""

    hashes: list[str]
    seqs: dict[str, SeqArray]


def read_staged_messages(endpoint: Endpoint, stage: str, count: int) -> StagedMessages:
    """All of a stage. Raises what `wire.read` raises."""
    blocks, found = BlockHasher(), dict[str, list[SeqArray]]()
    for rows in read(endpoint.open, ReadRequest(endpoint.api_prefix, stage, 1, count)):
        headers = strip_transport_headers(rows["headers"])
        blocks.add(encode_canonical(rows["subject"], headers, rows["data"]))
        for name, seqs, _ in parse_origins(headers):
            found.setdefault(name, []).append(seqs)
    return StagedMessages(
        blocks.hashes(), {name: np.concatenate(parts) for name, parts in found.items()}
    )


def find_duplicate(lanes: Sequence[dict[str, SeqArray]]) -> tuple[str, int] | None:
    """Name of an origin and a sequence of which there is more than one message in all lanes together, or None."""
    for name in dict.fromkeys(name for lane in lanes for name in lane):
        seqs = np.sort(np.concatenate([lane[name] for lane in lanes if name in lane]))
        same = np.flatnonzero(np.diff(seqs) == 0)
        if len(same):
            return name, int(seqs[same[0]])
    return None


def group_by_origin(headers: pa.BinaryArray) -> dict[str, pa.BooleanArray]:
    """From which origins (`domain/stream`) messages say that they come, with which of them do."""
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
