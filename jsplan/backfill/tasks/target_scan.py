"""Scan a target: once for the messages of all origins of a copy, and for those of a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.backfill.message_schema import contains_bytes, parse_times
from jsplan.backfill.protocol.arrow_split import group_rows
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import escape_regex, parse_origins
from jsplan.backfill.tasks.origin_task import ExistingMessages
from jsplan.planning.backfill.model import SeqRange
from jsplan.resources.source_header import SOURCE_HEADER, SourceName

_SOURCE_PATTERN: Final = f"\r\n{SOURCE_HEADER}: ?(?P<name>[^ \r]+) (?P<seq>[0-9]{{1,18}})"


class OriginQuery(Struct, frozen=True):
    """An origin whose messages are searched: copied ones, and those of its own sources.

    `origin_name` is as in `Jsplan-Origin` (`domain/stream`). `source_names` are names as
    `Nats-Stream-Source` has them; messages that a source stored before `created_at` (ns) are of
    another stream of that name. `is_restored`: the target was created from a snapshot, so sequence
    and time identify its messages.
    """

    origin_name: str
    source_names: tuple[str, ...] = ()
    created_at: int = 0
    is_restored: bool = False


class _FoundMessages(Struct):
    seqs: list[SeqArray] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    times: list[SeqArray] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    former: int = 0

    def add(self, seqs: SeqArray, times: SeqArray) -> None:
        self.seqs.append(seqs)
        self.times.append(times)

    def to_existing(self) -> ExistingMessages:
        seqs, times = np.concatenate(self.seqs).astype(np.int64), np.concatenate(self.times)
        return replace(build_existing(seqs, times), former=self.former)


def scan_target(
    endpoint: Endpoint, stream: str, first: int, last: int, queries: Sequence[OriginQuery]
) -> list[ExistingMessages]:
    """Find the messages of each origin between two sequences of the target.

    A message that is there twice counts once. Raises the errors of `read`.
    """
    found = [_FoundMessages() for _ in queries]
    by_origin, by_source = dict[str, list[int]](), dict[str, list[int]]()
    for number, query in enumerate(queries):
        by_origin.setdefault(query.origin_name, []).append(number)
        for source in query.source_names:
            by_source.setdefault(source, []).append(number)
    for rows in endpoint.read(stream, first, last, headers_only=True):
        names, seq, time = (column.drop_null() for column in parse_origins(rows["headers"]))
        # A header with another time than a copy writes does not count: a user wrote it.
        seqs, times = seq.to_numpy(), parse_times(time, invalid=-1)
        for name, places in group_rows(names):
            valid = places[times[places] >= 0]
            for number in by_origin.get(name.decode(errors="surrogateescape"), ()):
                found[number].add(seqs[valid], times[valid])
        for name, seqs, stored_at in _parse_sources(rows):
            for number in by_source.get(name, ()):
                is_current = stored_at >= queries[number].created_at
                current, former = seqs[is_current], seqs[~is_current]
                found[number].add(current, np.zeros(len(current), dtype=np.int64))
                found[number].former = max(found[number].former, *former.tolist(), 0)
        for number, query in enumerate(queries):
            if query.is_restored:
                found[number].add(rows["seq"].to_numpy(), rows["time"].to_numpy())
    return [messages.to_existing() for messages in found]


def find_sourced_range(
    target: Endpoint, stream: str, span: SeqRange, source: SourceName, created_at: int
) -> SeqRange | None:
    """Return the lowest and highest origin sequence that a source brought, or None.

    The server resumes an earlier source after the last message that it delivered, even if the
    source says that it begins later. It finds that message by the name, filters and transforms of
    the source. Messages before `created_at` (ns) are of another stream of that name. Raises the
    errors of `read`.
    """
    name, filters, destinations = (escape_regex(part) for part in source)
    pattern = f"\r\n{SOURCE_HEADER}: ?{name} (?P<seq>[0-9]+) {filters} {destinations}[ \r]"
    found: list[int] = []
    for rows in target.read(stream, *span, headers_only=True):
        headers = rows["headers"].filter(pc.greater_equal(rows["time"], created_at))
        seqs = pc.struct_field(pc.extract_regex(headers, pattern=pattern), "seq").drop_null()
        numbers = [*found, *(int(text) for text in seqs.to_pylist())]
        found = [min(numbers), max(numbers)] if numbers else []
    return SeqRange(*found) if found else None


def build_existing(seqs: SeqArray, times: SeqArray) -> ExistingMessages:
    """Sort by sequence and time, and remove repeated pairs."""
    order = np.lexsort((times, seqs))
    seqs, times = seqs[order], times[order]
    first = np.ones(len(seqs), dtype=bool)
    first[1:] = (np.diff(seqs) != 0) | (np.diff(times) != 0)
    return ExistingMessages(seqs[first], times[first])


def _parse_sources(rows: pa.RecordBatch) -> Iterator[tuple[str, SeqArray, SeqArray]]:
    """Yield each source of messages that a server copied.

    Each comes as the server names it, with the sequences there and the times of storage here (ns).
    """
    if not contains_bytes(rows["headers"], f"{SOURCE_HEADER}:".encode()):
        return
    found = pc.extract_regex(rows["headers"], pattern=_SOURCE_PATTERN)
    times = rows["time"].filter(found.is_valid()).to_numpy()
    name, seq = (pc.struct_field(found.drop_null(), part) for part in ("name", "seq"))
    seqs = pc.cast(seq.view(pa.string()), pa.int64()).to_numpy()
    for text, places in group_rows(name):
        yield text.decode(errors="surrogateescape"), seqs[places], times[places]
