from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import StepStarted
from jsplan.documents.plan import Plan
from jsplan.errors import RefusedError, StalePlanError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.resources import CONSUMER, STREAM
from jsplan.workflows import apply as applying
from jsplan.workflows import state as remembering
from jsplan.workflows import validate as validating
from jsplan.workflows.drift import drift
from tests.support.api_audit import audit_requests, writes
from tests.support.raw import Raw, streams
from tests.support.workspaces import RecordingObserver, Space, approve, hub_leaf_space, single_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent, ApplyResult
    from jsplan.resources import Table
    from jsplan.sandbox import Sandbox, Server


class InterferingObserver(RecordingObserver):
    """Runs a function outside jsplan when the first step begins."""

    def __init__(self, interfere: Callable[[], object]) -> None:
        super().__init__()
        self._interfere: Callable[[], object] | None = interfere

    def event(self, event: ApplyEvent) -> None:
        """Run the function once."""
        if isinstance(event, StepStarted) and self._interfere is not None:
            interfere, self._interfere = self._interfere, None
            interfere()


def apply_while(space: Space, interfere: Callable[[], object], **options: Any) -> ApplyResult:
    """Apply step by step; `interfere` runs between the first checks and the first write."""
    return applying.apply(
        space.load, PlanOptions(parallelism=1, **options), approve, InterferingObserver(interfere)
    )[1]


# --- 2. nothing by surprise ----------------------------------------------------------------------------------


def test_a_writer_while_the_plan_is_being_approved(tmp_path: Path, server: Server) -> None:
    """A change between plan and approval stops the apply before its first write."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A"}, {"name": "B"}])
    space.apply()
    space.write(streams=[{"name": "A", "max_age": "1d"}, {"name": "B", "max_age": "1d"}])
    with Raw(server.url) as raw:

        def change_while_approving(plan: Plan) -> None:
            raw.update("B", description="theirs")

        with pytest.raises(StalePlanError, match=r"main/stream/B.*Nothing was changed"):
            applying.apply(space.load, PlanOptions(), change_while_approving, RecordingObserver())
        assert raw.config("A")["max_age"] == 0


def test_a_writer_between_the_check_and_the_write(tmp_path: Path, server: Server) -> None:
    """A resource that changed after the first checks is not written, and the others are."""
    space = single_space(tmp_path, server).write(streams=[{"name": name} for name in "ABC"])
    space.apply()
    space.write(streams=[{"name": name, "max_age": "1d"} for name in "ABC"])
    with Raw(server.url) as raw:
        result = apply_while(space, lambda: raw.update("B", description="theirs"))

        assert result.exit_code == 6
        assert {s.address[-1]: s.status for s in result.steps} == {
            "A": "done",
            "B": "failed",
            "C": "done",
        }
        assert [raw.config(name)["max_age"] > 0 for name in "ABC"] == [True, False, True]
        assert raw.config("B")["description"] == "theirs"
    assert [
        (c.address, c.change.actions)
        for c in space.plan().resource_changes
        if c.change.actions != ["no-op"]
    ] == [("main/stream/B", ["update"])]


def test_created_outside_before_the_step(tmp_path: Path, server: Server) -> None:
    """A stream that was created outside jsplan before its step is not overwritten or adopted."""
    space = single_space(tmp_path, server).write(
        streams=[{"name": name, "max_msgs": 5} for name in "AB"]
    )
    with Raw(server.url) as raw:
        result = apply_while(space, lambda: raw.create("B", max_msgs=6))
        assert raw.config("B")["max_msgs"] == 6

    assert result.exit_code == 6
    assert remembering.list_(space.load, ()) == ["main/stream/A"]
    with pytest.raises(RefusedError, match="--adopt"):
        space.apply()


def test_more_messages_than_the_plan_said(tmp_path: Path, server: Server) -> None:
    """A deletion is measured again, and stops if it grew by more than a tenth."""
    space = single_space(tmp_path, server).write(
        streams=[{"name": "A", "subjects": ["a"]}, {"name": "B", "subjects": ["b"]}]
    )
    space.apply()
    with Raw(server.url) as raw:
        for number in range(22):
            raw.request("a", b"")
            if number < 20:
                raw.request("b", b"")
        space.write(streams=[{"name": "B", "subjects": ["b"], "max_msgs": 15}])
        everything = ("DELETES_STREAM", "DELETES_MESSAGES")
        plan = space.plan(allow_hazards=everything)
        for _ in range(2):
            raw.request("a", b"")
        raw.request("b", b"")
        with pytest.raises(
            StalePlanError,
            match=r"main/stream/B would delete 6 messages now.*Nothing was changed",
        ):
            space.apply_saved(plan)
        raw.api_ok("$JS.API.STREAM.PURGE.B")
        assert space.apply_saved(plan).exit_code == 0
        assert streams(raw) == ["B"]

        space.write(streams=[])
        result = apply_while(space, lambda: raw.request("b", b""), allow_hazards=everything)
        assert (result.exit_code, streams(raw)) == (6, ["B"])
        assert apply_while(space, lambda: raw.request("b", b""), safe_below=10).exit_code == 0


# --- 3. nothing lost -----------------------------------------------------------------------------------------


def with_older_table(monkeypatch: pytest.MonkeyPatch, table: Table, *names: str) -> None:
    """Remove fields from a table, as in an older release."""
    rows = tuple(row for row in table.rows if row.name not in names)
    monkeypatch.setitem(vars(table), "rows", rows)
    monkeypatch.setitem(vars(table), "by_name", {row.name: row for row in rows})


def test_fields_of_a_newer_server_survive(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown fields survive updates, are no drift, and can be set with x_raw."""
    space = single_space(tmp_path, server).write(
        streams=[
            {
                "name": "A",
                "subjects": ["a"],
                "republish": {"src": "a", "dest": "b"},
                "allow_direct": True,
                "consumers": [{"name": "C", "ack_policy": "explicit", "max_batch": 7}],
            }
        ]
    )
    space.apply()
    with_older_table(monkeypatch, STREAM, "republish", "allow_direct")
    with_older_table(monkeypatch, CONSUMER, "max_batch")
    space.write(
        streams=[
            {
                "name": "A",
                "subjects": ["a"],
                "max_age": "1h",
                "consumers": [{"name": "C", "ack_policy": "explicit", "max_deliver": 4}],
            }
        ]
    )
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    plan, result = space.apply()
    assert (result.exit_code, [c.change.actions for c in plan.resource_changes]) == (
        0,
        [["update"], ["update"]],
    )
    assert not space.plan().has_changes
    with Raw(server.url) as raw:
        live = raw.config("A")
        assert (live["max_age"], live["republish"], live["allow_direct"]) == (
            3600 * 10**9,
            {"src": "a", "dest": "b"},
            True,
        )
        consumer = raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["config"]
        assert (consumer["max_batch"], consumer["max_deliver"]) == (7, 4)

        space.write(
            streams=[
                {"name": "A", "subjects": ["a"], "x_raw": {"republish": {"src": "a", "dest": "c"}}}
            ]
        )
        assert space.apply(allow_hazards=("DELETES_CONSUMER",))[1].exit_code == 0
        assert raw.config("A")["republish"]["dest"] == "c"
    assert not space.plan().has_changes


# --- 4. no needless write, 8. read-only means read-only ------------------------------------------------------


def test_reading_commands_write_nothing(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Reading commands send only INFO, NAMES and LIST; a second apply writes nothing."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    bodies = [
        {"name": "A", "domain": "hub", "consumers": [{"name": "C", "ack_policy": "explicit"}]},
        {"name": "COPY", "domain": "leaf", "mirror": {"name": "A", "domain": "hub"}},
    ]
    space.write(streams=bodies)
    with audit_requests(clean_hub_leaf) as first:
        space.apply()
    assert sorted(writes(first)) == [
        "hub CONSUMER.CREATE.A.C",
        "hub STREAM.CREATE.A",
        "leaf STREAM.CREATE.COPY",
    ]
    with Raw(clean_hub_leaf["hub"].url, "acc", "acc") as raw:
        raw.request("A", b"what a deletion would cost")

    with audit_requests(clean_hub_leaf) as seen:
        space.apply()
        space.write(
            streams=[
                {"name": "A", "domain": "hub", "max_age": "1d"},
                {"name": "NEW", "domain": "leaf"},
            ]
        )
        plan = space.plan(destroy=True)
        space.plan(), space.plan(refresh_only=True), space.plan(replace=("hub/stream/A",))
        with pytest.raises(RefusedError):
            space.apply()
        drift(space.load, DriftOptions(), RecordingObserver())
        validating.validate(space.load)
        remembering.list_(space.load, ())
        with pytest.raises(RefusedError):
            space.apply_saved(plan)
    assert writes(seen) == []
    assert len(seen) > 20


def test_only_changed_resources_are_written(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Apply writes only to the resource that differs, and imports equal ones without a write."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    bodies: list[dict[str, Any]] = [
        {"name": f"S{n}", "domain": "hub", "subjects": [f"s{n}"], "consumers": [{"name": "C"}]}
        for n in range(8)
    ]
    space.write(streams=bodies).apply()
    bodies[3]["max_msgs"] = 5
    space.write(streams=bodies)
    with audit_requests(clean_hub_leaf) as seen:
        space.apply()
    assert writes(seen) == ["hub STREAM.UPDATE.S3"]

    (tmp_path / "other").mkdir()
    other = hub_leaf_space(tmp_path / "other", clean_hub_leaf).write(
        workspace="other", streams=bodies
    )
    with audit_requests(clean_hub_leaf) as seen:
        plan, result = other.apply()
    assert (result.exit_code, plan.summary["import"], writes(seen)) == (0, 16, [])


# --- 5. only what is ours ------------------------------------------------------------------------------------


def test_unmanaged_resources_are_left_alone(tmp_path: Path, server: Server) -> None:
    """Unmanaged resources survive apply and destroy, and are counted in hazards."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A", "subjects": ["a"]}])
    space.apply()
    with Raw(server.url) as raw:
        raw.create("THEIRS")
        raw.consumer("A", "THEIRS", ack_policy="none")
        space.write(
            streams=[
                {"name": "A", "subjects": ["a"], "max_age": "1d", "consumers": [{"name": "OURS"}]}
            ]
        ).apply()
        space.write(streams=[{"name": "A", "subjects": ["a"], "max_age": "1d"}]).apply()
        assert raw.api_ok("$JS.API.CONSUMER.NAMES.A")["consumers"] == ["THEIRS"]

        found = drift(space.load, DriftOptions(), RecordingObserver())
        assert [u.address for u in found.unmanaged] == [
            "main/consumer/A/THEIRS",
            "main/stream/THEIRS",
        ]
        plan, result = space.apply(destroy=True, allow_hazards=("DELETES_STREAM",))
        assert [h.consumers for c in plan.resource_changes for h in c.hazards] == [1]
        assert (result.exit_code, streams(raw)) == (0, ["THEIRS"])


def test_a_resource_recreated_outside_is_not_deleted(tmp_path: Path, server: Server) -> None:
    """A resource that was recreated outside jsplan is forgotten and not deleted."""
    for destroy in (False, True):
        space = single_space(tmp_path, server).write(
            streams=[{"name": "A", "consumers": [{"name": "C"}]}]
        )
        space.apply()
        with Raw(server.url) as raw:
            raw.api_ok("$JS.API.STREAM.DELETE.A")
            raw.create("A")
            raw.consumer("A", "C", ack_policy="none")
            plan, result = (space if destroy else space.write(streams=[])).apply(
                destroy=destroy, allow_hazards=("DELETES_STREAM",)
            )

            assert {c.address: c.change.actions for c in plan.resource_changes} == {
                "main/stream/A": ["forget"],
                "main/consumer/A/C": ["forget"],
            }
            assert (result.exit_code, streams(raw), remembering.list_(space.load, ())) == (
                0,
                ["A"],
                [],
            )
            raw.api_ok("$JS.API.STREAM.DELETE.A")
