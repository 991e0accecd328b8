from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from jsplan.documents.plan import FieldChange
from jsplan.render import markdown, plan_html, plan_markdown, plan_rows
from tests.render import plans, samples

if TYPE_CHECKING:
    from markdown_it.token import Token

    from tests.render.texts import Compare


def tokens(text: str) -> list[Token]:
    """Return the tokens of a page as a reader of CommonMark sees them, inline ones included."""
    found = MarkdownIt("commonmark").parse(text)
    return [piece for token in found for piece in (token, *(token.children or ()))]


def test_everything_has_its_place(golden: Compare) -> None:
    """Hazards come first, then deletions, and each part of a plan has its heading."""
    text = golden(
        "plan_markdown",
        lambda console: print(
            plan_markdown.render(samples.everything()), end="", file=console.file
        ),
    )
    order = [
        "### Hazards",
        "### Destroyed (1)",
        "### Replaced (1)",
        "### Updated in place (1)",
        "### Created (3)",
        "### Findings",
    ]

    assert [text.index(heading) for heading in order] == sorted(
        text.index(heading) for heading in order
    )


def test_the_mark_names_workspace_environment_and_plan() -> None:
    """The first line names the workspace and holds the sha256 of the saved plan."""
    plan = samples.everything()

    assert (
        plan_markdown.render(plan).splitlines()[0]
        == f"<!-- jsplan:shop.prod:{plan.to_json()['sha256']} -->"
    )
    assert plan_rows.marker(replace(plan, environment=None), "0").startswith("<!-- jsplan:shop:0")


def test_equal_changes_are_one_item() -> None:
    """Equal changes in two hundred domains are one item; with -v each has its own."""
    text = plan_markdown.render(samples.fleet(200))

    assert text.count("will be updated in place") == 2
    assert "in 199 domains: store-\\{001..006\\}, store-\\{008..200\\}" in text
    assert (
        plan_markdown.render(samples.fleet(200), verbose=True).count("will be updated in place")
        == 200
    )


@pytest.mark.parametrize("count", [250, 2_000, 4_000])
def test_it_fits_into_a_comment(count: int) -> None:
    """A page of any number of changes fits into a comment and counts what it leaves out.

    Deletions are always shown.
    """
    plan = plans.many(count)
    text = plan_markdown.render(plan)
    said = re.search(
        r"✂️ _Cut to fit into a comment: (.*?)\. The whole plan: `jsplan show PLANFILE`", text
    )
    listed = len(re.findall(r"(?m)^(?:- |<details><summary>).*will be ", text))
    missing = re.search(r"([\d,]+) changes not at all \((.*?)\)", said[1]) if said else None

    assert len(text) < 65_000
    assert listed + (int(missing[1].replace(",", "")) if missing else 0) == count
    assert (said is None) == (count == 250)
    assert text.index("will be destroyed") < 64_000 // 2
    assert text.count("~~~") % 2 == 0
    if missing:
        assert sum(
            int(number.replace(",", "")) for number in re.findall(r"([\d,]+) to ", missing[2])
        ) == int(missing[1].replace(",", ""))
    if count == 4_000:
        assert re.search(r"[\d,]+ hazards not at all", text)


def test_one_endless_change_does_not_push_out_the_others() -> None:
    """A change with a thousand fields is cut after a number of lines, and says so."""
    fields = tuple(
        FieldChange(f'metadata["k{n}"]', None, "x" * 50, "in_place") for n in range(1000)
    )
    text = plan_markdown.render(
        samples.plan(samples.resource("hub/stream/A", ["update"], fields=fields))
    )

    assert text.count("k79") == 1
    assert "k80" not in text
    assert "# 920 more lines" in text


def test_foreign_words_stay_words() -> None:
    """Names of servers neither open HTML, nor end a block, nor mention an account."""
    text = plan_markdown.render(plans.hostile())
    found = tokens(text)
    page = plans.Page("".join(token.content for token in found if token.type.startswith("html_")))

    assert not set(text) & {"\x1b", "\u202e"}
    assert set(page.tags) == {"details", "summary", "code", "br", "sub"}
    assert page.attributes == []
    assert [token.type for token in found if token.type in ("link_open", "image")] == []
    assert not any("@all" in token.content for token in found if token.type == "text")
    assert plans.EVIL.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e") in {
        t.content for t in found if t.type == "code_inline"
    }
    assert [token.content.count("@all") for token in found if token.type == "fence"] == [0, 2, 4, 2]


def test_markdown_of_the_sample_is_well_formed() -> None:
    """A reader of CommonMark finds a block or item for each change, and no raw HTML but ours."""
    found = tokens(plan_markdown.render(samples.everything()))

    assert [token.info for token in found if token.type == "fence"] == ["diff"] * 5 + [""] * 3
    assert sum(token.type == "list_item_open" for token in found) == 10
    assert sum(token.type == "heading_open" for token in found) == 12
    assert [token.content for token in found if token.type == "html_inline"] == [
        "<br>",
        "<br>",
        "<sub>",
        "</sub>",
    ]


def test_an_empty_plan_and_a_plan_with_errors() -> None:
    """An empty plan has the line that scripts know; one with errors begins with them."""
    broken = replace(samples.everything(), errored=True)

    assert "No changes. Your streams match the configuration." in plan_markdown.render(
        samples.plan()
    )
    text = plan_markdown.render(broken)
    assert (
        text.index("The plan has errors") < text.index("### Findings") < text.index("### Hazards")
    )


def test_an_undo_names_the_apply() -> None:
    """A plan that undoes an apply names it on both pages."""
    undone = {
        "operation": "apply",
        "id": "a1b2",
        "who": "ann",
        "host": "laptop",
        "at": "2026-01-31T12:00:00Z",
    }
    plan = replace(samples.everything(), options={"revert": undone})

    for page in (plan_markdown.render(plan), plan_html.render(plan)):
        assert "Reverting apply a1b2 of ann@" in page


@pytest.mark.parametrize("words", ["`", "``", "a`b", "`a", "a``b`", "plain"])
def test_a_code_span_holds_any_backtick(words: str) -> None:
    """The fence of a span is longer than every run of backticks in it."""
    span = markdown.code_span(words)
    fence = re.match("`+", span)

    assert fence is not None
    assert re.fullmatch(rf"{fence[0]} ?{re.escape(words)} ?{fence[0]}", span)
    assert fence[0] not in words


def test_a_block_cannot_be_ended_from_inside() -> None:
    """The fence is longer than every run of tildes in the lines."""
    lines = markdown.fenced_block(["~~~", "~~~~~ x"])

    assert lines[0] == lines[-1] == "~~~~~~"


def test_items_are_shortened_before_they_are_left_out() -> None:
    """Short items come before details: details get a third of the size that is left."""
    pieces = [markdown.PageItem("b" * 10, "f" * 30) for _ in range(10)]

    assert [markdown.fit_items(pieces, size).shortened for size in (300, 299, 140, 100)] == [
        0,
        1,
        8,
        10,
    ]
    tight = markdown.fit_items(pieces, 90)
    assert (len(tight.texts), len(tight.omitted), tight.shortened) == (6, 4, 5)
    assert sum(map(len, tight.texts)) <= 90
