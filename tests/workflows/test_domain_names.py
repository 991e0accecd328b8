"""A wrong domain name is distinguished from an offline domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.errors import ConnectError
from tests.support.relay import Relay
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


class LosingRelay(Relay):
    """A relay that sends the first question about domain hub to a domain that does not exist."""

    lost = False

    def _up(self, data: bytes) -> bytes:
        if self.lost or b" $JS.hub.API.INFO " not in data:
            return data
        self.lost = True
        return data.replace(b" $JS.hub.API.INFO ", b" $JS.hbu.API.INFO ", 1)


def test_a_domain_that_answers_a_moment_later(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A domain without an answer is offline, not misnamed, if its server then names it.

    A cluster that has no leader answers nothing, and may have one at the next question.
    """
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    space.base["domains"] = {"hub": HUB_LEAF_DOMAINS["hub"]}
    space.write(streams=[{"name": "A", "domain": "hub"}])
    with LosingRelay() as relay:
        relay.target = hub.port
        space.base["connections"]["hub"]["url"] = f"nats://127.0.0.1:{relay.port}"
        with pytest.raises(ConnectError) as caught:
            space.write(streams=[{"name": "A", "domain": "hub"}]).plan()
    assert relay.lost
    assert "calls its JetStream domain" not in str(caught.value)
    assert "domain hub does not answer" in str(caught.value)
