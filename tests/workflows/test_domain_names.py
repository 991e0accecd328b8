"""A wrong domain name is distinguished from an offline domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.errors import ConnectError
from tests.support.workspaces import HUB_LEAF_DOMAINS, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


def test_a_name_that_was_changed_to_an_unknown_one(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A domain that answered before and gets an unknown name in the files is an error."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["domains"] = {"hub": HUB_LEAF_DOMAINS["hub"]}
    streams = [{"name": "A", "domain": "hub"}]
    assert space.write(streams=streams).apply()[1].exit_code == 0
    space.base["domains"] = {"hub": {"connection": "hub", "js_domain": "hbu"}}

    with pytest.raises(ConnectError, match="calls its JetStream domain hub") as caught:
        space.write(streams=streams).plan()
    assert "js_domain: hub" in (caught.value.hint or "")
