"""The reports in a real browser, which `make test-matrix` fetches where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.render import drift_html, plan_html
from tests.render import plans, samples
from tests.support.browser import Browser
from tools import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.download, pytest.mark.timeout(600)]
#: Which rows are shown, by what they say of themselves.
SHOWN = "[...document.querySelectorAll('details.change:not([hidden])')]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a Chromium, installed if there is none."""
    with Browser(chromium.ensure_chromium()) as found:
        yield found


def choose(**values: str) -> str:
    """Return a statement that fills in the form as a person would."""
    lines = [f"form.elements[{name!r}].value = {value!r};" for name, value in values.items()]
    event = "form.dispatchEvent(new Event('input', {bubbles: true}))"
    return f"const form = document.getElementById('filter'); {' '.join(lines)} {event}"


def shown(browser: Browser, **values: str) -> list[Any]:
    """Return the ids of the rows that are left by these choices, after clearing all others."""
    browser.run("document.getElementById('filter').reset()")
    browser.timed(choose(**values))
    ids = browser.run(f"{SHOWN}.map(row => row.id)")
    assert isinstance(ids, list)
    return ids


def test_two_thousand_changes_open_and_filter_within_a_second(
    browser: Browser, tmp_path: Path
) -> None:
    """A page of 2,000 changes is drawn and filtered within a second, the best of five."""
    plan, path = plans.many(2_000), tmp_path / "plan.html"
    path.write_text(plan_html.render(plan), encoding="utf-8")
    opened = min(browser.open(path) for _ in range(5))
    filters = [
        {"search": "s0007"},
        {"action": "destroy"},
        {"domain": "d07"},
        {"hazard": "stop"},
        {"search": "after 1 max_msgs", "kind": "stream"},
        {},
    ]
    spent = {}
    for values in filters:
        times = []
        for _ in range(5):
            browser.run("document.getElementById('filter').reset()")
            times.append(browser.timed(choose(**values)))
        spent[str(values)] = min(times)

    assert browser.run("document.querySelectorAll('details.change').length") == 2_000
    assert opened < 1
    assert {values: time for values, time in spent.items() if time >= 1} == {}
    assert browser.requested_urls == [path.as_uri()]
    assert browser.complaints == []


def test_filters_show_what_the_plan_says(browser: Browser, tmp_path: Path) -> None:
    """Each filter leaves exactly the changes of the document, and hides empty headings."""
    plan, path = plans.many(300), tmp_path / "plan.html"
    path.write_text(plan_html.render(plan), encoding="utf-8")
    browser.open(path)
    changes = [r for r in plan.resource_changes if r.change.actions != ["no-op"]]

    assert len(shown(browser)) == 300
    assert len(shown(browser, action="destroy")) == sum(
        r.change.actions == ["delete"] for r in changes
    )
    assert browser.run(
        "[...document.querySelectorAll('section.changes:not([hidden]) h2')].map(h => h.textContent)"
    ) == ["Destroyed (60)"]
    assert len(shown(browser, domain="d07")) == sum(r.domain == "d07" for r in changes)
    assert len(shown(browser, hazard="stop")) == sum(
        any(not h.allowed for h in r.hazards) for r in changes
    )
    assert (
        browser.run("document.querySelector('output').value")
        == f"{len(shown(browser, hazard='stop'))} of 300 changes"
    )
    assert len(shown(browser, search="d07/stream/S0007")) == 1
    assert shown(browser, search="no such words") == []
    assert browser.run("document.getElementById('none').hidden") is False


def test_hazards_lead_to_their_changes(browser: Browser, tmp_path: Path) -> None:
    """A click on a hazard shows and opens its change, although a filter hides it.

    All are opened and closed at once.
    """
    path = tmp_path / "plan.html"
    path.write_text(plan_html.render(plans.many(300)), encoding="utf-8")
    browser.open(path)
    target = browser.run("document.querySelector('#hazards a').hash")
    shown(browser, search="no such words")
    browser.run("document.querySelector('#hazards a').click()")
    browser.timed("")

    assert (
        browser.run(
            f"document.querySelector('{target}').open && !document.querySelector('{target}').hidden"
        )
        is True
    )
    browser.run("document.querySelector('[name=open]').click()")
    assert browser.run(f"{SHOWN}.every(row => row.open)") is True
    browser.run("document.querySelector('[name=close]').click()")
    assert browser.run(f"{SHOWN}.some(row => row.open)") is False


def test_dark_and_light(browser: Browser, tmp_path: Path) -> None:
    """The page follows the preferred colour scheme, and the button switches it."""
    path = tmp_path / "plan.html"
    path.write_text(plan_html.render(samples.everything()), encoding="utf-8")
    background = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.open(path)
        seen.append(browser.run(background))
        browser.run("document.getElementById('theme').click()")
        seen.append(browser.run(background))

    assert seen == [
        "rgb(255, 255, 255)",
        "rgb(21, 24, 28)",
        "rgb(21, 24, 28)",
        "rgb(255, 255, 255)",
    ]


@pytest.mark.parametrize("name", ["plan", "drift"])
def test_foreign_words_run_nothing_and_load_nothing(
    browser: Browser, name: str, tmp_path: Path
) -> None:
    """A page full of hostile words runs none of them and requests nothing."""
    drift = samples.drift()
    drift.resource_drift[0].address = drift.mutes[0]["reason"] = plans.EVIL
    path = tmp_path / f"{name}.html"
    path.write_text(
        plan_html.render(plans.hostile()) if name == "plan" else drift_html.render(drift),
        encoding="utf-8",
    )
    browser.open(path)

    assert browser.run("document.scripts.length") == 1
    assert browser.run("document.images.length") == 0
    assert browser.requested_urls == [path.as_uri()]
    assert browser.complaints == []


def test_the_policy_of_the_page_holds(browser: Browser, tmp_path: Path) -> None:
    """The policy of the page refuses an inline script and a handler."""
    text = plan_html.render(samples.everything())
    path = tmp_path / "plan.html"
    evil = "<script>window.evil = 1</script><img src='data:,' onerror='window.evil = 2'>"
    path.write_text(text.replace("<main>", f"<main>{evil}"), encoding="utf-8")
    browser.open(path)

    assert browser.run("window.evil === undefined") is True
    assert len(browser.complaints) >= 2


def test_drift_can_be_filtered(browser: Browser, tmp_path: Path) -> None:
    """The report of drift is filtered by words and severity."""
    path = tmp_path / "drift.html"
    path.write_text(drift_html.render(samples.drift()), encoding="utf-8")
    browser.open(path)
    left = "[...document.querySelectorAll('article:not([hidden]) > code')].map(code => code.textContent)"
    browser.run("words.value = 'max_age'; words.dispatchEvent(new Event('input'))")

    assert browser.run(left) == ["hub/stream/ORDERS"]
    browser.run(
        "words.value = ''; grade.value = 'destructive'; grade.dispatchEvent(new Event('change'))"
    )
    assert browser.run(left) == ["leaf/stream/LOST", "hub/stream/ORDERS"]
