"""Parsing of YAML 1.2 and JSON with locations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jsplan.config import read
from jsplan.config.findings import Findings
from jsplan.config.node import Source, to_plain
from jsplan.diagnostics import Diagnostic


def parse(text: str | bytes, name: str = "x.yaml") -> tuple[Any, tuple[Diagnostic, ...]]:
    """Return the plain value and the findings."""
    findings = Findings()
    node = read.parse_document(
        Source(Path(name), name), text if isinstance(text, bytes) else text.encode(), findings
    )
    return (to_plain(node) if node else None), findings.sorted()


def test_a_scalar_has_the_value_of_the_core_schema() -> None:
    """Scalars have the values of the YAML 1.2 core schema: dates and `010` stay text."""
    for text, value in [
        ("NO", "NO"),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("y", "y"),
        ("010", "010"),
        ("12:30", "12:30"),
        ("1:30:00", "1:30:00"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("+", "+"),
        ("-", None),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("tRUE", "tRUE"),
        ("null", None),
        ("~", None),
        ("Null", None),
        ("nULL", "nULL"),
        ("", None),
        ("0", 0),
        ("-1", -1),
        ("+7", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("-0", 0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1.", 1.0),
        ("00", "00"),
        ("9223372036854775807", 2**63 - 1),
        ("18446744073709551615", 2**64 - 1),
        ("30d", "30d"),
        ("1h30m", "1h30m"),
        ("ORDERS.*", "ORDERS.*"),
        ("$JS.FC.>", "$JS.FC.>"),
        ("label:edge", "label:edge"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!int 12", 12),
        ('"\\u00e9"', "é"),
    ]:
        found, problems = parse(f"a: {text}") if text != "-" else ({"a": None}, ())
        assert found == {"a": value}, text
        assert type(found["a"]) is type(value), text
        assert problems == (), text


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551616",
        "-9223372036854775809",
        "9" * 5000,
        "0x" + "f" * 40,
        "1e999",
        ".inf",
        "-.INF",
        ".nan",
    ],
)
def test_a_number_beyond_64_bits_is_an_error(text: str) -> None:
    """Numbers beyond 64 bits, infinities and .nan are errors with a location."""
    _, (problem,) = parse(f"a: 1\nb: {text}")
    assert (
        problem.code,
        problem.range and problem.range.line,
        problem.range and problem.range.column,
    ) == ("JS104", 2, 4)


def test_anchors_aliases_and_merge_keys_work() -> None:
    """An alias repeats its anchor, and `<<` adds the keys that are missing."""
    found, problems = parse(
        "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: *a, x: 9}\nd:\n  <<: [*a, *b]\ne: *a\n&k k: 1\nf: {*k : 2}\n"
    )
    assert problems == ()
    assert found["c"] == {"x": 9, "y": 2}
    assert found["d"] == {"x": 1, "y": 2, "z": 4}
    assert found["e"] == found["a"]
    assert found["f"] == {"k": 2}


def test_a_duplicate_key_names_both_locations() -> None:
    """A duplicate key is an error with both locations."""
    _, problems = parse("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert [(p.code, str(p.range)) for p in problems] == [
        ("JS103", "x.yaml:2:11"),
        ("JS103", "x.yaml:3:1"),
    ]
    assert "x.yaml:1:1" in problems[1].detail
    assert "x.yaml:2:5" in problems[0].detail


def test_broken_yaml_has_location_and_advice() -> None:
    """Each kind of broken YAML is one finding with location and advice."""
    for text, code, place, words in [
        ("a:\n\tb: 1", "JS101", "2:1", "tabs"),
        ("a: [*.x]", "JS101", "1:6", "quotes"),
        ("a: [>]", "JS101", "1:5", "quotes"),
        ("a: *gone", "JS101", "1:4", '"*name"'),
        ("&a [*a]", "JS101", "1:5", '"*name"'),
        ("a: !store-099", "JS101", "1:4", '"!name"'),
        ("a: !!binary aGk=", "JS101", "1:4", "quotes"),
        ("a: !!int x", "JS101", "1:4", "quotes"),
        ("a: {x: s.${domain}.>}", "JS101", "1:11", '"${var.x}"'),
        ("a: b: c", "JS101", "1:5", "quotes"),
        ("- x\nb", "JS101", "2:1", "indentation"),
        ("a:\n  - b: 1\n   c: 2", "JS101", "3:4", "indentation"),
        ("a: [1", "JS101", "1:4", "flow sequence"),
        ("a: {b: 1, c: 2", "JS101", "1:4", "closing bracket"),
        ("a: 1\n---\nb: 2", "JS101", "2:1", "file of its own"),
        ("? [a]\n: b", "JS101", "1:3", "key: value"),
        ("<<: 3\na: 1", "JS101", "1:5", "with the anchor"),
        ("a: \x00", "JS101", "1:4", "escape"),
        ("a: é\nb: \x07", "JS101", "2:4", "escape"),
        ("[" * 100, "JS101", "1:66", "brackets"),
    ]:
        _, (problem,) = parse(text)
        assert (problem.code, str(problem.range)) == (code, f"x.yaml:{place}"), text
        assert words in problem.detail, text


def test_aliases_cannot_make_a_small_file_huge() -> None:
    """Nested aliases that expand to billions of values are refused quickly."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    _, (problem,) = parse("\n".join(lines))
    assert "aliases" in problem.summary


def test_text_that_is_not_utf8_has_a_location() -> None:
    """The first byte that is not UTF-8 is reported with line and column."""
    _, (problem,) = parse(b"a: 1\nb: \xff\xfe")
    assert (problem.code, str(problem.range)) == ("JS100", "x.yaml:2:4")


def test_a_byte_order_mark_is_skipped() -> None:
    """A UTF-8 byte order mark is skipped."""
    assert parse("\ufeffa: 1") == ({"a": 1}, ())


def test_json_is_read_as_json() -> None:
    """JSON with tabs, escaped slashes and surrogate pairs is read as JSON."""
    text = '{\n\t"a": "\\ud83d\\ude00 \\/",\n\t"b": [1, 2.5, true, null]\n}'
    assert parse(text, "x.json") == ({"a": "😀 /", "b": [1, 2.5, True, None]}, ())


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "~"])
def test_an_empty_document_is_none(text: str) -> None:
    """An empty document is None without a finding."""
    assert parse(text) == (None, ())


def test_locations_count_characters_from_one() -> None:
    """Columns count characters, not bytes."""
    findings = Findings()
    node = read.parse_document(Source(Path("x"), "x"), "é: {ü: 1, ö: [a, b]}".encode(), findings)
    assert node is not None
    inner = node.value["é"]
    assert inner.key_place("ö")[1:] == (0, 10)
    assert inner.value["ö"].value[1].place[1:] == (0, 17)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [1, {c: NO}]\n",
        "a: &x {b: 1}\nc: {<<: *x}\nd: *x\n",
        "a: [1",
        "a: \x00",
        "a: *gone",
        "[",
    ],
)
def test_without_libyaml_the_result_is_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pure Python parser has the same values, and findings with the same codes."""
    fast = parse(text)
    monkeypatch.setattr(read, "Parser", yaml.Loader)
    slow = parse(text)
    assert slow[0] == fast[0]
    assert [p.code for p in slow[1]] == [p.code for p in fast[1]]


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    """Reading a folder is a finding."""
    findings = Findings()
    assert read.read_bytes(Source(tmp_path, "streams"), findings) is None
    assert findings.sorted()[0].code == "JS100"
    assert "folder" in findings.sorted()[0].detail
