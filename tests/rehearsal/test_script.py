from __future__ import annotations

from typing import Any

from jsplan.address import Address
from jsplan.documents.plan import Op, Plan, Step
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
    """A live fingerprint becomes that of what stands in for it; absent stays absent, and nothing is at stake without data."""
    update = step("s1", A, "stream.update", {"fingerprint": "sha256:live", "max_deleted": 5})
    create = step("s2", B, "stream.create", {"fingerprint": "absent"})

    script = build_steps(plan(update, create), {}, {A: "sha256:embedded"})

    assert [s.precondition for s in script.steps] == [
        {"fingerprint": "sha256:embedded"},
        {"fingerprint": "absent"},
    ]
    assert update.precondition == {"fingerprint": "sha256:live", "max_deleted": 5}


def test_steps_that_only_touch_state_are_passed_through() -> None:
    """Who waits for a step that writes to no server waits for what that one waits for."""
    first = step("s1", A, "stream.update", {"fingerprint": "sha256:live"})
    noted = step("s2", A, "state.update", {"after_step": "s1"}, "s1")
    last = step("s3", B, "stream.create", {"after_step": "s2"}, "s2")

    script = build_steps(plan(first, noted, last), {}, {A: "sha256:embedded"})

    assert [(s.id, s.depends_on, s.precondition) for s in script.steps] == [
        ("s1", [], {"fingerprint": "sha256:embedded"}),
        ("s3", ["s1"], {}),
    ]


def test_what_depends_on_something_left_out_is_left_out_too() -> None:
    """One obstacle takes everything behind it along, and is the only reason given."""
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


def test_what_a_step_remembers_is_about_the_staging_stream() -> None:
    """A step that carries data over knows its object by when it was created; in a rehearsal that is when the stand-in was."""
    carrying = step("s1", A, "consumer.replace", {"fingerprint": "sha256:live"})
    carrying.params = {
        "old": {"created": "yesterday", "config": {"name": "A"}},
        "from": ["yesterday", 5],
    }

    script = build_steps(plan(carrying), {}, {A: "sha256:embedded"}, {"yesterday": "now"})

    assert script.steps[0].params == {
        "old": {"created": "now", "config": {"name": "A"}},
        "from": ["now", 5],
    }
