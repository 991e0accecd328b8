"""Rules between fields: what the files refuse, a real server refuses with the same number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jsplan.config import body, checks, checks_consumers
from jsplan.config.findings import Findings, Problem
from jsplan.config.node import Source
from jsplan.config.read import parse_document
from jsplan.resources import TABLES
from jsplan.sandbox import Server
from tests.config.conftest import Loader
from tests.support.raw import Raw
from tests.support.yaml_text import read_yaml

CASES = read_yaml(Path(__file__).with_name("checked_fields.yaml").read_bytes())
REFUSED = [(kind, *case) for kind, found in CASES.items() for case in found["refused"]]
ACCEPTED = [(kind, case) for kind, found in CASES.items() for case in found["accepted"]]


def find_problems(kind: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return what the API expects for these fields, and the problems of the rules."""
    findings = Findings()
    text = json.dumps({"name": "P"} | given).encode()
    node = parse_document(Source(Path("x"), "x"), text, findings)
    assert node is not None
    config = body.parse(TABLES[kind], node.value, findings)  # type: ignore[index]
    assert findings.sorted() == ()
    check = checks.check_stream if kind == "stream" else checks_consumers.check_consumer
    return config, list(check(config))


def create(server: Server, kind: str, config: dict[str, Any]) -> int | None:
    """Create a stream, or a consumer; return the err_code, or None if the server accepted it."""
    with Raw(server.url) as raw:
        if kind == "stream":
            answer = raw.api(f"$JS.API.STREAM.CREATE.{config['name']}", config)
        else:
            raw.create("L", subjects=["s.>"])
            named = config | {"durable_name": config["name"]}
            request = {"stream_name": "L", "action": "create", "config": named}
            answer = raw.api(f"$JS.API.CONSUMER.CREATE.L.{config['name']}", request)
    return int(answer["error"]["err_code"]) if "error" in answer else None


@pytest.mark.parametrize(("kind", "code", "number", "given"), REFUSED, ids=str)
def test_what_is_refused_here_is_refused_by_the_server(
    kind: str, code: str, number: int, given: dict[str, Any], server: Server
) -> None:
    """The server refuses each case of a rule with the number that belongs to the finding."""
    config, problems = find_problems(kind, given)
    assert [problem.code for problem in problems] == [code]
    assert kind == "consumer" or str(number) in problems[0].summary
    assert create(server, kind, config) == number


@pytest.mark.parametrize(("kind", "given"), ACCEPTED, ids=str)
def test_what_the_server_accepts_is_accepted_here(
    kind: str, given: dict[str, Any], server: Server
) -> None:
    """Fields near the limit of a rule are accepted by the files and by the server."""
    config, problems = find_problems(kind, given)
    assert problems == []
    assert create(server, kind, config) is None


def test_a_work_queue_takes_consumers_with_filters_of_their_own(workspace: Loader) -> None:
    """Consumers with disjoint filters share a work queue."""
    loaded = workspace(
        """
        streams:
          - name: Q
            subjects: ["q.>"]
            retention: workqueue
            consumers:
              - {name: A, ack_policy: explicit, filter_subject: q.a}
              - {name: B, ack_policy: explicit, filter_subject: q.b}
        """
    )
    assert len(loaded.resources) == 3


def test_a_finding_points_at_the_field(workspace: Loader) -> None:
    """A contradiction is reported at its field, with the address of the resource."""
    found = workspace.single_finding(
        "streams:\n  - name: A\n    max_age: 30s\n    duplicate_window: 2m\n"
    )
    assert (found.code, str(found.range), found.address) == (
        "JS153",
        "jsplan.yaml:7:5",
        "hub/stream/A",
    )
