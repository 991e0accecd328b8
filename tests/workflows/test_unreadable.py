"""One object that cannot be read is that object, not its whole domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.jetstream import api as jetstream_api
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.fake_api import DOMAIN, FakeApi
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, single_space

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from jsplan.sandbox import Server


def test_a_stream_that_no_server_answers_for(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumers count as it does, another stream is compared, and can be applied without it."""
    monkeypatch.setattr(jetstream_api, "READING_TIMEOUT", 0.5)
    space = single_space(tmp_path, server)
    space.base["connections"]["main"]["timeout"] = "300ms"
    space.base["domains"]["main"] |= {"js_domain": DOMAIN, "may_be_offline": "7d"}
    consumers = [{"name": "C", "ack_policy": "explicit"}]
    space.write(streams=[{"name": "A", "subjects": ["a"]}, {"name": "B", "consumers": consumers}])
    asked: list[str] = []

    def leave_out(api: str, answer: Any) -> Any:
        asked.append(api)
        return None if api in ("STREAM.INFO.B", "CONSUMER.INFO.B.C") else answer

    with FakeApi(server) as impostor, Raw(server.url) as raw:
        assert space.apply()[1].exit_code == 0
        config = raw.config("A")
        raw.api_ok("$JS.API.STREAM.UPDATE.A", config | {"max_msgs": 5})
        impostor.change_answer = leave_out
        found = drift(space.load, DriftOptions(), RecordingObserver())
        plan = space.plan()
        result = space.apply(excludes=("main/*/B", "main/consumer/B/C"))[1]

    assert (found.exit_code, [change.address for change in found.resource_drift]) == (
        2,
        ["main/stream/A"],
    )
    assert {breach["address"] for breach in found.thresholds} == {
        "main/stream/B",
        "main/consumer/B/C",
    }
    assert [(d.code, d.address) for d in plan.diagnostics] == [
        ("JS415", "main/consumer/B/C"),
        ("JS415", "main/stream/B"),
    ]
    changed = [c.address for c in plan.resource_changes if c.change.actions == ["update"]]
    assert (plan.deferred, changed) == ([], ["main/stream/A"])
    assert (result.exit_code, "CONSUMER.INFO.B.C" in asked) == (0, False)
