"""The order in which steps begin."""

from __future__ import annotations

from jsplan.applying.executor import Schedule
from jsplan.documents.plan import Step


def step(name: str, *depends_on: str, domain: str = "hub", op: str = "stream.update") -> Step:
    """Return a step whose id is `name`."""
    return Step(name, f"{domain}/stream/{name}", op, name, None, {}, list(depends_on))  # type: ignore[arg-type]


def ids(steps: list[Step]) -> list[str]:
    """Return the ids of steps."""
    return [each.id for each in steps]


def test_each_domain_has_its_slots() -> None:
    """So many steps begin in each domain, in the order of the plan, and one for each that ends."""
    steps = [step("a"), step("b"), step("x", domain="leaf"), step("c"), step("y", domain="leaf")]
    schedule = Schedule(steps, 1)

    assert ids(schedule.start()) == ["a", "x"]
    assert ids(schedule.release([steps[0]])) == ["b"]
    assert ids(schedule.release([steps[1]])) == ["c"]
    assert ids(schedule.release([steps[2]])) == ["y"]
    assert schedule.release([steps[3]]) == []


def test_a_step_begins_after_all_that_it_waits_for() -> None:
    """A dependency counts once it is finished, not when its slot is free."""
    steps = [step("a"), step("b"), step("c", "a", "b", "elsewhere"), step("d", "c")]
    schedule = Schedule(steps, 10)

    assert ids(schedule.start()) == ["a", "b"]
    assert schedule.release([steps[0]]) == []
    assert schedule.finish([steps[0]]) == []
    assert schedule.release([steps[1]]) == []
    assert ids(schedule.finish([steps[1]])) == ["c"]
    assert schedule.release([steps[2]]) == []
    assert ids(schedule.finish([steps[2]])) == ["d"]


def test_a_verification_takes_no_slot() -> None:
    """A step that waits for replication begins although all slots are taken, and frees none."""
    verification = step("v", op="replication.verify")
    schedule = Schedule([step("a"), verification, step("b")], 1)

    assert ids(schedule.start()) == ["a", "v"]
    assert schedule.release([verification]) == []
    assert ids(schedule.release([step("a")])) == ["b"]


def test_moves_have_slots_of_their_own() -> None:
    """So many steps that move a stream run at once, until the cluster is done; others continue."""
    steps = [step("a"), step("b"), step("c"), step("x")]
    for move in steps[:3]:
        move.precondition["wait_until_stable"] = move.address
    schedule = Schedule(steps, 3, moves=1)

    assert ids(schedule.start()) == ["a", "x"]
    assert schedule.release([steps[0]]) == []
    assert ids(schedule.finish([steps[0]])) == ["b"]
    assert schedule.release([steps[3]]) == []
    assert schedule.release([steps[1]]) == []
    assert ids(schedule.finish([steps[1]])) == ["c"]


def test_the_next_move_waits_for_a_slot_of_the_domain_too() -> None:
    """A move that has ended lets the next begin only where a request may be sent."""
    steps = [step("a"), step("b"), step("x")]
    for move in steps[:2]:
        move.precondition["wait_until_stable"] = move.address
    schedule = Schedule(steps, 1, moves=1)

    assert ids(schedule.start()) == ["a"]
    assert ids(schedule.release([steps[0]])) == ["x"]
    assert schedule.finish([steps[0]]) == []
    assert ids(schedule.release([steps[2]])) == ["b"]
