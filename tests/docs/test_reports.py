from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

from tests.docs.pages import ROOT, blocks
from tools.make_reports import REPORTS, render_reports

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

#: What differs from run to run: digests, times and ids.
_PASSING = re.compile(
    r"[0-9a-f]{64}|20\d\d-\d\d-\d\dT[\d:.]+Z(?: to 20\d\d-\d\d-\d\dT[\d:.]+Z)?|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}"
)
PAGE = ROOT / "docs" / "how-to" / "reports.md"


def normalize_report(text: str) -> str:
    """Return a report without what differs from run to run."""
    return _PASSING.sub("·", text).rstrip("\n")


def test_the_reports_are_current(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """The reports in docs/reports are what a plan on real servers prints; else: make reports."""
    made = render_reports(clean_hub_leaf, tmp_path)

    assert normalize_report((REPORTS / "plan.txt").read_text(encoding="utf-8")) == normalize_report(
        made["markdown"]
    )
    assert normalize_report(
        (REPORTS / "plan.html").read_text(encoding="utf-8")
    ) == normalize_report(made["html"])


def test_the_page_shows_the_comment() -> None:
    """The page shows the whole markdown of docs/reports."""
    (shown,) = [block.text for block in blocks(PAGE) if block.language == "markdown"]

    assert normalize_report(shown) == normalize_report(
        (REPORTS / "plan.txt").read_text(encoding="utf-8")
    )


def test_the_workflow_on_the_page_is_the_example() -> None:
    """The workflow on the page is examples/github/jsplan.yml, with valid inputs of the action."""
    titled = {block.title: block.text for block in blocks(ROOT / "docs" / "how-to" / "ci.md")}
    shown = titled[".github/workflows/jsplan.yml"]
    text = (ROOT / "examples" / "github" / "jsplan.yml").read_text(encoding="utf-8")
    inputs = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    given = [
        step["with"]
        for job in yaml.safe_load(text)["jobs"].values()
        for step in job["steps"]
        if "OWNER/jsplan" in step["uses"]
    ]

    assert shown == text
    assert [one["command"] for one in given] == ["plan", "apply"]
    assert all(one.keys() <= inputs.keys() for one in given)
