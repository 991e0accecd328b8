"""Times of whole columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jsplan.backfill.message_schema import parse_times
from jsplan.units import parse_instant

TIMES = ["2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00Z", "1970-01-01T00:00:00.000000001Z"]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize("wrong", [[], ["soon"], ["9999-01-01T00:00:00Z"], ["2026-01-31T12:00:00"]])
def test_columns_of_times(kind: pa.DataType, wrong: list[str]) -> None:
    """A column has the times of its texts, and the given number for what is no time."""
    column = pa.array(TIMES + wrong, pa.string()).cast(kind)
    expected = [parse_instant(text) for text in TIMES] + [7] * len(wrong)
    assert parse_times(column, invalid=7).tolist() == expected


def test_bytes_that_are_no_text() -> None:
    """A time that is not UTF-8 is no time."""
    assert parse_times(pa.array([b"\xff", TIMES[0].encode()]), invalid=-1).tolist()[0] == -1
