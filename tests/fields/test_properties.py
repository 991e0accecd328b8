"""Random workspaces converge through plan and apply, from nothing and from each other.

What the server refuses must have been an error of the files or of the plan; those resources are taken out, the rest must
go through. `make soak` takes JSPLAN_EXAMPLES workspaces.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jsplan.address import Address
from jsplan.documents.plan import Plan
from jsplan.errors import ConfigError
from jsplan.options import DriftOptions
from jsplan.planning.decide import table_of
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.workflows.drift import drift
from tests.fields import strategies
from tests.support.raw import streams as names_of
from tests.support.workspaces import RecordingObserver, left_to_do, single_space

if TYPE_CHECKING:
    from tests.fields.server_bench import ServerBench
    from tests.support.workspaces import Space

FEW, SEEDED, MANY = 96, 240, int(os.environ.get("JSPLAN_EXAMPLES", "20000"))
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
#: Streams of one workspace, each with up to two consumers.
BATCH = 16
#: What the names of the streams are drawn as.
NAME = "S@@"

Body = dict[str, Any]
Pair = tuple[Body, Body]


def stream_pairs() -> st.SearchStrategy[Pair]:
    """Draw a stream with up to two consumers, and what becomes of them."""
    consumers = [
        strategies.pairs(strategies.consumers(f"C{n}", NAME, NEWEST_LEVEL)) for n in range(2)
    ]
    return st.tuples(
        strategies.pairs(strategies.streams(NAME, NEWEST_LEVEL)),
        st.tuples(*consumers),
        st.integers(0, 15),
    ).map(_combine)


def _combine(drawn: tuple[Pair, tuple[Pair, ...], int]) -> Pair:
    (old, new), consumers, mask = drawn
    before = [pair[0] for n, pair in enumerate(consumers) if mask >> n & 1]
    after = [pair[1] for n, pair in enumerate(consumers) if mask >> n + 2 & 1]
    return old | {"consumers": before}, new | {"consumers": after}


def draw_batches(count: int, *, seeded: bool) -> Iterator[list[Pair]]:
    """Draw so many pairs in batches, each stream with a name of its own. No server is needed."""
    found: list[Pair] = []

    @settings(
        max_examples=count,
        derandomize=seeded,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=CHECKS,
    )
    @given(pair=stream_pairs())
    def collect(pair: Pair) -> None:
        text = json.dumps(pair).replace(NAME, f"S{len(found):05}")
        found.append(tuple(json.loads(text)))

    collect()
    return (found[at : at + BATCH] for at in range(0, len(found), BATCH))


def test_any_workspace_converges(bench: ServerBench) -> None:
    """Apply succeeds, live is what plan showed, and the next plan is empty, for any workspace.

    The same holds from there to any other workspace.
    """
    converge_all(bench, FEW)


@pytest.mark.timeout(300)
@pytest.mark.matrix
@pytest.mark.soak
def test_more_workspaces_converge(bench: ServerBench) -> None:
    """More workspaces converge, on every server."""
    converge_all(bench, SEEDED)


def converge_all(bench: ServerBench, count: int) -> None:
    """Converge so many streams of the seed, in workspaces that need each kind of action."""
    before = dict(bench.counts)
    for batch in draw_batches(count, seeded=True):
        converge(bench, batch)
    for action in ("create", "update", "no-op", "delete"):
        assert bench.counts.get(action, 0) - before.get(action, 0) > count / 24, bench.counts


@pytest.mark.soak
def test_soak_any_workspace_converges(bench: ServerBench) -> None:
    """New random workspaces converge."""
    for batch in draw_batches(MANY, seeded=False):
        converge(bench, batch)


@pytest.mark.matrix
def test_unmanaged_streams_equal_their_own_description(bench: ServerBench, tmp_path: Path) -> None:
    """Streams are adopted without a write, from the fields they were made of or from their INFO."""
    space, other = (empty_space(bench, tmp_path / name) for name in ("own", "other"))
    drawn = chain(*draw_batches(FEW, seeded=True))
    made = apply_legal(bench, other, [old for old, _ in drawn], [])
    described = [describe(bench, space.folder, body) for body in made]
    assert sum(len(body["consumers"]) for body in made) > FEW / 8
    for wanted in (made, described):
        plan, result = space.write(streams=wanted).apply()
        changes = {c.address: c.change.fields for c in plan.resource_changes}
        sent = {
            a: [f.path for f in fields if f.effect != "ignored"] for a, fields in changes.items()
        }
        assert [a for a, paths in sent.items() if paths] == []
        assert result.exit_code == 0
        require_converged(space)


def describe(bench: ServerBench, folder: Path, body: Body) -> Body:
    """Save what the server says of a stream and its consumers; return a declaration by these."""

    def saved(what: str) -> Body:
        (folder / f"{what}.json").write_bytes(bench.raw.request(f"$JS.API.{what}")[1])
        return {"name": what.rpartition(".")[2], "config_file": f"{what}.json"}

    stream = body["name"]
    consumers = [saved(f"CONSUMER.INFO.{stream}.{c['name']}") for c in body["consumers"]]
    return saved(f"STREAM.INFO.{stream}") | {"consumers": consumers}


def empty_space(bench: ServerBench, folder: Path) -> Space:
    """Return a new workspace, on a server without the streams of others."""
    for name in set(names_of(bench.raw)) - bench.permanent_streams:
        bench.raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")
    folder.mkdir(exist_ok=True)
    return single_space(folder, bench.server)


def converge(bench: ServerBench, drawn: list[Pair]) -> None:
    """Converge from nothing to the first of each pair, and from there to the second."""
    with tempfile.TemporaryDirectory() as folder:
        space = empty_space(bench, Path(folder))
        made = apply_legal(bench, space, [old for old, _ in drawn], [])
        apply_legal(bench, space, [new for _, new in drawn], made)


def apply_legal(
    bench: ServerBench, space: Space, wanted: list[Body], fallback: list[Body]
) -> list[Body]:
    """Apply the legal part of the bodies, and check the result. Returns what was applied.

    What plan refuses stays as `fallback` has it, or is left out.
    """
    bodies, plan = legal(space, wanted, fallback)
    assert not plan.errored, plan.diagnostics
    hazards = tuple({hazard.code for change in plan.resource_changes for hazard in change.hazards})
    result = space.apply_saved(plan, allow_hazards=hazards)
    assert result.exit_code == 0, [step for step in result.steps if step.status != "done"]
    for change in plan.resource_changes:
        bench.count(change.change.actions[-1])
        if change.change.after is not None:
            address = Address.parse(change.address)
            live, table = bench.live(address), table_of(address)
            assert table.compact(live) == table.compact(change.change.after), (
                change.address,
                bodies,
            )
    require_converged(space)
    return bodies


def require_converged(space: Space) -> None:
    """Require a plan without any step, and no drift."""
    again = space.plan()
    assert left_to_do(again) == [], (space.folder / "jsplan.yaml").read_text("utf-8")
    assert not again.has_changes
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []


def legal(space: Space, wanted: list[Body], fallback: list[Body]) -> tuple[list[Body], Plan]:
    """Return the bodies without those that files or plan refuse, and the plan for the rest.

    Each round takes out what was named.
    """
    bodies = [dict(body) for body in wanted]
    safe = {body["name"]: body for body in fallback}
    for _ in range(6):
        space.write(
            streams=[
                body
                | {
                    "lifecycle": {"on_replace": "recreate"},
                    "consumers": [
                        consumer | {"lifecycle": {"on_replace": "recreate"}}
                        for consumer in body["consumers"]
                    ],
                }
                for body in bodies
            ]
        )
        try:
            plan = space.plan()
            errors = [d for d in plan.diagnostics if d.severity == "error"]
        except ConfigError as error:
            plan, errors = None, [d for d in error.diagnostics if d.severity == "error"]
        if not errors and plan is not None:
            return bodies, plan
        wrong = {d.address for d in errors}
        bodies = [
            kept for body in bodies if (kept := without_refused(body, wrong, safe)) is not None
        ]
    raise AssertionError(f"still refused: {errors}")


def without_refused(body: Body, wrong: set[str | None], safe: dict[str, Body]) -> Body | None:
    """Return a stream without the consumers that were refused.

    One that was refused itself is returned as it was before, or not at all.
    """
    if f"main/stream/{body['name']}" in wrong:
        return safe.pop(body["name"], None)
    kept = [
        c for c in body["consumers"] if f"main/consumer/{body['name']}/{c['name']}" not in wrong
    ]
    return body | {"consumers": kept}
