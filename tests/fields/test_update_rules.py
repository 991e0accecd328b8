"""187 measured updates: the tables predict what five servers did, and what this one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.planning.merge import expected_new
from jsplan.sandbox import versions
from tests.conftest import PROGRAM
from tests.fields import measured_rules
from tests.fields.measured_rules import Case, cases, check_outcome, sealed_config
from tests.support.raw import Raw

if TYPE_CHECKING:
    from tests.fields.server_bench import ServerBench

ALL = cases()
VERSION = versions.read_version(PROGRAM)


def test_all_cases_are_there() -> None:
    """120 cases of streams and 67 of consumers have the answers of five versions.

    No exception names a case that does not exist.
    """
    assert len([case for case in ALL if case.kind == "stream"]) == 120
    assert len([case for case in ALL if case.kind == "consumer"]) == 67
    assert all(case.measured.keys() == measured_rules.LEVELS.keys() for case in ALL)
    exceptions = {
        *measured_rules.ACCEPTED_BUT_REPLACED,
        *measured_rules.REFUSED_ONLY_RAW,
        *measured_rules.REFUSED_BY_SURROUNDINGS,
    }
    assert exceptions <= {str(case) for case in ALL}


@pytest.mark.parametrize("version", measured_rules.LEVELS)
def test_the_tables_predict_what_was_measured(version: str) -> None:
    """The tables predict class, refusal and echo of each measured update, for every level."""
    wrong = {}
    for case in ALL:
        try:
            check_prediction(case, version)
        except AssertionError as error:
            wrong[str(case)] = error
    assert wrong == {}


def check_prediction(case: Case, version: str) -> None:
    """Compare one update as it was measured with what the tables say for that level."""
    level, outcome = measured_rules.LEVELS[version], case.measured[version]
    if outcome["outcome"] == "create_failed":
        assert any(needed > level for _, needed in case.table.required_levels(case.before))
        return
    live = expected_new(
        case.table, case.before, level, measured_rules.inherited_from_origin(case.before)
    )
    if case.pre == "SEAL":
        live = sealed_config(live, level)
    check_outcome(case, case.table.with_defaults(live, level), outcome, level)


@pytest.mark.matrix
@pytest.mark.parametrize("case", ALL, ids=str)
def test_this_server_does_what_was_measured_and_predicted(case: Case, bench: ServerBench) -> None:
    """This server answers each raw update as it was measured, and as the tables predict."""
    outcome, live = (
        _stream(case, bench.raw) if case.kind == "stream" else _consumer(case, bench.raw, bench)
    )
    if VERSION in case.measured:
        assert summary(outcome) == summary(case.measured[VERSION])
    if live:
        check_outcome(case, live, outcome, bench.level)


def summary(outcome: dict[str, Any]) -> tuple[Any, ...]:
    """Return outcome, error code and changed values, without the server's own metadata."""
    changes = {
        name: pair
        for name, pair in (outcome.get("echo_changes") or {}).items()
        if name != "metadata"
    }
    return (
        outcome["outcome"].replace("_but_dropped", ""),
        outcome.get("error", "").split(" ")[0],
        changes,
    )


def _stream(case: Case, raw: Raw) -> tuple[dict[str, Any], dict[str, Any]]:
    made = raw.api("$JS.API.STREAM.CREATE.U", case.before)
    if "error" in made:
        return {"outcome": "create_failed", "error": _error(made)}, {}
    try:
        if case.pre == "SEAL":
            raw.api_ok("$JS.API.STREAM.UPDATE.U", made["config"] | {"sealed": True})
        for number in range({"CONS": 1, "CONS2": 2}.get(case.pre, 0)):
            name = f"d{number + 1}"
            consumer = {"durable_name": name, "ack_policy": "explicit"}
            raw.api_ok(
                f"$JS.API.CONSUMER.CREATE.U.{name}", {"stream_name": "U", "config": consumer}
            )
        live = raw.config("U")
        answer = raw.api("$JS.API.STREAM.UPDATE.U", case.after)
        return _outcome(answer, live, raw.config("U")), live
    finally:
        raw.api_ok("$JS.API.STREAM.DELETE.U")


def _consumer(case: Case, raw: Raw, bench: ServerBench) -> tuple[dict[str, Any], dict[str, Any]]:
    raw.create("S", subjects=["s.>"])
    api = "$JS.API.CONSUMER.CREATE.S.c"
    try:
        made = raw.api(api, {"stream_name": "S", "config": case.before})
        if "error" in made:
            return {"outcome": "create_failed", "error": _error(made)}, {}
        with bench.listening("dlv" if "active subscriber" in case.name else None):
            answer = raw.api(api, {"stream_name": "S", "config": case.after, "action": "update"})
        return _outcome(
            answer, made["config"], raw.api_ok("$JS.API.CONSUMER.INFO.S.c")["config"]
        ), made["config"]
    finally:
        raw.api_ok("$JS.API.STREAM.DELETE.S")


def _outcome(
    answer: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> dict[str, Any]:
    if "error" in answer:
        return {"outcome": "rejected", "error": _error(answer)}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {
        "outcome": "accepted",
        "echo_changes": {name: [before.get(name), after.get(name)] for name in names},
    }


def _error(answer: dict[str, Any]) -> str:
    error = answer["error"]
    return f"{error['code']}/{error.get('err_code', 0)} {error['description']}"
