"""Findings of lint in plan and apply: warnings on changes, and errors that refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

#: One warning (the consumer's), and one note that no plan shows (the stream's).
STREAM: dict[str, Any] = {"name": "A", "consumers": [{"name": "C"}]}
ERROR = {"lint": {"JS240": "error"}}


def advice(plan: Plan) -> list[tuple[str, str, str | None]]:
    return [(d.severity, d.code, d.address) for d in plan.diagnostics if d.code.startswith("JS2")]


def test_a_plan_warns_of_what_it_creates(space: Space) -> None:
    """A plan that creates has warnings, and no notes; the empty plan after it has neither."""
    plan, result = space.write(streams=[STREAM]).apply()
    assert advice(plan) == [("warning", "JS240", "main/consumer/A/C")]
    assert result.exit_code == 0

    assert advice(space.plan()) == []


def test_a_plan_warns_of_what_it_changes(space: Space) -> None:
    """A plan that updates has the warnings of the updated resource alone."""
    other = {"name": "B", "consumers": [{"name": "D"}]}
    space.write(streams=[STREAM, other]).apply()
    changed = STREAM | {"consumers": [{"name": "C", "description": "another"}]}

    assert advice(space.write(streams=[changed, other]).plan()) == [
        ("warning", "JS240", "main/consumer/A/C")
    ]


def test_an_ignored_warning_is_not_in_the_plan(space: Space) -> None:
    """An ignored warning is not in the plan, nor is an ignore that the plan does not need."""
    ignore = {
        "lint": {
            "ignore": [{"code": "JS240", "reason": "a tail"}, {"code": "JS254", "reason": "unused"}]
        }
    }
    plan = space.write(streams=[STREAM | {"consumers": [{"name": "C"} | ignore]}]).plan()

    assert advice(plan) == []


def test_an_error_refuses_the_apply(space: Space, server: Server) -> None:
    """A finding that the files make an error refuses the apply before its first write.

    The plan is shown; both exit with 3.
    """
    space.write(streams=[STREAM], **ERROR)
    plan = space.plan()
    assert advice(plan) == [("error", "JS240", "main/consumer/A/C")]
    assert (plan.errored, plan.applyable, len(plan.steps)) == (False, False, 2)
    with pytest.raises(RefusedError, match="ack_policy is left out"):
        space.apply()

    for command in (
        ["plan", "--detailed-exitcode", "-o", "x.plan"],
        ["apply", "-y"],
        ["apply", "x.plan"],
    ):
        assert jsplan(space.folder, *command).code == 3, command
    with Raw(server.url) as raw:
        assert raw.api_ok("$JS.API.STREAM.NAMES")["streams"] is None


def test_an_error_on_an_unchanged_stream_refuses_too(space: Space) -> None:
    """A finding that the files make an error refuses any change, also where nothing changes."""
    space.write(streams=[STREAM]).apply()
    space.write(streams=[STREAM, {"name": "B"}], **ERROR)

    assert advice(space.plan()) == [("error", "JS240", "main/consumer/A/C")]
    assert advice(space.plan(targets=("main/stream/B",))) == []


def test_a_destroy_is_not_advised(space: Space) -> None:
    """A destroy has no warnings, and no lint error refuses it."""
    space.write(streams=[STREAM]).apply()
    space.write(streams=[STREAM], **ERROR)

    assert advice(space.plan(destroy=True)) == []
    assert jsplan(space.folder, "destroy", "-y", "--allow-hazard", "DELETES_STREAM").code == 0
