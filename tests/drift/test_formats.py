from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import FieldChange
from jsplan.render import drift_ci, drift_html, drift_markdown, drift_rows
from tests.render import samples

if TYPE_CHECKING:
    from jsplan.documents.drift import Drift

FAILING = frozenset({"changed", "missing", "replication"})
EVIL = 'hub/stream/<script>alert("x")</script>\x1b[31m\u202e]]>`|@all'


def hostile_drift() -> Drift:
    """Drift in which every text of a server tries to break the format."""
    drift = samples.drift()
    drift.resource_drift[0].address = EVIL
    drift.resource_drift[0].change.fields = [
        FieldChange("description", "~~~\n</code>", "::error::x%0A\r\n&amp;", "in_place")
    ]
    drift.replication[0]["cause"] = EVIL
    drift.unmanaged[0].address = EVIL
    drift.offline[1]["reason"] = EVIL
    drift.mutes[0]["reason"] = EVIL
    return drift


def empty_drift() -> Drift:
    """Drift without a finding."""
    drift = samples.drift()
    drift.resource_drift, drift.replication, drift.unmanaged, drift.mutes, drift.offline = (
        [],
        [],
        [],
        [],
        [],
    )
    return drift


def test_the_worst_comes_first() -> None:
    """Missing comes before changed, and unmanaged comes last."""
    assert [row.kind for row in drift_rows.rows(samples.drift())] == [
        "missing",
        "changed",
        "replication",
        "offline",
        "unmanaged",
        "unmanaged",
        "excused",
    ]


def test_the_mark_follows_the_findings() -> None:
    """The same findings give the same mark, so that a comment is not written again."""
    first, again, less = samples.drift(), samples.drift(), samples.drift()
    again.timestamp, again.id = "2026-02-01T00:00:00Z", "d2"
    less.resource_drift.pop()
    marks = [drift_markdown.render(drift).splitlines()[0] for drift in (first, again, less)]

    assert re.fullmatch(r"<!-- jsplan:shop\.prod:[0-9a-f]{64} -->", marks[0])
    assert marks[0] == marks[1] != marks[2]
    assert marks[0] in drift_html.render(first)


def test_markdown_shows_each_finding_once() -> None:
    """Each finding has one line, each change has a block, and the summary is there."""
    text = drift_markdown.render(samples.drift())

    assert "**Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged.**" in text
    assert (
        text.index("LOST")
        < text.index("hub/stream/ORDERS` was changed (destructive)")
        < text.index("leaf/stream/ORDERS\\_COPY".replace("\\", ""))
    )
    assert "! max_age: 1y -> 1d" in text
    assert "no drift" not in text.lower()
    assert "No drift." in drift_markdown.render(empty_drift())


@pytest.mark.parametrize("count", [150, 5_000])
def test_markdown_is_cut_where_github_would_refuse_it(count: int) -> None:
    """A page stays under 65,000 characters, counts what was cut, and keeps the worst findings."""
    # Drift of very many resources.
    drift = samples.drift()
    fields = (FieldChange("description", "a" * 200, "b" * 200, "in_place"),)
    drift.resource_drift += [
        samples.resource(
            f"hub/stream/S{n}", ["update"], severity="cosmetic", before={}, after={}, fields=fields
        )
        for n in range(count)
    ]
    text = drift_markdown.render(drift)
    shown = text.count("` was changed")

    assert len(text) < 65_000
    assert f"_{count + 7 - shown - 1:,} more findings were cut off here" in text
    assert "leaf/stream/LOST` is gone" in text
    assert text.count("~~~") % 2 == 0


def test_markdown_escapes_texts_of_servers() -> None:
    """Names from servers open no HTML, end no block and mention no user."""
    text = drift_markdown.render(hostile_drift())

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"(?m)^[^`]*<script>", text)
    assert not re.search(r"(?m)^~~~", text)
    assert not re.search(r"@all(?![^`]*`)", text)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Collect the visible text."""
        self.text += data


def test_html_loads_nothing_and_escapes_texts_of_servers() -> None:
    """The page is one file that loads nothing and shows texts of servers as text."""
    page = _Page()
    page.feed(drift_html.render(hostile_drift()))

    assert page.tags.count("script") == 1
    assert page.tags.count("article") == 7
    assert not {"src", "href"} & {name for name, _ in page.attributes}
    assert 'alert("x")' in page.text
    assert "\x1b" not in page.text
    assert "Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged." in page.text


def test_junit_counts_failures() -> None:
    """Failing kinds are failures, offline domains errors, other findings skipped."""
    suite = ET.fromstring(drift_ci.render_junit(samples.drift(), FAILING))[0]  # noqa: S314 - our own text
    cases = suite.findall("testcase")
    outcomes = [case[0].tag if len(case) else "passed" for case in cases]

    assert [outcomes.count(word) for word in ("failure", "error", "skipped", "passed")] == [
        3,
        1,
        4,
        2,
    ]
    assert (
        suite.get("tests"),
        suite.get("failures"),
        suite.get("errors"),
        suite.get("skipped"),
    ) == ("10", "3", "1", "4")
    failure = suite.find("testcase[@name='hub/stream/ORDERS']/failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == ("destructive", "was changed")
    assert "max_age: 1y -> 1d" in (failure.text or "")


def test_junit_of_no_drift_passes() -> None:
    """A run without findings has tests that passed, so that no reader takes it for broken."""
    suite = ET.fromstring(drift_ci.render_junit(empty_drift(), FAILING))[0]  # noqa: S314 - our own text

    assert [len(case) for case in suite.findall("testcase")] == [0, 0, 0, 0, 0, 0]


def test_junit_stays_xml_with_hostile_names() -> None:
    """No name or reason from a server breaks the file."""
    assert ET.fromstring(drift_ci.render_junit(hostile_drift(), FAILING)).tag == "testsuites"  # noqa: S314 - our own text


def test_github_annotates_the_line_of_the_resource() -> None:
    """A finding points to the line of its resource: an error if it fails, else a notice."""
    drift = samples.drift()
    drift.declared_at = {"hub/stream/ORDERS": SourceRange("streams/orders.yaml", 3, 5)}
    drift.diagnostics = [
        Diagnostic(
            "warning",
            "JS490",
            "the mute expired",
            "Take it out.",
            range=SourceRange("jsplan.yaml", 9, 5),
        )
    ]
    lines = drift_ci.render_github(drift, FAILING).splitlines()

    annotation = next(line for line in lines if "changed%3A hub/stream/ORDERS" in line)
    assert annotation.startswith(
        "::error file=streams/orders.yaml,line=3,col=5,title=changed%3A hub/stream/ORDERS::"
    )
    assert annotation.endswith("was changed (destructive)%0A~ max_age: 1y -> 1d")
    assert any(line.startswith("::notice title=unmanaged") for line in lines)
    assert any(
        line.startswith("::warning file=jsplan.yaml,line=9,col=5,title=JS490::the mute expired")
        for line in lines
    )
    assert lines[-1] == "Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged."


def test_github_runs_no_command_from_a_name() -> None:
    """No text of a server begins a command of GitHub."""
    lines = drift_ci.render_github(hostile_drift(), FAILING).splitlines()

    assert all(line.startswith(("::error ", "::notice ", "::warning ")) for line in lines[:-1])
    assert len(lines) == 8
