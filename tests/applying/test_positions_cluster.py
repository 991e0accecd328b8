"""Replacement of a consumer with three replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.applying.consumer_helpers import fill, pull
from tests.conftest import PROGRAM
from tests.support.raw import Raw
from tests.support.workspaces import left_to_do, new_space

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.matrix, pytest.mark.since_2_12]


@pytest.mark.parametrize("policy", ["all", "new"])
def test_three_replicas(policy: str, tmp_path: Path) -> None:
    """A replicated consumer of an interest stream is replaced without loss or duplicates."""
    with Sandbox.cluster(binary=PROGRAM) as cluster:
        server = cluster["n1"]
        connection = {"url": server.url, "user": server.user, "password": server.password}
        domains = {"main": {"connection": "main", "js_domain": None}}
        space = new_space(tmp_path, connections={"main": connection}, domains=domains)
        consumer: dict[str, Any] = {"name": "C", "ack_policy": "explicit", "deliver_policy": policy}
        stream = {"name": "A", "subjects": ["a.>"], "retention": "interest", "num_replicas": 3}
        space.write(streams=[stream | {"consumers": [consumer]}]).apply()
        with Raw(server.url, server.user, server.password) as raw:
            fill(raw, 20)
            assert pull(raw, "A", "C", 8, None) == list(range(1, 9))
            server.wait_until(
                lambda: raw.consumer_info("A", "C")["ack_floor"]["stream_seq"] == 8,
                "take acknowledgements",
            )
            plan, result = space.write(
                streams=[stream | {"consumers": [consumer | {"max_waiting": 7}]}]
            ).apply()

            assert [step.op for step in plan.steps] == [
                "consumer.create_placeholder",
                "consumer.replace",
                "consumer.delete_placeholder",
            ]
            assert result.exit_code == 0, result
            assert pull(raw, "A", "C", 100, None) == list(range(9, 21))
            assert raw.consumer_names("A") == ["C"]
            assert left_to_do(space.plan()) == []
