"""`jsplan lint` as a command: its forms, its exit codes, and what it takes from the servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jsplan.cli.main import main
from jsplan.lint.rules import RULES
from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.lint.support import HEAD
from tests.support.raw import NoResponders, Raw
from tests.support.schemas import validator
from tests.support.workspaces import hub_leaf_space

Capture = pytest.CaptureFixture[str]
SCHEMA = json.loads((Path(__file__).parent / "sarif-part.json").read_text("utf-8"))
TWICE: list[dict[str, Any]] = [
    {"name": "A", "subjects": ["a"], "max_age": "1d"},
    {
        "name": "A",
        "domain": "leaf",
        "subjects": ["a"],
        "lint": {"ignore": [{"code": "JS220", "reason": "a museum: all of it"}]},
    },
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a workspace with a warning, a note, and a finding that is ignored."""
    write(tmp_path, streams=[*TWICE, {"name": "B", "subjects": ["b"]}])
    return tmp_path


def write(folder: Path, **sections: Any) -> None:
    (folder / "jsplan.yaml").write_text(
        yaml.safe_dump(HEAD | sections, sort_keys=False), encoding="utf-8"
    )


def test_findings_are_reported_with_their_place_and_what_to_do(
    folder: Path, capsys: Capture
) -> None:
    """The text has one paragraph for each finding, the worst first, and their number.

    Findings are no failure.
    """
    assert main(["-C", str(folder), "lint"]) == 0
    out = capsys.readouterr().out

    assert out.index('Warning: hub/stream/A: "a": also stored by leaf/stream/A') < out.index(
        "Note: hub/stream/B"
    )
    assert "at jsplan.yaml:" in out
    assert "Lint: 1 warning, 1 note, 1 ignored." in out
    assert "jsplan lint --explain JS201" in out
    assert "a museum" not in out


def test_everything_is_shown_with_v(folder: Path, capsys: Capture) -> None:
    """-v also lists what is ignored, with the reason."""
    assert main(["-C", str(folder), "lint", "-v"]) == 0

    assert "reason: a museum: all of it" in capsys.readouterr().out


def test_no_findings_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    """A workspace without findings has one line."""
    write(tmp_path, streams=[{"name": "A", "subjects": ["a"], "max_age": "1d"}])
    assert main(["-C", str(tmp_path), "lint"]) == 0

    assert (
        capsys.readouterr().out == f"Lint: nothing found by {len(RULES) + 1} rules in 1 resource.\n"
    )


@pytest.mark.parametrize(
    ("fail_on", "code"), [("error", 0), ("warning", 3), ("note", 3), ("never", 0)]
)
def test_fail_on_chooses_the_severity(
    folder: Path, fail_on: str, code: int, capsys: Capture
) -> None:
    """--fail-on exits with 3 on findings of this severity or higher."""
    assert main(["-C", str(folder), "lint", "--fail-on", fail_on]) == code
    assert "Lint: 1 warning" in capsys.readouterr().out


def test_an_error_is_refused(folder: Path, capsys: Capture) -> None:
    """A finding that the files make an error exits with 3, and says so."""
    write(folder, streams=TWICE, lint={"JS201": "error"})

    assert main(["-C", str(folder), "lint"]) == 3
    assert "Error: hub/stream/A" in capsys.readouterr().out


def test_json_has_all_of_it(folder: Path, capsys: Capture) -> None:
    """The document has the findings, the ignored ones with their reason, and the numbers."""
    assert main(["-C", str(folder), "lint", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    validator("lint").validate(document)
    assert set(document) == set(validator("lint").schema["properties"])
    assert document["summary"] == {"errors": 0, "warnings": 1, "notes": 1, "ignored": 1}
    assert [(f["code"], f["severity"], f["address"]) for f in document["findings"]] == [
        ("JS201", "warning", "hub/stream/A"),
        ("JS220", "info", "hub/stream/B"),
    ]
    assert [(f["code"], f["reason"]) for f in document["ignored"]] == [
        ("JS220", "a museum: all of it")
    ]
    assert document["findings"][0]["range"]["file"] == "jsplan.yaml"


def test_sarif_is_valid(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """SARIF fits its schema; each result has its rule, its place and why it is suppressed."""
    monkeypatch.chdir(folder.parent)
    assert main(["-C", str(folder), "lint", "--format", "sarif"]) == 0
    document = json.loads(capsys.readouterr().out)

    jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(document)
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert {rule.code for rule in RULES} <= {rule["id"] for rule in rules}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]
        assert (
            location["physicalLocation"]["artifactLocation"]["uri"] == f"{folder.name}/jsplan.yaml"
        )
    suppressed = [
        (r["ruleId"], r["suppressions"][0]["justification"])
        for r in run["results"]
        if "suppressions" in r
    ]
    assert suppressed == [("JS220", "a museum: all of it")]


def test_a_folder_whose_name_is_not_utf8(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder whose name is not UTF-8 is escaped in the URI of a result."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write(folder, streams=TWICE)
    monkeypatch.chdir(tmp_path)

    assert main(["-C", str(folder), "lint", "--format", "sarif"]) == 0
    assert '"uri": "caf%E9/jsplan.yaml"' in capsys.readouterr().out


def test_a_fingerprint_follows_the_finding(folder: Path, capsys: Capture) -> None:
    """A finding keeps its fingerprint when lines are added above it."""

    def fingerprints() -> dict[str, tuple[str, int]]:
        assert main(["-C", str(folder), "lint", "--format", "sarif"]) == 0
        results = json.loads(capsys.readouterr().out)["runs"][0]["results"]
        places = [
            (
                r["partialFingerprints"]["jsplan/v1"],
                r["locations"][0]["physicalLocation"]["region"]["startLine"],
            )
            for r in results
        ]
        return {r["ruleId"]: place for r, place in zip(results, places, strict=True)}

    before = fingerprints()
    path = folder / "jsplan.yaml"
    path.write_text("# one line more\n" + path.read_text())
    after = fingerprints()

    assert {code: name for code, (name, _) in before.items()} == {
        code: name for code, (name, _) in after.items()
    }
    assert all(after[code][1] == line + 1 for code, (_, line) in before.items())


def test_wrong_files_are_findings_too(folder: Path, capsys: Capture) -> None:
    """An invalid file is a SARIF result and an annotation at its line, and exits with 1."""
    write(folder, streams=[{"name": "A", "max_ages": "1d"}])
    assert main(["-C", str(folder), "lint", "--format", "sarif"]) == 1
    document = json.loads(capsys.readouterr().out)

    jsonschema.Draft7Validator(SCHEMA).validate(document)
    assert [(r["ruleId"], r["level"]) for r in document["runs"][0]["results"]] == [
        ("JS105", "error")
    ]

    assert main(["-C", str(folder), "lint", "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=")


def test_annotations_are_one_line_each(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finding is one annotation of GitHub, with special characters escaped."""
    monkeypatch.chdir(folder)
    write(
        folder,
        streams=[
            {
                "name": "A",
                "subjects": ["a%"],
                "lint": {"ignore": [{"code": "JS230", "reason": "x"}]},
            }
        ],
    )
    assert main(["lint", "--format", "github"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 2
    assert lines[0].startswith("::warning file=jsplan.yaml,line=")
    assert ",title=JS200::hub/stream/A: lint.ignore" in lines[0]
    assert lines[1].startswith("::notice file=")
    assert "%25" not in lines[0] + lines[1]


def test_a_code_is_explained(capsys: Capture) -> None:
    """--explain says what a code means, why, what to do, and how to ignore it."""
    assert main(["lint", "--explain", "js201"]) == 0
    out = capsys.readouterr().out
    for word in (
        "JS201",
        "Streams of two connected domains",
        "leafnodes",
        "What to do:",
        "lint: {ignore: [{code: JS201",
        "lint: {JS201: ignore}",
    ):
        assert word in out

    assert main(["lint", "--explain", "JS201", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["code"], document["level"]) == (
        "explanation",
        "JS201",
        "warning",
    )


def test_all_rules_are_listed(capsys: Capture) -> None:
    """`--explain all` has a line for every rule."""
    assert main(["lint", "--explain", "all"]) == 0

    assert len(capsys.readouterr().out.splitlines()) == len(RULES) + 1


def test_an_unknown_code_is_wrong_usage(capsys: Capture) -> None:
    """A code that is no rule exits with 64 and names the closest ones."""
    assert main(["lint", "--explain", "JS2011"]) == 64

    assert 'there is no lint rule "JS2011". The closest are JS2' in capsys.readouterr().err


def test_servers_are_read_when_asked_for(
    clean_hub_leaf: Sandbox, tmp_path: Path, capsys: Capture
) -> None:
    """With --live a stream in no file is found to store the same subject.

    A source that changes is found to start again.
    """
    hub = clean_hub_leaf["hub"]
    source = {"name": "A", "external": {"api": "$JS.leaf.API"}}
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("THEIRS", "leaf", subjects=["a.>"])
        raw.create("ALL", "hub", sources=[source | {"filter_subject": "a.x"}])
        before = [stream["config"] for stream in raw.api_ok("$JS.hub.API.STREAM.LIST")["streams"]]
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[
            {"name": "A", "domain": "hub", "subjects": ["a.new"], "max_age": "1d"},
            {
                "name": "ALL",
                "domain": "hub",
                "max_age": "1d",
                "sources": [source | {"filter_subject": "a.y"}],
            },
        ]
    )

    assert main(["-C", str(space.folder), "lint", "--json"]) == 0
    assert {"JS201", "JS208"}.isdisjoint(
        f["code"] for f in json.loads(capsys.readouterr().out)["findings"]
    )
    assert main(["-C", str(space.folder), "lint", "--live", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert {(f["code"], f["address"]) for f in document["findings"]} >= {
        ("JS201", "hub/stream/A"),
        ("JS208", "hub/stream/ALL"),
    }
    assert document["live"] is True
    with Raw(hub.url, hub.user, hub.password) as raw:
        assert [
            stream["config"] for stream in raw.api_ok("$JS.hub.API.STREAM.LIST")["streams"]
        ] == before


@pytest.mark.timeout(180)
def test_a_cluster_is_seen(tmp_path: Path, capsys: Capture) -> None:
    """With --live a single replica is a finding in a cluster that has no stream yet."""
    with Sandbox.cluster(binary=PROGRAM) as cluster:
        server = cluster["n1"]
        connections = {"acc": {"url": server.url, "user": server.user, "password": server.password}}
        streams = [{"name": "A", "subjects": ["a"], "max_age": "1d"}]
        write(
            tmp_path,
            connections=connections,
            domains={"hub": {"connection": "acc", "js_domain": None}},
            streams=streams,
        )
        found = {}
        for words in ([], ["--live"]):
            assert main(["-C", str(tmp_path), "lint", "--json", *words]) == 0
            found["".join(words)] = [
                f["code"] for f in json.loads(capsys.readouterr().out)["findings"]
            ]

    assert found == {"": [], "--live": ["JS222"]}


def test_an_offline_domain_is_reported(
    clean_hub_leaf: Sandbox, tmp_path: Path, capsys: Capture
) -> None:
    """With --live an offline domain is reported, and linted from the files alone."""
    streams = [
        {"name": "A", "domain": domain, "subjects": ["a"], "max_age": "1d"}
        for domain in ("hub", "leaf")
    ]
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams)
    clean_hub_leaf["leaf"].stop()
    hub = clean_hub_leaf["hub"]
    hub.wait_until(lambda: _gone(hub.url, hub.user, hub.password), "notice that the leaf is gone")

    assert main(["-C", str(space.folder), "lint", "--live"]) == 0
    printed = capsys.readouterr()
    assert "domain leaf is offline" in printed.err
    assert "[JS201]" in printed.out


def _gone(url: str, user: str | None, password: str | None) -> bool:
    with Raw(url, user, password) as raw:
        try:
            raw.api("$JS.leaf.API.INFO")
        except NoResponders:
            return True
    return False
