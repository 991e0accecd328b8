"""Whether the server kept what it was sent (promise 2). What to do about it is left to the executor."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject
from jsplan.planning.diff import lacking
from jsplan.planning.verdict import table_of


def not_kept(step: Step, live: LiveObject) -> list[str]:
    """The fields whose live value is not what the step asked for."""
    return lacking(table_of(live.address), live.compact, step.expect or {})


def describe(step: Step, live: LiveObject, lost: Iterable[str]) -> str:
    """The lost fields in words: what was asked for and what is there."""
    expect = step.expect or {}
    return ", ".join(f"{name} (asked for {_shown(expect[name])}, has {_shown(live.compact.get(name))})" for name in lost)


def _shown(value: object) -> str:
    return "the default" if value is None else str(value)
