"""A plan for consumers is stale if their stream was recreated or has another retention."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import StepStarted
from jsplan.errors import StalePlanError
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, approve, left_to_do, single_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

BEFORE: list[dict[str, Any]] = [
    {"name": name, "ack_policy": "explicit"} for name in ("GOES", "CHANGES", "REPLACED")
]
AFTER: list[dict[str, Any]] = [
    {"name": "CHANGES", "ack_policy": "explicit", "description": "x"},
    {"name": "REPLACED", "ack_policy": "explicit", "max_waiting": 10},
    {"name": "NEW", "ack_policy": "explicit"},
]
ANY_HAZARD = ("DELETES_CONSUMER", "DELETES_MESSAGES")


def stream(consumers: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """Build the stream, whose retention the files ignore unless they set it."""
    ignored = {} if "retention" in fields else {"lifecycle": {"ignore_changes": ["retention"]}}
    return [{"name": "S", "subjects": ["s"], "consumers": consumers} | ignored | fields]


def plan_changes(
    space: Space, raw: Raw, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> Plan:
    """Apply `before`, publish three messages and plan `after`."""
    assert space.write(streams=before).apply()[1].exit_code == 0
    for _ in range(3):
        raw.request("s", b"")
    return space.write(streams=after).plan(allow_hazards=ANY_HAZARD)


def server_counts(raw: Raw) -> tuple[int, list[str]]:
    """Return the number of messages and the names of the consumers."""
    names = raw.api_ok("$JS.API.CONSUMER.NAMES.S")["consumers"] or []
    return raw.state("S")["messages"], sorted(names)


def keep_by_interest(raw: Raw) -> None:
    config = raw.config("S")
    raw.api_ok("$JS.API.STREAM.UPDATE.S", config | {"retention": "interest"})


@pytest.mark.since_2_12
@pytest.mark.parametrize("change", ["GOES", "CHANGES", "REPLACED", "NEW"])
def test_another_retention_makes_a_plan_stale(change: str, tmp_path: Path, server: Server) -> None:
    """Another retention than planned makes each step of a consumer stale."""
    space = single_space(tmp_path, server)
    names = {c["name"]: c for c in AFTER}
    kept = [c for c in BEFORE if c["name"] != change]
    with Raw(server.url) as raw:
        plan = plan_changes(
            space, raw, stream(BEFORE), stream(kept + ([names[change]] if change in names else []))
        )
        assert {step.precondition["parent"]["retention"] for step in plan.steps} == {"limits"}
        keep_by_interest(raw)

        with pytest.raises(
            StalePlanError,
            match=r"main/stream/S has interest retention now, and had limits. Nothing was changed",
        ):
            space.apply_saved(plan)

        assert server_counts(raw) == (3, ["CHANGES", "GOES", "REPLACED"])


def test_another_stream_makes_a_plan_stale(tmp_path: Path, server: Server) -> None:
    """A stream that was recreated or deleted makes a plan for its consumers stale."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        plan = plan_changes(space, raw, stream([]), stream([AFTER[2]]))
        config = raw.config("S")
        raw.api_ok("$JS.API.STREAM.DELETE.S")
        raw.api_ok("$JS.API.STREAM.CREATE.S", config)
        with pytest.raises(
            StalePlanError, match=r"main/stream/S was recreated. Nothing was changed"
        ):
            space.apply_saved(plan)
        assert server_counts(raw) == (0, [])

        raw.api_ok("$JS.API.STREAM.DELETE.S")
        with pytest.raises(StalePlanError, match=r"main/stream/S was deleted. Nothing was changed"):
            space.apply_saved(plan)


class InterferingObserver(RecordingObserver):
    """Runs a function when the first step begins, after all preconditions were checked."""

    def __init__(self, interfere: Callable[[], object]) -> None:
        super().__init__()
        self.interfere: Callable[[], object] | None = interfere

    def event(self, event: ApplyEvent) -> None:
        """Run the function once."""
        if isinstance(event, StepStarted) and self.interfere is not None:
            interfere, self.interfere = self.interfere, None
            interfere()


@pytest.mark.since_2_12
def test_another_retention_stops_a_step_right_before_its_write(
    tmp_path: Path, server: Server
) -> None:
    """The retention is checked again right before each write of a consumer."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        plan_changes(space, raw, stream(BEFORE), stream(AFTER))

        result = applying.apply(
            space.load,
            PlanOptions(allow_hazards=ANY_HAZARD),
            approve,
            InterferingObserver(lambda: keep_by_interest(raw)),
        )[1]

        assert result.exit_code == 6
        assert {step.status for step in result.steps} <= {"failed", "skipped"}
        assert all(
            "was planned; nothing was written" in (s.error or "")
            for s in result.steps
            if s.status == "failed"
        )
        assert server_counts(raw) == (3, ["CHANGES", "GOES", "REPLACED"])


def delete_consumer(raw: Raw) -> None:
    raw.api_ok("$JS.API.CONSUMER.DELETE.S.C")


def recreate_consumer(raw: Raw) -> None:
    delete_consumer(raw)
    time.sleep(0.01)  # servers before 2.12 keep `created` in milliseconds
    create_consumer(raw, "C")


def create_consumer(raw: Raw, name: str = "ODD") -> None:
    config = {"durable_name": name, "ack_policy": "explicit"}
    raw.api_ok(f"$JS.API.CONSUMER.DURABLE.CREATE.S.{name}", {"stream_name": "S", "config": config})


CONSUMERS: list[tuple[Callable[[Raw], None], str]] = [
    (delete_consumer, "lost its consumer C, which was deleted"),
    (recreate_consumer, "has a consumer C that was recreated"),
    (create_consumer, "has a consumer ODD that was created"),
]


@pytest.mark.since_2_12
@pytest.mark.parametrize(("change", "message"), CONSUMERS, ids=["deleted", "recreated", "created"])
def test_other_consumers_make_a_replacement_with_messages_stale(
    change: Callable[[Raw], None], message: str, tmp_path: Path, server: Server
) -> None:
    """Another set of consumers makes a preserving replacement of an interest stream stale."""
    space = single_space(tmp_path, server)
    consumers = [{"name": "C", "ack_policy": "explicit"}]
    kept = {"retention": "interest", "lifecycle": {"on_replace": "preserve"}}
    with Raw(server.url) as raw:
        plan = plan_changes(
            space, raw, stream(consumers, **kept), stream(consumers, storage="memory", **kept)
        )
        change(raw)

        with pytest.raises(StalePlanError, match=f"main/stream/S {message}. Nothing was changed"):
            space.apply_saved(plan, allow_hazards=("IRREVERSIBLE", "REMOVES_SUBJECTS"))

        assert raw.config("S")["storage"] == "file"


@pytest.mark.since_2_12
@pytest.mark.parametrize(("before", "after"), [("interest", "limits"), ("limits", "interest")])
def test_a_retention_that_the_plan_changes_is_expected(
    before: str, after: str, tmp_path: Path, server: Server
) -> None:
    """A retention that an earlier step of the same plan changes is no precondition."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        plan = plan_changes(
            space, raw, stream(BEFORE, retention=before), stream(AFTER, retention=after)
        )
        assert space.apply_saved(plan).exit_code == 0
        assert server_counts(raw)[1] == ["CHANGES", "NEW", "REPLACED"]
    assert left_to_do(space.plan()) == []


@pytest.mark.since_2_12
def test_a_stream_that_the_plan_creates_is_no_precondition(tmp_path: Path, server: Server) -> None:
    """A stream that the plan creates or replaces is no precondition of its consumers."""
    space = single_space(tmp_path, server)
    new = space.write(streams=stream([AFTER[2]])).plan()
    assert space.apply_saved(new).exit_code == 0
    memory = stream([AFTER[2]], storage="memory", lifecycle={"on_replace": "recreate"})
    replaced = space.write(streams=memory).plan(allow_hazards=("DELETES_STREAM",))
    assert space.apply_saved(replaced).exit_code == 0

    assert [
        step for plan in (new, replaced) for step in plan.steps if "parent" in step.precondition
    ] == []
