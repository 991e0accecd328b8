from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying.recheck_deletions import exceeds_plan
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

EVERYTHING = ("DELETES_MESSAGES", "DELETES_CONSUMER")


def test_limit_of_additional_deletions() -> None:
    """Only what is both more than 10 % and more than --safe-below above the plan stops an apply."""
    for found, planned, safe_below, stops in [
        (0, 0, 0, False),
        (1, 0, 0, True),
        (1, 0, 1, False),
        (110, 100, 0, False),
        (111, 100, 0, True),
        (111, 100, 10, True),
        (111, 100, 11, False),
        (1000, 900, 50, True),
        (990, 900, 0, False),
        (50, 100, 0, False),
    ]:
        assert exceeds_plan(found, planned, safe_below) is stops, found


def stream(**fields: Any) -> dict[str, Any]:
    return {"name": "S", "subjects": ["s.>"], **fields}


def publish(raw: Raw, count: int, subject: str = "s.1") -> None:
    for _ in range(count):
        raw.request(subject, b"x" * 50)


def plan_lower_limits(
    tmp_path: Path, server: Server, raw: Raw, count: int, **fields: Any
) -> tuple[Space, Plan]:
    """Create a stream with messages, and a plan that lowers its limits."""
    space = single_space(tmp_path, server).write(streams=[stream()])
    space.apply()
    publish(raw, count)
    space.write(streams=[stream(**fields)])
    return space, space.plan(allow_hazards=EVERYTHING)


#: 100 messages of 83 bytes each: every limit is planned to delete 40 of them.
LIMITS = [{"max_msgs": 60}, {"max_bytes": 60 * 83}, {"max_msgs_per_subject": 60}]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_slightly_more_deletions_than_planned_are_applied(
    tmp_path: Path, server: Server, raw: Raw, limit: dict[str, int]
) -> None:
    """Up to a tenth more deletions than planned are applied."""
    space, plan = plan_lower_limits(tmp_path, server, raw, 100, **limit)
    publish(raw, 4)

    assert space.apply_saved(plan).exit_code == 0
    assert raw.count("S") == 60 or "max_msgs_per_subject" in limit


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_many_more_deletions_make_a_saved_plan_stale(
    tmp_path: Path, server: Server, raw: Raw, limit: dict[str, int]
) -> None:
    """More than a tenth above the planned deletions makes a saved plan stale."""
    space, plan = plan_lower_limits(tmp_path, server, raw, 100, **limit)
    publish(raw, 5)

    with pytest.raises(
        StalePlanError,
        match=r"main/stream/S would delete 45 messages now; the plan said 40.*Nothing was changed",
    ):
        space.apply_saved(plan)
    assert raw.count("S") == 105


def test_safe_below_raises_the_limit(tmp_path: Path, server: Server, raw: Raw) -> None:
    """`--safe-below` permits that many deletions more than planned."""
    space, _ = plan_lower_limits(tmp_path, server, raw, 100, max_msgs=60)
    plan = space.plan(allow_hazards=EVERYTHING, safe_below=5)
    publish(raw, 5)

    assert space.apply_saved(plan).exit_code == 0
    assert raw.count("S") == 60


def test_a_plan_without_deletions_is_measured_again(
    tmp_path: Path, server: Server, raw: Raw
) -> None:
    """A limit that deleted nothing when planned is measured again before the apply."""
    space, plan = plan_lower_limits(tmp_path, server, raw, 50, max_msgs=60)
    assert [h for c in plan.resource_changes for h in c.hazards] == []
    publish(raw, 11)

    with pytest.raises(StalePlanError, match="would delete 1 messages now; the plan said 0"):
        space.apply_saved(plan)
    assert raw.count("S") == 61


def test_messages_below_a_limit_per_subject_do_not_count(
    tmp_path: Path, server: Server, raw: Raw
) -> None:
    """New messages of other subjects do not add to what a limit per subject deletes."""
    space, plan = plan_lower_limits(tmp_path, server, raw, 100, max_msgs_per_subject=60)
    publish(raw, 55, "s.2")

    assert space.apply_saved(plan).exit_code == 0


class InterferingObserver(RecordingObserver):
    """Run a function when the first step begins, after everything was checked once."""

    def __init__(self, interfere: Callable[[], object]) -> None:
        super().__init__()
        self._interfere = interfere

    def event(self, event: ApplyEvent) -> None:
        """Run the function."""
        if isinstance(event, StepStarted):
            self._interfere()


def test_measured_at_the_last_moment(tmp_path: Path, server: Server, raw: Raw) -> None:
    """Messages that arrive after the first check stop the step just before its write."""
    space, _ = plan_lower_limits(tmp_path, server, raw, 100, max_msgs=60)

    observer = InterferingObserver(lambda: publish(raw, 10))
    _, result = applying.apply(space.load, PlanOptions(allow_hazards=EVERYTHING), approve, observer)

    assert result.exit_code == 6
    assert "would delete 50 messages now; the plan said 40; nothing was written" in (
        result.steps[0].error or ""
    )
    assert raw.count("S") == 110


def test_deletions_by_interest_are_measured_again(tmp_path: Path, server: Server, raw: Raw) -> None:
    """More deletions by a new consumer filter than planned make the plan stale."""
    consumer = {"name": "C", "ack_policy": "explicit"}
    space = single_space(tmp_path, server).write(
        streams=[stream(retention="interest", consumers=[consumer])]
    )
    space.apply()
    publish(raw, 10)
    publish(raw, 3, "s.2")
    space.write(
        streams=[stream(retention="interest", consumers=[consumer | {"filter_subject": "s.1"}])]
    )
    plan = space.plan(allow_hazards=EVERYTHING)
    publish(raw, 7, "s.2")

    with pytest.raises(StalePlanError, match="would delete 10 messages now; the plan said 3"):
        space.apply_saved(plan)
    assert raw.count("S") == 20


def test_an_origin_that_filled_up(tmp_path: Path, server: Server, raw: Raw) -> None:
    """A mirror that drains more messages of its origin than planned makes the plan stale."""
    raw.create("S", subjects=["s.>"], retention="workqueue")
    publish(raw, 5)
    space = single_space(tmp_path, server).write(
        streams=[{"name": "COPY", "mirror": {"name": "S"}}]
    )
    plan = space.plan(allow_hazards=EVERYTHING)
    publish(raw, 45)

    with pytest.raises(StalePlanError, match="would delete 50 messages now; the plan said 5"):
        space.apply_saved(plan)
    assert raw.count("S") == 50
