"""kill -9 of apply at each boundary of its steps, on each backend.

A boundary is a request that changes something, including the state in a bucket, before it arrives
or before its answer is read. The next apply completes the work. Another scenario is one more entry
of `SCENARIOS`.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.buckets import new_bucket
from tests.support.kill_proxy import KillPoint, KillProxy, writes
from tests.support.process import start_process
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.state import load_context
from tests.support.workspaces import RecordingObserver, Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

#: Reasons of a plan for resources that were changed or deleted outside jsplan.
OUTSIDE = {
    "create_because_missing",
    "forget_because_missing",
    "forget_because_recreated_elsewhere",
    "update_because_drifted",
}
Bodies = list[dict[str, Any]]
#: Leases of a lock in a bucket: short for the killed process, so that its lock expires soon.
SHORT, LONG = "2s", "1m"
#: Seconds, for a server on a busy machine.
PATIENT = 60.0
#: How many boundaries of each scenario are tried in `make test`.
SAMPLE = 2
#: The most messages of a stream there.
FEW_MESSAGES = 4_000


@dataclass(frozen=True)
class Scenario:
    """Streams before and after, permissions, and the number of messages in each stream."""

    name: str
    before: Bodies
    after: Bodies
    permitted: tuple[str, ...]
    message_counts: tuple[str, ...]
    messages: int = 25

    def __str__(self) -> str:
        return self.name


def _streams(prefix: str, count: int, **fields: Any) -> Bodies:
    return [
        {"name": f"{prefix}{n}", "subjects": [f"{prefix.lower()}{n}"]} | fields
        for n in range(count)
    ]


WITH_ACKS = [{"name": "C", "ack_policy": "explicit"}]
SCENARIOS = [
    Scenario(
        "twenty resources",
        before=[*_streams("KEPT", 4, consumers=[{"name": "C"}]), *_streams("GONE", 4)],
        after=[
            *_streams("KEPT", 4, max_age="2d", consumers=[{"name": "C", "max_deliver": 3}]), *_streams("NEW", 3, consumers=[{"name": "C"}]),
            *_streams("PLAIN", 2),
        ],
        permitted=("DELETES_STREAM", "REMOVES_SUBJECTS"), message_counts=tuple(f"KEPT{n}" for n in range(4)),
    ),
    Scenario(
        "replaced with what they hold",
        before=[*_streams("KEPT", 2, storage="file", consumers=WITH_ACKS), *_streams("GONE", 2)],
        after=[
            *_streams("KEPT", 2, storage="memory", lifecycle={"on_replace": "preserve"}, consumers=WITH_ACKS),
            *_streams("NEW", 2, consumers=[{"name": "C"}]),
        ],
        permitted=("DELETES_STREAM", "REMOVES_SUBJECTS", "DUPLICATES_MESSAGES"), message_counts=("KEPT0", "KEPT1"), messages=20_000,
    ),
]  # fmt: skip


def _fill(raw: Raw, name: str, count: int) -> None:
    """Publish messages, and wait for each thousandth, because a busy server drops messages."""
    for number in range(1, count + 1):
        if number % 1000 and number < count:
            raw.publish(name.lower(), b"%d" % number)
        else:
            raw.api_ok(name.lower(), b"%d" % number)


class Scene:
    """A workspace with its state in one kind of backend, and a server."""

    def __init__(self, folder: Path, server: Server, kind: str, scenario: Scenario) -> None:
        self.server, self.scenario, self.kind = server, scenario, kind
        self.space = single_space(folder, server)
        self.bucket = ""
        self.kills = 0

    def reset(self) -> None:
        """Apply the streams of before on a clean server, and publish the messages."""
        with Raw(self.server.url, timeout=PATIENT) as raw:
            delete_all_streams(raw)
        shutil.rmtree(self.space.folder / "state", ignore_errors=True)
        self.bucket = new_bucket()
        self.use(self.server.url, LONG, self.scenario.before).apply()
        with Raw(self.server.url, timeout=PATIENT) as raw:
            for name in self.scenario.message_counts:
                _fill(raw, name, self.scenario.messages)

    def use(self, url: str, lock_ttl: str, bodies: Bodies) -> Space:
        """Write the workspace with this way to the server."""
        self.space.base["connections"] = {"main": {"url": url}}
        if self.kind == "kv":
            self.space.base["backend"] = {"kv": {"bucket": self.bucket, "lock_ttl": lock_ttl}}
        return self.space.write(streams=bodies)

    def kill_at(self, boundary: KillPoint | None) -> list[str]:
        """Apply in a process that is killed at the boundary, and return its requests."""
        with KillProxy(self.server.port, boundary) as proxy:
            self.use(proxy.url, SHORT if boundary else LONG, self.scenario.after)
            allowed = [
                part for code in self.scenario.permitted for part in ("--allow-hazard", code)
            ]
            process = start_process(
                self.space.folder, "apply", "-y", "--parallelism", "4", *allowed
            )
            proxy.watch(process)
            _, err = process.communicate(timeout=50)
            # The number of requests varies, so that apply may end before the boundary.
            # On a busy machine, its lease may end.
            ended = {-9, 0, 6} if boundary else {0}
            assert process.returncode in ended, err.decode()
            self.kills += process.returncode == -9
            return list(proxy.seen)

    def kill_points(self) -> list[KillPoint]:
        """Return each boundary at which a whole apply can be killed."""
        self.reset()
        numbers = [number for number, subject in enumerate(self.kill_at(None)) if writes(subject)]
        assert len(numbers) > 15
        return [
            KillPoint(number, moment)
            for number in numbers
            for moment in ("before it arrives", "before its answer")
        ]

    def require_converged(self) -> None:
        """Require that the next apply leaves the streams of the files, with all messages."""
        space, scenario = self.use(self.server.url, LONG, self.scenario.after), self.scenario
        found = drift(space.load, DriftOptions(), RecordingObserver())
        assert (found.resource_drift, found.unmanaged, found.exit_code) == (
            [],
            [],
            2 if found.interrupted else 0,
        )
        plan, result = space.apply(allow_hazards=scenario.permitted, lock_timeout=40_000_000_000)
        assert result.exit_code == 0, result
        assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
        assert plan.resource_drift == []
        assert not {change.action_reason for change in plan.resource_changes} & OUTSIDE

        state = load_context(space.load).state
        declared = {f"main/stream/{body['name']}" for body in scenario.after}
        declared |= {
            f"main/consumer/{body['name']}/{c['name']}"
            for body in scenario.after
            for c in body.get("consumers", [])
        }
        assert {str(address) for address in state.resources} == declared
        assert (state.pending, state.replacements) == ({}, {})
        assert [step.title for step in space.plan().steps] == []
        with Raw(self.server.url, timeout=PATIENT) as raw:
            existing = {name for name in streams(raw) if not name.startswith("KV_STATE_")}
            assert existing == {body["name"] for body in scenario.after}
            counts = [
                raw.api_ok(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"]
                for name in scenario.message_counts
            ]
        assert counts == [scenario.messages] * len(counts)


@pytest.fixture(params=["local", "kv"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Scene:
    """A scene of the first scenario on each backend; tests may set another one."""
    return Scene(tmp_path, server, request.param, SCENARIOS[0])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.timeout(180)
def test_killed_at_some_boundaries(scene: Scene, scenario: Scenario) -> None:
    """After a kill at a few boundaries, plan and apply continue.

    The choice differs between backends, and is the same in each run.
    """
    scene.scenario = replace(scenario, messages=min(scenario.messages, FEW_MESSAGES))
    for boundary in random.Random(f"{scene.kind} {scenario}").sample(scene.kill_points(), SAMPLE):
        scene.reset()
        scene.kill_at(boundary)
        scene.require_converged()
    assert scene.kills > 0


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_killed_at_every_boundary(scene: Scene, scenario: Scenario) -> None:
    """After a kill at any boundary, plan and apply continue."""
    scene.scenario = scenario
    for boundary in scene.kill_points():
        scene.reset()
        scene.kill_at(boundary)
        scene.require_converged()
    assert scene.kills > 20
