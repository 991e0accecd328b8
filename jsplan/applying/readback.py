"""Whether the server kept what it was sent (promise 2). What to do about it is left to the executor."""

from __future__ import annotations

from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject
from jsplan.resources import CONSUMER, STREAM


def not_kept(step: Step, live: LiveObject) -> str:
    """The fields whose live value is not what the step asked for, in words; empty when all are."""
    table = CONSUMER if live.address.kind == "consumer" else STREAM
    lost = []
    for name, wanted in (step.expect or {}).items():
        found = live.compact.get(name)
        if found != wanted and not _same_default(table.default_of(name), wanted, found):
            lost.append(f"{name} (asked for {_shown(wanted)}, has {_shown(found)})")
    return ", ".join(lost)


def _same_default(default: object, wanted: object, found: object) -> bool:
    """A field that was left to the server is whatever the server made of it."""
    return wanted is None and (default is None or found == default)


def _shown(value: object) -> str:
    return "the default" if value is None else str(value)
