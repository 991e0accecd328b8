"""A stream that its files replace, with what it has: the row of `tests/kills` for that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.kills.rows import ROWS
from tests.kills.scene import Scene
from tests.kills.servers import open_servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: No client has a message that is not acknowledged: with one the copy is made another way.
ROW = replace(
    next(row for row in ROWS if row.use == "keep a stream"), work={"main/A": {"C": (10, 0)}}
)
BEFORE, AFTER = ROW.before["streams"][0], ROW.after["streams"][0]
PERMITTED = ROW.allow


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """The stream with messages, gaps and consumers, and the files that replace it."""
    for servers in open_servers(ROW.servers, tmp_path, request):
        made = Scene(ROW, servers)
        made.reset()
        yield made
