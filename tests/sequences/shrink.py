"""Makes a failing case smaller for as long as it fails in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sequences.cases import Case
    from tests.sequences.play import Outcome


def shrink_case(outcome: Outcome, play: Callable[[Case], Outcome], most: int = 150) -> Outcome:
    """The smallest case found within so many plays that shows one of the same kinds of findings."""
    tried = 0
    progress = True
    while progress and tried < most:
        progress = False
        for smaller in outcome.case.smaller_cases():
            tried += 1
            found = play(smaller)
            if found.word == outcome.word and found.kinds & outcome.kinds:
                outcome, progress = found, True
                break
            if tried >= most:
                break
    return outcome
