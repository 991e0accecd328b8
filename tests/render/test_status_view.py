from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import orjson
import pytest
from rich.console import Console

from jsplan.documents.base import dumps
from jsplan.render import status_text
from jsplan.render.lines import Lines, add_table
from jsplan.render.status_frames import Frames
from tests.render import status_samples as samples
from tests.render.texts import text_of
from tests.support.schemas import validator

if TYPE_CHECKING:
    from jsplan.documents.status import Status
    from tests.render.texts import Compare


def test_two_domains(golden: Compare) -> None:
    """Limits, offline domains, causes and unmanaged consumers are all on one screen."""
    golden("status", lambda console: status_text.render(samples.two_domains(), console))


def test_a_fleet_is_a_screen(golden: Compare) -> None:
    """Two hundred stores that are alike are one line in each table; the others are written out."""
    text = golden("status_fleet", lambda console: status_text.render(samples.fleet(200), console))

    assert len(text.splitlines()) < 40
    assert (
        max(
            len(line)
            for line in text.splitlines()
            if not line.lstrip().startswith(("!", "?", "offline"))
        )
        <= 100
    )


def test_verbose_writes_every_domain() -> None:
    """With -v each domain has its own lines."""
    text = text_of(lambda console: status_text.render(samples.fleet(30), console, verbose=True))

    assert text.count("    TILL ") == 27
    assert text.count(" store-0") + text.count("  store-0") >= 30


@pytest.mark.parametrize(
    "found", [samples.two_domains(), samples.fleet(200)], ids=["country", "fleet"]
)
def test_the_document_is_valid(found: Status) -> None:
    """The document of `status --json` is valid, and has every field of the schema."""
    checks, document = validator("status"), orjson.loads(dumps(found.to_json()))

    checks.validate(document)
    assert set(document) == set(checks.schema["properties"])


def terminal(width: int, height: int) -> tuple[Console, StringIO]:
    """Return a terminal of that size, and its output."""
    stream = StringIO()
    return Console(
        file=stream, width=width, height=height, force_terminal=True, color_system=None
    ), stream


def test_a_frame_fits_the_terminal() -> None:
    """A frame fits the height of the terminal: it counts what it leaves out."""
    console, stream = terminal(100, 20)
    Frames(console).show(samples.fleet(200))

    lines = stream.getvalue().split("\n")
    assert len(lines) <= 20
    assert any("more; --target shows less" in line for line in lines)
    assert lines[-1].startswith("Status: 201 domains (3 offline)")


def test_frames_for_programs_are_lines_of_json() -> None:
    """With --json each status is one line, a whole document."""
    stream = StringIO()
    frames = Frames(Console(file=stream, force_terminal=False), json=True)
    frames.show(samples.two_domains())
    frames.show(samples.two_domains())

    assert [orjson.loads(line)["kind"] for line in stream.getvalue().splitlines()] == [
        "status",
        "status",
    ]


def test_names_are_whole_at_80_columns() -> None:
    """At 80 columns no name is cut, so no two rows are alike, and no line is too long."""
    long = "EVENTS_FROM_ALL_STORES_IN_GERMANY_SINCE_2020"
    names = [f"WORKERS_FOR_{kind}_ORDERS_{where}" for kind in ("NEW", "OLD") for where in "AB"]
    found = samples.status(
        streams=[samples.stream(f"hub/stream/{long}", 10)],
        consumers=[samples.consumer(f"hub/consumer/{long}/{name}") for name in names],
        replication=[
            samples.flow(f"leaf/stream/{long}", f"hub/stream/{long}_{n}", None) for n in "12"
        ],
    )

    rows = status_text.render_text(found, 80).plain().splitlines()

    assert all(sum(name in row for row in rows) == 1 for name in names)
    assert sum(f"hub/stream/{long}_1" in row for row in rows) == 1
    assert max(map(len, rows)) <= 80


def test_consumers_are_below_their_stream() -> None:
    """The stream of consumers is named once, above them."""
    rows = status_text.render_text(samples.two_domains(), None).plain().splitlines()
    at = rows.index("  hub/stream/ORDERS")

    assert [row.split()[0] for row in rows[at + 1 : at + 3]] == ["NEW", "tail"]


def test_nothing_is_cut_where_there_is_no_terminal() -> None:
    """In a file a name is whole, however long."""
    lines, name = Lines(), "x" * 500
    add_table(lines, ("name", "count"), [[name, "1"]])

    assert name in lines.plain()
