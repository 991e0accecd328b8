"""Find the message that a user's function fails on, by bisection.

Spark does not report the row. This only reads the messages again, in ever smaller parts.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from jsplan.backfill.message_schema import format_origins
from jsplan.backfill.seq_ranges import count_sequences
from jsplan.backfill.tasks.partitioning import PartitionPlan, ReadChunk, read_chunk
from jsplan.planning.backfill.model import SeqRange

#: A part with this number of sequences is not split.
_SMALLEST = 1


def find_failing_message(plan: PartitionPlan, fails: Callable[[PartitionPlan], bool]) -> str | None:
    """Return the origin of a message on which the function fails alone, or None.

    The function may fail only on several messages together.
    """
    spans = [
        (number, span) for number, origin in enumerate(plan.origin_tasks) for span in origin.spans
    ]
    while (count := count_sequences(span for _, span in spans)) > _SMALLEST:
        first, second = _split_after(spans, count // 2)
        spans = first if fails(_restrict_plan(plan, first)) else second
    if not spans or not fails(_restrict_plan(plan, spans)):
        return None
    number, span = spans[0]
    task = plan.origin_tasks[number]
    for rows in read_chunk(plan, ReadChunk(number, (span,))):
        return str(
            format_origins(task.domain, task.stream, rows["seq"], rows["time"])[0].as_py().decode()
        )
    return None


def _split_after(
    spans: list[tuple[int, SeqRange]], count: int
) -> tuple[list[tuple[int, SeqRange]], list[tuple[int, SeqRange]]]:
    """Split the ranges after the first `count` sequences."""
    first, second = list[tuple[int, SeqRange]](), list[tuple[int, SeqRange]]()
    for number, span in spans:
        cut = span.first + max(0, min(count, span.size))
        if cut > span.first:
            first.append((number, SeqRange(span.first, cut - 1)))
        if cut <= span.last:
            second.append((number, SeqRange(cut, span.last)))
        count -= span.size
    return first, second


def _restrict_plan(plan: PartitionPlan, spans: list[tuple[int, SeqRange]]) -> PartitionPlan:
    origins = tuple(
        replace(origin, spans=tuple(span for n, span in spans if n == number))
        for number, origin in enumerate(plan.origin_tasks)
    )
    return replace(plan, origin_tasks=origins)
