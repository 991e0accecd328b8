from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from jsplan.cli.main import main
from tests.converting.conversion_cases import terraform_json

if TYPE_CHECKING:
    from pathlib import Path

STREAMS = '[{"name": "ORDERS", "subjects": ["ORDERS.*"]}, {"hello": 1}]'


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with one file of the nats CLI, in which the command is typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "streams.json").write_text(STREAMS, "utf-8")
    return tmp_path


def test_the_file_is_on_stdout_and_notes_on_stderr(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stdout has the file alone, so that it can be redirected; stderr has the notes."""
    assert 0 == main(["convert", "nats", "saved"])

    out, err = capsys.readouterr()
    assert "  - {name: ORDERS, subjects: [ORDERS.*]}" == out.splitlines()[-1].replace('"', "")
    assert "Warning: neither a stream nor a consumer: left out [JS180]" in err
    assert "at saved/streams.json:1:48" in err


def test_a_file_is_written_once_and_can_be_planned(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """-o writes a new file and suggests the next command; no file is overwritten."""
    (saved / "shop").mkdir()
    command = ["convert", "nats", "saved", "-o", "shop/jsplan.yaml", "--domain", "hub"]
    assert 0 == main(command)
    written = capsys.readouterr().out
    assert 1 == main(command)
    refused = capsys.readouterr().err
    assert 0 == main(["-C", "shop", "validate"])

    assert "Wrote shop/jsplan.yaml: 1 resource." in written
    assert "plan" in written
    assert "exists; nothing was written" in refused
    assert "1 resource in 1 domain" in capsys.readouterr().out
    assert "hub: {connection: main}" in (saved / "shop" / "jsplan.yaml").read_text("utf-8")


def test_the_suggested_command_works(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The suggested next command works for every name of the new file.

    A whole workspace under another name is renamed first, and a file that no include matches is named.
    """
    assert 0 == main(["convert", "nats", "saved", "-o", "nats.jsplan.yaml"])
    whole = capsys.readouterr().out
    (saved / "nats.jsplan.yaml").rename(saved / "jsplan.yaml")
    assert 0 == main(["validate"])
    text = (
        (saved / "jsplan.yaml")
        .read_text("utf-8")
        .partition("\nstreams:")[0]
        .partition("\ndefaults:")[0]
    )
    (saved / "jsplan.yaml").write_text(text, "utf-8")
    capsys.readouterr()
    assert 0 == main(["convert", "nats", "saved", "-o", "other.yaml"])
    unread = capsys.readouterr().out
    assert 0 == main(["convert", "nats", "saved", "-o", "read.jsplan.yaml"])

    assert (
        "Wrote nats.jsplan.yaml: 1 resource.\n\nNext: rename it to jsplan.yaml, since it is a whole workspace."
        in whole
    )
    assert "Next: name it under `include:` in jsplan.yaml" in unread
    assert capsys.readouterr().out.endswith("Next: jsplan plan\n")


@pytest.mark.parametrize(
    ("tool", "said"),
    [("terraform", "terraform show -json"), ("nats", "nats stream info NAME --json")],
)
def test_files_of_another_tool(
    saved: Path, tool: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of another tool is reported in one line, with what to give."""
    (saved / "nack.yaml").write_text("kind: Stream\n---\nkind: Stream\n", "utf-8")

    assert 1 == main(["convert", tool, "nack.yaml"])
    err = capsys.readouterr().err
    assert "nack.yaml is not JSON" in err
    assert said in err
    assert "JS101" not in err


def test_entries_without_their_bucket(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry needs a bucket that is converted too; each that has none, or no value, is named."""
    entries = [
        ["kv_bucket", {"name": "CONFIG"}],
        ["kv_entry", {"bucket": "OTHER", "key": "a", "value": "1"}],
        ["kv_entry", {"bucket": "CONFIG", "key": "a"}],
        ["kv_entry", {"bucket": "CONFIG", "key": "b", "value": "${x}"}],
        ["kv_entry", {"bucket": "CONFIG", "key": "c", "value": ""}],
    ]
    (saved / "tf.json").write_text(terraform_json(entries), "utf-8")

    assert 0 == main(["convert", "terraform", "tf.json"])
    out, err = capsys.readouterr()
    assert "bucket OTHER is not in this file: a is not carried over" in err
    assert "jetstream_kv_entry.r2 is not carried over: it needs `value`, and it has no value" in err
    assert 'entries: {b: "$${x}", c: ""}' in out


def test_an_empty_file_is_no_workspace(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty file counts as no workspace.

    The shell creates it for `> jsplan.yaml` before the command begins.
    """
    (saved / "jsplan.yaml").write_text("", "utf-8")

    assert 0 == main(["convert", "nats", "saved"])
    assert "jsplan: 1" in capsys.readouterr().out.splitlines()


def test_json_has_the_text_and_every_note(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has the text, the addresses, and each note with its place."""
    assert 0 == main(["convert", "nats", "saved", "--json"])

    out, err = capsys.readouterr()
    document = json.loads(out)
    assert ("convert", "nats", None, ["main/stream/ORDERS"]) == tuple(
        document[key] for key in ("kind", "tool", "file", "resources")
    )
    assert "name: ORDERS" in document["text"]
    assert [("JS180", 1)] == [
        (found["code"], found["range"]["line"]) for found in document["diagnostics"]
    ]
    assert "" == err


def test_equal_notes_are_one(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A default that differs for many resources is one note that names some of them."""
    streams = [{"name": f"S{number}", "maxAge": "1h"} for number in range(9)]
    made = [
        {"apiVersion": "jetstream.nats.io/v1", "kind": "Stream", "spec": one} for one in streams
    ]
    (saved / "all.json").write_text(json.dumps({"kind": "List", "items": made}), "utf-8")

    assert 0 == main(["convert", "nack", "all.json"])
    err = capsys.readouterr().err
    assert 1 == err.count("storage: memory is NACK's default")
    assert (
        "9 resources: main/stream/S0, main/stream/S1, main/stream/S2, main/stream/S3, main/stream/S4 and 4 more"
        in err
    )


def test_a_broken_file_exits_with_1_and_writes_nothing(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every broken file is named with its place; nothing is written."""
    (saved / "saved" / "broken.json").write_text('{"name": ', "utf-8")

    assert 1 == main(["convert", "nats", "saved", "-o", "new.yaml"])
    out, err = capsys.readouterr()
    assert "" == out
    assert "saved/broken.json:1:" in err
    assert not (saved / "new.yaml").exists()


def test_a_tool_that_is_not_known_is_wrong_usage(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown tool is wrong usage, and the closest name is suggested."""
    assert 64 == main(["convert", "terrform", "saved"])
    assert "terraform" in capsys.readouterr().err
