"""The measured update rules as cases: what `from` becomes, what `to` does to it, on each server version.

The two JSON files say what five servers answered to a raw update. What the tables predict for the same pair is
worked out here by the planner's own functions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsplan.documents.plan import FieldChange
from jsplan.planning.diff import field_changes
from jsplan.planning.merge import expected_new, expected_update, without_ignored
from jsplan.resources import CONSUMER, STREAM, Table
from jsplan.resources.fields import Config, strip_metadata

DATA = Path(__file__).parent.parent / "data"
#: The API level of each measured version.
LEVELS = {"2.10.26": 0, "2.11.11": 1, "2.12.8": 3, "2.14.6": 4, "2.15.1": 5}
#: What the server takes as it is sent raw, and jsplan replaces all the same, with the reason.
ACCEPTED_BUT_REPLACED = {
    "consumer name / durable_name named ephemeral -> durable": "it keeps the threshold after which it is deleted",
    "consumer name / durable_name durable -> named ephemeral": "it expires after the next restart of the server",
    "consumer mem_storage false->true": "up to 2.12 the echo changes and the store does not",
    "consumer mem_storage true->false": "up to 2.12 the echo changes and the store does not",
    "consumer direct false->true": "internal to the server; refused since 2.14",
}
#: Refused as they are sent raw, because what sealing turned on is left out; jsplan sends the server's whole document.
REFUSED_ONLY_RAW = {"stream sealed update description on sealed", "stream sealed update max_age on sealed"}
#: Refused for something that stands outside of the two configurations; each has a test of its own.
REFUSED_BY_SURROUNDINGS = {
    "stream subjects overlap with other stream": "10065",
    "stream num_replicas 1->3 standalone": "10074",
    "stream consumer_limits set max_ack_pending below existing consumer": "10069",
    "stream consumer_limits set inactive_threshold, existing durable without": "10069",
    "consumer num_replicas 0->3 standalone": "10074",
    "consumer deliver_subject change (active subscriber)": "10013",
}


@dataclass(frozen=True)
class Case:
    """One measured pair of configurations."""

    kind: str
    field: str
    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    pre: str
    measured: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        return f"{self.kind} {self.field} {self.name}"

    @property
    def table(self) -> Table:
        """The table of the kind."""
        return STREAM if self.kind == "stream" else CONSUMER


def cases() -> list[Case]:
    """All cases of both files."""
    found = []
    for kind in ("stream", "consumer"):
        text = json.loads((DATA / f"{kind}_update_rules.json").read_text("utf-8"))
        for field, rows in text["fields"].items():
            found += [
                Case(kind, field, row["case"], named(kind, row["from"]), named(kind, row["to"]), row.get("pre", ""), row["by_version"])
                for row in rows["cases"]
            ]
    return found


def named(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the name that the planner always writes."""
    return config if kind == "stream" else {"name": "c"} | config


@dataclass(frozen=True)
class Prediction:
    """What the tables say of one update. `verdict` is none, in_place, one_way, replace or ignored; `after` is compact."""

    verdict: str
    after: Config
    changes: list[FieldChange]
    ignored: list[FieldChange]


def predict(table: Table, to: Config, live: Config, level: int, around: Config | None = None) -> Prediction:
    """What an update of the live configuration (raw) to exactly `to` does, by the planner's own functions."""
    before = table.compact(live)
    target = expected_update(table, to, before, live, None, level=level, around=around or {}, ignore=())
    after, ignored = without_ignored(table, before, target, level)
    changes = field_changes(table, before, after, level)
    effects = {change.effect for change in changes}
    order = ("replace", "one_way", "in_place")
    verdict = next((effect for effect in order if effect in effects), "ignored" if ignored else "none")
    return Prediction(verdict, after, changes, ignored)


def echo(table: Table, compact: Config, level: int) -> Config:
    """The predicted echo of the server: the full form."""
    return table.full(compact, level)


def shown(raw: Config) -> Config:
    """The server's echo without what it puts into metadata itself."""
    out = {name: value for name, value in raw.items() if name != "metadata"}
    metadata = strip_metadata(raw.get("metadata") or {})
    return out | ({"metadata": metadata} if metadata else {})


__all__ = ["Case", "Prediction", "cases", "echo", "expected_new", "predict", "shown"]
