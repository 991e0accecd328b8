"""The order of steps on random workspaces, checked against a model of the server."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.model_server import DOMAINS, ServerModel
from tests.support.workspaces import left_to_do

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("A", "B", "C", "D", "E")


def bodies(rng: random.Random) -> list[dict[str, Any]]:
    """Build random streams in two domains that share subjects, origins and consumers."""
    out = []
    for domain in DOMAINS:
        subjects = [f"s{number}" for number in range(7)] + ["w.*", "w.x.>"]
        rng.shuffle(subjects)
        for name in rng.sample(NAMES, rng.randint(1, 5)):
            body: dict[str, Any] = {
                "name": name,
                "domain": domain,
                "lifecycle": {"on_replace": "recreate"},
            }
            other = {"name": rng.choice(NAMES), "domain": rng.choice(DOMAINS)}
            itself = (other["name"], other["domain"]) == (name, domain)
            if rng.random() < 0.3 and not itself:
                body["mirror"] = other
            else:
                body["subjects"] = [
                    subjects.pop() for _ in range(min(len(subjects), rng.randint(1, 2)))
                ] or [f"{name}.own"]
                if rng.random() < 0.3 and not itself:
                    body["sources"] = [other]
            body["storage"] = rng.choice(["file", "file", "memory"])
            body["consumers"] = [
                {"name": c, "ack_policy": "explicit"}
                for c in rng.sample(["X", "Y"], rng.randint(0, 2))
            ]
            out.append(body)
    return out


@pytest.mark.parametrize("seed", range(40))
def test_random_workspaces(seed: int, tmp_path: Path) -> None:
    """Between random workspaces, steps never wait for each other and the second plan is empty."""
    rng = random.Random(seed)
    world = ServerModel(tmp_path)
    for _ in range(3):
        wanted = bodies(rng)
        plan = world.plan(wanted)
        assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
        world.execute(plan, rng)
        again = world.plan(wanted)
        assert left_to_do(again) == []
        assert all(c.change.actions == ["no-op"] for c in again.resource_changes)
    world.execute(world.plan([]), rng)
    assert world.live == {}
    assert world.state.resources == {}
