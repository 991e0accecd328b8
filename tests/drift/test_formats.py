from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import FieldChange
from jsplan.render import drift_github, drift_html, drift_junit, drift_markdown, drift_rows
from tests.render import samples

if TYPE_CHECKING:
    from jsplan.documents.drift import Drift

FAILING = frozenset({"changed", "missing", "replication"})
EVIL = 'hub/stream/<script>alert("x")</script>\x1b[31m\u202e]]>`|@all'


def hostile() -> Drift:
    """Drift whose every foreign word tries to be more than a word."""
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


def many(count: int) -> Drift:
    """Drift of very many resources, each with something to say."""
    drift = samples.drift()
    fields = (FieldChange("description", "a" * 200, "b" * 200, "in_place"),)
    drift.resource_drift += [
        samples.resource(
            f"hub/stream/S{n}", ["update"], severity="cosmetic", before={}, after={}, fields=fields
        )
        for n in range(count)
    ]
    return drift


def quiet() -> Drift:
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


def test_the_gravest_comes_first() -> None:
    """What is gone stands before what was changed, and what nobody manages comes last."""
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
    """Looking again at the same situation gives the same mark, so that a comment need not be written again."""
    first, again, less = samples.drift(), samples.drift(), samples.drift()
    again.timestamp, again.id = "2026-02-01T00:00:00Z", "d2"
    less.resource_drift.pop()
    marks = [drift_markdown.render(drift).splitlines()[0] for drift in (first, again, less)]

    assert re.fullmatch(r"<!-- jsplan:shop\.prod:[0-9a-f]{64} -->", marks[0])
    assert marks[0] == marks[1] != marks[2]
    assert marks[0] in drift_html.render(first)


def test_markdown_says_everything_once() -> None:
    """Each finding has its line, the change stands in a block of its own, and the greppable summary is there."""
    text = drift_markdown.render(samples.drift())

    assert "**Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged.**" in text
    assert (
        text.index("LOST")
        < text.index("hub/stream/ORDERS` was changed (destructive)")
        < text.index("leaf/stream/ORDERS\\_COPY".replace("\\", ""))
    )
    assert "! max_age: 1y -> 1d" in text
    assert "no drift" not in text.lower()
    assert "No drift." in drift_markdown.render(quiet())


@pytest.mark.parametrize("count", [150, 5_000])
def test_markdown_is_cut_where_github_would_refuse_it(count: int) -> None:
    """A page stays under 65,000 characters, says how many findings were cut, and keeps what is gravest."""
    text = drift_markdown.render(many(count))
    shown = text.count("` was changed")

    assert len(text) < 65_000
    assert f"_{count + 7 - shown - 1:,} more findings were cut off here" in text
    assert "leaf/stream/LOST` is gone" in text
    assert text.count("~~~") % 2 == 0


def test_markdown_takes_foreign_words_for_words() -> None:
    """Names from servers neither open HTML, nor end a block, nor notify anybody."""
    text = drift_markdown.render(hostile())

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
        """Count a tag."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Collect what is seen."""
        self.text += data


def test_html_stands_alone_and_is_harmless() -> None:
    """One file, nothing loaded from anywhere, foreign words as text, one script: our own."""
    page = _Page()
    page.feed(drift_html.render(hostile()))

    assert page.tags.count("script") == 1
    assert page.tags.count("article") == 7
    assert not {"src", "href"} & {name for name, _ in page.attributes}
    assert 'alert("x")' in page.text
    assert "\x1b" not in page.text
    assert "Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged." in page.text


def test_junit_counts_what_fails() -> None:
    """Findings of the kinds that fail are failures, unread domains errors, the rest is skipped; counts agree with the cases."""
    suite = ET.fromstring(drift_junit.render(samples.drift(), FAILING))[0]  # noqa: S314 - our own text
    cases = suite.findall("testcase")
    outcomes = [case[0].tag if len(case) else "passed" for case in cases]

    assert [outcomes.count(word) for word in ("failure", "error", "skipped", "passed")] == [
        3,
        1,
        4,
        1,
    ]
    assert (
        suite.get("tests"),
        suite.get("failures"),
        suite.get("errors"),
        suite.get("skipped"),
    ) == ("9", "3", "1", "4")
    failure = suite.find("testcase[@name='hub/stream/ORDERS']/failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == ("destructive", "was changed")
    assert "max_age: 1y -> 1d" in (failure.text or "")


def test_junit_of_no_drift_passes() -> None:
    """Without findings there are tests that passed, not an empty file that a reader would take for a broken run."""
    suite = ET.fromstring(drift_junit.render(quiet(), FAILING))[0]  # noqa: S314 - our own text

    assert [len(case) for case in suite.findall("testcase")] == [0, 0, 0, 0, 0]


def test_junit_is_xml_whatever_a_name_holds() -> None:
    """No name or reason from a server breaks the file."""
    assert ET.fromstring(drift_junit.render(hostile(), FAILING)).tag == "testsuites"  # noqa: S314 - our own text


def test_github_annotates_the_line_that_declares() -> None:
    """A finding is an error at its resource's line if it fails, a notice if not; an expired mute is a warning at its own line."""
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
    lines = drift_github.render(drift, FAILING).splitlines()

    ours = next(line for line in lines if "changed%3A hub/stream/ORDERS" in line)
    assert ours.startswith(
        "::error file=streams/orders.yaml,line=3,col=5,title=changed%3A hub/stream/ORDERS::"
    )
    assert ours.endswith("was changed (destructive)%0A~ max_age: 1y -> 1d")
    assert any(line.startswith("::notice title=unmanaged") for line in lines)
    assert any(
        line.startswith("::warning file=jsplan.yaml,line=9,col=5,title=JS490::the mute expired")
        for line in lines
    )
    assert lines[-1] == "Drift: 1 changed, 1 missing, 1 unhealthy, 2 unmanaged."


def test_github_takes_no_orders_from_names() -> None:
    """Every line is a command of ours: foreign words cannot begin one."""
    lines = drift_github.render(hostile(), FAILING).splitlines()

    assert all(line.startswith(("::error ", "::notice ", "::warning ")) for line in lines[:-1])
    assert len(lines) == 8
