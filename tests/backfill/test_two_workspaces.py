"""One process may copy for several workspaces, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.raw import Raw
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeHubLeaf


def test_each_run_reaches_its_own_servers(make_hub_leaf: MakeHubLeaf, tmp_path: Path) -> None:
    """The JVM of the first run is used again, but not the servers of its connections."""
    for number in (1, 2):
        servers, folder = make_hub_leaf(), tmp_path / str(number)
        folder.mkdir()
        space = hub_leaf_space(folder, servers)
        streams = [
            {"name": "A", "domain": "hub", "subjects": ["a"]},
            {"name": "B", "domain": "leaf", "subjects": ["b"]},
        ]
        space.write(streams=streams).apply()
        with Raw(servers["hub"].url, "acc", "acc") as raw:
            raw.request("a", b"%d" % number)
        ends = {
            "from": {"domain": "hub", "stream": "A"},
            "to": {"domain": "leaf", "stream": "B"},
        }
        entry = {"name": "copy", "strategy": "spark"} | ends

        _, result = space.write(streams=streams, backfills=[entry]).apply()

        assert result.exit_code == 0, result.backfills
        with Raw(servers["hub"].url, "acc", "acc") as raw:
            answer = raw.api_ok("$JS.leaf.API.STREAM.INFO.B")
            assert answer["state"]["messages"] == 1
