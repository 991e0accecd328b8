"""The page without a browser; in one it is tried by test_reports_in_chromium.py."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from py_mini_racer import MiniRacer

from jsplan.render import html_page, plan_html, plan_rows
from jsplan.render.escape import safe
from tests.render import plans, samples
from tests.render.plans import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.documents.plan import Plan, ResourceChange

PLANS = {
    "everything": samples.everything(),
    "fleet": samples.fleet(200),
    "many": plans.many(300),
    "hostile": plans.hostile(),
}


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    """Return each of the plans."""
    return PLANS[request.param]


def changed_addresses(plan: Plan) -> list[ResourceChange]:
    """Return the changed addresses of the document, read without any view."""
    return [
        r
        for r in plan.resource_changes
        if r.change.actions != ["no-op"] or r.change.importing or r.previous_address
    ]


def test_every_change_is_on_the_page(plan: Plan) -> None:
    """The page has a row for each change, with its action, domain, kind and hazards."""
    rows = Page(plan_html.render(plan, verbose=True)).rows
    changes = changed_addresses(plan)

    assert len(rows) == len(changes)
    for resource in changes:
        row = next(row for row in rows if f" {safe(resource.address)} " in row["text"])
        codes = set(row["data-hazards"].split()) - {"any", "stop", "warn", "allowed"}
        assert (row["data-action"], row["data-kind"], row["data-domains"]) == (
            _become(resource),
            resource.type,
            resource.domain,
        )
        assert codes == {hazard.code for hazard in resource.hazards}
        assert all(hazard.code in row["text"] for hazard in resource.hazards)
        assert all(safe(field.path) in row["text"] for field in resource.change.fields)


def _become(resource: ResourceChange) -> str:
    words = {"delete": "destroy", "delete create": "replace", "create delete": "replace"}
    return (
        "import"
        if resource.change.importing
        else words.get(" ".join(resource.change.actions), resource.change.actions[0])
    )


def test_each_hazard_is_said_once() -> None:
    """The list of hazards has the text of each; its change has the code."""
    plan = samples.everything()
    text = Page(plan_html.render(plan)).text

    messages = {safe(h.message) for r in plan.resource_changes for h in r.hazards}
    assert messages
    assert {message: text.count(message) for message in messages} == dict.fromkeys(messages, 1)


def test_equal_changes_are_one_row() -> None:
    """Equal changes are one row that lists all of them."""
    found = Page(plan_html.render(samples.fleet(200)))

    assert [int(row["data-count"]) for row in found.rows] == [1, 199]
    assert [len(row["data-domains"].split()) for row in found.rows] == [1, 199]
    for number in range(1, 201):
        assert found.text.count(f"store-{number:03}/stream/SALES") >= 1


def test_findings_and_deferrals_are_listed() -> None:
    """The page lists every finding and every deferred resource, which the terminal only counts."""
    plan = samples.store_opening(500)
    text = Page(plan_html.render(plan)).text

    assert all(f"{d.address}: {d.summary}" in text for d in plan.diagnostics)
    assert all(f"{item.address}: {item.reason}" in text for item in plan.deferred)


def test_each_id_is_one_and_each_link_leads_to_one(plan: Plan) -> None:
    """Ids are unique, and links lead to changes of this page."""
    given = Page(plan_html.render(plan)).attributes
    ids = [value for name, value in given if name == "id"]

    assert len(ids) == len(set(ids))
    assert {f"#{value}" for value in ids} >= {value for name, value in given if name == "href"}


def test_the_page_loads_nothing(plan: Plan) -> None:
    """The page loads nothing: its policy names its one script and one style by their hash."""
    found = Page(plan_html.render(plan))
    policy = next(
        value
        for name, value in found.attributes
        if name == "content" and value and value.startswith("default-src")
    )

    assert (found.tags.count("script"), found.tags.count("style")) == (1, 1)
    assert not {"src", "onerror", "onclick", "style"} & {name for name, _ in found.attributes}
    assert not {"img", "link", "iframe"} & set(found.tags)
    for kind in ("script", "style"):
        digest = b64encode(sha256(found.texts[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none';")
    assert not set(found.text) & {"\x1b", "\u202e"}


def test_foreign_words_are_text() -> None:
    """Markup in a name, a value or a finding is read as text."""
    found = Page(plan_html.render(plans.hostile()))

    assert (
        'hub/stream/"><script>alert("x")</script><img src=x onerror=alert(1)>\\x1b[31m\\u202e-->`|@all</code>'
        in found.text
    )
    assert "</script><b>&amp;`~~~~~~`" in found.text
    assert len(found.rows) == 2


def test_hazards_come_first() -> None:
    """Hazards stand before the changes, and deletions before other changes.

    The hazards that stop an apply are the first.
    """
    text = Page(plan_html.render(samples.everything())).text
    words = [
        "DELETES_STREAM",
        "Every action",
        "Destroyed (1)",
        "Replaced (1)",
        "Updated in place (1)",
        "Created (3)",
        "Findings (1)",
    ]

    assert [text.index(word) for word in words] == sorted(text.index(word) for word in words)
    assert text.index("MOVES_DATA") < text.index("can never be turned off again allowed")


def test_empty_plans_and_plans_with_errors() -> None:
    """An empty plan has no filter and the line that scripts know; errors stand first."""
    quiet, broken = Page(plan_html.render(samples.plan())), samples.everything()
    broken.errored = True

    assert "No changes. Your streams match the configuration." in quiet.text
    assert not {"form", "main"} & set(quiet.tags)
    text = Page(plan_html.render(broken)).text
    assert (
        text.index("The plan has errors") < text.index("Findings (1)") < text.index("Hazards (4)")
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[MiniRacer]:
    """Run the page's own script in V8, without a document."""
    racer = MiniRacer()
    try:
        racer.eval(html_page.read_asset("plan.js"))
        yield racer
    finally:
        racer.close()


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    """Return the rows as the script reads them from the elements."""
    return [
        {
            "action": row["data-action"],
            "kind": row["data-kind"],
            "domains": row["data-domains"].split(" "),
            "hazards": row["data-hazards"].split(" "),
            "text": row["text"].lower(),
        }
        for row in Page(plan_html.render(plan)).rows
    ]


@pytest.mark.parametrize("name", ["everything", "many"])
def test_the_filter_shows_what_the_document_says(name: str, engine: MiniRacer) -> None:
    """The filter shows exactly the changes of the document, for every combination of choices."""
    plan = PLANS[name]
    engine.eval(f"rows = {json.dumps(rows_of(plan))}; null")
    actions, domains = ("", "update", "destroy", "create"), ("", "hub", "d07", "leaf")
    hazards, searches = (
        ("", "any", "stop", "allowed", "DELETES_MESSAGES"),
        ("", "MAX_msgs", "orders  all", "S0007 destroyed"),
    )
    texts = {row.members[0].address: _text(row) for row in plan_rows.rows(plan, verbose=True)}
    seen = 0
    for action, domain, hazard, search in product(actions, domains, hazards, searches):
        wanted = sum(
            (not action or _become(r) == action)
            and (not domain or r.domain == domain)
            and (not hazard or any(_has(h, hazard) for h in r.hazards))
            and all(word in texts[r.address] for word in search.lower().split())
            for r in changed_addresses(plan)
        )
        choices = json.dumps({"action": action, "domain": domain, "hazard": hazard, "kind": ""})
        script = f"rows.filter(row => isWanted(row, {{...{choices}, words: wordsOf({json.dumps(search)})}})).length"
        assert engine.eval(script) == wanted, (action, domain, hazard, search)
        seen += wanted > 0
    assert seen > 20


def _has(hazard: Any, choice: str) -> bool:
    grade = "allowed" if hazard.allowed else "stop" if hazard.blocking else "warn"
    return choice in ("any", grade, hazard.code)


def _text(row: plan_rows.Row) -> str:
    """Return the text of one change in the terminal."""
    tag = ", ".join(dict.fromkeys(hazard.code for hazard in row.members[0].hazards))
    return "\n".join([tag, row.head.plain, *(line.plain for line in row.fields)]).lower()


def test_kinds_and_domains_of_groups(engine: MiniRacer) -> None:
    """A row for many domains is found by each of them; an unknown kind finds nothing."""
    rows = json.dumps(rows_of(samples.fleet(200)))

    def count(**choices: str) -> Any:
        given = json.dumps({"action": "", "kind": "", "domain": "", "hazard": ""} | choices)
        return engine.eval(
            f"({rows}).filter(row => isWanted(row, {{...{given}, words: []}})).length"
        )

    assert (
        count(domain="store-007"),
        count(domain="store-123"),
        count(domain="store-1"),
        count(kind="kv"),
    ) == (1, 1, 0, 0)
    assert (count(kind="stream"), count(hazard="any"), count(domain="store-007", hazard="any")) == (
        2,
        1,
        1,
    )
