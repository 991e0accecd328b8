"""Killed replacements of an origin: the next apply duplicates no message downstream."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from jsplan.applying.operations import OPERATIONS
from jsplan.applying.step_context import StepContext
from jsplan.options import DriftOptions
from jsplan.render import drift_text
from jsplan.workflows.drift import drift
from tests.applying.downstream_helpers import (
    PERMITTED,
    origin_config,
    publish,
    require_converged,
    wait_until_copied,
)
from tests.support.raw import Raw, delete_all_streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.drift import Drift
    from jsplan.documents.plan import Step
    from jsplan.documents.step_kinds import Op
    from jsplan.sandbox import Server

#: Older servers need more than ten seconds until a source resumes.
LONG_TIMEOUT = pytest.mark.timeout(180)


def reset_streams(space: Space, server: Server, raw: Raw, mode: str) -> None:
    """Prepare an origin with 30 messages downstream, and files that replace it."""
    delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    downstream = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config(mode, replaced=False), downstream]).apply()
    publish(raw, "o.x", 30)
    wait_until_copied(server, lambda: raw.count("G") == 30)
    space.write(streams=[origin_config(mode, replaced=True), downstream])


def kill_before(space: Space, op: Op, **options: Any) -> None:
    """Kill an apply at its first step of this kind."""
    with kill_after() as counter, pytest.MonkeyPatch.context() as patch:

        async def die(*_: object) -> None:
            counter.die()

        patch.setitem(cast("dict[Op, Any]", OPERATIONS), op, die)
        with pytest.raises(SimulatedKill):
            space.apply(parallelism=1, **options)


def kill_at_answer(space: Space, op: Op, **options: Any) -> None:
    """Kill an apply at the answer of its first step of this kind."""
    with kill_after() as counter, pytest.MonkeyPatch.context() as patch:
        call = StepContext.call

        async def call_and_die(context: StepContext, step: Step) -> None:
            await call(context, step)
            if step.op == op:
                counter.die()

        patch.setattr(StepContext, "call", call_and_die)
        with pytest.raises(SimulatedKill):
            space.apply(parallelism=1, **options)


@pytest.mark.matrix
@LONG_TIMEOUT
@pytest.mark.parametrize("op", ["transfer.quiesce", "transfer.retire", "sources.attach"])
def test_a_killed_apply_with_a_detached_source_is_finished_with_the_same_permissions(
    op: Op, tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """The next plan after a kill shows the rest, no drift, and needs no further permission."""
    if server_version < (2, 15):
        return  # older servers detach no source
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        reset_streams(space, server, raw, "preserve")
        first_plan = space.plan()
        permitted = tuple(
            f"{h.code}:{c.address}"
            for c in first_plan.resource_changes
            for h in c.hazards
            if h.blocking
        )
        kill_before(space, op, allow_hazards=permitted)
        assert "sources" not in raw.config("G")
        assert set(read_state(space.folder).replacements) >= {"main/stream/G"}

        found = drift(space.load, DriftOptions(), RecordingObserver())
        assert found.resource_drift == []
        summary = "G copies nothing from O, because its replacement was interrupted"
        assert summary in [item["summary"] for item in found.interrupted]
        assert not any(line.startswith("Deferred") for line in rendered_lines(found))
        plan = space.plan(allow_hazards=permitted)
        assert plan.resource_drift == []
        assert [
            h.code for c in plan.resource_changes for h in c.hazards if h.blocking and not h.allowed
        ] == []
        assert "attach O again to stream G in main" in [step.title for step in plan.steps]
        assert summary in [d.summary for d in plan.diagnostics if d.address == "main/stream/G"]
        assert left_to_do(space.plan(refresh_only=True)) == []

        _, result = space.apply(allow_hazards=permitted)
        assert result.exit_code == 0, result
        publish(raw, "o.end", 5)
        wait_until_copied(server, lambda: raw.count("G") >= 35)
        assert raw.count("G") == 35
        require_converged(space)


@pytest.mark.matrix
@LONG_TIMEOUT
@pytest.mark.parametrize(
    "op", ["sources.detach", "origin.delete", "origin.create", "sources.attach"]
)
def test_an_unrecorded_write_of_a_killed_apply_is_no_drift(
    op: Op, tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A write whose answer a killed apply did not record counts as its own."""
    if server_version < (2, 15):
        return  # older servers detach no source
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        reset_streams(space, server, raw, "recreate")
        kill_at_answer(space, op, allow_hazards=PERMITTED)
    assert (
        drift(space.load, DriftOptions(replication=False), RecordingObserver()).resource_drift == []
    )
    plan = space.plan()
    assert plan.resource_drift == []
    assert "replication.verify" in [step.op for step in plan.steps]

    assert space.apply(allow_hazards=PERMITTED)[1].exit_code == 0
    require_converged(space)


@pytest.mark.matrix
@LONG_TIMEOUT
def test_a_source_that_never_received_a_message_is_attached_again(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """The next apply attaches the source again, although its stream is empty."""
    if server_version < (2, 15):
        return  # older servers detach no source
    space, downstream = (
        single_space(tmp_path, server),
        {"name": "G", "sources": [{"name": "O", "filter_subject": "o.rare"}]},
    )
    space.write(streams=[origin_config("preserve", replaced=False), downstream]).apply()
    space.write(streams=[origin_config("preserve", replaced=True), downstream])
    with Raw(server.url) as raw:
        kill_before(space, "sources.attach", allow_hazards=PERMITTED)
        assert "sources" not in raw.config("G")

        assert space.apply(allow_hazards=PERMITTED)[1].exit_code == 0
        assert [s["name"] for s in raw.config("G")["sources"]] == ["O"]
        require_converged(space)


@pytest.mark.matrix
@LONG_TIMEOUT
def test_a_detached_source_that_left_the_files_stays_detached(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A detached source that left the files is not attached again."""
    if server_version < (2, 15):
        return  # older servers detach no source
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        reset_streams(space, server, raw, "preserve")
        kill_before(space, "sources.attach", allow_hazards=PERMITTED)
        space.write(
            streams=[origin_config("preserve", replaced=True), {"name": "G", "subjects": ["g.>"]}]
        )
        _, result = space.apply(allow_hazards=PERMITTED)
        assert result.exit_code == 0, result
        assert raw.config("G")["subjects"] == ["g.>"]
        assert raw.count("G") == 30
        require_converged(space)


def rendered_lines(found: Drift) -> list[str]:
    """Render a drift report as the lines that a user sees."""
    console = Console(file=io.StringIO(), width=200)
    drift_text.render(found, console)
    return cast("io.StringIO", console.file).getvalue().splitlines()


@pytest.mark.matrix
@LONG_TIMEOUT
def test_a_record_of_a_killed_apply_is_removed(tmp_path: Path, server: Server) -> None:
    """The record of the start of an origin is removed by the apply after a kill."""
    space = single_space(tmp_path, server)
    space.write(
        streams=[
            origin_config("recreate", replaced=False),
            {"name": "G", "sources": [{"name": "O"}]},
        ]
    ).apply()
    path = tmp_path / "state" / "test.json"
    state = json.loads(path.read_text("utf-8"))
    state["replacements"] = {"main/stream/O": {"address": "main/stream/O", "first_seq": 31}}
    path.write_text(json.dumps(state), "utf-8")
    plan, result = space.apply()

    assert ([step.op for step in plan.steps], result.exit_code) == (["state.update"], 0)
    require_converged(space)
