"""A source that comes back: the server continues it behind its own newest message."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.raw import Raw
from tests.support.stream_content import read_each
from tests.support.waiting import wait_until
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.matrix

TWICE = "DUPLICATES_MESSAGES"
ALLOWED = (TWICE, "REMOVES_SUBJECTS", "BREAKS_REPLICATION")


class Flow:
    """Stream R, which sources S, and a mirror M of S in the hub."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.space: Space = hub_leaf_space(folder, sandbox)
        self.hub = sandbox["hub"]
        self.origin: dict[str, Any] = {"name": "S", "domain": "leaf", "subjects": ["s.>"]}
        self.reader: dict[str, Any] = {"name": "R", "domain": "hub", "subjects": ["r.>"]}
        self.mirror: list[dict[str, Any]] = []
        self.count, self.said = 0, ""
        self.read("S", "leaf")
        self.apply()

    def read(self, name: str, domain: str) -> None:
        """Let R source this stream."""
        self.reader["sources"] = [{"name": name, "domain": domain}]

    def move(self, stream: dict[str, Any], domain: str) -> dict[str, str]:
        """Give a stream another domain, and return the row for that."""
        before, stream["domain"] = stream["domain"], domain
        self.read("S", self.origin["domain"])
        name = stream["name"]
        return {"from": f"{before}/stream/{name}", "to": f"{domain}/stream/{name}"}

    def apply(self, *relocate: dict[str, str]) -> dict[str, int | None]:
        """Apply; return how many messages each stream stores twice by the plan."""
        streams = [self.origin, *self.mirror, self.reader]
        self.space.write(streams=streams, relocate=list(relocate))
        plan, result = self.space.apply(allow_hazards=ALLOWED)
        assert result.exit_code == 0, result
        self.said = " ".join(h.message for c in plan.resource_changes for h in c.hazards)
        return announced(plan)

    def publish(self, count: int) -> None:
        """Publish to S, and wait until R has it."""
        with Raw(self.hub.url, self.hub.user, self.hub.password) as raw:
            for _ in range(count):
                self.count += 1
                assert b'"seq"' in raw.request("s.x", b"%d" % self.count)[1]
        wait_until(lambda: len(self.stored()) == self.count, "R to copy S", 40)

    def stored(self) -> Counter[str]:
        """Return the messages of R, by their payload."""
        with Raw(self.hub.url, self.hub.user, self.hub.password) as raw:
            found = read_each(raw, "R", f"$JS.{self.reader['domain']}.API")
        return Counter(one["message"]["data"] for one in found if "message" in one)

    def twice(self) -> int:
        """Wait for a new message, and return how many messages R has twice."""
        self.publish(1)
        return sum(self.stored().values()) - self.count


def announced(plan: Plan) -> dict[str, int | None]:
    """Return the messages that each stream stores twice, by the plan."""
    found = [(c.address, h) for c in plan.resource_changes for h in c.hazards if h.code == TWICE]
    return {address: hazard.messages for address, hazard in found}


def test_an_origin_that_comes_back(
    clean_hub_leaf: Sandbox, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """Since 2.15 a server takes it for another one. Before, R copies again what came elsewhere."""
    flow = Flow(tmp_path, clean_hub_leaf)
    flow.publish(4)
    assert flow.apply(flow.move(flow.origin, "hub")) == {}
    flow.publish(3)

    said = flow.apply(flow.move(flow.origin, "leaf"))

    is_old = server_version < (2, 15)
    assert said == ({"hub/stream/R": 7} if is_old else {})
    assert flow.twice() == (3 if is_old else 0)


def test_a_reader_that_comes_back(
    clean_hub_leaf: Sandbox, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """It copies again what its source has brought elsewhere, and the plan says at most how much."""
    if server_version < (2, 15):
        return  # a stream with sources is not relocated
    flow = Flow(tmp_path, clean_hub_leaf)
    flow.publish(4)
    assert flow.apply(flow.move(flow.reader, "leaf")) == {}
    flow.publish(3)

    assert flow.apply(flow.move(flow.reader, "hub")) == {"hub/stream/R": 7}
    assert flow.twice() == 3


def test_a_source_that_is_switched_back(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """R reads a mirror of S for a while; what came meanwhile it copies again from S."""
    flow = Flow(tmp_path, clean_hub_leaf)
    flow.publish(4)
    flow.mirror = [{"name": "M", "domain": "hub", "mirror": {"name": "S", "domain": "leaf"}}]
    flow.apply()
    flow.read("M", "hub")
    assert flow.apply() == {}
    flow.publish(3)

    flow.read("S", "leaf")

    assert flow.apply() == {"hub/stream/R": 3}
    assert "continues a source that comes back" in flow.said
    assert flow.twice() == 3


def test_a_source_that_reads_through_a_consumer_for_a_while(
    clean_hub_leaf: Sandbox, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """Reports of the server do not tell both sources from each other; its messages do."""
    if server_version < (2, 14):
        return  # no source reads through a consumer
    flow = Flow(tmp_path, clean_hub_leaf)
    flow.publish(4)
    consumer = {"name": "C", "deliver_subject": "deliver.s"}
    flow.origin["consumers"] = [
        consumer
        | {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": "1s"}
        | {"max_ack_pending": 100}
    ]
    flow.reader["sources"] = [{"name": "S", "domain": "leaf", "consumer": consumer}]
    assert flow.apply() == {"hub/stream/R": 4}
    flow.publish(3)

    flow.read("S", "leaf")

    assert flow.apply() == {"hub/stream/R": 3}
    assert flow.twice() == 7
