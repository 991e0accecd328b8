"""The Python API on a real server, as docs/how-to/python.md shows it."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jsplan import api
from jsplan.errors import ExitCode, NotApprovedError, RefusedError, StalePlanError, UsageError
from tests.docs.pages import ROOT
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

PAGE = (ROOT / "docs/how-to/python.md").read_text(encoding="utf-8")
WORKSPACE = """\
jsplan: 1
workspace: api
vars: {subject: orders}
connections: {hub: {url: "${env.HUB}"}}
domains: {hub: {connection: hub, js_domain: null}}
defaults: {domain: hub}
environments: {prod: {}}
streams:
- {name: ORDERS, subjects: ["${var.subject}.>"]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one workspace, which its environment connects to the server."""
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra/jsplan.yaml").write_text(WORKSPACE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def workspace(folder: Path, server: Server) -> api.Workspace:
    return api.Workspace.at(folder / "infra", "prod", environ={"HUB": server.url})


def test_the_example_of_the_page(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script plans, applies what it planned, and finds nothing to do the second time."""
    monkeypatch.setenv("HUB", server.url)
    script = re.search(r'```python title="apply.py"\n(.*?)```', PAGE, re.DOTALL)
    assert script is not None
    (folder / "apply.py").write_text(script[1], encoding="utf-8")

    def run() -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, "apply.py"], cwd=folder, capture_output=True, text=True, check=False
        )
        return done.returncode, (done.stdout + done.stderr).splitlines()

    code, lines = run()
    assert (code, lines[0]) == (0, "create hub/stream/ORDERS")
    assert "'added': 1" in lines[1]
    assert run() == (0, [])

    (folder / "infra/jsplan.yaml").write_text(f"{WORKSPACE}nothing: 1\n", encoding="utf-8")
    code, lines = run()
    assert code == 1
    assert lines[0] == "1 error:"
    assert lines[1].startswith('jsplan.yaml:10:1: "nothing" is not a key')


def test_the_page_has_every_method() -> None:
    """The table names each public method, and the text every function."""
    names = [
        name for name, _ in inspect.getmembers(api.Workspace, inspect.isfunction) if name[0] != "_"
    ]
    assert [name for name in [*names, "save_plan"] if f"`{name}(" not in PAGE] == []


def test_a_plan_is_executed_as_it_was_made(workspace: api.Workspace, server: Server) -> None:
    """It is stale once the state changed, and a hazard needs a permission."""
    plan = workspace.plan()
    assert workspace.apply(plan).exit_code == ExitCode.OK
    with pytest.raises(StalePlanError, match="this plan is stale"):
        workspace.apply(plan)
    assert not workspace.plan().has_changes
    assert workspace.drift().exit_code == ExitCode.OK

    with Raw(server.url) as raw:
        raw.api_ok("orders.new", b"x")
    gone = workspace.plan(api.PlanOptions(destroy=True))
    with pytest.raises(RefusedError, match="DELETES_STREAM"):
        workspace.apply(gone)
    allowed = api.PlanOptions(allow_hazards=("DELETES_STREAM:hub/stream/ORDERS",))
    assert workspace.apply(gone, allowed).summary["destroyed"] == 1


def test_a_plan_that_is_not_approved_changes_nothing(workspace: api.Workspace) -> None:
    """`approve` gets the plan; what it raises ends the apply."""
    seen: list[Plan] = []

    def refuse(plan: Plan) -> None:
        seen.append(plan)
        raise NotApprovedError("not today")

    with pytest.raises(NotApprovedError):
        workspace.plan_and_apply(api.PlanOptions(), refuse)
    assert [plan.has_changes for plan in seen] == [True]
    assert workspace.plan().has_changes


def test_plans_are_saved_and_loaded(workspace: api.Workspace, tmp_path: Path) -> None:
    """A saved plan is executed by its path."""
    api.save_plan(workspace.plan(), tmp_path / "prod.plan")
    plan, result = workspace.apply_saved(tmp_path / "prod.plan")
    assert (len(plan.steps), result.summary["added"]) == (1, 1)


def test_methods_run_in_threads_of_a_coroutine(workspace: api.Workspace) -> None:
    """An apply runs in a thread, and the event loop of its caller is free."""

    async def work() -> int:
        plan = await asyncio.to_thread(workspace.plan)
        return (await asyncio.to_thread(workspace.apply, plan)).exit_code

    assert asyncio.run(work()) == ExitCode.OK


def test_variables_and_progress(folder: Path, server: Server) -> None:
    """Variables are given by name, and the observer gets the phases."""
    observer = RecordingObserver()
    workspace = api.Workspace.at(
        folder / "infra",
        "prod",
        variables={"subject": "sales"},
        environ={"HUB": server.url},
        observer=observer,
    )
    plan = workspace.plan()
    after = [change.change.after or {} for change in plan.resource_changes]
    assert [config["subjects"] for config in after] == [["sales.>"]]
    assert observer.texts


def test_backfill_options_name_an_entry(workspace: api.Workspace) -> None:
    """The backfill methods raise the errors of their command."""
    with pytest.raises(UsageError, match="NOTHING"):
        workspace.backfill(api.BackfillOptions("NOTHING"))
    assert workspace.backfill_status().entries == []
