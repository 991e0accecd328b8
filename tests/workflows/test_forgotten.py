"""Resources that apply forgets are in each view of the plan, also of removed domains."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.cli.views import plan_view
from jsplan.workflows import state as remembering
from jsplan.workflows.history import history
from jsplan.workflows.plan import save_plan
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

GONE = [{"address": "leaf/**", "destroy": False}]
FORGOTTEN = ["leaf/consumer/A/C", "leaf/stream/A", "leaf/stream/B"]


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace whose leaf was removed from the files with its resources."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    leaf_streams = [
        {"name": "A", "domain": "leaf", "consumers": [{"name": "C"}]},
        {"name": "B", "domain": "leaf"},
    ]
    space.write(streams=[{"name": "H", "domain": "hub"}, *leaf_streams]).apply()
    space.base["domains"] = {"hub": {"connection": "hub"}}
    return space.write(streams=[{"name": "H", "domain": "hub"}], removed=GONE)


def forgets(plan: Plan) -> list[str]:
    return [c.address for c in plan.resource_changes if c.change.actions == ["forget"]]


def test_a_plan_lists_what_is_forgotten(space: Space, capsys: pytest.CaptureFixture[str]) -> None:
    """Each view of a plan names and counts the forgotten resources of a removed domain."""
    plan = space.plan()
    save_plan(plan, space.folder / "p.plan")
    assert (forgets(plan), [s.address for s in plan.steps], plan.summary["forget"]) == (
        FORGOTTEN,
        FORGOTTEN,
        3,
    )
    assert [c.change.before is not None for c in plan.resource_changes] == [True] * 4

    shown = {name: plan_view(plan, name) for name in ("markdown", "html")}
    for command in (["plan"], ["show", str(space.folder / "p.plan")], ["plan", "--json"]):
        assert main(["-C", str(space.folder), *command]) == 0
        shown[" ".join(command[:2]) if command[0] == "plan" else "show"] = capsys.readouterr().out
    for view, text in shown.items():
        assert [address for address in FORGOTTEN if address not in text] == [], view
    assert "3 to forget" in shown["plan"]
    assert "3 to forget" in shown["show"]
    assert json.loads(shown["plan --json"])["summary"]["forget"] == 3


def test_the_history_has_forgotten_resources(space: Space) -> None:
    """Apply counts the resources that it forgot, and the history lists them."""
    _, result = space.apply()
    last = history(space.load, result.state["serial"])["entries"][0]

    assert (result.exit_code, result.summary["forgotten"]) == (0, 3)
    assert (last["summary"]["forgotten"], [c["address"] for c in last["changes"]]) == (3, FORGOTTEN)
    assert remembering.list_(space.load, ()) == ["hub/stream/H"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"targets": ("hub/**",)}, []),
        ({"targets": ("leaf/stream/*",)}, FORGOTTEN[1:]),
        ({"excludes": ("leaf/**",)}, []),
        ({"refresh_only": True}, []),
        ({"destroy": True}, FORGOTTEN),
    ],
)
def test_only_selected_resources_are_forgotten(
    space: Space, options: dict[str, Any], expected: list[str]
) -> None:
    """Targets, exclusions and refresh also apply to domains that were removed from the files."""
    plan = space.plan(**options)

    assert (
        [step.address for step in plan.steps if step.op == "state.forget"]
        == expected
        == forgets(plan)
    )


def test_waves_forget_too(space: Space) -> None:
    """A rollout in waves forgets resources of domains that are not in the files."""
    plan, result = space.apply(waves=("100%",))

    assert (forgets(plan), result.exit_code, remembering.list_(space.load, ())) == (
        FORGOTTEN,
        0,
        ["hub/stream/H"],
    )


def test_an_interrupted_create_that_left_the_files(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """An interrupted step of a resource in no file is ended by a step of the plan."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=[{"name": "H", "domain": "hub"}]).apply()
    state = json.loads((tmp_path / "state/test.json").read_bytes())
    begun = {
        "id": "s1",
        "address": "hub/stream/X",
        "op": "stream.create",
        "expect": None,
        "record": None,
    }
    state["pending"]["hub/stream/X"] = begun
    (tmp_path / "state/test.json").write_text(json.dumps(state), "utf-8")
    plan, result = space.apply()

    assert [(s.op, s.address) for s in plan.steps] == [("state.update", "hub/stream/X")]
    assert [
        (c.address, c.change.actions)
        for c in plan.resource_changes
        if c.action_reason == "pending_step_recorded"
    ] == [("hub/stream/X", ["no-op"])]
    assert (result.exit_code, space.plan().steps) == (0, [])
