"""The plan as markdown for a comment on a change: hazards, then what deletes, never longer than GitHub takes. Which rows there
are is `plan_rows`'.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from jsplan.render import diagnostics_text, plan_rows, plan_text, resource_text, revert_text, summary
from jsplan.render.lines import Lines
from jsplan.render.markdown import LONGEST, Fitted, Piece, block, code, diff, fit, text
from jsplan.render.safe import markup, safe, safe_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jsplan.diagnostics import Diagnostic
    from jsplan.documents.plan import Hazard, Plan
    from jsplan.render.plan_rows import Row

#: Lines of one change, and characters of one flag: the rest is only counted.
_LINES = 80
_FLAG = 400
#: Characters of the options at most.
_SHAPED = 2000
#: Room that hazards, and that all else beside the changes, may take.
_HAZARDS = LONGEST // 3
_BESIDE = LONGEST // 6
#: Room for the words on what was cut.
_CUT = 600
_MARKS = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}


def render(plan: Plan, *, verbose: bool = False) -> str:
    """The whole page; `verbose` writes out what is alike in many domains."""
    sha256 = str(plan.to_json()["sha256"])
    found = plan_rows.rows(plan, verbose=verbose)
    head, tail = _head(plan, sha256, found), _tail(plan, sha256)
    hazards = fit([_hazard(row, hazard) for row, hazard in plan_rows.hazards(found)], _HAZARDS)
    beside = _beside(plan, verbose=verbose)
    room = LONGEST - _CUT - sum(map(len, (head, tail, *hazards.texts, *beside)))
    changes = fit(list(_changes(found)), room)
    cut = _cut(found, hazards, changes)
    first, last = ([beside[0]], beside[1:]) if plan.errored else ([], beside)
    return "".join([head, cut, *first, *_titled("\n### Hazards\n\n", hazards.texts), *changes.texts, *last, "\n", tail])


def _head(plan: Plan, sha256: str, found: list[Row]) -> str:
    lines = [plan_rows.mark(plan, sha256), f"## Plan: {text(safe(plan_rows.name(plan)))}", ""]
    if plan.errored:
        lines += ["**❌ The plan has errors; nothing can be applied.**", ""]
    if found or plan.has_changes:
        lines += [f"**{summary.plan_line(plan)}**", ""]
    elif not plan.errored:
        lines += [f"**{text(safe(summary.nothing_line(plan)))}**", ""]
    lines += [f"{text(words)}\n" for words in (revert_text.origin(plan).plain(), revert_text.afterwards(plan).plain()) if words]
    if plan.mode == "destroy":
        lines += [f"{plan_text.what(plan, limited=bool(plan.targets))}.", ""]
    if shaped := plan_text.planned_with(plan):
        lines += [f"Planned with {code(shaped if len(shaped) <= _SHAPED else f'{shaped[:_SHAPED]} …')}", ""]
    if plan.targets or plan.options.get("excludes"):
        lines += ["⚠️ This plan is limited by `--target` or `--exclude`: it does not show everything that differs.", ""]
    more = [text(safe(line)) for line in (summary.rehearsal_line(plan), summary.deferred_line(d.address for d in plan.deferred)) if line]
    return "\n".join([*lines, *(f"{line}\n" for line in more)]) + "\n"


def _tail(plan: Plan, sha256: str) -> str:
    return f"<sub>Planned {text(safe(plan.timestamp))} by jsplan {text(safe(plan.jsplan_version))}; sha256 {sha256}.</sub>\n"


def _hazard(row: Row, hazard: Hazard) -> Piece:
    resource = row.group.resource
    sign = "✅" if hazard.allowed else "🛑" if hazard.blocking else "⚠️"
    where = f" {text(safe(row.group.where))}" if row.group.where else ""
    brief = f"- {sign} **{text(hazard.code)}** {code(safe(resource.address))}{where}"
    amount = resource_text.amount_of(hazard)
    full = f"{brief}: {text(safe(hazard.message))}" + (f" \\[{amount}\\]" if amount else "")
    if hazard.allowed:
        full += " (allowed)"
    elif hazard.blocking:
        full += f"<br>allow it with {code(safe(hazard.flag))}" if len(hazard.flag) <= _FLAG else "<br>each takes a flag of its own"
    return Piece(f"{brief}\n", f"{full}\n")


def _changes(found: list[Row]) -> Iterator[Piece]:
    """Each change; the first of its kind carries the heading."""
    for action, members in groupby(found, key=lambda row: row.action):
        listed = list(members)
        heading = f"\n### {plan_rows.title(action)} ({sum(len(row.members) for row in listed):,})\n\n"
        for row in listed:
            brief, full = f"- {_headline(row)}\n", "\n".join(_whole(row)) + "\n"
            yield Piece(f"{heading}{brief}", f"{heading}{full}", len(row.members))
            heading = ""


def _headline(row: Row) -> str:
    resource = row.group.resource
    moved = f" (moved from {code(safe(resource.previous_address))})" if resource.previous_address else ""
    where = f", {text(safe(row.group.where))}" if row.group.where else ""
    return f"{code(safe(resource.address))} {row.says}{moved}{where}"


def _whole(row: Row) -> list[str]:
    """The change with its fields: new ones folded away, since there is nothing that they could break."""
    body = plan_rows.plain(row.fields[:_LINES])
    body += [f"# {len(row.fields) - _LINES:,} more lines"] if len(row.fields) > _LINES else []
    if not body:
        return [f"- {_headline(row)}"]
    if row.action != "create":
        return [f"- {_headline(row)}", *diff(body, indent="  ")]
    resource = row.group.resource
    where = f", {markup(row.group.where)}" if row.group.where else ""
    moved = f" (moved from <code>{markup(resource.previous_address)}</code>)" if resource.previous_address else ""
    line = f"<code>{markup(resource.address)}</code> {row.says}{moved}{where}"
    return [f"<details><summary>{line}</summary>", "", *diff(body), "", "</details>"]


def _beside(plan: Plan, *, verbose: bool) -> list[str]:
    """Drift, backfills, what is deferred, findings: each as far as there is room."""
    drift = Lines()
    plan_text.outside(drift, plan_text.relevant_drift(plan), verbose=verbose)
    parts = [
        ("Changed outside of jsplan", _drift(drift)),
        ("Copied", [Piece(line, line) for line in _plain(plan_text.backfills(plan))]),
        ("Deferred", [Piece(line, line) for line in _plain(plan_text.deferred(plan, verbose=verbose))]),
    ]
    room = _BESIDE // (len(parts) + 1)
    said = [_blocked(heading, fit(pieces, room)) for heading, pieces in parts]
    return [_findings(plan, room, verbose=verbose), *said]


def _findings(plan: Plan, room: int, *, verbose: bool) -> str:
    shown, counted = diagnostics_text.shortlist(plan.diagnostics, verbose=verbose)
    shown.sort(key=lambda pair: list(_MARKS).index(pair[0].severity))
    found = fit([_finding(d, where) for d, where in shown], room)
    more = [f"- {number:,} more of {text(safe(code))}\n" for code, number in counted.items()]
    more += [f"- {len(found.left):,} more findings\n"] if found.left else []
    return "".join(_titled("\n### Findings\n\n", [*found.texts, *more]))


def _finding(found: Diagnostic, where: str) -> Piece:
    subject = f"{code(safe(found.address))}: " if found.address else ""
    brief = f"- {_MARKS[found.severity]} {subject}{text(safe(found.summary))}{text(safe(where))} \\[{text(safe(found.code))}\\]"
    place = f" at {code(safe(str(found.range)))}" if found.range else ""
    detail = f" {' '.join(text(line) for line in safe_lines(found.detail))}" if found.detail.strip() else ""
    return Piece(f"{brief}\n", f"{brief}{place}{detail}\n")


def _drift(drift: Lines) -> list[Piece]:
    return [Piece(line, line) for line in _plain(drift)[1:]]


def _plain(lines: Lines) -> list[str]:
    return [line.removeprefix("  ") for line in lines.plain().splitlines() if line.strip()]


def _blocked(heading: str, found: Fitted) -> str:
    """Lines in a block of their own."""
    if not found.texts:
        return ""
    more = [f"# {len(found.left):,} more lines"] if found.left else []
    return "\n".join(["", f"### {heading}", "", *block([*found.texts, *more]), ""]) + "\n"


def _titled(heading: str, texts: Sequence[str]) -> list[str]:
    return [heading, *texts] if texts else []


def _cut(found: list[Row], hazards: Fitted, changes: Fitted) -> str:
    """What is not on the page although it is in the plan, and where it is."""
    words = []
    if hazards.shortened or hazards.left:
        words.append(f"{hazards.shortened:,} hazards without their words, {len(hazards.left):,} hazards not at all")
    if changes.shortened:
        words.append(f"{changes.shortened:,} changes without their fields")
    if changes.left:
        missing: Counter[str] = Counter()
        for row in found[len(found) - len(changes.left) :]:
            missing[row.action] += len(row.members)
        kinds = ", ".join(f"{number:,} to {action}" for action, number in missing.items())
        words.append(f"{sum(missing.values()):,} changes not at all ({kinds})")
    if not words:
        return ""
    whole = "The whole plan: `jsplan show PLANFILE`, or `--format html` for a page to search in."
    return f"✂️ _Cut to fit into a comment: {'; '.join(words)}. {whole}_\n\n"
