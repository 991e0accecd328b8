"""The count of what was tried with each row, which the summary of a run prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kills.rows import Count, Row


@pytest.fixture
def count(row: Row, record_property: Callable[[str, object], None]) -> Count:
    """Count what was tried in one way, for the summary of the run."""
    return lambda way, number: record_property("kills", {f"{row.use}: {way}": number})
