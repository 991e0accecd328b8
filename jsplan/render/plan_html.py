"""The plan as one HTML file that needs no network: hazards, then every change, to filter and to search. Which rows there are is
`plan_rows`'.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from jsplan.render import diagnostics_text, page, plan_rows, plan_text, resource_text, revert_text, summary
from jsplan.render.lines import Lines
from jsplan.render.safe import markup, quoted, safe, safe_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.diagnostics import Diagnostic
    from jsplan.documents.plan import Hazard, Plan
    from jsplan.render.plan_rows import Row

#: Changes that are open from the start: those with hazards, if there are no more than so many.
_OPEN = 40
#: Hazards shown before the rest is folded away.
_HAZARDS = 8
_GRADES = ("stop", "warn", "allowed")
_LATER = "Deferred"


def render(plan: Plan, *, verbose: bool = False) -> str:
    """The whole file; `verbose` writes out what is alike in many domains."""
    sha256 = str(plan.to_json()["sha256"])
    found = plan_rows.rows(plan, verbose=verbose)
    findings = _findings(plan)
    body = [
        *_head(plan, found),
        findings if plan.errored else "",
        _hazards(found),
        *_changes(found),
        *_beside(plan, verbose=verbose),
        "" if plan.errored else findings,
        _steps(plan),
        _about(plan, sha256),
    ]
    title = safe(f"Plan: {plan_rows.name(plan)}")
    return page.page(title, plan_rows.mark(plan, sha256), filter(None, body), style="plan.css", script="plan.js")


def _code(text: str) -> str:
    return f"<code>{markup(text)}</code>"


def _head(plan: Plan, found: list[Row]) -> list[str]:
    changing = bool(found) or plan.has_changes
    line = summary.plan_line(plan) if changing else "" if plan.errored else summary.nothing_line(plan)
    shaped = plan_text.planned_with(plan)
    limited = "This plan is limited by --target or --exclude: it does not show everything that differs."
    deferred = summary.deferred_line(d.address for d in plan.deferred)
    parts = [
        ("error", "The plan has errors; nothing can be applied." if plan.errored else ""),
        ("", revert_text.origin(plan).plain()),
        ("sum", line),
        ("warning", revert_text.afterwards(plan).plain()),
        ("", f"{plan_text.what(plan, limited=bool(plan.targets))}." if plan.mode == "destroy" else ""),
        ("", f"Planned with {shaped}" if shaped else ""),
        ("warning", limited if plan.targets or plan.options.get("excludes") else ""),
        ("", summary.rehearsal_line(plan)),
        ("warning", deferred),
        ("dim", f"Planned {plan.timestamp} by jsplan {plan.jsplan_version}."),
    ]
    paragraphs = [f'<p class="{role}">{markup(text)}</p>' for role, text in parts if text]
    return [
        "<header>", '<button id="theme" type="button">Dark or light</button>', f"<h1>Plan: {markup(plan_rows.name(plan))}</h1>",
        *paragraphs, "</header>",
    ]  # fmt: skip


def _hazards(found: list[Row]) -> str:
    every = plan_rows.hazards(found)
    items = [_hazard(row, hazard) for row, hazard in every]
    if not items:
        return ""
    shown = [f"<ul>\n{chr(10).join(items[:_HAZARDS])}\n</ul>"]
    if more := items[_HAZARDS:]:
        shown.append(f'<details class="more"><summary>{len(more):,} more hazards</summary><ul>\n{chr(10).join(more)}\n</ul></details>')
    return f'<section id="hazards"><h2>Hazards ({len(items):,})</h2>\n{chr(10).join(shown)}</section>'


def _grade(hazard: Hazard) -> str:
    return "allowed" if hazard.allowed else "stop" if hazard.blocking else "warn"


def _hazard(row: Row, hazard: Hazard) -> str:
    where = f" {markup(row.group.where)}" if row.group.where else ""
    return (
        f'<li class="{_grade(hazard)}"><b>{markup(hazard.code)}</b> <a href="#c{row.number}">{_code(row.group.resource.address)}</a>'
        f"{where}: {_words(hazard)}{_permission(hazard)}</li>"
    )


def _words(hazard: Hazard) -> str:
    amount = resource_text.amount_of(hazard)
    return f"{markup(hazard.message)}{f' [{markup(amount)}]' if amount else ''}"


def _permission(hazard: Hazard) -> str:
    if hazard.allowed:
        return " <b>allowed</b>"
    return f"<br>allow it with {_code(hazard.flag)}" if hazard.blocking else ""


def _changes(found: list[Row]) -> list[str]:
    if not found:
        return []
    costly = [row for row in found if row.hazards]
    opened = {row.number for row in costly} if len(costly) <= _OPEN else set()
    sections = []
    for action, members in groupby(found, key=lambda row: row.action):
        listed = list(members)
        number = sum(len(row.members) for row in listed)
        rows = "\n".join(_change(row, opened=row.number in opened) for row in listed)
        sections.append(f'<section class="changes"><h2>{plan_rows.title(action)} ({number:,})</h2>\n{rows}</section>')
    return [_form(found), "<main>", *sections, '<p id="none" hidden>No change matches.</p>', "</main>"]


def _form(found: list[Row]) -> str:
    members = [member for row in found for member in row.members]
    codes = {hazard.code for member in members for hazard in member.hazards}
    selects = [
        _select("action", "Every action", [action for action in plan_rows.ACTIONS if any(row.action == action for row in found)]),
        _select("kind", "Every kind", sorted({member.type for member in members})),
        _select("domain", "Every domain", sorted({member.domain for member in members})),
        _select("hazard", "With and without hazards", (["any", *_blocking(found), *sorted(codes)] if codes else [])),
    ]
    return "\n".join([
        '<form id="filter" role="search">',
        '<input name="search" type="search" placeholder="Search: address, field, value" aria-label="Search" autocomplete="off">',
        *selects,
        '<button name="open" type="button">Open all</button><button name="close" type="button">Close all</button>',
        '<button type="reset">Clear</button> <output name="count"></output>',
        "</form>",
    ])  # fmt: skip


def _blocking(found: list[Row]) -> list[str]:
    return [grade for grade in _GRADES if any(_grade(h) == grade for row in found for member in row.members for h in member.hazards)]


_OPTIONS = {"any": "any hazard", "stop": "not allowed yet", "warn": "only a warning", "allowed": "allowed"}


def _select(name: str, every: str, values: Iterable[str]) -> str:
    options = "".join(f'<option value="{markup(value)}">{markup(_OPTIONS.get(value, value))}</option>' for value in values)
    return f'<select name="{name}" aria-label="{every}"{"" if options else " hidden"}><option value="">{every}</option>{options}</select>'


def _change(row: Row, *, opened: bool) -> str:
    resource = row.group.resource
    tags = {tag for member in row.members for hazard in member.hazards for tag in ("any", _grade(hazard), hazard.code)}
    domains = " ".join(sorted({member.domain for member in row.members}))
    data = (
        f'data-action="{markup(row.action)}" data-kind="{markup(resource.type)}" data-domains="{markup(domains)}" '
        f'data-hazards="{markup(" ".join(sorted(tags)))}" data-count="{len(row.members)}"'
    )
    codes = ", ".join(dict.fromkeys(hazard.code for hazard in resource.hazards))
    tag = f'<span class="tag">{markup(codes)}</span>' if codes else ""
    return (
        f'<details class="change {markup(row.action)}" id="c{row.number}" {data}{" open" if opened else ""}>'
        f"<summary>{tag}<code>{page.marked_up(row.head)}</code></summary>{page.block([*row.fields, *row.hazards])}{_members(row)}</details>"
    )


def _members(row: Row) -> str:
    """Each of those that are alike, with the hazards that are its own."""
    if len(row.members) == 1:
        return ""
    items = []
    for member in row.members:
        costs = "".join(f"<br>{markup(hazard.code)}: {_words(hazard)}" for hazard in member.hazards)
        items.append(f"<li>{_code(member.address)}{costs}</li>")
    return f'<details class="more"><summary>{len(items):,} resources</summary><ul>{"".join(items)}</ul></details>'


def _beside(plan: Plan, *, verbose: bool) -> list[str]:
    drift = Lines()
    plan_text.outside(drift, plan_text.relevant_drift(plan), verbose=verbose)
    parts = [
        ("Changed outside of jsplan since the last apply", drift.rows[2:]),
        ("Copied", plan_text.backfills(plan).rows),
        (_LATER, plan_text.deferred(plan, verbose=verbose).rows),
    ]
    every = [f"<p>{_code(item.address)}: {markup(item.reason)}</p>" for item in plan.deferred]
    left = _folded("Each of them", every) if every else ""
    return [f"<section><h2>{title}</h2>{page.block(rows)}{left if title == _LATER else ''}</section>" for title, rows in parts if rows]


def _folded(title: str, items: list[str]) -> str:
    return f'<details class="more"><summary>{title} ({len(items):,})</summary>\n{chr(10).join(items)}</details>'


def _findings(plan: Plan) -> str:
    shown, left = diagnostics_text.shortlist(plan.diagnostics)
    items = [_finding(found, where) for found, where in shown]
    items += [f"<p>and {number:,} more of {markup(code)}</p>" for code, number in left.items()]
    if len(shown) < len(plan.diagnostics):
        items.append(_folded("Every finding by itself", [_finding(found, "") for found in plan.diagnostics]))
    return f"<section><h2>Findings ({len(plan.diagnostics):,})</h2>\n{chr(10).join(items)}</section>" if items else ""


def _finding(found: Diagnostic, where: str) -> str:
    subject = f"{_code(found.address)}: " if found.address else ""
    place = f"<br><small>at {markup(str(found.range))}</small>" if found.range else ""
    detail = "".join(f"<br>{markup(line)}" for line in safe_lines(found.detail))
    return (
        f'<p><span class="{markup(found.severity)}">{markup(found.severity)}</span> {subject}{markup(found.summary)}{markup(where)} '
        f'<span class="dim">[{markup(found.code)}]</span>{place}{detail}</p>'
    )


def _steps(plan: Plan) -> str:
    """Everything that an apply would do, in the order of the plan."""
    items = "".join(f"<li>{markup(step.title)}</li>" for step in plan.steps)
    heading = summary.count(len(plan.steps), "step")
    return f'<details class="more"><summary>What is done, in order ({heading})</summary><ol>{items}</ol></details>' if items else ""


def _about(plan: Plan, sha256: str) -> str:
    unchanged = sum(1 for r in plan.resource_changes if resource_text.actions_of(r) == ("no-op",) and not r.change.importing)
    facts = {
        "sha256": sha256, "id": plan.id, "state": f"serial {plan.state.get('serial')} of {plan.state.get('lineage') or 'none yet'}",
        "unchanged": summary.count(unchanged, "resource"), "variables": quoted(plan.variables),
    }  # fmt: skip
    rows = "".join(f"<dt>{name}</dt><dd>{_code(str(value))}</dd>" for name, value in facts.items())
    return f'<details class="more"><summary>About this plan</summary><dl>{rows}</dl></details>'
