"""New flows whose origins are not any more, or not yet, what the plan was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying import replicated_streams
from jsplan.errors import JsplanError, StalePlanError
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL
from tests.support.raw import Raw
from tests.support.workspaces import hub_leaf_space, left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.conftest import MakeHubLeaf


@pytest.mark.matrix
@pytest.mark.since_2_12
def test_a_copy_that_stands_still(
    clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source stays where its copy lacks messages, and nothing is written."""
    monkeypatch.setattr(replicated_streams, "COPY_TIMEOUT", 0.1)
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    full = {"name": "B", "domain": "hub", "mirror": {"name": "A"}, "max_msgs": 5, "discard": "new"}
    streams = [{"name": "A", "domain": "hub", "subjects": ["a.>"]}, full]
    space.write(
        streams=[*streams, {"name": "D", "domain": "hub", "sources": [{"name": "A"}]}]
    ).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:

        def state(stream: str) -> dict[str, int]:
            return dict(raw.api(f"$JS.hub.API.STREAM.INFO.{stream}")["state"])

        for _ in range(9):
            raw.request("a.x", b"")
        hub.wait_until(lambda: state("D")["messages"] == 9, "copy to D")
        hub.wait_until(lambda: state("B")["messages"] == 5, "copy to B")

        _, result = space.write(
            streams=[*streams, {"name": "D", "domain": "hub", "sources": [{"name": "B"}]}]
        ).apply()

        assert (result.exit_code, [step.status for step in result.steps]) == (
            6,
            ["failed", "skipped"],
        )
        assert "has copied up to sequence 9 of its earlier source, and B has only 5" in str(
            result.steps[0].error
        )
        found = raw.api("$JS.hub.API.STREAM.INFO.D")
        assert [source["name"] for source in found["config"]["sources"]] == ["A"]
        assert found["state"]["messages"] == 9


@pytest.mark.matrix
def test_an_origin_that_has_grown(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A saved plan is refused where it would store clearly more twice than it said."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    streams = [
        {"name": "A", "domain": "hub", "subjects": ["a.>"]},
        {"name": "B", "domain": "hub", "sources": [{"name": "A"}]},
    ]
    copy = {"name": "D", "domain": "hub", "sources": [{"name": "A"}]}
    space.write(streams=[*streams, copy]).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:

        def publish(count: int) -> None:
            for _ in range(count):
                raw.request("a.x", b"")

        def count(stream: str) -> int:
            return int(raw.api(f"$JS.hub.API.STREAM.INFO.{stream}")["state"]["messages"])

        publish(20)
        hub.wait_until(lambda: count("D") == count("B") == 20, "copy everything")
        plan = space.write(
            streams=[*streams, copy | {"sources": [{"name": "A"}, {"name": "B"}]}]
        ).plan()
        publish(20)
        hub.wait_until(lambda: count("D") == count("B") == 40, "copy everything")

        with pytest.raises(
            JsplanError, match="would copy 40 messages of hub/stream/B; the plan said 20"
        ):
            space.apply_saved(plan, allow_hazards=("DUPLICATES_MESSAGES",))
        assert count("D") == 40


@pytest.mark.matrix
@pytest.mark.parametrize(("most", "lost"), [(2, 2), (4, 0)])
def test_a_limit_that_deletes_what_a_copy_lacks(
    clean_hub_leaf: Sandbox, tmp_path: Path, most: int, lost: int
) -> None:
    """Each message is counted that the origin deletes before a copy that is behind has it."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    origin = {"name": "A", "domain": "hub", "subjects": ["a.>"]}
    full = {"name": "B", "domain": "hub", "mirror": {"name": "A"}, "max_msgs": 5, "discard": "new"}
    space.write(streams=[origin, full]).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        for _ in range(9):
            raw.request("a.x", b"")
        hub.wait_until(lambda: raw.api("$JS.hub.API.STREAM.INFO.B")["mirror"].get("lag"), "lag")
    plan = space.write(streams=[origin | {"max_msgs": most}, full]).plan()
    hazards = [h for change in plan.resource_changes for h in change.hazards]
    found = [(h.messages, h.message) for h in hazards if h.code == "BREAKS_REPLICATION"]
    text = "up to 2 messages are deleted before they are copied: hub/stream/B is behind"
    assert found == ([(2, text)] if lost else [])


A: dict[str, Any] = {"name": "A", "domain": "hub", "subjects": ["a.>"]}
B: dict[str, Any] = {"name": "B", "domain": "hub", "subjects": ["b.>"]}
R: dict[str, Any] = {"name": "R", "domain": "hub", "subjects": ["r.>"]}
FROM_A, FROM_B, NONE = {"name": "A"}, {"name": "B"}, {"name": "B", "filter_subject": "b.none"}
COPIED = {"sources": [FROM_A]}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("streams", "planned", "outside", "related"),
    [
        pytest.param(
            [A, B, R | {"sources": [FROM_A, NONE]}],
            [A, B | COPIED, R | {"sources": [FROM_A, NONE]}],
            R | {"sources": [FROM_A, FROM_B]},
            "hub/stream/B is connected with hub/stream/R",
            id="a managed reader has another filter",
        ),
        pytest.param(
            [A, B],
            [A, B | COPIED],
            R | {"sources": [FROM_B], "max_msgs": 3},
            "hub/stream/B is connected with hub/stream/R",
            id="a reader has a lower limit",
        ),
        pytest.param(
            [A, R | {"sources": [FROM_B]}],
            [A, R | {"sources": [FROM_A, FROM_B]}],
            B | COPIED,
            "hub/stream/R is connected with hub/stream/B",
            id="another origin reads the new one",
        ),
        pytest.param(
            [A],
            [],
            R | {"sources": [{"name": "A", "filter_subject": "a.y"}]},
            "hub/stream/A is connected with hub/stream/R",
            id="a reader of a deleted stream has another filter",
        ),
    ],
)
def test_a_stream_that_was_changed_since(
    clean_hub_leaf: Sandbox,
    tmp_path: Path,
    streams: list[dict[str, Any]],
    planned: list[dict[str, Any]],
    outside: dict[str, Any],
    related: str,
) -> None:
    """A saved plan is refused where another client changed what it judged of other streams."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    space.write(streams=streams).apply()
    before = {"sources": [FROM_B]} if outside["name"] == "R" and planned else {}
    before |= {"sources": [FROM_A]} if not planned else {}
    name, config = outside["name"], {k: v for k, v in outside.items() if k != "domain"}
    bare = {"name": name, "subjects": config["subjects"]} | before
    with Raw(hub.url, hub.user, hub.password) as raw:
        if name not in {stream["name"] for stream in streams}:
            raw.api_ok(f"$JS.hub.API.STREAM.CREATE.{name}", bare)
        for _ in range(5):
            raw.request("a.x", b"")
        plan = space.write(streams=planned).plan()
        raw.api_ok(f"$JS.hub.API.STREAM.UPDATE.{name}", config)

        with pytest.raises(StalePlanError, match=f"{related}, which was changed since the plan"):
            space.apply_saved(plan, allow_hazards=("DELETES_STREAM", "BREAKS_REPLICATION"))


@pytest.mark.matrix
def test_a_stream_that_was_only_described_since(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A saved plan is applied where a change of a reader makes no difference to its messages."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    space.write(streams=[A, B]).apply()
    reader = {"name": "R", "sources": [FROM_B]}
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.api_ok("$JS.hub.API.STREAM.CREATE.R", reader)
        plan = space.write(streams=[A, B | COPIED]).plan()
        described = reader | {"description": "new", "metadata": {"owner": "other"}}
        raw.api_ok("$JS.hub.API.STREAM.UPDATE.R", described)
    assert space.apply_saved(plan).exit_code == 0


@pytest.mark.matrix
@pytest.mark.parametrize("exists", [True, False], ids=["added", "new"])
@pytest.mark.parametrize("starts_by_time", [True, False], ids=["time", "history"])
def test_a_source_beside_a_publisher(
    clean_hub_leaf: Sandbox, tmp_path: Path, *, starts_by_time: bool, exists: bool
) -> None:
    """A publisher that is faster than a new source does not make it begin later.

    With a start time, or where the stream deletes its first messages, the server would begin the
    source with what is stored later (measured on 2.10 to 2.15).
    """
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    origin = {"name": "S", "domain": "leaf", "subjects": ["s.>"]}
    source = {"name": "S", "domain": "leaf"}
    before: dict[str, Any] = {"name": "T", "domain": "hub", "subjects": ["t.>"]}
    if starts_by_time:
        source["opt_start_time"] = "2020-01-01T00:00:00Z"
    else:
        before["max_msgs_per_subject"] = 1
    space.write(streams=[origin, *([before] if exists else [])]).apply()
    target = before | {"sources": [source]}
    with Raw(hub.url, hub.user, hub.password) as raw:
        for number in range(8):
            raw.request(f"s.{number}", b"")
        has_start = starts_by_time or raw.api_level() >= ORIGIN_IDENTITY_LEVEL

        plan, _ = space.write(streams=[origin, target]).apply()
        for _ in range(5):
            raw.request("t.x", b"")

        assert ("JS486" in {one.code for one in plan.diagnostics}) is not has_start
        assert ("opt_start_seq" in str(plan.resource_changes)) is has_start
        (found,) = raw.api("$JS.hub.API.STREAM.INFO.T")["config"]["sources"]
        assert found.get("opt_start_seq") == (1 if has_start else None)
        assert left_to_do(space.plan()) == []
        if has_start:
            most = 13 if starts_by_time else 9
            hub.wait_until(
                lambda: raw.api("$JS.hub.API.STREAM.INFO.T")["state"]["messages"] == most,
                "copy",
                60,
            )


@pytest.mark.matrix
@pytest.mark.parametrize("source", [{"opt_start_time": "2020-01-01T00:00:00Z"}, {}])
def test_a_source_of_a_leaf_that_is_offline(
    make_hub_leaf: MakeHubLeaf, tmp_path: Path, source: dict[str, str]
) -> None:
    """A source whose start is not known is named: what others store meanwhile delays it."""
    servers = make_hub_leaf()
    space = hub_leaf_space(tmp_path, servers)
    origin = {"name": "S", "domain": "leaf", "subjects": ["s.>"]}
    space.write(streams=[origin]).apply()
    servers["leaf"].stop()
    sources = [{"name": "S", "domain": "leaf"} | source]
    target = {"name": "T", "domain": "hub", "subjects": ["t.>"], "max_age": "1d"}
    space.write(streams=[origin, target | {"sources": sources}])
    with Raw(servers["hub"].url, servers["hub"].user, servers["hub"].password) as raw:
        has_start = not source and raw.api_level() >= ORIGIN_IDENTITY_LEVEL

    plan = space.plan()

    assert ("JS486" in {one.code for one in plan.diagnostics}) is not has_start
