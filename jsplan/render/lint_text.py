"""The text of `jsplan lint`: the findings, their counts, and the list of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.render import diagnostics_text
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from jsplan.documents.lint import Explanation, Lint


def render(found: Lint, console: Console, *, verbose: bool = False) -> None:
    """Render the findings, with `verbose` also the ignored ones, and a line with their counts."""
    diagnostics_text.render(found.findings, console, after=True, verbose=verbose)
    lines = Lines()
    for diagnostic in found.ignored if verbose else ():
        lines.add(
            0,
            (
                (
                    f"Ignored: {safe(diagnostic.address or '')}: {safe(diagnostic.summary)} "
                    f"[{diagnostic.code}]"
                ),
                "dim",
            ),
        )
        lines.add(2, (f"reason: {safe(diagnostic.reason)}", "dim"))
    lines.add(
        0,
        (
            summary_line(found),
            "bad" if found.summary["errors"] else "warn" if found.summary["warnings"] else "good",
        ),
    )
    if codes := sorted({d.code for d in found.findings if d.code.startswith("JS2")}):
        lines.add(0, f"Why, and what to do: jsplan lint --explain {codes[0]}")
    lines.print(console)


def summary_line(found: Lint) -> str:
    """Return `Lint: 1 error, 2 warnings, 3 notes, 1 ignored.`; zero parts are left out."""
    numbers = found.summary
    parts = [
        count_text(numbers[name], name[:-1])
        for name in ("errors", "warnings", "notes")
        if numbers[name]
    ]
    parts += [f"{numbers['ignored']:,} ignored"] if numbers["ignored"] else []
    if not parts:
        return (
            f"Lint: nothing found by {len(found.rules)} rules in "
            f"{count_text(found.resources, 'resource')}."
        )
    return f"Lint: {', '.join(parts)}."


def overview(rules: Iterable[Explanation], console: Console) -> None:
    """Render all rules, a line each."""
    lines = Lines()
    for rule in rules:
        lines.add(0, (rule.code, "strong"), f"  {rule.level:<8} {rule.title}")
    lines.print(console)
