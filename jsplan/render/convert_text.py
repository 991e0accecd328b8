"""The notes of a conversion, for stderr; a note about many resources is shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.render import diagnostics_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.converting.model import ConvertResult
    from jsplan.diagnostics import Diagnostic

#: Resources that a note about many of them names.
_MAX_NAMED = 5


def render_notes(made: ConvertResult, console: Console) -> None:
    """Render what was not converted, then the notes. Equal ones of several resources are one."""
    groups: dict[tuple[str, str, str], list[Diagnostic]] = {}
    for found in made.diagnostics:
        distinct = found.detail if found.address else str(found.range)
        groups.setdefault((found.code, found.summary, distinct), []).append(found)
    merged = [_merge(found) if len(found) > 1 else found[0] for found in groups.values()]
    ordered = sorted(merged, key=lambda one: one.severity == "info")
    diagnostics_text.render(ordered, console, after=True, verbose=True)


def _merge(found: list[Diagnostic]) -> Diagnostic:
    addresses = [one.address for one in found if one.address]
    if not addresses:
        return found[0]
    more = f" and {len(addresses) - _MAX_NAMED} more" if len(addresses) > _MAX_NAMED else ""
    named = f"{len(addresses)} resources: {', '.join(addresses[:_MAX_NAMED])}{more}"
    return replace(found[0], address=None, detail=f"{found[0].detail}\n{named}", range=None)
