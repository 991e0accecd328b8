"""Finds the message that a user's function fails on: half of the messages, then half of that half. Spark itself tells no row.

Reads what is looked at again, in ever smaller parts; writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from jsplan.backfill.columns import origins
from jsplan.backfill.job.lanes import Job, Piece, read_piece
from jsplan.backfill.ranges import Span, total

#: What is left when one message is looked for is not cut any further.
_LAST = 1


def culprit(job: Job, fails: Callable[[Job], bool]) -> str | None:
    """The origin of a message on which alone the function fails, or None: it may fail only on several together."""
    spans = [(number, span) for number, leg in enumerate(job.legs) for span in leg.spans]
    while (count := total(span for _, span in spans)) > _LAST:
        first, second = _halved(spans, count // 2)
        spans = first if fails(_only(job, first)) else second
    if not spans or not fails(_only(job, spans)):
        return None
    number, span = spans[0]
    task = job.legs[number]
    for rows in read_piece(job, Piece(number, (span,))):
        return str(origins(task.domain, task.stream, rows["seq"], rows["time"])[0].as_py().decode())
    return None


def _halved(spans: list[tuple[int, Span]], count: int) -> tuple[list[tuple[int, Span]], list[tuple[int, Span]]]:
    """The first `count` sequences, and the others."""
    first: list[tuple[int, Span]] = []
    rest = iter(spans)
    for number, span in rest:
        if span.size > count:
            left, right = Span(span.first, span.first + count - 1), Span(span.first + count, span.last)
            return [*first, *_some(number, left)], [*_some(number, right), *rest]
        first.append((number, span))
        count -= span.size
    return first, []


def _some(number: int, span: Span) -> Iterator[tuple[int, Span]]:
    if span.size > 0:
        yield number, span


def _only(job: Job, spans: list[tuple[int, Span]]) -> Job:
    legs = tuple(replace(leg, spans=tuple(span for n, span in spans if n == number)) for number, leg in enumerate(job.legs))
    return replace(job, legs=legs)
