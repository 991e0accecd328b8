"""The measured update rules as cases: `from`, `to`, and the effect on each server version.

The two JSON files say what five servers answered to a raw update that replaces the whole configuration. What the tables
predict for the same pair is computed here by the planner's own functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsplan.config.checks import check_stream
from jsplan.config.checks_consumers import check_consumer
from jsplan.documents.plan import FieldChange
from jsplan.planning.diff import changed_names, field_changes
from jsplan.planning.merge import expected_new, expected_update, without_ignored
from jsplan.planning.server_rules import ServerContext, find_consumer_problems, find_stream_problems
from jsplan.resources import CONSUMER, STREAM, Table
from jsplan.resources.fields import Config, strip_metadata

DATA = Path(__file__).parent.parent / "data"
#: The API level of each measured version.
LEVELS = {"2.10.26": 0, "2.11.11": 1, "2.12.8": 3, "2.14.6": 4, "2.15.1": 5}
#: Raw updates that the server takes, and for which jsplan replaces all the same, with the reason.
ACCEPTED_BUT_REPLACED = {
    "consumer name / durable_name named ephemeral -> durable": "it keeps the threshold after which it is deleted",
    "consumer name / durable_name durable -> named ephemeral": "it expires after the next restart of the server",
    "consumer mem_storage false->true": "up to 2.12 the next restart forgets its position",
    "consumer mem_storage true->false": "up to 2.12 the next restart forgets the consumer",
    "consumer direct false->true": "internal to the server; refused since 2.14",
}
#: Refused as raw updates, and never sent so by jsplan: it sends the server's own document with what changes.
REFUSED_ONLY_RAW = {
    "stream sealed update description on sealed": "what sealing turned on is left out",
    "stream sealed update max_age on sealed": "what sealing turned on is left out",
    "stream mirror change opt_start_time instant same, other tz": "the same instant is no change",
}
#: Refused for something outside of the two configurations: what the plan says of it is tested with a plan.
REFUSED_BY_SURROUNDINGS = {
    "stream subjects overlap with other stream": "JS438",
    "stream consumer_limits set max_ack_pending below existing consumer": "JS436",
    "stream consumer_limits set inactive_threshold, existing durable without": "JS436",
    "consumer deliver_subject change (active subscriber)": "JS435",
}
#: Executed by a call of its own, not by the update.
IGNORED_FIELDS = ("pause_until",)


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
        """Return the table of the kind."""
        return STREAM if self.kind == "stream" else CONSUMER


def cases() -> list[Case]:
    """Return all cases of both files."""
    found = []
    for kind in ("stream", "consumer"):
        text = json.loads((DATA / f"{kind}_update_rules.json").read_text("utf-8"))
        for field, rows in text["fields"].items():
            found += [
                Case(
                    kind,
                    field,
                    row["case"],
                    with_name(kind, row["from"]),
                    with_name(kind, row["to"]),
                    row.get("pre", ""),
                    row["by_version"],
                )
                for row in rows["cases"]
            ]
    return found


def with_name(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Add the name, which the planner always writes, to the configuration."""
    return config if kind == "stream" else {"name": "c"} | config


@dataclass(frozen=True)
class Prediction:
    """The prediction of the tables for one update.

    `effect` is none, in_place, one_way, replace or ignored; `after` is compact. `predicted_changes` is what the server
    would echo of it, with what it takes and does nothing about.
    """

    effect: str
    after: Config
    requested: Config
    changes: list[FieldChange]


def predict(
    table: Table, to: Config, live: Config, level: int, around: Config | None = None
) -> Prediction:
    """Predict an update of the live configuration (raw) to exactly `to`.

    The planner's own functions do it.
    """
    before = table.compact(live)
    target = expected_update(
        table, to, before, live, None, level=level, inherited=around or {}, ignore=()
    )
    after, ignored = without_ignored(table, before, target, level)
    changes = field_changes(table, before, after, level)
    effects = {change.effect for change in changes}
    order = ("replace", "one_way", "in_place")
    verdict = next(
        (effect for effect in order if effect in effects), "ignored" if ignored else "none"
    )
    return Prediction(verdict, after, target, changes)


def inherited_from_origin(body: Mapping[str, Any]) -> Config:
    """Return the fields that a mirror in the same JetStream takes over from its origin.

    ORGD alone allows direct reads.
    """
    mirror = body.get("mirror")
    return (
        {"mirror_direct": mirror["name"] == "ORGD"} if mirror and not mirror.get("external") else {}
    )


def problems(
    table: Table,
    body: Mapping[str, Any],
    level: int,
    *,
    before: Config | None = None,
    after: Config | None = None,
    stream: Config | None = None,
) -> list[str]:
    """Return the errors of files and plan for one configuration on a single server.

    `after` is what it becomes there, if not what a new one would be. `stream` is that of a consumer.
    """
    of_stream = table is STREAM
    found = list(check_stream(body) if of_stream else check_consumer(body))
    if not found:
        around = inherited_from_origin(body)
        if stream:
            around = stream.get("consumer_limits", {})
        after = expected_new(table, body, level, around) if after is None else after
        find = find_stream_problems if of_stream else find_consumer_problems
        found = list(
            find(before, after, ServerContext(level, standalone=True, stream=stream or {}))
        )
    return [problem.summary for problem in found]


def check_outcome(case: Case, live: Config, outcome: Mapping[str, Any], level: int) -> None:
    """Compare the answer of a server with what is predicted from `live`, the raw echo before.

    The answer is written as in the data files. Raises AssertionError where they differ.
    """
    if any(
        needed > level
        for body in (case.before, case.after)
        for _, needed in case.table.required_levels(body)
    ):
        assert not outcome.get("echo_changes") or outcome["outcome"] == "rejected" or level < 2, (
            str(case),
            outcome,
        )
        return
    prediction = predict(case.table, case.after, live, level, inherited_from_origin(case.after))
    stream = {"name": "S", "subjects": ["s.>"]} if case.kind == "consumer" else None
    before = case.table.compact(live)
    refused = problems(case.table, case.after, level, before=before, stream=stream)
    if str(case) in REFUSED_ONLY_RAW or (
        str(case) in REFUSED_BY_SURROUNDINGS and outcome["outcome"] == "rejected"
    ):
        assert outcome["outcome"] == "rejected", str(case)
        assert prediction.effect != "replace", str(case)
        return
    if outcome["outcome"] == "rejected":
        assert refused or prediction.effect == "replace", (str(case), outcome)
        return
    if prediction.effect == "replace":
        assert str(case) in ACCEPTED_BUT_REPLACED, (str(case), outcome)
        return
    assert not refused or str(case) == "stream num_replicas 1->3 standalone", (str(case), refused)
    assert echoed_changes(case.table, outcome.get("echo_changes") or {}) == predicted_changes(
        case.table, live, prediction
    ), str(case)


def echoed_changes(table: Table, changes: Mapping[str, list[Any]]) -> dict[str, tuple[Any, Any]]:
    """Return the changes of an echo in compact form, without those that mean nothing."""
    pairs = {
        name: tuple(table.compact({name: value}).get(name) for value in pair)
        for name, pair in changes.items()
    }
    return {name: (pair[0], pair[1]) for name, pair in pairs.items() if pair[0] != pair[1]}


def predicted_changes(
    table: Table, live: Config, prediction: Prediction
) -> dict[str, tuple[Any, Any]]:
    """Return the predicted changes of the echo, in compact form."""
    before, after = table.compact(live), prediction.requested
    names = changed_names(before, after)
    return {
        name: (before.get(name), after.get(name)) for name in names if name not in IGNORED_FIELDS
    }


def sealed_config(config: Config, level: int) -> Config:
    """Return the compact configuration of a stream after it is sealed."""
    after = dict(config) | {"sealed": True}
    STREAM.fill_derived(after, level)
    return after


def without_server_metadata(raw: Config) -> Config:
    """Return the server's echo without the metadata that it adds itself."""
    out = {name: value for name, value in raw.items() if name != "metadata"}
    metadata = strip_metadata(raw.get("metadata") or {})
    return out | ({"metadata": metadata} if metadata else {})
