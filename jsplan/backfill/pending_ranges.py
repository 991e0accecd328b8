"""The ranges of an origin that are still to be copied, and portions of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from jsplan.backfill.seq_arrays import subtract_present
from jsplan.backfill.seq_ranges import MAX_SEQ, count_sequences, intersect
from jsplan.backfill.tasks.origin_task import ExistingMessages, SourceCoverage
from jsplan.planning.backfill.model import SeqRange


class PendingRanges(Struct, frozen=True):
    """The `spans` to read, without messages that are `existing` or in `coverage`.

    `is_exact`: every existing message is known to come from this stream and not from a deleted one
    of the same name. `found_existing`: the target has messages of the range already.
    """

    spans: tuple[SeqRange, ...]
    existing: ExistingMessages
    coverage: tuple[SourceCoverage, ...] = ()
    is_exact: bool = True
    found_existing: bool = False

    @property
    def uncopied(self) -> list[SeqRange]:
        """The sequences that are not in the target: some may be deleted or not match."""
        return subtract_present(self.spans, self.existing.seq) if self.is_exact else [*self.spans]

    @property
    def messages(self) -> int:
        """The maximum of pending messages."""
        return count_sequences(self.uncopied)

    def restrict(self, first: int, last: int) -> PendingRanges:
        """Restrict to the sequences from `first` to `last`, both included."""
        return replace(self, spans=tuple(intersect(self.spans, [SeqRange(first, last)])))


def split_by_budget(
    all_pending: Sequence[PendingRanges], most: int | None
) -> Iterator[list[PendingRanges]]:
    """Split ranges into portions of at most `most` sequences, which are copied one by one."""
    left = list(all_pending)
    while most is not None and sum(pending.messages for pending in left) > most:
        budget = most
        part: list[PendingRanges] = []
        for number, pending in enumerate(left):
            cut = _find_budget_end(pending, budget)
            part.append(pending.restrict(0, cut))
            left[number], budget = (
                pending.restrict(cut + 1, MAX_SEQ),
                max(0, budget - part[-1].messages),
            )
        yield part
    yield left


def _find_budget_end(pending: PendingRanges, most: int) -> int:
    """Return the last sequence of the first `most` sequences."""
    for span in pending.spans:
        if span.size > most:
            return span.first + most - 1
        most -= span.size
    return MAX_SEQ
