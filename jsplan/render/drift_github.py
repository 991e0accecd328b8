"""The drift document as workflow commands of GitHub Actions.

Each finding is an annotation at the line that declares the resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.render import drift_rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from jsplan.diagnostics import SourceRange
    from jsplan.documents.drift import Drift
    from jsplan.render.drift_rows import Row


def render(drift: Drift, fail_on: Collection[str]) -> str:
    """Return one command per finding and warning, then the greppable line.

    Findings of kinds in `fail_on` are errors.
    """
    lines = [
        _annotation(row, drift.declared_at.get(row.address), fail_on)
        for row in drift_rows.rows(drift)
    ]
    lines += [
        _command("warning", d.code, f"{d.summary}. {d.detail}", d.range) for d in drift.diagnostics
    ]
    return "\n".join([*lines, drift_rows.summary_line(drift)]) + "\n"


def _annotation(row: Row, place: SourceRange | None, fail_on: Collection[str]) -> str:
    fails = drift_rows.is_failure(row, fail_on) or row.kind == "offline"
    level = "error" if fails and row.severity != "cosmetic" else "warning" if fails else "notice"
    return _command(
        level,
        f"{row.kind}: {row.address}",
        "\n".join([f"{row.address} {row.summary} ({row.severity})", *row.details]),
        place,
    )


def _command(level: str, title: str, message: str, place: SourceRange | None) -> str:
    where = (
        f"file={_property(place.file)},line={place.line},col={place.column},"
        if place is not None
        else ""
    )
    return f"::{level} {where}title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
