"""The plan as Markdown for a comment on a change, within GitHub's length limit.

Hazards come first, then the changes that delete.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from jsplan.render import (
    diagnostics_text,
    plan_rows,
    plan_text,
    resource_text,
    summary,
)
from jsplan.render.escape import safe, safe_html, safe_lines
from jsplan.render.lines import Lines
from jsplan.render.markdown import (
    MAX_LENGTH,
    FitResult,
    PageItem,
    code_span,
    diff_block,
    escape_text,
    fenced_block,
    fit_items,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jsplan.diagnostics import Diagnostic
    from jsplan.documents.plan import Hazard, Plan
    from jsplan.render.plan_rows import Row

#: Lines of one change and characters of one flag; the rest is only counted.
_MAX_LINES = 80
_MAX_FLAG = 400
#: Characters of the options.
_MAX_OPTIONS = 2000
#: Space for the hazards, and for everything else beside the changes.
_HAZARD_SPACE = MAX_LENGTH // 3
_OTHER_SPACE = MAX_LENGTH // 6
#: Space for the note about what was cut.
_OMISSION_SPACE = 600
_MARKS = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}


def render(plan: Plan, *, verbose: bool = False) -> str:
    """Return the whole page; `verbose` does not group what is alike in many domains."""
    sha256 = str(plan.to_json()["sha256"])
    found = plan_rows.rows(plan, verbose=verbose)
    head, tail = _head(plan, sha256, found), _tail(plan, sha256)
    hazards = fit_items(
        [_hazard(row, hazard) for row, hazard in plan_rows.hazards(found)], _HAZARD_SPACE
    )
    beside = _other_sections(plan, verbose=verbose)
    limit = MAX_LENGTH - _OMISSION_SPACE - sum(map(len, (head, tail, *hazards.texts, *beside)))
    changes = fit_items(list(_changes(found)), limit)
    cut = _omission_note(found, hazards, changes)
    first, last = ([beside[0]], beside[1:]) if plan.errored else ([], beside)
    return "".join(
        [
            head,
            cut,
            *first,
            *_with_heading("\n### Hazards\n\n", hazards.texts),
            *changes.texts,
            *last,
            "\n",
            tail,
        ]
    )


def _head(plan: Plan, sha256: str, found: list[Row]) -> str:
    lines = [
        plan_rows.marker(plan, sha256),
        f"## Plan: {escape_text(safe(plan_rows.plan_name(plan)))}",
        "",
    ]
    if plan.errored:
        lines += ["**❌ The plan has errors; nothing can be applied.**", ""]
    if found or plan.has_changes:
        lines += [f"**{summary.plan_line(plan)}**", ""]
    elif not plan.errored:
        lines += [f"**{escape_text(safe(summary.no_changes_line(plan)))}**", ""]
    if words := plan_text.reverted_entry(plan):
        lines += [escape_text(safe(words)), ""]
    if plan.mode == "destroy":
        lines += [f"{plan_text.headline(plan, limited=bool(plan.targets))}.", ""]
    if shaped := plan_text.format_options(plan):
        if len(shaped) > _MAX_OPTIONS:
            shaped = f"{shaped[:_MAX_OPTIONS]} …"
        lines += [f"Planned with {code_span(shaped)}", ""]
    if plan.targets or plan.options.get("excludes"):
        lines += [
            (
                "⚠️ This plan is limited by `--target` or `--exclude`: it does not show "
                "everything that differs."
            ),
            "",
        ]
    more = [
        escape_text(safe(line))
        for line in (
            summary.rehearsal_line(plan),
            summary.deferred_line(d.address for d in plan.deferred),
        )
        if line
    ]
    return "\n".join([*lines, *(f"{line}\n" for line in more)]) + "\n"


def _tail(plan: Plan, sha256: str) -> str:
    return (
        f"<sub>Planned {escape_text(safe(plan.timestamp))} by jsplan "
        f"{escape_text(safe(plan.jsplan_version))}; sha256 {sha256}.</sub>\n"
    )


def _hazard(row: Row, hazard: Hazard) -> PageItem:
    resource = row.group.resource
    sign = "✅" if hazard.allowed else "🛑" if hazard.blocking else "⚠️"
    where = f" {escape_text(safe(row.group.where))}" if row.group.where else ""
    brief = f"- {sign} **{escape_text(hazard.code)}** {code_span(safe(resource.address))}{where}"
    amount = resource_text.format_amount(hazard)
    full = f"{brief}: {escape_text(safe(hazard.message))}" + (f" \\[{amount}\\]" if amount else "")
    if hazard.allowed:
        full += " (allowed)"
    elif hazard.blocking:
        full += (
            f"<br>allow it with {code_span(safe(hazard.flag))}"
            if len(hazard.flag) <= _MAX_FLAG
            else "<br>each takes a flag of its own"
        )
    return PageItem(f"{brief}\n", f"{full}\n")


def _changes(found: list[Row]) -> Iterator[PageItem]:
    """Yield each change; the first of its kind has the heading."""
    for action, members in groupby(found, key=lambda row: row.action):
        listed = list(members)
        heading = (
            f"\n### {plan_rows.action_title(action)} "
            f"({sum(len(row.members) for row in listed):,})\n\n"
        )
        for row in listed:
            brief, full = f"- {_headline(row)}\n", "\n".join(_change_with_fields(row)) + "\n"
            yield PageItem(f"{heading}{brief}", f"{heading}{full}", len(row.members))
            heading = ""


def _headline(row: Row) -> str:
    resource = row.group.resource
    moved = ""
    if resource.previous_address:
        moved = f" (moved from {code_span(safe(resource.previous_address))})"
    where = f", {escape_text(safe(row.group.where))}" if row.group.where else ""
    return f"{code_span(safe(resource.address))} {row.outcome}{moved}{where}"


def _change_with_fields(row: Row) -> list[str]:
    """Return the change with its fields.

    Those of new resources are folded, since they can break nothing.
    """
    body = plan_rows.plain_lines(row.fields[:_MAX_LINES])
    body += (
        [f"# {len(row.fields) - _MAX_LINES:,} more lines"] if len(row.fields) > _MAX_LINES else []
    )
    if not body:
        return [f"- {_headline(row)}"]
    if row.action != "create":
        return [f"- {_headline(row)}", *diff_block(body, indent="  ")]
    resource = row.group.resource
    where = f", {safe_html(row.group.where)}" if row.group.where else ""
    moved = ""
    if resource.previous_address:
        moved = f" (moved from <code>{safe_html(resource.previous_address)}</code>)"
    line = f"<code>{safe_html(resource.address)}</code> {row.outcome}{moved}{where}"
    return [f"<details><summary>{line}</summary>", "", *diff_block(body), "", "</details>"]


def _other_sections(plan: Plan, *, verbose: bool) -> list[str]:
    """Return drift, backfills, deferred resources and findings, as far as they fit."""
    drift = Lines()
    plan_text.add_drift(drift, plan_text.relevant_drift(plan), verbose=verbose)
    parts = [
        ("Changed outside of jsplan", [PageItem(line, line) for line in _plain_lines(drift)[1:]]),
        (
            "Copied",
            [PageItem(line, line) for line in _plain_lines(plan_text.render_backfills(plan))],
        ),
        (
            "Deferred",
            [
                PageItem(line, line)
                for line in _plain_lines(plan_text.render_deferred(plan, verbose=verbose))
            ],
        ),
    ]
    limit = _OTHER_SPACE // (len(parts) + 1)
    sections = [_block_section(heading, fit_items(pieces, limit)) for heading, pieces in parts]
    return [_findings(plan, limit, verbose=verbose), *sections]


def _findings(plan: Plan, limit: int, *, verbose: bool) -> str:
    shown, counted = diagnostics_text.shortlist(plan.diagnostics, verbose=verbose)
    shown.sort(key=lambda pair: list(_MARKS).index(pair[0].severity))
    found = fit_items([_finding(d, where) for d, where in shown], limit)
    more = [f"- {number:,} more of {escape_text(safe(code))}\n" for code, number in counted.items()]
    more += [f"- {len(found.omitted):,} more findings\n"] if found.omitted else []
    return "".join(_with_heading("\n### Findings\n\n", [*found.texts, *more]))


def _finding(found: Diagnostic, where: str) -> PageItem:
    subject = f"{code_span(safe(found.address))}: " if found.address else ""
    brief = (
        f"- {_MARKS[found.severity]} "
        f"{subject}{escape_text(safe(found.summary))}{escape_text(safe(where))} "
        f"\\[{escape_text(safe(found.code))}\\]"
    )
    place = f" at {code_span(safe(str(found.range)))}" if found.range else ""
    detail = ""
    if found.detail.strip():
        detail = f" {' '.join(escape_text(line) for line in safe_lines(found.detail))}"
    return PageItem(f"{brief}\n", f"{brief}{place}{detail}\n")


def _plain_lines(lines: Lines) -> list[str]:
    return [line.removeprefix("  ") for line in lines.plain().splitlines() if line.strip()]


def _block_section(heading: str, found: FitResult) -> str:
    """Return lines in a block of their own."""
    if not found.texts:
        return ""
    more = [f"# {len(found.omitted):,} more lines"] if found.omitted else []
    return "\n".join(["", f"### {heading}", "", *fenced_block([*found.texts, *more]), ""]) + "\n"


def _with_heading(heading: str, texts: Sequence[str]) -> list[str]:
    return [heading, *texts] if texts else []


def _omission_note(found: list[Row], hazards: FitResult, changes: FitResult) -> str:
    """Return what is in the plan but not on the page, and where to find it."""
    words = []
    if hazards.shortened or hazards.omitted:
        words.append(
            f"{hazards.shortened:,} hazards without their words, {len(hazards.omitted):,} "
            "hazards not at all"
        )
    if changes.shortened:
        words.append(f"{changes.shortened:,} changes without their fields")
    if changes.omitted:
        missing: Counter[str] = Counter()
        for row in found[len(found) - len(changes.omitted) :]:
            missing[row.action] += len(row.members)
        kinds = ", ".join(f"{number:,} to {action}" for action, number in missing.items())
        words.append(f"{sum(missing.values()):,} changes not at all ({kinds})")
    if not words:
        return ""
    whole = "The whole plan: `jsplan show PLANFILE`, or `--format html` for a page to search in."
    return f"✂️ _Cut to fit into a comment: {'; '.join(words)}. {whole}_\n\n"
