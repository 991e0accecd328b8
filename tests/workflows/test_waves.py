"""Rollouts in waves: the domains of each wave, the checks between waves, and failures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from jsplan.address import Address
from jsplan.applying.rollout import Wave, split_into_waves
from jsplan.config.model import Domain
from jsplan.documents.apply import StepFinished
from jsplan.documents.plan import Plan, Step
from jsplan.documents.types import Deferred
from jsplan.errors import UsageError
from jsplan.options import PlanOptions
from jsplan.topology import Edge
from jsplan.workflows import apply as applying
from tests.support.fleets import Fleet, fleet_space, sales_streams
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.topology import Topology


def planned(*steps: tuple[str, str, list[str]]) -> Plan:
    """Build a plan with steps `(id, domain, depends_on)`."""
    made = [
        Step(name, f"{domain}/stream/S", "stream.create", "", {}, {}, waits)
        for name, domain, waits in steps
    ]
    return cast("Plan", SimpleNamespace(steps=made, deferred=[]))


def domains(**labels: str) -> dict[str, Domain]:
    return {
        key: Domain(key, "c", key, f"$JS.{key}.API", frozenset(text.split()))
        for key, text in labels.items()
    }


def flows(*pairs: tuple[str, str]) -> Topology:
    edges = [
        Edge(
            Address(a, "stream", "S"), Address(b, "stream", "T"), "source", {"external": {"api": a}}
        )
        for a, b in pairs
    ]
    return cast("Topology", SimpleNamespace(edges=edges))


def ids(waves: list[Wave]) -> list[list[str]]:
    return [[step.id for step in wave.steps] for wave in waves]


FLEET = domains(hub="", **{f"s{n}": "edge canary" if n == 3 else "edge" for n in range(10)})
TO_HUB = flows(*((f"s{n}", "hub") for n in range(10)))
ALONE = tuple((f"x{n}", f"s{n}", list[str]()) for n in range(10))


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("100%", [["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"]]),
        (
            "label:canary,30%,100%",
            [["s3"], ["s0", "s1"], ["s2", "s4", "s5", "s6", "s7", "s8", "s9"]],
        ),
        (
            "s9,s[0-1],1%,100%",
            [["s9"], ["s0", "s1"], [], ["s2", "s3", "s4", "s5", "s6", "s7", "s8"]],
        ),
        ("5%,50%,label:edge", [["s0"], ["s1", "s2", "s3", "s4"], ["s5", "s6", "s7", "s8", "s9"]]),
    ],
)
def test_domains_of_each_wave(terms: str, expected: list[list[str]]) -> None:
    """Each domain is in the first wave that matches it, and percentages count earlier waves."""
    assert [
        list(wave.domains)
        for wave in split_into_waves(terms.split(","), planned(*ALONE), FLEET, TO_HUB)
    ] == expected


def test_steps_of_a_hub_follow_their_dependencies() -> None:
    """Steps of a hub are in the wave of the first dependent leaf, or of the last dependency."""
    steps = [
        ("prices", "hub", []),
        *ALONE,
        ("copy", "s3", ["prices"]),
        ("all", "hub", [x for x, _, _ in ALONE]),
        ("other", "hub", []),
    ]
    waves = split_into_waves(
        ["label:canary", "50%", "100%"], planned(*cast("Any", steps)), FLEET, TO_HUB
    )

    assert ids(waves) == [
        ["prices", "x3", "copy"],
        ["x0", "x1", "x2", "x4"],
        ["x5", "x6", "x7", "x8", "x9", "all", "other"],
    ]


def test_a_step_never_runs_before_its_dependencies() -> None:
    """A step waits for the wave of the steps that it depends on."""
    waves = split_into_waves(
        ["label:canary", "100%"], planned(("a", "s1", []), ("b", "s3", ["a"])), FLEET, TO_HUB
    )

    assert ids(waves) == [[], ["a", "b"]]


def test_a_fleet_that_is_not_covered() -> None:
    """Waves that leave domains out are wrong usage."""
    with pytest.raises(UsageError, match="s1 and 7 more are in no wave"):
        split_into_waves(["label:canary", "20%"], planned(*ALONE), FLEET, TO_HUB)


def test_an_offline_canary() -> None:
    """A first wave whose domains are all offline is wrong usage; one without a change is empty."""
    plan = planned(*(step for step in ALONE if step[1] != "s3"))
    terms = ["label:canary", "100%"]
    assert [wave.domains[:1] for wave in split_into_waves(terms, plan, FLEET, TO_HUB)] == [
        (),
        ("s0",),
    ]
    plan.deferred.append(Deferred("s3/stream/SALES", "domain s3 is offline"))
    with pytest.raises(UsageError, match="--wave label:canary: s3 is offline"):
        split_into_waves(terms, plan, FLEET, TO_HUB)
    assert split_into_waves(["50%", "100%"], plan, FLEET, TO_HUB)


# --- on servers ------------------------------------------------------------------------------------------------


def test_waves_on_real_servers(fleet: Fleet, tmp_path: Path) -> None:
    """Each wave is completed and verified before the next one begins."""
    space, observer = fleet_space(tmp_path, fleet), RecordingObserver()
    space.write(streams=sales_streams())
    _, result = applying.apply(
        space.load, PlanOptions(waves=("label:canary", "50%", "100%")), approve, observer
    )
    order = [event.result.address for event in observer.events if isinstance(event, StepFinished)]

    assert result.exit_code == 0
    assert [text for text in observer.texts if text.startswith("Wave")] == [
        "Wave 1 of 3 (label:canary): 1 domain",
        "Wave 2 of 3 (50%): 2 domains",
        "Wave 3 of 3 (100%): 4 domains",
    ]
    assert order[0] == "store-001/stream/SALES"
    assert set(order[1:3]) == {"store-002/stream/SALES", "store-003/stream/SALES"}
    assert order[-1] == "hub/stream/ALL_SALES"
    assert not space.plan().has_changes


class DeletingObserver(RecordingObserver):
    """Deletes a stream outside jsplan when it has been created."""

    def __init__(self, fleet: Fleet, address: str) -> None:
        super().__init__()
        self._fleet, self._address = fleet, address

    def event(self, event: ApplyEvent) -> None:
        """Delete the stream once."""
        if (
            isinstance(event, StepFinished)
            and event.result.address == self._address
            and event.result.status == "done"
        ):
            domain, _, name = self._address.split("/")
            self._fleet.ask(f"STREAM.DELETE.{name}", domain)


def test_a_failed_wave_stops_the_rollout(fleet: Fleet, tmp_path: Path) -> None:
    """A failed check after a wave stops the rollout with exit code 6."""
    space, observer = (
        fleet_space(tmp_path, fleet),
        DeletingObserver(fleet, "store-001/stream/SALES"),
    )
    space.write(streams=sales_streams())
    _, result = applying.apply(
        space.load, PlanOptions(waves=("label:canary", "50%", "100%")), approve, observer
    )

    assert result.exit_code == 6
    assert {step.address: step.status for step in result.steps} == {
        "hub/stream/ALL_SALES": "skipped",
        "store-001/stream/SALES": "done",
        **{f"{s}/stream/SALES": "skipped" for s in fleet.stores[1:]},
    }
    reasons = {step.error for step in result.steps if step.status == "skipped"}
    assert len(reasons) == 1
    assert "wave 1 (label:canary) had 1 domain that failed, more than --max-failures 0" in str(
        reasons
    )
    assert "store-001/stream/SALES is gone again" in str(reasons)
    assert [fleet.messages(store, "SALES") for store in fleet.stores] == [-1] * len(fleet.stores)
    assert (
        sum(1 for c in space.plan().resource_changes if c.change.actions == ["create"])
        == len(fleet.stores) + 1
    )


def test_a_wave_with_a_permitted_failure(fleet: Fleet, tmp_path: Path) -> None:
    """`--max-failures 1` reports one failure in a wave and continues with the next wave."""
    space = fleet_space(tmp_path, fleet)
    space.write(streams=sales_streams(max_msgs=5)).apply()
    observer = RefusedStepObserver(fleet, "store-002")
    space.write(streams=sales_streams(max_msgs=6))
    _, result = applying.apply(
        space.load,
        PlanOptions(waves=("50%", "100%"), max_failures=1, parallelism=1),
        approve,
        observer,
    )

    assert result.exit_code == 6
    assert {s.address for s in result.steps if s.status == "failed"} == {"store-002/stream/SALES"}
    assert sum(1 for s in result.steps if s.status == "done") == len(fleet.stores) - 1
    assert any(text.startswith("store-002 failed in wave 1") for text in observer.texts)


class RefusedStepObserver(RecordingObserver):
    """Changes a stream between the check of the plan and the check of its step."""

    def __init__(self, fleet: Fleet, store: str) -> None:
        super().__init__()
        self._fleet, self._store = fleet, store

    def phase(self, text: str) -> None:
        """Change the stream when the first wave begins."""
        super().phase(text)
        if text.startswith("Wave 1"):
            config = self._fleet.ask("STREAM.INFO.SALES", self._store)["config"]
            self._fleet.ask("STREAM.UPDATE.SALES", self._store, config | {"description": "theirs"})
