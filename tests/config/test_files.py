"""The main file, its includes, and all findings together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jsplan.codes import FILE_CODES
from jsplan.config import load
from jsplan.errors import ConfigError
from tests.config.conftest import HEAD, HUB, Loader


def test_files_beside_the_main_file_are_read(workspace: Loader) -> None:
    """Without `include`, *.jsplan.yaml and *.jsplan.json are read, and no other files."""
    files = {
        "a.jsplan.yaml": "streams: [{name: A}]\n",
        "b.jsplan.json": '{"streams": [{"name": "B"}], "vars": {"x": 1}}',
        "c.yaml": "streams: [{name: C}]\n",
        "sub/d.jsplan.yaml": "streams: [{name: D}]\n",
    }
    loaded = workspace("streams: [{name: M}]\nvars: {y: 2}\n", files=files)
    assert list(map(str, loaded.resources)) == ["hub/stream/M", "hub/stream/A", "hub/stream/B"]
    assert dict(loaded.variables) == {"y": 2, "x": 1}


def test_includes_may_be_anywhere_and_are_read_once(workspace: Loader) -> None:
    """Includes may use globs and `..`, and each file is read once."""
    files = {"in/x/a.yaml": "streams: [{name: A}]\n", "in/b.yaml": "streams: [{name: B}]\n"}
    text = 'include: ["in/**/*.yaml", "./in/b.yaml", "*.yaml", "../*/in/b.yaml"]\nstreams: [{name: M}]\n'
    assert list(map(str, workspace(text, files=files).resources)) == [
        "hub/stream/M",
        "hub/stream/B",
        "hub/stream/A",
    ]


def test_patterns_that_search_the_whole_machine(workspace: Loader) -> None:
    """A pattern may not lead through the machine, and follows no link to a folder."""
    for pattern in ("/**/*.yaml", "../**/x.yaml", "/*/*/x.yaml", "*/../../**/x.yaml", "~/**"):
        found = workspace.findings(f'include: ["{pattern}"]\nstreams: [{{nam: M}}]\n')[0]
        assert (found.code, "searches too much" in found.summary) == (
            "JS109",
            pattern != "~/**",
        ), pattern
    (workspace.root / "link").symlink_to("/")
    (workspace.root / ".hidden").mkdir()
    (workspace.root / "a/b").mkdir(parents=True)
    for name in (".hidden/x.yaml", "a/b/x.yaml", "a/.x.yaml"):
        (workspace.root / name).write_text(f"streams: [{{name: N{name.count('/')}}}]\n")
    for pattern in ("**/x.yaml", "**/*.yaml", "*/*/*.yaml", "a/**/*.yaml", "**/b/x.yaml"):
        loaded = workspace(f'include: ["{pattern}"]\n')
        assert [address.name for address in loaded.resources] == ["N2"], pattern


def test_an_included_file_that_is_missing_is_an_error_and_an_empty_glob_a_warning(
    workspace: Loader,
) -> None:
    """A missing include is an error, and a pattern without a match is a warning."""
    assert workspace.single_finding("include: [gone.yaml]\n").code == "JS109"
    assert [
        (d.severity, d.code) for d in workspace('include: ["streams/*.yaml"]\n').diagnostics
    ] == [("warning", "JS109")]
    assert [
        (d.severity, d.code)
        for d in workspace("include: [e.yaml]\n", files={"e.yaml": "# later\n"}).diagnostics
    ] == [("warning", "JS102")]


def test_a_file_name_that_is_not_utf8(workspace: Loader) -> None:
    """A file name that is not UTF-8 is escaped in findings."""
    name = os.fsdecode(b"b\xff.jsplan.yaml")
    loaded = workspace(
        "",
        files={name: "streams: [{name: A}]\noverrides: [{address: hub/stream/Z, max_age: 1d}]\n"},
    )

    assert list(map(str, loaded.resources)) == ["hub/stream/A"]
    assert [str(found.range) for found in loaded.diagnostics] == ["b\\udcff.jsplan.yaml:2:23"]


def test_the_same_address_twice_names_both_locations(workspace: Loader) -> None:
    """An address that is declared twice is an error with both locations."""
    found = workspace.single_finding(
        "streams:\n  - name: A\n", files={"a.jsplan.yaml": "streams:\n  - {name: A, domain: '*'}\n"}
    )
    assert (found.code, str(found.range), found.address) == (
        "JS110",
        "a.jsplan.yaml:2:5",
        "hub/stream/A",
    )
    assert "jsplan.yaml:5:5" in found.detail


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("vars: {x: 1}", "vars: {x: 1}"),
        ("connections: {c: {}}", "connections: {c: {url: u}}"),
        ("backend: {local: {}}", "backend: {local: {}}"),
        ("defaults: {stream: {max_msgs: 1}}", "defaults: {stream: {max_msgs: 1}}"),
        ("lint: {JS201: error}", "lint: {JS201: error}"),
    ],
)
def test_an_entry_in_two_files_is_an_error(one: str, other: str, workspace: Loader) -> None:
    """An entry of a section that is in two files is an error with both locations."""
    found = [
        problem
        for problem in workspace.findings(one + "\n", files={"z.jsplan.yaml": other})
        if problem.code == "JS110"
    ]
    assert len(found) == 1
    assert found[0].range is not None
    assert found[0].range.file == "z.jsplan.yaml"
    assert "jsplan.yaml:4:" in found[0].detail


def test_sections_of_several_files_are_merged(workspace: Loader) -> None:
    """Sections of several files are merged by key, and their lists are joined."""
    files = {
        "z.jsplan.yaml": 'defaults: {stream: {max_bytes: 1MB}}\ndrift: {ignore: ["hub/stream/B*"]}\nlint: {JS202: error}\n'
    }
    text = 'defaults: {stream: {max_msgs: 1}}\ndrift: {ignore: ["hub/stream/A*"]}\nlint: {JS201: ignore}\nstreams: [{name: S}]\n'
    loaded = workspace(text, files=files)
    (declared,) = loaded.resources.values()
    assert dict(declared.body) == {"max_msgs": 1, "max_bytes": 2**20, "name": "S"}
    assert loaded.drift.ignore == ("hub/stream/A*", "hub/stream/B*")
    assert dict(loaded.lint) == {"JS201": "ignore", "JS202": "error"}


def test_anchors_may_live_under_an_x_key(workspace: Loader) -> None:
    """A top-level key that begins with x- is ignored."""
    loaded = workspace(
        "x-common: &c {max_msgs: 5, max_age: 1d}\nx-other: 3\nstreams: [{<<: *c, name: S}]\n"
    )
    (declared,) = loaded.resources.values()
    assert dict(declared.body) == {"name": "S", "max_msgs": 5, "max_age": 86400 * 10**9}


@pytest.mark.parametrize("key", ["workspace: other", "include: [x]"])
def test_some_keys_are_for_the_main_file_only(key: str, workspace: Loader) -> None:
    """`workspace` and `include` are allowed in the main file only."""
    found = workspace.single_finding("", files={"a.jsplan.yaml": f"jsplan: 1\n{key}\n"})
    assert (found.code, str(found.range)) == ("JS105", "a.jsplan.yaml:2:1")


def test_all_mistakes_are_reported_at_once(workspace: Loader) -> None:
    """Mistakes of all files are reported together, sorted by location."""
    files = {
        "a.jsplan.yaml": "streams:\n  - {name: B, max_aeg: 1d}\n",
        "b.jsplan.yaml": "streams: [\n",
        "c.jsplan.yaml": b"\xff",
    }
    text = """
        streams:
          - name: A
            max_age: 30 days
            retention: WorkQueue
            mirror: {nmae: X}
          - {name: A.B}
          - {}
        lint: {JS201: fatal}
        moved: [{from: x, to: hub/stream/y}]
        """
    found = workspace.findings(text, files=files, variables=("x=1",))
    assert [(problem.code, str(problem.range)) for problem in found] == [
        ("JS105", "a.jsplan.yaml:2:15"),
        ("JS101", "b.jsplan.yaml:1:11"),
        ("JS100", "c.jsplan.yaml:1:1"),
        ("JS130", "jsplan.yaml:7:14"),
        ("JS130", "jsplan.yaml:8:16"),
        ("JS105", "jsplan.yaml:9:14"),
        ("JS131", "jsplan.yaml:10:12"),
        ("JS106", "jsplan.yaml:11:5"),
        ("JS130", "jsplan.yaml:12:15"),
        ("JS143", "jsplan.yaml:13:16"),
        ("JS115", "None"),
    ]
    assert all(
        problem.summary and problem.detail and problem.code in FILE_CODES for problem in found
    )


def test_a_folder_without_workspace_is_an_error(workspace: Loader) -> None:
    """A folder without a workspace is an error that names `jsplan init`."""
    with pytest.raises(ConfigError) as caught:
        load(workspace.options())
    assert caught.value.diagnostics[0].code == "JS100"
    assert "jsplan init" in caught.value.diagnostics[0].detail
    assert workspace.single_finding("", head="").code == "JS102"
    (workspace.root / "jsplan.yaml").unlink()
    (workspace.root / "jsplan.yaml").mkdir()
    with pytest.raises(ConfigError) as caught:
        load(workspace.options())
    assert "folder" in caught.value.diagnostics[0].detail


def test_files_are_shown_relative_to_the_workspace(
    workspace: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Findings name files relative to the workspace, with forward slashes."""
    (workspace.root / "ws").mkdir()
    inner = Loader(workspace.root / "ws")
    workspace.write({"shared/a.yaml": "streams: [{}]\n"})
    monkeypatch.chdir(workspace.root)
    inner.write({"jsplan.yaml": HEAD + HUB + "include: [../shared/a.yaml]\n"})
    with pytest.raises(ConfigError) as caught:
        load(Loader(Path("ws")).options())
    assert str(caught.value.diagnostics[0].range) == "../shared/a.yaml:1:11"


def test_a_link_to_itself_is_a_finding(workspace: Loader) -> None:
    """A symbolic link to itself is a finding."""
    (workspace.root / "loop.json").symlink_to("loop.json")
    found = workspace.single_finding("streams: [{name: S, config_file: loop.json}]\n")
    assert (found.code, str(found.range)) == ("JS100", "jsplan.yaml:4:34")


def test_every_code_that_is_used_is_explained() -> None:
    """The table of codes has the same codes as the sources."""
    package = Path(load.__code__.co_filename).parent.parent
    used: set[str] = set()
    for path in [*package.glob("config/**/*.py"), *package.glob("converting/*.py")]:
        text = path.read_text(encoding="utf-8")
        used |= {
            code for code in (f"JS1{number:02}" for number in range(100)) if f'"{code}"' in text
        }
    assert used == set(FILE_CODES)
