"""The stream of a consumer is part of what a plan was made for: another stream, or another retention, and nothing is written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import StepStarted
from jsplan.errors import StalePlanError
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, approve, single_space

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
    """The one stream, whose retention is no business of the files unless they name it."""
    ignored = {} if "retention" in fields else {"lifecycle": {"ignore_changes": ["retention"]}}
    return [{"name": "S", "subjects": ["s"], "consumers": consumers} | ignored | fields]


def plan_changes(
    space: Space, raw: Raw, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> Plan:
    """A plan for what is there, with three messages in the stream."""
    assert space.write(streams=before).apply()[1].exit_code == 0
    for _ in range(3):
        raw.request("s", b"")
    return space.write(streams=after).plan(allow_hazards=ANY_HAZARD)


def server_counts(raw: Raw) -> tuple[int, list[str]]:
    """How many messages there are, and the consumers."""
    names = raw.api_ok("$JS.API.CONSUMER.NAMES.S")["consumers"] or []
    return raw.api_ok("$JS.API.STREAM.INFO.S")["state"]["messages"], sorted(names)


def keep_by_interest(raw: Raw) -> None:
    config = raw.api_ok("$JS.API.STREAM.INFO.S")["config"]
    raw.api_ok("$JS.API.STREAM.UPDATE.S", config | {"retention": "interest"})


def recreate(raw: Raw) -> None:
    config = raw.api_ok("$JS.API.STREAM.INFO.S")["config"]
    raw.api_ok("$JS.API.STREAM.DELETE.S")
    raw.api_ok("$JS.API.STREAM.CREATE.S", config)


@pytest.mark.parametrize("change", ["GOES", "CHANGES", "REPLACED", "NEW"])
def test_another_retention_makes_a_plan_stale(change: str, tmp_path: Path, server: Server) -> None:
    """By interest other messages go with a consumer than by limits, so no step of a consumer is done that was planned by limits."""
    space = single_space(tmp_path, server)
    names = {c["name"]: c for c in AFTER}
    kept = [c for c in BEFORE if c["name"] != change]
    with Raw(server.url) as raw:
        plan = plan_changes(
            space, raw, stream(BEFORE), stream(kept + ([names[change]] if change in names else []))
        )
        assert [step.precondition["parent"]["retention"] for step in plan.steps] == ["limits"]
        keep_by_interest(raw)

        with pytest.raises(
            StalePlanError,
            match=r"main/stream/S has interest retention now, and had limits. Nothing was changed",
        ):
            space.apply_saved(plan)

        assert server_counts(raw) == (3, ["CHANGES", "GOES", "REPLACED"])


def test_another_stream_makes_a_plan_stale(tmp_path: Path, server: Server) -> None:
    """A stream of the same name is another one, even where only a new consumer is planned; so is none."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        plan = plan_changes(space, raw, stream([]), stream([AFTER[2]]))
        recreate(raw)
        with pytest.raises(
            StalePlanError, match=r"main/stream/S was recreated. Nothing was changed"
        ):
            space.apply_saved(plan)
        assert server_counts(raw) == (0, [])

        raw.api_ok("$JS.API.STREAM.DELETE.S")
        with pytest.raises(StalePlanError, match=r"main/stream/S was deleted. Nothing was changed"):
            space.apply_saved(plan)


class InterferingObserver(RecordingObserver):
    """Does something when the first step begins, after all preconditions were checked."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__()
        self.meddle: Callable[[], object] | None = meddle

    def event(self, event: ApplyEvent) -> None:
        """Meddle once."""
        if isinstance(event, StepStarted) and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()


def test_another_retention_stops_a_step_right_before_its_write(
    tmp_path: Path, server: Server
) -> None:
    """What was checked before the first write is checked again before each: nothing is deleted by a retention that came in between."""
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


@pytest.mark.parametrize(("change", "says"), CONSUMERS, ids=["deleted", "recreated", "created"])
def test_other_consumers_make_a_replacement_with_messages_stale(
    change: Callable[[Raw], None], says: str, tmp_path: Path, server: Server
) -> None:
    """A new interest stream keeps what its consumers want, so these must be those that were planned with."""
    space = single_space(tmp_path, server)
    consumers = [{"name": "C", "ack_policy": "explicit"}]
    kept = {"retention": "interest", "lifecycle": {"on_replace": "preserve"}}
    with Raw(server.url) as raw:
        plan = plan_changes(
            space, raw, stream(consumers, **kept), stream(consumers, storage="memory", **kept)
        )
        change(raw)

        with pytest.raises(StalePlanError, match=f"main/stream/S {says}. Nothing was changed"):
            space.apply_saved(plan, allow_hazards=("IRREVERSIBLE", "REMOVES_SUBJECTS"))

        assert raw.api_ok("$JS.API.STREAM.INFO.S")["config"]["storage"] == "file"


@pytest.mark.parametrize(("before", "after"), [("interest", "limits"), ("limits", "interest")])
def test_what_the_plan_does_to_the_stream_is_expected(
    before: str, after: str, tmp_path: Path, server: Server
) -> None:
    """A retention that an earlier step of the same plan changed stops nothing, whatever becomes of the consumers."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        plan = plan_changes(
            space, raw, stream(BEFORE, retention=before), stream(AFTER, retention=after)
        )
        assert space.apply_saved(plan).exit_code == 0
        assert server_counts(raw)[1] == ["CHANGES", "NEW", "REPLACED"]
    assert space.plan().steps == []


def test_a_stream_that_the_plan_makes_is_none_of_its_preconditions(
    tmp_path: Path, server: Server
) -> None:
    """Of a stream that is created or replaced nobody knows yet when it was created."""
    space = single_space(tmp_path, server)
    new = space.write(streams=stream([AFTER[2]])).plan()
    assert space.apply_saved(new).exit_code == 0
    memory = stream([AFTER[2]], storage="memory", lifecycle={"on_replace": "recreate"})
    replaced = space.write(streams=memory).plan(allow_hazards=("DELETES_STREAM",))
    assert space.apply_saved(replaced).exit_code == 0

    assert [
        step for plan in (new, replaced) for step in plan.steps if "parent" in step.precondition
    ] == []
