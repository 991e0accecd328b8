"""An interest stream and a work queue are replaced while workers hold messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.applying.consumer_helpers import pull
from tests.support.raw import Raw, delete_all_streams
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix
ALLOW = ("REMOVES_SUBJECTS", "DUPLICATES_MESSAGES")


def write(space: Space, retention: str, *consumers: dict[str, Any], **fields: Any) -> None:
    """Declare S with these consumers."""
    stream = {"name": "S", "subjects": ["s.>"], "retention": retention} | fields
    lifecycle = {"on_replace": "preserve"}
    space.write(streams=[stream | {"lifecycle": lifecycle, "consumers": list(consumers)}])


def consumer(name: str, **fields: Any) -> dict[str, Any]:
    """Return a consumer whose workers have an hour."""
    return {"name": name, "ack_policy": "explicit", "ack_wait": "1h"} | fields


CONSUMERS: dict[str, list[dict[str, Any]]] = {
    "interest": [consumer("C")],
    "interest of two": [consumer("C"), consumer("D", filter_subject="s.a")],
    "workqueue": [consumer("C")],
}


@pytest.mark.parametrize("case", CONSUMERS)
def test_nothing_is_announced_and_nothing_is_deleted(
    case: str, tmp_path: Path, server: Server
) -> None:
    """The plan announces no deletion, and holds when workers take more messages since."""
    space, retention = single_space(tmp_path, server), case.split()[0]
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        write(space, retention, *CONSUMERS[case])
        space.apply()
        for number in range(10):
            raw.request("s.a" if number % 2 else "s.b", b"x")
        taken = pull(raw, "S", "C", 4, (1, 2))
        write(space, retention, *CONSUMERS[case], storage="memory")
        plan = space.plan(allow_hazards=ALLOW)
        codes = {h.code for c in plan.resource_changes for h in c.hazards}
        assert "DELETES_MESSAGES" not in codes
        assert len(pull(raw, "S", "C", 2)) == 2
        assert len(taken) == 4
        before = raw.state("S")["messages"]
        result = space.apply_saved(plan, allow_hazards=ALLOW)
        assert result.exit_code == 0, [s.error for s in result.steps if s.error]
        info = raw.api_ok("$JS.API.STREAM.INFO.S")
        assert (info["config"]["storage"], info["state"]["messages"]) == ("memory", before)
        now = raw.consumer_info("S", "C")
        assert now["num_pending"] + now["num_ack_pending"] == 8


def test_workers_that_begin_after_the_plan_stop_it(tmp_path: Path, server: Server) -> None:
    """Nothing is delivered again that the plan did not announce: the next plan does."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        write(space, "limits", consumer("C"))
        space.apply()
        for _ in range(10):
            raw.request("s.a", b"x")
        write(space, "limits", consumer("C"), storage="memory")
        plan = space.plan(allow_hazards=ALLOW)
        assert {h.code for c in plan.resource_changes for h in c.hazards} == {"REMOVES_SUBJECTS"}
        assert len(pull(raw, "S", "C", 4, (1, 2))) == 4

        result = space.apply_saved(plan, allow_hazards=ALLOW)

        failed = [s.error or "" for s in result.steps if s.status == "failed"]
        assert "workers of C took messages since it was planned, and " in failed[0]
        assert "the origin has its subjects back" in failed[0]
        assert b'"seq":11' in raw.request("s.a", b"x")[1].replace(b" ", b"")
        plan, result = space.apply(allow_hazards=ALLOW)
        assert "DUPLICATES_MESSAGES" in {h.code for c in plan.resource_changes for h in c.hazards}
        assert [s.error for s in result.steps if s.error] == []
        now = raw.consumer_info("S", "C")
        assert now["num_pending"] + now["num_ack_pending"] >= 9
