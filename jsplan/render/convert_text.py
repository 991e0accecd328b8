"""The notes of a conversion, for stderr; a note about many resources is shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.converting.result import group_diagnostics
from jsplan.render import diagnostics_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.converting.result import ConvertResult

#: Resources that a note about many of them names.
_MAX_NAMED = 5


def render_notes(made: ConvertResult, console: Console) -> None:
    """Render what was not converted, then the notes."""
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
