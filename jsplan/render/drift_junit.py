"""The drift document as JUnit XML: one file, one suite, a test per finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.render import drift_rows
from jsplan.render.escape import safe_html

if TYPE_CHECKING:
    from collections.abc import Collection

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


def render(drift: Drift, fail_on: Collection[str]) -> str:
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
