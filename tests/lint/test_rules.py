"""Every rule on the workspace that it is for, and on one that looks alike; cases are data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.codes import LINT
from jsplan.lint.engine import UNUSED_IGNORE, run_rules
from jsplan.lint.rules import RULES
from tests.lint.support import cases

if TYPE_CHECKING:
    from pathlib import Path

ALL = cases()


def test_the_first_workspace_has_the_findings(tmp_path: Path) -> None:
    """The first workspace of a case has the finding at each place, and nowhere else."""
    for case in ALL:
        report = run_rules(case.view("bad", tmp_path), RULES)
        found = {d.address: d.summary for d in report.findings if d.code == case.code}
        wanted = case.text["find"]
        assert found.keys() == wanted.keys(), case.path
        assert [a for a in wanted if wanted[a] not in found[a]] == [], case.path
        assert all(d.range is not None and d.detail for d in report.findings), case.path


def test_the_second_workspace_has_none(tmp_path: Path) -> None:
    """The second workspace of a case does not have the finding."""
    reports = [run_rules(case.view("good", tmp_path), RULES) for case in ALL]

    assert [] == [
        d
        for case, report in zip(ALL, reports, strict=True)
        for d in report.findings
        if d.code == case.code
    ]


def test_every_rule_has_a_case_and_an_explanation() -> None:
    """Codes, rules and cases are the same set, and each rule is explained."""
    assert (
        {rule.code for rule in RULES} | {UNUSED_IGNORE} == set(LINT) == {case.code for case in ALL}
    )
    assert len(RULES) >= 25
    for rule in RULES:
        assert rule.title == LINT[rule.code]
        assert rule.why.endswith(".")
        assert rule.fix.endswith((".", "?"))


def test_no_rule_is_an_error_by_itself() -> None:
    """No rule is an error by itself: the server accepts all of it."""
    assert {rule.level for rule in RULES} == {"note", "warning"}
