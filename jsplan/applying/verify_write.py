"""Check that the server kept what it was sent (promise 2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from jsplan.applying.step_journal import StepFailed
from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.diff import differing_fields


def unkept_fields(step: Step, live: LiveObject) -> list[str]:
    """List the fields whose live value differs from the step's expectation."""
    return differing_fields(table_of(live.address), live.compact, step.expect or {})


def describe_unkept(step: Step, live: LiveObject, lost: Iterable[str]) -> str:
    """Describe the lost fields: what was requested and what the server has."""
    expect = step.expect or {}
    return ", ".join(
        f"{name} (asked for {_format_value(expect[name])}, "
        f"has {_format_value(live.compact.get(name))})"
        for name in lost
    )


def require_kept(step: Step, live: LiveObject, lost: Collection[str]) -> None:
    """Raise StepFailed that names the lost fields, if there are any."""
    if lost:
        unkept = describe_unkept(step, live, lost)
        raise StepFailed(f"{live.address}: the server did not keep {unkept}")


def _format_value(value: object) -> str:
    return "the default" if value is None else str(value)
