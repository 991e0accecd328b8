"""Rolling out in waves: who is in which, what is checked between them, and when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.documents.apply import StepFinished
from jsplan.documents.plan import Plan, Step
from jsplan.errors import UsageError
from jsplan.options import PlanOptions
from jsplan.topology import Edge
from jsplan.workflows import apply as applying
from jsplan.workflows.rollout import Wave, split_into_waves
from tests.support.fleets import Fleet, fleet_space, sales_streams
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.topology import Topology


def planned(*steps: tuple[str, str, list[str]]) -> Plan:
    """A plan with steps `(id, domain, depends_on)`."""
    made = [
        Step(name, f"{domain}/stream/S", "stream.create", "", {}, {}, waits)
        for name, domain, waits in steps
    ]
    return cast("Plan", SimpleNamespace(steps=made))


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
def test_who_is_in_which_wave(terms: str, expected: list[list[str]]) -> None:
    """Each domain is in the first wave that takes it; a share counts all that were taken before."""
    assert [
        list(wave.domains)
        for wave in split_into_waves(terms.split(","), planned(*ALONE), FLEET, TO_HUB)
    ] == expected


def test_a_hub_goes_with_who_waits_for_it() -> None:
    """What leaves wait for is done with the first of them, what waits for leaves after the last, what nobody waits for at the end."""
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


def test_a_leaf_is_not_pulled_forward() -> None:
    """A step never runs before what it depends on: it waits for the wave of the other domain."""
    waves = split_into_waves(
        ["label:canary", "100%"], planned(("a", "s1", []), ("b", "s3", ["a"])), FLEET, TO_HUB
    )

    assert ids(waves) == [[], ["a", "b"]]


def test_a_fleet_that_is_not_covered() -> None:
    """Waves that leave domains out are wrong usage, before anything is done."""
    with pytest.raises(UsageError, match="s1 and 7 more are in no wave"):
        split_into_waves(["label:canary", "20%"], planned(*ALONE), FLEET, TO_HUB)


# --- on servers ------------------------------------------------------------------------------------------------


def test_waves_on_real_servers(fleet: Fleet, tmp_path: Path) -> None:
    """Each wave is done, read back and copying before the next begins; in the end everything is as planned."""
    space, watch = fleet_space(tmp_path, fleet), RecordingObserver()
    space.write(streams=sales_streams())
    _, result = applying.apply(
        space.load, PlanOptions(waves=("label:canary", "50%", "100%")), approve, watch
    )
    order = [event.result.address for event in watch.events if isinstance(event, StepFinished)]

    assert result.exit_code == 0
    assert [text for text in watch.texts if text.startswith("Wave")] == [
        "Wave 1 of 3 (label:canary): 1 domain",
        "Wave 2 of 3 (50%): 2 domains",
        "Wave 3 of 3 (100%): 4 domains",
    ]
    assert order[0] == "store-001/stream/SALES"
    assert set(order[1:3]) == {"store-002/stream/SALES", "store-003/stream/SALES"}
    assert order[-1] == "hub/stream/ALL_SALES"
    assert not space.plan().has_changes


class SpoilingObserver(RecordingObserver):
    """Changes a stream behind jsplan's back as soon as it is made."""

    def __init__(self, fleet: Fleet, address: str) -> None:
        super().__init__()
        self._fleet, self._address = fleet, address

    def event(self, event: ApplyEvent) -> None:
        """Change it once."""
        if (
            isinstance(event, StepFinished)
            and event.result.address == self._address
            and event.result.status == "done"
        ):
            domain, _, name = self._address.split("/")
            self._fleet.ask(f"STREAM.DELETE.{name}", domain)


def test_a_wave_that_fails_ends_it(fleet: Fleet, tmp_path: Path) -> None:
    """The check after a wave finds what is not as it was made; the other waves are not begun, state is exact, exit 6."""
    space, watch = fleet_space(tmp_path, fleet), SpoilingObserver(fleet, "store-001/stream/SALES")
    space.write(streams=sales_streams())
    _, result = applying.apply(
        space.load, PlanOptions(waves=("label:canary", "50%", "100%")), approve, watch
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


def test_a_wave_may_fail_as_much_as_it_may(fleet: Fleet, tmp_path: Path) -> None:
    """With --max-failures 1 one refusal in a wave is told and the next wave begins; the result still is exit 6."""
    space = fleet_space(tmp_path, fleet)
    space.write(streams=sales_streams(max_msgs=5)).apply()
    watch = RefusedStepObserver(fleet, "store-002")
    space.write(streams=sales_streams(max_msgs=6))
    _, result = applying.apply(
        space.load,
        PlanOptions(waves=("50%", "100%"), max_failures=1, parallelism=1),
        approve,
        watch,
    )

    assert result.exit_code == 6
    assert {s.address for s in result.steps if s.status == "failed"} == {"store-002/stream/SALES"}
    assert sum(1 for s in result.steps if s.status == "done") == len(fleet.stores) - 1
    assert any(text.startswith("store-002 failed in wave 1") for text in watch.texts)


class RefusedStepObserver(RecordingObserver):
    """Changes a stream of a store between the check of the whole plan and the step's own."""

    def __init__(self, fleet: Fleet, store: str) -> None:
        super().__init__()
        self._fleet, self._store = fleet, store

    def phase(self, text: str) -> None:
        """Change it when the first wave begins."""
        super().phase(text)
        if text.startswith("Wave 1"):
            config = self._fleet.ask("STREAM.INFO.SALES", self._store)["config"]
            self._fleet.ask(
                "STREAM.UPDATE.SALES", self._store, config | {"description": "somebody else"}
            )
