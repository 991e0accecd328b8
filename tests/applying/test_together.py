"""Steps that create or adopt run together: each fails alone, and a kill loses nothing."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying import operations
from jsplan.applying.step_context import StepContext
from jsplan.documents.apply import StepStarted
from jsplan.jetstream import DomainApi
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from jsplan.workflows import state as remembering
from tests.support.fake_api import FakeApi
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, approve, single_space

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent, ApplyResult
    from jsplan.documents.plan import Step
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

CONSUMER: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}
#: Steps of a domain at once, so that two run together.
PARALLELISM = 4


def bodies(count: int) -> list[dict[str, Any]]:
    """Return streams with a consumer each."""
    return [{"name": f"S{n}", "subjects": [f"s{n}"], "consumers": [CONSUMER]} for n in range(count)]


def addresses(count: int) -> list[str]:
    """Return the addresses of `bodies`."""
    return [
        *(f"main/consumer/S{n}/C" for n in range(count)),
        *(f"main/stream/S{n}" for n in range(count)),
    ]


def config_of(number: int) -> dict[str, Any]:
    """Return the configuration of a stream as jsplan creates it."""
    return {"name": f"S{number}", "subjects": [f"s{number}"]}


def limited(number: int) -> dict[str, Any]:
    """Return the configuration of a stream whose limit the files name."""
    return config_of(number) | {"max_msgs": 5}


def statuses(result: ApplyResult) -> dict[str, str]:
    """Return the status of each step by the name of its resource."""
    return {step.address.removeprefix("main/"): step.status for step in result.steps}


def interfere_once(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], method: str, act: Callable[[], object]
) -> None:
    """Let another client act once, after the first call of this method."""
    original, acts = getattr(owner, method), [act]

    async def call(*args: Any, **options: Any) -> Any:
        result = await original(*args, **options)
        if acts:
            acts.pop()()
        return result

    monkeypatch.setattr(owner, method, call)


@pytest.mark.timeout(120)
def test_killed_at_every_moment(tmp_path: Path, server: Server) -> None:
    """After a kill between any two writes, the next apply owns and creates all, without drift."""
    space = single_space(tmp_path, server).write(streams=bodies(PARALLELISM))
    with kill_after() as whole:
        space.apply(parallelism=PARALLELISM)
    assert whole.done > 2 * PARALLELISM + 4

    for moment in range(1, whole.done):
        shutil.rmtree(space.folder / "state")
        with Raw(server.url) as raw:
            delete_all_streams(raw)
        with kill_after(moment), suppress(SimulatedKill):
            space.apply(parallelism=PARALLELISM)
        plan, result = space.apply(parallelism=PARALLELISM)

        assert (result.exit_code, plan.resource_drift) == (0, []), moment
        state = read_state(space.folder)
        assert sorted(map(str, state.resources)) == addresses(PARALLELISM), moment
        assert state.pending == {}
        assert not space.plan().has_changes


@pytest.mark.parametrize(
    ("fields", "refused"), [({}, False), ({"max_msgs": 7}, True)], ids=["equal", "another"]
)
def test_another_client_creates_what_a_killed_apply_did_not(
    fields: dict[str, Any], refused: bool, tmp_path: Path, server: Server
) -> None:
    """A stream of another client, created after the kill, is kept; the rest is recovered."""
    space = single_space(tmp_path, server).write(streams=[limited(n) for n in range(4)])
    with kill_after() as whole:
        space.apply(parallelism=8)
    shutil.rmtree(space.folder / "state")
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        moment = 0
        while not 0 < len(streams(raw)) < 4:  # killed among the creations that are sent together
            moment += 1
            assert moment < whole.done
            delete_all_streams(raw)
            shutil.rmtree(space.folder / "state", ignore_errors=True)
            with kill_after(moment), suppress(SimulatedKill):
                space.apply(parallelism=8)
        existing = set(streams(raw))
        missing = next(n for n in range(4) if f"S{n}" not in existing)
        theirs = raw.api_ok(f"$JS.API.STREAM.CREATE.S{missing}", limited(missing) | fields)

        plan = space.plan()
        found = [d.address for d in plan.diagnostics if d.code == "JS302"]
        assert found == ([f"main/stream/S{missing}"] if refused else [])
        planned = {c.address: c.change.actions for c in plan.resource_changes}
        assert all(planned[f"main/stream/{name}"] == ["no-op"] for name in existing)
        if not refused:
            assert space.apply()[1].exit_code == 0
        kept = raw.api_ok(f"$JS.API.STREAM.INFO.S{missing}")
        assert (kept["created"], kept["config"]) == (theirs["created"], theirs["config"])


@pytest.mark.parametrize("fields", [{}, {"max_msgs": 7}], ids=["equal", "another"])
def test_what_another_client_created_before_the_check_fails_alone(
    fields: dict[str, Any], tmp_path: Path, server: Server
) -> None:
    """A stream that exists when its group is checked is left alone; the others are created."""
    space = single_space(tmp_path, server).write(streams=[config_of(n) for n in range(3)])

    class Interfering(RecordingObserver):
        def event(self, event: ApplyEvent) -> None:
            if isinstance(event, StepStarted) and not streams(raw):
                raw.api_ok("$JS.API.STREAM.CREATE.S1", config_of(1) | fields)

    with Raw(server.url) as raw:
        _, result = applying.apply(space.load, PlanOptions(parallelism=8), approve, Interfering())
    assert statuses(result) == {"stream/S0": "done", "stream/S1": "failed", "stream/S2": "done"}
    assert "was changed by another client" in str(result.steps[1].error)
    assert remembering.list_(space.load, ()) == ["main/stream/S0", "main/stream/S2"]


def test_another_client_creates_within_the_last_round_trip(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses the creation of what differs; that step fails alone, and is not ours."""
    space = single_space(tmp_path, server).write(streams=[config_of(n) for n in range(3)])
    with Raw(server.url) as raw:
        theirs = config_of(1) | {"max_msgs": 7}
        interfere_once(
            monkeypatch, StepContext, "begin_together",
            lambda: raw.api_ok("$JS.API.STREAM.CREATE.S1", theirs),
        )  # fmt: skip
        _, result = space.apply(parallelism=8)

        assert raw.config("S1")["max_msgs"] == 7
    assert statuses(result) == {"stream/S0": "done", "stream/S1": "failed", "stream/S2": "done"}
    assert "10058" in str(result.steps[1].error)
    state = read_state(space.folder)
    assert (sorted(map(str, state.resources)), state.pending) == (
        ["main/stream/S0", "main/stream/S2"],
        {},
    )


def test_another_client_writes_before_the_read_back(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion or change right after the creation is noticed, for each object alone."""
    space = single_space(tmp_path, server).write(streams=[limited(n) for n in range(3)])

    def act() -> None:
        raw.api_ok("$JS.API.STREAM.DELETE.S0")
        raw.api_ok("$JS.API.STREAM.UPDATE.S2", config_of(2) | {"max_msgs": 9})

    with Raw(server.url) as raw:
        interfere_once(monkeypatch, DomainApi, "create_each", act)
        _, result = space.apply(parallelism=8)
    assert statuses(result) == {"stream/S0": "failed", "stream/S1": "done", "stream/S2": "failed"}
    assert "is gone again" in str(result.steps[0].error)
    assert "did not keep max_msgs (asked for 5, has 9)" in str(result.steps[2].error)
    assert remembering.list_(space.load, ()) == ["main/stream/S1", "main/stream/S2"]


def test_a_refused_creation_fails_alone(tmp_path: Path, server: Server) -> None:
    """One creation that the server refuses leaves the others of its group untouched."""
    space = single_space(tmp_path, server).write(streams=bodies(4))
    plan = space.plan()
    with Raw(server.url) as raw:
        raw.create("OTHER", subjects=["s2"])
    result = space.apply_saved(plan)

    found = statuses(result)
    assert (found.pop("stream/S2"), found.pop("consumer/S2/C")) == ("failed", "skipped")
    assert set(found.values()) == {"done"}
    assert read_state(space.folder).pending == {}


def test_a_lost_answer_is_settled_by_a_read(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creations without an answer in time are done where the object exists, else unknown.

    Those that are unknown stay pending, and the next plan shows them.
    """
    monkeypatch.setattr("jsplan.applying.step_context.WRITE_TIMEOUT", 1.0)
    space = single_space(tmp_path, server).write(
        domains={"main": {"connection": "main", "js_domain": "fake"}},
        streams=[config_of(n) for n in range(4)],
    )

    def lose(api: str, answer: Any) -> Any:
        if api == "STREAM.CREATE.S2":
            raw.api_ok("$JS.API.STREAM.DELETE.S2")
        return None if api in ("STREAM.CREATE.S1", "STREAM.CREATE.S2") else answer

    with FakeApi(server) as impostor, Raw(server.url) as raw:
        plan = space.plan(parallelism=8)
        impostor.change_answer = lose
        result = space.apply_saved(plan)
        again = space.plan()

    assert statuses(result) == {
        "stream/S0": "done", "stream/S1": "done", "stream/S2": "unknown", "stream/S3": "done"
    }  # fmt: skip
    assert "2 of 4 creations within 1 s" in str(result.steps[2].error)
    assert list(read_state(space.folder).pending) == ["main/stream/S2"]
    assert [step.title for step in again.steps] == ["create stream S2 in main"]


def test_no_more_steps_run_at_once_than_allowed(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that run together hold a slot each: `--parallelism` bounds all of a domain."""
    space = single_space(tmp_path, server).write(streams=bodies(10))
    run_steps, groups, running, most = operations.run_steps, list[int](), 0, 0

    async def count(context: StepContext, steps: Sequence[Step], *rest: Any) -> Any:
        nonlocal running, most
        groups.append(len(steps))
        running += len(steps)
        most = max(most, running)
        failures = await run_steps(context, steps, *rest)
        running -= len(steps)
        return failures

    monkeypatch.setattr("jsplan.applying.executor.run_steps", count)
    _, result = space.apply(parallelism=PARALLELISM)
    assert (result.exit_code, most, max(groups)) == (0, PARALLELISM, PARALLELISM // 2)
