"""The plan as one HTML file without external resources: hazards, then searchable changes."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from jsplan.render import (
    diagnostics_text,
    html_page,
    plan_rows,
    plan_text,
    resource_text,
    summary,
)
from jsplan.render.escape import quote_json, safe, safe_html, safe_lines
from jsplan.render.lines import Lines
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.diagnostics import Diagnostic
    from jsplan.documents.plan import Hazard, Plan
    from jsplan.render.plan_rows import Row

#: Changes with hazards are open from the start if there are at most this many.
_MAX_OPEN = 40
#: Hazards shown before the rest is folded.
_MAX_HAZARDS = 8
_HAZARD_GRADES = ("stop", "warn", "allowed")
_DEFERRED = "Deferred"


def render(plan: Plan, *, verbose: bool = False) -> str:
    """Return the whole file; `verbose` does not group what is alike in many domains."""
    sha256 = str(plan.to_json()["sha256"])
    found = plan_rows.rows(plan, verbose=verbose)
    findings = _findings(plan)
    body = [
        *_head(plan, found),
        findings if plan.errored else "",
        _hazards(found),
        *_changes(found),
        *_other_sections(plan, verbose=verbose),
        "" if plan.errored else findings,
        _steps(plan),
        _plan_facts(plan, sha256),
    ]
    title = safe(f"Plan: {plan_rows.plan_name(plan)}")
    return html_page.render_page(
        title,
        plan_rows.marker(plan, sha256),
        filter(None, body),
        style="plan.css",
        script="plan.js",
    )


def _code(text: str) -> str:
    return f"<code>{safe_html(text)}</code>"


def _head(plan: Plan, found: list[Row]) -> list[str]:
    changing = bool(found) or plan.has_changes
    line = (
        summary.plan_line(plan)
        if changing
        else ""
        if plan.errored
        else summary.no_changes_line(plan)
    )
    shaped = plan_text.format_options(plan)
    deferred = summary.deferred_line(d.address for d in plan.deferred)
    parts = [
        ("error", "The plan has errors; nothing can be applied." if plan.errored else ""),
        ("", plan_text.reverted_entry(plan)),
        ("sum", line),
        (
            "",
            f"{plan_text.headline(plan, limited=bool(plan.targets))}."
            if plan.mode == "destroy"
            else "",
        ),
        ("", f"Planned with {shaped}" if shaped else ""),
        ("warning", plan_text.LIMITED if plan.targets or plan.options.get("excludes") else ""),
        ("", summary.rehearsal_line(plan)),
        ("warning", deferred),
        ("dim", f"Planned {plan.timestamp} by jsplan {plan.jsplan_version}."),
    ]
    paragraphs = [f'<p class="{role}">{safe_html(text)}</p>' for role, text in parts if text]
    return [
        "<header>",
        '<button id="theme" type="button">Dark or light</button>',
        f"<h1>Plan: {safe_html(plan_rows.plan_name(plan))}</h1>",
        *paragraphs,
        "</header>",
    ]


def _hazards(found: list[Row]) -> str:
    every = plan_rows.hazards(found)
    items = [_hazard(row, hazard) for row, hazard in every]
    if not items:
        return ""
    shown = [f"<ul>\n{chr(10).join(items[:_MAX_HAZARDS])}\n</ul>"]
    if more := items[_MAX_HAZARDS:]:
        shown.append(
            f'<details class="more"><summary>{len(more):,} more hazards</summary>'
            f"<ul>\n{chr(10).join(more)}\n</ul></details>"
        )
    return (
        f'<section id="hazards"><h2>Hazards ({len(items):,})</h2>\n{chr(10).join(shown)}</section>'
    )


def _grade(hazard: Hazard) -> str:
    return "allowed" if hazard.allowed else "stop" if hazard.blocking else "warn"


def _hazard(row: Row, hazard: Hazard) -> str:
    where = f" {safe_html(row.group.where)}" if row.group.where else ""
    return (
        f'<li class="{_grade(hazard)}"><b>{safe_html(hazard.code)}</b> <a '
        f'href="#c{row.number}">{_code(row.group.resource.address)}</a>'
        f"{where}: {_hazard_text(hazard)}{_permission(hazard)}</li>"
    )


def _hazard_text(hazard: Hazard) -> str:
    amount = resource_text.format_amount(hazard)
    return f"{safe_html(hazard.message)}{f' [{safe_html(amount)}]' if amount else ''}"


def _permission(hazard: Hazard) -> str:
    if hazard.allowed:
        return " <b>allowed</b>"
    return f"<br>allow it with {_code(hazard.flag)}" if hazard.blocking else ""


def _changes(found: list[Row]) -> list[str]:
    if not found:
        return []
    costly = [row for row in found if row.group.resource.hazards]
    opened = {row.number for row in costly} if len(costly) <= _MAX_OPEN else set()
    sections = []
    for action, members in groupby(found, key=lambda row: row.action):
        listed = list(members)
        number = sum(len(row.members) for row in listed)
        rows = "\n".join(_change(row, opened=row.number in opened) for row in listed)
        sections.append(
            f'<section class="changes"><h2>{plan_rows.action_title(action)} ({number:,})'
            f"</h2>\n{rows}</section>"
        )
    return [
        _form(found),
        "<main>",
        *sections,
        '<p id="none" hidden>No change matches.</p>',
        "</main>",
    ]


def _form(found: list[Row]) -> str:
    members = [member for row in found for member in row.members]
    codes = {hazard.code for member in members for hazard in member.hazards}
    selects = [
        _select(
            "action",
            "Every action",
            [action for action in plan_rows.ACTIONS if any(row.action == action for row in found)],
        ),
        _select("kind", "Every kind", sorted({member.type for member in members})),
        _select("domain", "Every domain", sorted({member.domain for member in members})),
        _select(
            "hazard",
            "With and without hazards",
            (["any", *_blocking(found), *sorted(codes)] if codes else []),
        ),
    ]
    return "\n".join(
        [
            '<form id="filter" role="search">',
            (
                '<input name="search" type="search" placeholder="Search: address, field, '
                'value" aria-label="Search" autocomplete="off">'
            ),
            *selects,
            (
                '<button name="open" type="button">Open all</button><button name="close" '
                'type="button">Close all</button>'
            ),
            '<button type="reset">Clear</button> <output name="count"></output>',
            "</form>",
        ]
    )


def _blocking(found: list[Row]) -> list[str]:
    return [
        grade
        for grade in _HAZARD_GRADES
        if any(
            _grade(h) == grade for row in found for member in row.members for h in member.hazards
        )
    ]


_OPTIONS = {
    "any": "any hazard",
    "stop": "not allowed yet",
    "warn": "only a warning",
    "allowed": "allowed",
}


def _select(name: str, every: str, values: Iterable[str]) -> str:
    options = "".join(
        f'<option value="{safe_html(value)}">{safe_html(_OPTIONS.get(value, value))}</option>'
        for value in values
    )
    return (
        f'<select name="{name}" aria-label="{every}"{"" if options else " hidden"}><option '
        f'value="">{every}</option>{options}</select>'
    )


def _change(row: Row, *, opened: bool) -> str:
    resource = row.group.resource
    tags = {
        tag
        for member in row.members
        for hazard in member.hazards
        for tag in ("any", _grade(hazard), hazard.code)
    }
    domains = " ".join(sorted({member.domain for member in row.members}))
    data = (
        f'data-action="{safe_html(row.action)}" data-kind="{safe_html(resource.type)}" '
        f'data-domains="{safe_html(domains)}" '
        f'data-hazards="{safe_html(" ".join(sorted(tags)))}" data-count="{len(row.members)}"'
    )
    codes = ", ".join(dict.fromkeys(hazard.code for hazard in resource.hazards))
    # only the codes: the list of hazards has their texts
    tag = f'<span class="tag">{safe_html(codes)}</span>' if codes else ""
    return (
        f'<details class="change {safe_html(row.action)}" id="c{row.number}" '
        f"{data}{' open' if opened else ''}>"
        f"<summary>{tag}<code>{html_page.render_line(row.head)}</code>"
        f"</summary>{html_page.render_block(row.fields)}{_members(row)}</details>"
    )


def _members(row: Row) -> str:
    """Return each member of a group, with its own hazards."""
    if len(row.members) == 1:
        return ""
    items = []
    for member in row.members:
        costs = "".join(
            f"<br>{safe_html(hazard.code)}: {_hazard_text(hazard)}" for hazard in member.hazards
        )
        items.append(f"<li>{_code(member.address)}{costs}</li>")
    return (
        f'<details class="more"><summary>{len(items):,} resources</summary><ul>{"".join(items)}'
        "</ul></details>"
    )


def _other_sections(plan: Plan, *, verbose: bool) -> list[str]:
    drift = Lines()
    plan_text.add_drift(drift, plan_text.relevant_drift(plan), verbose=verbose)
    parts = [
        ("Changed outside of jsplan since the last apply", drift.rows[2:]),
        ("Copied", plan_text.render_backfills(plan).rows),
        (_DEFERRED, plan_text.render_deferred(plan, verbose=verbose).rows),
    ]
    every = [f"<p>{_code(item.address)}: {safe_html(item.reason)}</p>" for item in plan.deferred]
    left = _details_element("Each of them", every) if every else ""
    return [
        (
            f"<section><h2>{title}"
            f"</h2>{html_page.render_block(rows)}{left if title == _DEFERRED else ''}</section>"
        )
        for title, rows in parts
        if rows
    ]


def _details_element(title: str, items: list[str]) -> str:
    return (
        f'<details class="more"><summary>{title} ({len(items):,})'
        f"</summary>\n{chr(10).join(items)}</details>"
    )


def _findings(plan: Plan) -> str:
    shown, left = diagnostics_text.shortlist(plan.diagnostics)
    items = [_finding(found, where) for found, where in shown]
    items += [f"<p>and {number:,} more of {safe_html(code)}</p>" for code, number in left.items()]
    if len(shown) < len(plan.diagnostics):
        items.append(
            _details_element(
                "Every finding by itself", [_finding(found, "") for found in plan.diagnostics]
            )
        )
    if not items:
        return ""
    title = f"Findings ({len(plan.diagnostics):,})"
    return f"<section><h2>{title}</h2>\n{chr(10).join(items)}</section>"


def _finding(found: Diagnostic, where: str) -> str:
    subject = f"{_code(found.address)}: " if found.address else ""
    place = f"<br><small>at {safe_html(str(found.range))}</small>" if found.range else ""
    detail = "".join(f"<br>{safe_html(line)}" for line in safe_lines(found.detail))
    return (
        f'<p><span class="{safe_html(found.severity)}">{safe_html(found.severity)}</span> '
        f"{subject}{safe_html(found.summary)}{safe_html(where)} "
        f'<span class="dim">[{safe_html(found.code)}]</span>{place}{detail}</p>'
    )


def _steps(plan: Plan) -> str:
    """Return all steps of an apply, in the order of the plan."""
    items = "".join(f"<li>{safe_html(step.title)}</li>" for step in plan.steps)
    heading = count_text(len(plan.steps), "step")
    if items:
        return (
            f'<details class="more"><summary>What is done, in order ({heading})</summary>'
            f"<ol>{items}</ol></details>"
        )
    return ""


def _plan_facts(plan: Plan, sha256: str) -> str:
    unchanged = sum(
        1
        for r in plan.resource_changes
        if resource_text.action_key(r) == ("no-op",) and not r.change.importing
    )
    facts = {
        "sha256": sha256,
        "id": plan.id,
        "state": f"serial {plan.state.get('serial')} of {plan.state.get('lineage') or 'none yet'}",
        "unchanged": count_text(unchanged, "resource"),
        "variables": quote_json(plan.variables),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{_code(str(value))}</dd>" for name, value in facts.items())
    return f'<details class="more"><summary>About this plan</summary><dl>{rows}</dl></details>'
