"""The table of API levels: each has a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.resources import TABLES, server_features
from jsplan.resources.server_features import NEWEST_LEVEL, SERVER_VERSIONS
from jsplan.sandbox.versions import parse_version
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server


@pytest.mark.matrix
def test_version_of_the_level(server: Server, server_version: tuple[int, ...]) -> None:
    """The level of the server under test begins with its version or an earlier one."""
    with Raw(server.url) as raw:
        level = raw.api_level()
    later = SERVER_VERSIONS.get(level + 1)
    assert parse_version(SERVER_VERSIONS[level])[:2] <= server_version[:2]
    assert later is None or server_version < parse_version(later)


def test_levels_exist() -> None:
    """Each row of the table, and each field, begins with a level that has a version."""
    rows = {n: v for n, v in vars(server_features).items() if n.endswith("_LEVEL")}
    fields = {row.name: row.level for table in TABLES.values() for row in table.rows}
    assert len(rows) > 20
    assert {n: v for n, v in (rows | fields).items() if v not in SERVER_VERSIONS} == {}
    assert NEWEST_LEVEL == 5
