from __future__ import annotations

from typing import Any

from jsplan.address import Address
from jsplan.documents.plan import Plan, Step
from jsplan.documents.step_kinds import Op
from jsplan.rehearsal.steps import build_steps

A, B = Address("hub", "stream", "A"), Address("hub", "stream", "B")


def step(
    number: str, address: Address, op: Op, precondition: dict[str, Any], *depends_on: str
) -> Step:
    request = (
        None
        if op.startswith("state.")
        else {"api": f"STREAM.UPDATE.{address.name}", "payload": {"name": address.name}}
    )
    return Step(number, str(address), op, "", request, precondition, list(depends_on))


def plan(*steps: Step) -> Plan:
    return Plan(
        "0",
        "w",
        None,
        "2026-01-01T00:00:00Z",
        "id",
        {"lineage": None, "serial": 0},
        "",
        {},
        steps=list(steps),
    )


def test_preconditions_are_those_of_the_embedded_servers() -> None:
    """A live fingerprint becomes the one of the embedded object; absent stays absent."""
    update = step("s1", A, "stream.update", {"fingerprint": "sha256:live", "max_deleted": 5})
    create = step("s2", B, "stream.create", {"fingerprint": "absent"})

    script = build_steps(plan(update, create), {}, {A: "sha256:embedded"})

    assert [s.precondition for s in script.steps] == [
        {"fingerprint": "sha256:embedded"},
        {"fingerprint": "absent"},
    ]
    assert update.precondition == {"fingerprint": "sha256:live", "max_deleted": 5}


def test_steps_that_only_touch_state_are_passed_through() -> None:
    """A dependency on a step that only changes state becomes its own dependencies."""
    first = step("s1", A, "stream.update", {"fingerprint": "sha256:live"})
    state_only = step("s2", A, "state.update", {"after_step": "s1"}, "s1")
    last = step("s3", B, "stream.create", {"after_step": "s2"}, "s2")

    script = build_steps(plan(first, state_only, last), {}, {A: "sha256:embedded"})

    assert [(s.id, s.depends_on, s.precondition) for s in script.steps] == [
        ("s1", [], {"fingerprint": "sha256:embedded"}),
        ("s3", ["s1"], {}),
    ]


def test_dependents_of_a_left_out_step_are_left_out() -> None:
    """A step that cannot be tried takes its dependents along, with one reason."""
    steps = (
        step("s1", A, "stream.update", {"fingerprint": "sha256:live"}),
        step("s2", B, "stream.create", {"fingerprint": "absent"}, "s1"),
        step("s3", B, "stream.update", {"after_step": "s2"}, "s2"),
    )

    missing = build_steps(plan(*steps), {}, {})
    obstructed = build_steps(plan(*steps), {"s2": "a reason"}, {A: "sha256:embedded"})

    assert (missing.steps, missing.skipped, [*missing.reasons]) == (
        [],
        {"s1", "s2", "s3"},
        ["hub/stream/A"],
    )
    assert ([s.id for s in obstructed.steps], obstructed.reasons) == (
        ["s1"],
        {"hub/stream/B": "a reason"},
    )


def test_parameters_refer_to_the_embedded_object() -> None:
    """A step that knows its object by `created` gets the time of the embedded object."""
    replacing = step("s1", A, "consumer.replace", {"fingerprint": "sha256:live"})
    replacing.params = {
        "old": {"created": "yesterday", "config": {"name": "A"}},
        "from": ["yesterday", 5],
    }

    script = build_steps(plan(replacing), {}, {A: "sha256:embedded"}, {"yesterday": "now"})

    assert script.steps[0].params == {
        "old": {"created": "now", "config": {"name": "A"}},
        "from": ["now", 5],
    }
