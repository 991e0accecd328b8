"""Names and texts with invisible characters, and with what a log takes for commands."""

from __future__ import annotations

import json
import re
import unicodedata
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from jsplan.cli.main import main
from jsplan.render.escape import quote_json, safe, safe_html
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

#: What is no letter, sign or mark that a font draws: controls, separators, formats, halves of pairs, no characters.
HIDDEN = [
    chr(code)
    for code in (*range(0x20000), *range(0xE0000, 0xE1000), *(plane | 0xFFFF for plane in range(0x20000, 0x110000, 0x10000)))
    if (category := unicodedata.category(chr(code))) in ("Cc", "Zl", "Zp", "Cs")
    or (category == "Zs" and code != 0x20)
    or code & 0xFFFE == 0xFFFE
    or (category == "Cf" and "NUMBER" not in unicodedata.name(chr(code), "") and code not in (0x6DD, 0x70F, 0x8E2, 0x110BD, 0x110CD)
        and not 0x600 <= code <= 0x605 and not 0x890 <= code <= 0x891 and not 0x13430 <= code <= 0x1343F)
    or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
]  # fmt: skip
#: As much of it as a description holds.
HOSTILE = "".join(c for c in HIDDEN if c not in "\x00\ud800" and unicodedata.category(c) != "Cs")[
    -900:
]


def test_no_hidden_character_is_left() -> None:
    """Each invisible character is shown as an escape, and visible ones are left alone."""
    shown = [safe(f"A{character}B") for character in HIDDEN]
    assert all(
        re.fullmatch(r"A\\(?:[ntr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})B", text)
        for text in shown
    )
    assert len(set(shown)) == len(HIDDEN)
    for text in ("ORDERS", "größe 漢字 😀 ✓ → …", "a: b::c", "#[x] ## [y]", "x ::1"):
        assert safe(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "::error::x",
        "  ::add-mask::x",
        "::set-output name=a::b",
        "x ##[command]y",
        "##[group]",
        "\t::x",
    ],
)
def test_commands_of_a_log_are_shown_and_not_executed(text: str) -> None:
    """A line that a log takes for a command is shown and not executed.

    A runner of GitHub looks at the beginning of lines and for `##[` anywhere; one of GitLab wants carriage returns and escapes.
    """
    for view in (safe, safe_html, quote_json):
        assert "##[" not in view(text)
        assert not view(text).lstrip().startswith("::")
    assert safe("section_start:1:a\r\x1b[0Kb") == "section_start:1:a\\r\\x1b[0Kb"


def test_no_view_shows_hidden_characters(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No view shows a hidden character of a name or text, and XML stays well-formed."""
    names = [
        "ORD\u200bERS",
        "ORD\ufeffERS",
        "ORD\U000e0041ERS",
        "ORD\ufffeERS",
        "ORD\uffffERS",
        "ORD\u2060ERS",
        "##[command]x",
        "::error::",
    ]
    stream = {
        "name": "ORDERS",
        "subjects": ["orders.>"],
        "description": f"::error::x ##[group]{HOSTILE[:2000]}",
        "metadata": {"k": HOSTILE[:2000]},
    }
    main_file = {
        "jsplan": 1,
        "workspace": "shop",
        "connections": {"m": {"url": server.url}},
        "domains": {"m": {"js_domain": None}},
    }
    streams = [stream, {"name": names[0], "subjects": ["b"]}, {"name": names[3], "subjects": ["c"]}]
    (tmp_path / "jsplan.yaml").write_text(json.dumps(main_file), encoding="utf-8")
    (tmp_path / "s.jsplan.json").write_text(
        json.dumps({"streams": streams}), encoding="utf-8"
    )  # JSON has pairs of surrogates
    with Raw(server.url) as raw:
        for number, name in enumerate(names[1:3] + names[4:]):
            raw.create(name, subjects=[f"s{number}"], description=HOSTILE)

    def shown(*words: str) -> str:
        capsys.readouterr()
        code = main(["-C", str(tmp_path), *words])
        printed = capsys.readouterr()
        assert code in (0, 2), printed.err
        assert "bug in jsplan" not in printed.err
        assert set(printed.out + printed.err).isdisjoint({*HIDDEN} - {"\n"}), words
        for line in (printed.out + printed.err).splitlines():
            assert "##[" not in line
            assert not line.lstrip().startswith("::")
        return printed.out

    for words in (
        ["validate"],
        ["plan"],
        ["plan", "--format", "markdown"],
        ["plan", "-o", str(tmp_path / "p")],
    ):
        shown(*words)
    shown("show", str(tmp_path / "p"), "--format", "html")
    ET.fromstring(shown("graph", "--format", "svg"))  # noqa: S314 - our own text
    for words in (
        ["graph", "--format", "mermaid"],
        ["graph", "--format", "dot"],
        ["lint"],
        ["apply", "-y"],
        ["status"],
        ["state", "list"],
    ):
        shown(*words)
    with Raw(server.url) as raw:
        config = raw.config("ORDERS")
        raw.api_ok(
            "$JS.API.STREAM.UPDATE.ORDERS", config | {"description": f"\ufffe{HOSTILE[::-1]}"}
        )
        raw.api_ok(f"$JS.API.STREAM.DELETE.{names[3]}")
    ET.fromstring(shown("drift", "--format", "junit"))  # noqa: S314 - our own text
    for words in (
        ["drift"],
        ["drift", "--format", "html"],
        ["drift", "--format", "markdown"],
        ["history"],
        ["history", "1"],
    ):
        shown(*words)
    printed = main(["-C", str(tmp_path), "drift", "--json"]), capsys.readouterr().out
    assert "##[" not in printed[1]
    assert "##[command]x" in json.dumps(json.loads(printed[1]))
