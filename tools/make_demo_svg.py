"""Runs the demo on a terminal of its own and draws what it printed: docs/images/demo.svg and demo.txt (`make demo-svg`).

The demo itself is examples/demo.py; that the pictures are of this release is checked by tests/docs.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS = 100
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
_CONTROL = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])|([\r\n])")


def record(command: list[str], columns: int = COLUMNS) -> str:
    """Everything that a command writes to a terminal of its own; raises CalledProcessError if it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 400, columns, 0, 0))
    hidden = ("JSPLAN_VAR_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | {"TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        data = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, data.decode(errors="replace"))
    return data.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the last writer has closed the terminal
        return b""


def screen(written: str) -> list[str]:
    """The lines that stay on a terminal, colours kept: spinners erase themselves by moving up and clearing lines."""
    rows, row, at = [""], 0, 0
    for control in _CONTROL.finditer(written):
        rows[row] += written[at : control.start()]
        at = control.end()
        argument, letter, end = control.groups()
        if end == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif letter == "m":
            rows[row] += control.group()
        elif letter == "A":
            row = max(0, row - int(argument or 1))
        elif letter == "K":
            rows[row] = ""
    rows[row] += written[at:]
    return rows


def plain(lines: list[str]) -> str:
    """The same without colours and without blanks at the ends, as a file would have it."""
    texts = [Text.from_ansi(line).plain.rstrip() for line in lines]
    return "\n".join(texts).strip("\n") + "\n"


def drawn(lines: list[str], columns: int = COLUMNS) -> str:
    """The lines as SVG."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor", legacy_windows=False)
        console.print(Text.from_ansi("\n".join(lines).strip("\n")))
        return console.export_svg(title="make demo", code_format=SVG, unique_id="demo")


def main() -> None:
    """Run the demo once and write both files."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    lines = screen(record([sys.executable, str(ROOT / "examples" / "demo.py")]))
    for name, content in (("demo.svg", drawn(lines)), ("demo.txt", plain(lines))):
        (IMAGES / name).write_text(content, encoding="utf-8")
        print(f"docs/images/{name}")


if __name__ == "__main__":
    main()
