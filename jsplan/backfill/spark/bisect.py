"""Finds the message that a user's function fails on: half of the messages, then half of that half. Spark itself tells no row.

Reads what is looked at again, in ever smaller parts; writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from jsplan.backfill.message_schema import format_origins
from jsplan.backfill.seq_ranges import SeqRange, count_sequences
from jsplan.backfill.tasks.partitioning import PartitionPlan, ReadChunk, read_chunk

#: What is left when one message is looked for is not cut any further.
_SMALLEST = 1


def find_failing_message(job: PartitionPlan, fails: Callable[[PartitionPlan], bool]) -> str | None:
    """The origin of a message on which alone the function fails, or None: it may fail only on several together."""
    spans = [(number, span) for number, leg in enumerate(job.origin_tasks) for span in leg.spans]
    while (count := count_sequences(span for _, span in spans)) > _SMALLEST:
        first, second = _split_after(spans, count // 2)
        spans = first if fails(_restrict_plan(job, first)) else second
    if not spans or not fails(_restrict_plan(job, spans)):
        return None
    number, span = spans[0]
    task = job.origin_tasks[number]
    for rows in read_chunk(job, ReadChunk(number, (span,))):
        return str(
            format_origins(task.domain, task.stream, rows["seq"], rows["time"])[0].as_py().decode()
        )
    return None


def _split_after(
    spans: list[tuple[int, SeqRange]], count: int
) -> tuple[list[tuple[int, SeqRange]], list[tuple[int, SeqRange]]]:
    """The first `count` sequences, and the others."""
    first: list[tuple[int, SeqRange]] = []
    rest = iter(spans)
    for number, span in rest:
        if span.size > count:
            left, right = (
                SeqRange(span.first, span.first + count - 1),
                SeqRange(span.first + count, span.last),
            )
            return [*first, *_yield_nonempty(number, left)], [
                *_yield_nonempty(number, right),
                *rest,
            ]
        first.append((number, span))
        count -= span.size
    return first, []


def _yield_nonempty(number: int, span: SeqRange) -> Iterator[tuple[int, SeqRange]]:
    if span.size > 0:
        yield number, span


def _restrict_plan(job: PartitionPlan, spans: list[tuple[int, SeqRange]]) -> PartitionPlan:
    legs = tuple(
        replace(leg, spans=tuple(span for n, span in spans if n == number))
        for number, leg in enumerate(job.origin_tasks)
    )
    return replace(job, origin_tasks=legs)
