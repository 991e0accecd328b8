"""`make demo-svg`: run the demo on a terminal and draw its pictures in docs/images/.

The demo itself is examples/demo.py; that the pictures are of this release is checked by tests/docs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tools.terminal import COLUMNS, Recording, record

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
#: The commands of the picture at the top of the README.
SHORT = ("$ jsplan apply first.plan", "$ jsplan plan --detailed-exitcode", "$ jsplan drift")
#: Rich's own, without its fonts from the web: the page must be complete without a network.
SVG = """<svg class="jsplan-demo" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>What make demo prints</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def run_demo() -> Recording:
    """Run examples/demo.py on a terminal; raises RuntimeError with what it printed if it fails."""
    done = record(
        [sys.executable, str(ROOT / "examples" / "demo.py")], folder=ROOT, environment=os.environ
    )
    if done.exit_code:
        raise RuntimeError(done.plain)
    return done


def render_svg(lines: list[str], columns: int = COLUMNS) -> str:
    """Draw the lines as SVG."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(
            record=True,
            width=columns,
            file=nowhere,
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
        )
        console.print(Text.from_ansi("\n".join(lines).strip("\n")))
        return console.export_svg(title="make demo", code_format=SVG, unique_id="demo")


def select_commands(lines: list[str]) -> list[str]:
    """Return the lines of the commands of the short picture, in order."""
    found, wanted = list[str](), False
    for line in lines:
        plain = Text.from_ansi(line).plain.strip()
        if plain.startswith("$ "):
            wanted = plain in SHORT
        elif plain[:2].rstrip(".").isdigit():  # the title of the next part
            wanted = False
        found += [line] if wanted else []
    return found


def main() -> None:
    """Run the demo once and write all files."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    done = run_demo()
    for name, content in (
        ("demo.svg", render_svg(done.lines)),
        ("short.svg", render_svg(select_commands(done.lines))),
        ("demo.txt", done.plain),
    ):
        (IMAGES / name).write_text(content, encoding="utf-8")
        print(f"docs/images/{name}")


if __name__ == "__main__":
    main()
