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
    """Each of the plans."""
    return PLANS[request.param]


def changed_addresses(plan: Plan) -> list[ResourceChange]:
    """What the document says changes, read without any view."""
    return [
        r
        for r in plan.resource_changes
        if r.change.actions != ["no-op"] or r.change.importing or r.previous_address
    ]


def test_every_change_is_on_the_page(plan: Plan) -> None:
    """The rows are those of the plan document: each address, what becomes of it, its domain, its kind and its hazards."""
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
        assert all(safe(hazard.message) in row["text"] for hazard in resource.hazards)
        assert all(safe(field.path) in row["text"] for field in resource.change.fields)


def _become(resource: ResourceChange) -> str:
    words = {"delete": "destroy", "delete create": "replace", "create delete": "replace"}
    return (
        "import"
        if resource.change.importing
        else words.get(" ".join(resource.change.actions), resource.change.actions[0])
    )


def test_what_is_alike_is_one_row_that_lists_all() -> None:
    """Two hundred stores are two rows; each store is named in one, and can be filtered for."""
    found = Page(plan_html.render(samples.fleet(200)))

    assert [int(row["data-count"]) for row in found.rows] == [1, 199]
    assert [len(row["data-domains"].split()) for row in found.rows] == [1, 199]
    for number in range(1, 201):
        assert found.text.count(f"store-{number:03}/stream/SALES") >= 1


def test_nothing_is_only_counted() -> None:
    """What the terminal counts is on the page one by one: every finding, and every resource that was left for later."""
    plan = samples.store_opening(500)
    text = Page(plan_html.render(plan)).text

    assert all(f"{d.address}: {d.summary}" in text for d in plan.diagnostics)
    assert all(f"{item.address}: {item.reason}" in text for item in plan.deferred)


def test_each_id_is_one_and_each_link_leads_to_one(plan: Plan) -> None:
    """Nothing is called the same twice, and links go nowhere else than to changes of this page."""
    given = Page(plan_html.render(plan)).attributes
    ids = [value for name, value in given if name == "id"]

    assert len(ids) == len(set(ids))
    assert {f"#{value}" for value in ids} >= {value for name, value in given if name == "href"}


def test_it_stands_alone_and_is_harmless(plan: Plan) -> None:
    """One file that loads nothing: one script and one style, those that its own policy names by their hash."""
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
    """What looks like markup in a name, a value or a finding is read as it is written."""
    found = Page(plan_html.render(plans.hostile()))

    assert (
        'hub/stream/"><script>alert("x")</script><img src=x onerror=alert(1)>\\x1b[31m\\u202e-->`|@all</code>'
        in found.text
    )
    assert "</script><b>&amp;`~~~~~~`" in found.text
    assert len(found.rows) == 2


def test_what_costs_comes_first() -> None:
    """The hazards stand before every change, those that stop an apply first; of the changes what is destroyed is first."""
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


def test_quiet_and_broken_plans() -> None:
    """Without changes there is nothing to filter, and the line that scripts know; errors stand before everything."""
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
    """The page's own script in V8, without a document."""
    racer = MiniRacer()
    try:
        racer.eval(html_page.read_asset("plan.js"))
        yield racer
    finally:
        racer.close()


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    """The rows as the script reads them from the elements."""
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
    """For every combination of choices the script shows exactly the changes that the document has, by a count of its own."""
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
    """What is said of one change in the terminal."""
    tag = ", ".join(dict.fromkeys(hazard.code for hazard in row.members[0].hazards))
    return "\n".join(
        [tag, row.head.plain, *(line.plain for line in [*row.fields, *row.hazards])]
    ).lower()


def test_kinds_and_domains_of_groups(engine: MiniRacer) -> None:
    """A row that stands for many domains is found by each of them, and a kind that is not there finds nothing."""
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
