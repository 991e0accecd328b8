"""What a conversion has to say, on stderr: the same about many resources is said once. The file itself is `generating`'s."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jsplan.render import diagnostics_text
from jsplan.workflows.convert import group_diagnostics

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.workflows.convert import ConvertResult

#: So many resources are named where something holds of more.
_MAX_NAMED = 5


def render_notes(made: ConvertResult, console: Console) -> None:
    """Everything that was not carried over, then what else is worth knowing."""
    found = []
    for diagnostic, addresses in group_diagnostics(made.diagnostics):
        if len(addresses) > 1:
            more = f" and {len(addresses) - _MAX_NAMED} more" if len(addresses) > _MAX_NAMED else ""
            named = f"{', '.join(addresses[:_MAX_NAMED])}{more}"
            found.append(
                replace(
                    diagnostic,
                    address=None,
                    detail=f"{diagnostic.detail}\n{len(addresses)} resources: {named}",
                    range=None,
                )
            )
        else:
            found.append(diagnostic)
    ordered = sorted(found, key=lambda one: one.severity == "info")
    diagnostics_text.render(ordered, console, after=True, verbose=True)
