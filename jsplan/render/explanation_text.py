"""The text of `jsplan explain`: one code in words, or a list of all codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.render.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from jsplan.documents.lint import Explanation

_TITLES = {
    "files": "Found in the files",
    "lint": "Advice of lint",
    "servers and state": "Found against servers and state",
    "hazards": "Hazards of a plan",
    "exit codes": "Exit codes",
}


def render(found: Explanation, console: Console) -> None:
    """Render meaning, cause and fix, and how to ignore a lint rule or allow a hazard."""
    lines = Lines()
    level = ((f"  ({found.level})", "dim"),) if found.level else ()
    name = f"Exit code {found.code}" if found.group == "exit codes" else found.code
    lines.add(0, (name, "strong"), f"  {found.title}", *level)
    lines.blank()
    lines.add(0, ("Why: ", "strong"), found.why)
    lines.blank()
    lines.add(0, ("What to do: ", "strong"), found.fix)
    if found.group == "lint":
        _render_ignore_help(found.code, lines)
    elif found.level == "blocks":
        lines.blank()
        allowing = f"--allow-hazard {found.code}   or   --allow-hazard {found.code}:ADDRESS"
        lines.add(0, f"To allow it:   {allowing}")
    lines.print(console)


def _render_ignore_help(code: str, lines: Lines) -> None:
    lines.blank()
    ignore = f'lint: {{ignore: [{{code: {code}, reason: "…"}}]}}'
    lines.add(0, f"To ignore it for a resource:   {ignore}   beside the resource")
    level = f"lint: {{{code}: ignore}}   or warning, or error   in jsplan.yaml"
    lines.add(0, f"To set its severity:           {level}")


def overview(found: Iterable[Explanation], console: Console) -> None:
    """Render all codes, one line each, under the title of their group."""
    lines = Lines()
    group = None
    for one in found:
        if one.group != group:
            if group is not None:
                lines.blank()
            group = one.group
            lines.add(0, (_TITLES[group], "strong"))
        level = f"  ({one.level})" if one.level else ""
        lines.add(2, (f"{one.code:<6}", "strong"), f"  {one.title}", (level, "dim"))
    lines.print(console)
