"""What a target, or a staging stream, has of many origins: found in one reading, however many they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.columns import ORIGIN, mentions
from jsplan.backfill.job.copying import Known
from jsplan.backfill.job.digests import SOURCE, Blocks, bare, canonical
from jsplan.backfill.job.reading import known
from jsplan.backfill.job.ways import Way
from jsplan.backfill.sequence_arrays import Sequences
from jsplan.backfill.wire import read
from jsplan.backfill.wire.asking import from_text
from jsplan.backfill.wire.reading import Range

_ORIGIN: Final = f"\r\n{ORIGIN}: ?(?P<stream>[^/\r]+/[^/\r]+)/(?P<seq>[0-9]+)/(?P<time>[^\r]*)"
_SOURCE: Final = f"\r\n{SOURCE}: ?(?P<name>[^ \r]+) (?P<seq>[0-9]+)"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An origin: `stream` as in `Jsplan-Origin` (`domain/stream`); `sources` and `since` as in `reading.Look`."""

    stream: str
    sources: tuple[str, ...] = ()
    since: int = 0


@dataclass(slots=True)
class _Pairs:
    seqs: list[Sequences] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    times: list[Sequences] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])

    def known(self) -> Known:
        return known(np.concatenate(self.seqs).astype(np.int64), np.concatenate(self.times))


def look_many(way: Way, stream: str, first: int, last: int, wanted: Sequence[Wanted]) -> list[Known]:
    """What of each origin is there, as `reading.look` finds it for one. Raises what `wire.read` raises."""
    found = [_Pairs() for _ in wanted]
    by_stream, by_source = dict[str, list[int]](), dict[str, list[int]]()
    for number, one in enumerate(wanted):
        by_stream.setdefault(one.stream, []).append(number)
        for source in one.sources:
            by_source.setdefault(source, []).append(number)
    for rows in read(way.open, Range(way.api_prefix, stream, first, last, headers_only=True)) if first <= last else ():
        for name, seqs, times in told(rows["headers"]):
            for number in by_stream.get(name, ()):
                found[number].seqs.append(seqs)
                found[number].times.append(times)
        for name, seqs, times in _sourced(rows):
            for number in by_source.get(name, ()):
                mine = times >= wanted[number].since
                found[number].seqs.append(seqs[mine])
                found[number].times.append(np.zeros(int(mine.sum()), dtype=np.int64))
    return [pairs.known() for pairs in found]


def _sourced(rows: pa.RecordBatch) -> Iterator[tuple[str, Sequences, Sequences]]:
    """Of messages that a server copied: the source as it names it, with the sequences there, and when each was stored here (ns)."""
    if not mentions(rows["headers"], f"{SOURCE}:".encode()):
        return
    found = pc.extract_regex(rows["headers"], pattern=_SOURCE)
    times = rows["time"].filter(found.is_valid()).to_numpy()
    name, seq = (pc.struct_field(found.drop_null(), part) for part in ("name", "seq"))
    seqs, encoded = pc.cast(seq.view(pa.string()), pa.int64()).to_numpy(), pc.dictionary_encode(name)
    codes = encoded.indices.to_numpy()
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        mine = codes == code
        yield text.decode(errors="surrogateescape"), seqs[mine], times[mine]


def told(headers: pa.BinaryArray) -> Iterator[tuple[str, Sequences, Sequences]]:
    """Of messages that say where they come from: `domain/stream`, with the sequences and times (ns) there, in their order."""
    if not mentions(headers, f"{ORIGIN}:".encode()):
        return
    found = pc.extract_regex(headers, pattern=_ORIGIN).drop_null()
    stream, seq, time = (pc.struct_field(found, part) for part in ("stream", "seq", "time"))
    seqs = pc.cast(seq.view(pa.string()), pa.int64()).to_numpy()
    encoded = pc.dictionary_encode(stream)
    codes = encoded.indices.to_numpy()
    texts: list[Any] = time.to_pylist()
    times = np.fromiter((from_text(text.decode()) for text in texts), dtype=np.int64, count=len(texts))
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        mine = codes == code
        yield name.decode(errors="surrogateescape"), seqs[mine], times[mine]


@dataclass(slots=True)
class Staged:
    """What a staging stream has: the hashes of its messages, and of which origins (`domain/stream`) they are."""

    hashes: list[str]
    seqs: dict[str, Sequences]


def read_staged(way: Way, stage: str, count: int) -> Staged:
    """All of a stage. Raises what `wire.read` raises."""
    blocks, found = Blocks(), dict[str, list[Sequences]]()
    for rows in read(way.open, Range(way.api_prefix, stage, 1, count)):
        headers = bare(rows["headers"])
        blocks.add(canonical(rows["subject"], headers, rows["data"]))
        for name, seqs, _ in told(headers):
            found.setdefault(name, []).append(seqs)
    return Staged(blocks.hashes(), {name: np.concatenate(parts) for name, parts in found.items()})


def several(lanes: Sequence[dict[str, Sequences]]) -> tuple[str, int] | None:
    """Name of an origin and a sequence of which there is more than one message in all lanes together, or None."""
    for name in dict.fromkeys(name for lane in lanes for name in lane):
        seqs = np.sort(np.concatenate([lane[name] for lane in lanes if name in lane]))
        same = np.flatnonzero(np.diff(seqs) == 0)
        if len(same):
            return name, int(seqs[same[0]])
    return None


def origins_in(headers: pa.BinaryArray) -> dict[str, pa.BooleanArray]:
    """From which origins (`domain/stream`) messages say that they come, with which of them do."""
    if not mentions(headers, f"{ORIGIN}:".encode()):
        return {}
    encoded = pc.dictionary_encode(pc.struct_field(pc.extract_regex(headers, pattern=_ORIGIN), "stream"))
    names = [(code, name) for code, name in enumerate(encoded.dictionary.to_pylist()) if name is not None]
    codes = pc.fill_null(encoded.indices, -1)
    return {name.decode(errors="surrogateescape"): pc.equal(codes, code) for code, name in names}
