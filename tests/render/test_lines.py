from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from jsplan.render.lines import Lines, wrap

LONG = "hub/consumer/EVENTS_FROM_ALL_STORES_IN_GERMANY_SINCE_2020/WORKERS_FOR_RECEIVED_ORDERS"


def plain(text: str, width: int) -> list[str]:
    return [row.plain for row in wrap(Text(text), width)]


def test_a_line_is_broken_between_words() -> None:
    """A long line is broken at a space, and its rest is indented by two more columns."""
    assert plain("  a sender repeats it twice", 16) == ["  a sender", "    repeats it", "    twice"]


@pytest.mark.parametrize(
    ("text", "width"), [("", 10), ("exactly ten", 11), ("  ", 10), ("x" * 30, 10)]
)
def test_a_line_that_fits_or_has_no_place_for_a_break_stays(text: str, width: int) -> None:
    """A line that fits stays, and so does a single word that is too long."""
    assert plain(text, width) == [text]


def test_a_long_address_is_broken_after_a_slash() -> None:
    """An address that is wider than the terminal is broken where its name begins."""
    assert plain(f"  + {LONG} will be created", 80) == [
        "  + hub/consumer/EVENTS_FROM_ALL_STORES_IN_GERMANY_SINCE_2020/",
        "    WORKERS_FOR_RECEIVED_ORDERS will be created",
    ]


def test_wide_characters_count_twice() -> None:
    """Columns are counted, not characters."""
    assert plain("注文 注文 注文", 9) == ["注文 注文", "  注文"]


def print_lines(lines: Lines, *, terminal: bool) -> str:
    stream = StringIO()
    lines.print(Console(file=stream, width=40, force_terminal=terminal, color_system=None))
    return stream.getvalue()


def test_only_a_terminal_wraps() -> None:
    """In a file a line is one line, however long."""
    lines = Lines()
    lines.add(0, "a word " * 20)

    assert print_lines(lines, terminal=False).count("\n") == 1
    assert print_lines(lines, terminal=True).count("\n") > 3


def test_a_command_to_copy_is_never_broken() -> None:
    """A command stays one line in a terminal, too."""
    lines = Lines()
    lines.add_command(4, f"--allow-hazard DELETES_CONSUMER:{LONG}")

    assert print_lines(lines, terminal=True).count("\n") == 1
