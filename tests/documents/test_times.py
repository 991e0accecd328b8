"""Times in documents and answers are those that readers can turn into instants."""

from __future__ import annotations

from itertools import product
from random import Random

from jsplan.documents.reading import find_flaw
from jsplan.documents.types import Instant, Time
from jsplan.units import parse_instant

_TIMES = (
    "2024-02-29T23:59:59.123456789+23:59",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00.1-01:00",
    "9999-12-31T23:59:59+01:00",
)


def is_instant(text: str) -> bool:
    """Check by what readers call."""
    try:
        parse_instant(text)
    except ValueError:
        return False
    return True


def test_every_date() -> None:
    """A date is accepted if and only if the calendar has it."""
    years = (0, 1, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9999)
    for year, month, day in product(years, range(14), range(33)):
        text = f"{year:04}-{month:02}-{day:02}T01:02:03Z"
        for kind in (Instant, Time):
            assert (find_flaw(text, kind) is None) == is_instant(text), text


def test_times_that_are_almost_right() -> None:
    """Readers can turn every accepted time into an instant, whatever its characters are."""
    random, accepted = Random(1), 0
    for _ in range(20_000):
        characters = list(random.choice(_TIMES))
        for _ in range(random.randint(1, 3)):
            characters[random.randrange(len(characters))] = random.choice("0123456789TZtz:+-. ٣\n")
        text = "".join(characters)
        if find_flaw(text, Instant) is None:
            assert is_instant(text), text
            accepted += 1
    assert accepted > 1000
