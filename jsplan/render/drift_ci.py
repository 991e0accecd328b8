"""The drift document for CI: JUnit XML, and workflow commands of GitHub Actions.

JUnit is one file with one suite and a test per finding. On GitHub each finding is an annotation at
the line that declares the resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.render import drift_rows
from jsplan.render.escape import safe_html, workflow_command

if TYPE_CHECKING:
    from collections.abc import Collection

    from jsplan.diagnostics import SourceRange
    from jsplan.documents.drift import Drift
    from jsplan.render.drift_rows import Row


_PASSING = {
    "interrupted": "no replacement was interrupted",
    "changed": "nothing was changed",
    "missing": "nothing is missing",
    "replication": "replication works",
    "threshold": "no threshold is exceeded",
    "offline": "all domains answer",
}


def render_junit(drift: Drift, fail_on: Collection[str]) -> str:
    """Return the file.

    Findings of kinds in `fail_on` are failures, offline domains are errors. The rest is skipped
    with its reason.
    """
    found = drift_rows.rows(drift)
    name = f"{drift.workspace}.{drift.environment}" if drift.environment else drift.workspace
    cases = [_case(name, row, fail_on) for row in found]
    kinds = {row.kind for row in found}
    cases += [
        f"    <testcase classname={_attribute(f'{name}.{kind}')} name={_attribute(says)}/>"
        for kind, says in _PASSING.items()
        if kind not in kinds
    ]
    cases += [
        _skipped(
            name,
            str(m.get("kind", "muted")),
            str(m["address"]),
            f"muted by {m['owner']}: {m['reason']}",
        )
        for m in drift.mutes
    ]
    failures = sum(drift_rows.is_failure(row, fail_on) for row in found)
    errors = sum(row.kind == "offline" for row in found)
    skipped = len(found) - failures - errors + len(drift.mutes)
    counts = f'tests="{len(cases)}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    head = (
        f"<testsuite name={_attribute(f'jsplan drift {name}')} {counts} "
        f"timestamp={_attribute(drift.timestamp.removesuffix('Z'))}>"
    )
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f"<testsuites {counts}>",
            f"  {head}",
            *cases,
            "  </testsuite>",
            "</testsuites>\n",
        ]
    )


def _attribute(text: str) -> str:
    return f'"{safe_html(text)}"'


def _case(name: str, row: Row, fail_on: Collection[str]) -> str:
    if not drift_rows.is_failure(row, fail_on) and row.kind != "offline":
        return _skipped(name, row.kind, row.address, row.summary)
    word = "error" if row.kind == "offline" else "failure"
    text = "\n".join(map(safe_html, [f"{row.address} {row.summary}", *row.details]))
    return (
        f"    <testcase classname={_attribute(f'{name}.{row.kind}')} "
        f"name={_attribute(row.address)}>"
        f"<{word} type={_attribute(row.severity)} message={_attribute(row.summary)}>{text}"
        f"</{word}></testcase>"
    )


def _skipped(name: str, kind: str, address: str, why: str) -> str:
    case = f"    <testcase classname={_attribute(f'{name}.{kind}')} name={_attribute(address)}>"
    return f"{case}<skipped message={_attribute(why)}/></testcase>"


def render_github(drift: Drift, fail_on: Collection[str]) -> str:
    """Return one command per finding and warning, then the greppable line.

    Findings of kinds in `fail_on` are errors.
    """
    lines = [
        _annotation(row, drift.declared_at.get(row.address), fail_on)
        for row in drift_rows.rows(drift)
    ]
    lines += [
        workflow_command("warning", d.code, f"{d.summary}. {d.detail}", d.range)
        for d in drift.diagnostics
    ]
    return "\n".join([*lines, drift_rows.summary_line(drift)]) + "\n"


def _annotation(row: Row, place: SourceRange | None, fail_on: Collection[str]) -> str:
    fails = drift_rows.is_failure(row, fail_on) or row.kind == "offline"
    level = "error" if fails and row.severity != "cosmetic" else "warning" if fails else "notice"
    return workflow_command(
        level,
        f"{row.kind}: {row.address}",
        "\n".join([f"{row.address} {row.summary} ({row.severity})", *row.details]),
        place,
    )
