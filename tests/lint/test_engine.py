"""Severities, ignores and places of findings, whatever the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.cli.main import main
from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.facts.live import DomainFacts
from jsplan.lint.engine import enabled_rules, run_rules
from jsplan.lint.rules import RULES
from tests.lint.support import lint_findings, view

if TYPE_CHECKING:
    from pathlib import Path

BARE: dict[str, Any] = {"streams": [{"name": "A", "subjects": ["a"]}]}
FLEET: dict[str, Any] = {
    "store-{1..3}": {"connection": "acc", "labels": ["edge"], "vars": {"window": "1m"}}
}


def finding_texts(found: list[Any]) -> set[tuple[str, str, str]]:
    return {(d.severity, d.code, d.address) for d in found}


def test_the_files_set_the_severity(tmp_path: Path) -> None:
    """The files can make a note a warning or an error, or leave it out."""
    for level, severity in (("warning", "warning"), ("error", "error")):
        report = lint_findings(BARE | {"lint": {"JS220": level}}, tmp_path)
        assert finding_texts(report.findings) == {(severity, "JS220", "hub/stream/A")}

    assert finding_texts(lint_findings(BARE, tmp_path).findings) == {
        ("info", "JS220", "hub/stream/A")
    }
    assert lint_findings(BARE | {"lint": {"JS220": "ignore"}}, tmp_path).findings == []


def test_an_ignored_finding_keeps_its_reason(tmp_path: Path) -> None:
    """An ignored finding is kept apart from the findings, with the reason of the files."""
    ignore = {"lint": {"ignore": [{"code": "JS220", "reason": "a museum"}]}}
    report = lint_findings(
        {"streams": [{"name": "A", "subjects": ["a"]} | ignore, {"name": "B", "subjects": ["b"]}]},
        tmp_path,
    )

    assert finding_texts(report.findings) == {("info", "JS220", "hub/stream/B")}
    assert [(d.address, d.reason) for d in report.ignored] == [("hub/stream/A", "a museum")]


def test_any_of_the_streams_concerned_may_ignore(tmp_path: Path) -> None:
    """A finding about two streams is at one of them; the ignore may stand at the other."""
    ignore = {"lint": {"ignore": [{"code": "JS201", "reason": "the leaf denies it"}]}}
    streams = [
        {"name": "A", "subjects": ["a"], "max_age": "1d"},
        {"name": "A", "domain": "leaf", "subjects": ["a"], "max_age": "1d"},
    ]

    assert finding_texts(lint_findings({"streams": streams}, tmp_path).findings) == {
        ("warning", "JS201", "hub/stream/A")
    }
    assert lint_findings({"streams": [streams[0], streams[1] | ignore]}, tmp_path).findings == []


def test_an_ignore_of_many_domains_is_used_by_one_of_them(tmp_path: Path) -> None:
    """An ignore for a fleet is used if one domain needs it, and reported once if none does."""
    head = {
        "domains": FLEET
        | {"store-2": {"connection": "acc", "labels": ["edge"], "vars": {"window": "1d"}}}
    }
    stream = {
        "name": "S",
        "domain": "label:edge",
        "subjects": ["s.${domain}"],
        "max_age": "30d",
        "duplicate_window": "${domain.window}",
        "lint": {"ignore": [{"code": "JS231", "reason": "slow tills"}]},
    }
    used = lint_findings(head | {"defaults": {}, "streams": [stream]}, tmp_path)
    unused = lint_findings(
        head | {"defaults": {}, "streams": [stream | {"duplicate_window": "1m"}]}, tmp_path
    )

    assert used.findings == []
    assert [d.address for d in used.ignored] == ["store-2/stream/S"]
    assert [d.code for d in unused.findings] == ["JS200"]


def test_a_misspelt_code_is_corrected(tmp_path: Path) -> None:
    """An ignore of an unknown code is a finding at its place, with the nearest code."""
    stream = {
        "name": "A",
        "subjects": ["a"],
        "max_age": "1d",
        "lint": {"ignore": [{"code": "JS299", "reason": "?"}]},
    }
    (found,) = lint_findings({"streams": [stream]}, tmp_path).findings

    assert found.summary == "lint.ignore: there is no finding JS299"
    assert found.detail.startswith('Did you mean "JS2')
    assert found.range is not None


def test_a_finding_is_reported_at_its_field(tmp_path: Path) -> None:
    """A finding points to the line of its field, under the name in the files."""
    report = lint_findings({"kv": [{"bucket": "K", "ttl": "1h"}]}, tmp_path)
    (found,) = [d for d in report.findings if d.code == "JS233"]
    lines = (tmp_path / "jsplan.yaml").read_text().splitlines()

    assert found.range is not None
    assert lines[found.range.line - 1].strip() == "ttl: 1h"


def test_only_what_is_in_focus_is_reported(tmp_path: Path) -> None:
    """Findings outside the focus are not reported."""
    seen = view(
        {"streams": [{"name": "A", "subjects": ["a"]}, {"name": "B", "subjects": ["b"]}]}, tmp_path
    )
    seen.focus = {Address("hub", "stream", "B")}

    assert finding_texts(run_rules(seen, RULES, unused=False).findings) == {
        ("info", "JS220", "hub/stream/B")
    }


def test_rules_are_chosen_by_the_severity_that_they_have_here(tmp_path: Path) -> None:
    """A rule that the files make an error counts as an error, and not as a warning."""
    seen = view(BARE | {"lint": {"JS201": "error", "JS220": "warning"}}, tmp_path)

    assert [rule.code for rule in enabled_rules(seen, RULES, ["error"])] == ["JS201"]
    warnings = [rule.code for rule in enabled_rules(seen, RULES, ["warning"])]
    assert "JS220" in warnings
    assert "JS201" not in warnings


def test_a_single_replica_is_found_in_a_cluster(tmp_path: Path) -> None:
    """A single replica is a finding only where the server is in a cluster.

    The replicas of other streams do not count then.
    """
    streams = [
        {"name": "A", "subjects": ["a"], "max_age": "1d"},
        {"name": "B", "subjects": ["b"], "max_age": "1d", "num_replicas": 3},
    ]
    found = {}
    # A single server with a leafnode connection says its own name.
    for server in ({"name": "n1", "cluster": "C1"}, {"name": "n1"}, {"name": "n", "cluster": "n"}):
        seen = view({"streams": streams}, tmp_path)
        seen.domains = {"hub": DomainFacts("hub", reachable=True, level=5, server=server)}
        found[server.get("cluster", "")] = [
            d.address for d in run_rules(seen, RULES).findings if d.code == "JS222"
        ]

    assert found == {"C1": ["hub/stream/A"], "": [], "n": []}


def test_a_missing_window_is_found_on_newer_servers(tmp_path: Path) -> None:
    """A stream with sources and no window is a finding on 2.14 or newer.

    It is one too if the server was not asked.
    """
    streams = [
        {"name": "A", "subjects": ["a"]},
        {"name": "B", "subjects": ["b"], "sources": [{"name": "A"}]},
    ]
    seen = view({"streams": streams}, tmp_path)
    seen.domains = {"hub": DomainFacts("hub", reachable=True, level=2, server={"name": "n1"})}

    assert "JS210" in {d.code for d in lint_findings({"streams": streams}, tmp_path).findings}
    assert "JS210" not in {d.code for d in run_rules(seen, RULES).findings}


def test_a_fleet_that_shares_a_subject_is_one_finding(tmp_path: Path) -> None:
    """Three hundred stores that store one subject are one finding, not one for each pair."""
    fleet = {"store-{001..300}": {"connection": "acc", "labels": ["edge"]}}
    report = lint_findings(
        {
            "domains": fleet,
            "defaults": {},
            "streams": [{"name": "P", "domain": "label:edge", "subjects": ["prices.>"]}],
        },
        tmp_path,
    )
    (found,) = [d for d in report.findings if d.code == "JS201"]

    assert found.summary.endswith(
        "store-002/stream/P, store-003/stream/P, store-004/stream/P and 296 more; leafnodes forward the messages, so each is stored twice"
    )


def test_a_severity_of_no_rule_is_reported(tmp_path: Path) -> None:
    """An unknown code under `lint:` is a finding with the nearest code, and no error."""
    seen = view(BARE, tmp_path)
    path = tmp_path / "jsplan.yaml"
    path.write_text(path.read_text() + "lint: {JS299: error}\n")
    (found,) = load(LoadOptions(tmp_path)).diagnostics

    assert seen.workspace.diagnostics == ()
    assert (found.severity, found.code, found.summary) == (
        "warning",
        "JS140",
        "there is no lint rule JS299, so this sets nothing",
    )
    assert found.range is not None


def test_circles_of_copies_are_among_the_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A circle over two domains, which the graph itself shows, is a finding of lint too."""
    sections = {
        "streams": [
            {
                "name": "A",
                "subjects": ["a"],
                "max_age": "1d",
                "sources": [{"name": "B", "domain": "leaf"}],
                "duplicate_window": "2m",
            },
            {
                "name": "B",
                "domain": "leaf",
                "subjects": ["b"],
                "max_age": "1d",
                "sources": [{"name": "A", "domain": "hub"}],
                "duplicate_window": "2m",
            },
        ]
    }
    view(sections, tmp_path)
    assert main(["-C", str(tmp_path), "lint"]) == 0

    assert "[JS408]" in capsys.readouterr().out
