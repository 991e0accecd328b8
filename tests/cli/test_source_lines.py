"""Findings show the line that they are about, with a caret, and never a line with a secret."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console

from jsplan.config import LoadOptions, load
from jsplan.errors import ConfigError
from jsplan.render import diagnostics_text

_HEAD = "jsplan: 1\nworkspace: w\ndomains: {hub: {}}\n"


def _show(folder: Path, text: str, files: dict[str, str] | None = None) -> str:
    """Return the findings of a workspace as text."""
    for name, content in ({"jsplan.yaml": _HEAD + text} | (files or {})).items():
        (folder / name).write_text(content, encoding="utf-8")
    try:
        found = load(LoadOptions(folder)).diagnostics
    except ConfigError as error:
        found = error.diagnostics
    console = Console(file=StringIO(), width=1_000_000)
    diagnostics_text.render(found, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_finding_shows_its_line_with_a_caret(tmp_path: Path) -> None:
    """The line stands below its place, without indentation and comment."""
    text = _show(tmp_path, "streams:\n  - name: A\n    max_age: 30 days # a month\n")
    assert "  at jsplan.yaml:6:14\n    max_age: 30 days\n             ^\n" in text


def test_a_long_line_is_cut_around_its_column(tmp_path: Path) -> None:
    """Each line fits 80 columns, with the caret below the wrong value after wide letters too."""
    for filler in ("x" * 100, "語" * 60, "a\\tb" * 30):
        text = _show(
            tmp_path,
            f'streams: [{{name: A, description: "{filler}", max_age: wrong, template: "{filler}"}}]',
        )
        lines = text.splitlines()
        carets = [number for number, line in enumerate(lines) if line.strip() == "^"]
        assert len(carets) == 2, text
        for number, words in zip(carets, ("wrong", "template"), strict=True):
            shown, column = lines[number - 1], lines[number].index("^")
            assert cell_len(shown) <= 80
            assert cell_len(shown[: shown.index(words)]) == column, text


def test_a_source_line_is_escaped(tmp_path: Path) -> None:
    """Characters that steer a terminal or a runner are escapes, or the line is not shown."""
    text = _show(tmp_path, 'streams: [{name: A, "\u202e": 1, description: "\u0085"}]')
    assert "\u202e" not in text
    assert "\\u202e" in text.split("at jsplan.yaml")[1]
    assert "##[" not in _show(tmp_path, "streams:\n  - {name: A, '##[group]x': 1}\n")


def test_a_line_that_may_hold_a_secret_is_not_shown(tmp_path: Path) -> None:
    """Connections, sinks, entries, payloads, misspelt secrets and foreign files show no line."""
    (tmp_path / "foreign.yaml").write_text("top: hunter2\n")
    (tmp_path / "c.json").write_text(
        '{"name": "x", "max_age": "hunter2\\n2",\n"sealde": "hunter2"}'
    )
    for wrong in (
        "connections: {n: {pasword: hunter2}}",
        "connections:\n  n: {context: c,\n    url: 'nats://hunter2@h'}",
        "connections: hunter2",
        "drift: {sinks: [{webhook: {url: hunter2, header: x}}]}",
        "drift: {sinks: [{webhook: {url: 'https://h', headers: {A: {b: hunter2}}}}]}",
        "environments: {dev: {connections: {n: {tokn: hunter2}}}}",
        "vars: {a: '${hunter2}'}",
        "kv: [{bucket: B, histoy: 1, entries: {a: hunter2}}]",
        "kv: [{bucket: B, entris: {a: hunter2}}]",
        "kv: [{bucket: B, entries: {a b: hunter2}}]",
        "kv: [{bucket: B, entries: {a: 'x\n  hunter2'}, histoy: 1}]",
        "kv:\n  - {bucket: B, entries: {a: \"x\n  hunter2\"}}\n  - {bucket: C, entries: {\n 'a b': hunter2}}",
        "streams: [{name: A, schedules: {a: {payload: hunter2, evry: 1h}}}]",
        "streams: [{name: A, pasword: hunter2, max_age: wrong}]",
        "streams: [{name: A, API-Token: hunter2}]",
        "streams: hunter2",
        "streams: [{name: A, consumers: hunter2}]",
        "streams: [{name: A, description: 'nats://u:hunter2@h', max_age: wrong}]",
        "streams: [{name: A, config_file: c.json}]",
        "x-common: &a\n  max_age: hunter2\nstreams: [{name: A, <<: *a}]",
        "backfills: [{name: b, from: {parquet: 'ftp://hunter2'}, too: 1}]",
        "include: [foreign.yaml]",
    ):
        lines = _show(tmp_path, wrong).splitlines()
        carets = [number for number, line in enumerate(lines) if line.strip() == "^"]
        assert lines, wrong
        assert not any("hunter2" in lines[number - 1] for number in carets), (wrong, lines)
