"""Environments and variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jsplan.config.model import Backend
from tests.config.conftest import HEAD, Loader, body_of

TWO = """\
vars: {replicas: 3, keep: 30d}
connections:
  hub: {url: "nats://prod:4222", user: acc, password: pw, timeout: 2s}
domains:
  hub: {connection: hub}
  "store-{1..3}": {connection: hub, labels: [edge]}
environments:
  staging:
    vars: {replicas: 1}
    connections: {hub: {context: shop-staging}}
    domains: {hub: {may_be_offline: 7d}, store-2: {labels: [lab]}}
    backend: {local: {path: here.json}}
  other: {connections: {hub: {url: "nats://other:4222"}}}
  prod:
"""
STREAM = (
    'streams: [{name: S, domain: hub, num_replicas: "${var.replicas}", max_age: "${var.keep}"}]\n'
)


@pytest.mark.parametrize("text", [STREAM, "streams: [{name: S, domain: nowhere}]\n"])
def test_an_environment_must_be_chosen(text: str, workspace: Loader) -> None:
    """Without -e the only finding lists the environments."""
    found = workspace.single_finding(text, head=HEAD + TWO)
    assert found.code == "JS117"
    assert "staging, other, prod" in found.detail


def test_an_unknown_environment_is_an_error(workspace: Loader) -> None:
    """An unknown environment is an error with a suggestion."""
    found = workspace.single_finding(STREAM, head=HEAD + TWO, environment="stagign")
    assert found.code == "JS117"
    assert 'Did you mean "staging"?' in found.detail


def test_an_environment_of_a_workspace_without_any_is_an_error(workspace: Loader) -> None:
    """-e is an error in a workspace without environments; JSPLAN_ENV is about other workspaces."""
    assert workspace.single_finding("", environment="prod").code == "JS117"
    assert workspace("", environ={"JSPLAN_ENV": "prod"}).environment is None


def test_the_environment_may_come_from_the_process(workspace: Loader) -> None:
    """JSPLAN_ENV chooses the environment without -e."""
    assert workspace(STREAM, head=HEAD + TWO, environ={"JSPLAN_ENV": "prod"}).environment == "prod"
    assert (
        workspace(
            STREAM, head=HEAD + TWO, environment="other", environ={"JSPLAN_ENV": "prod"}
        ).environment
        == "other"
    )


def test_an_environment_is_merged_key_by_key(workspace: Loader) -> None:
    """An environment overwrites single variables and single keys of connections and domains."""
    loaded = workspace(STREAM, head=HEAD + TWO, environment="staging")
    assert dict(loaded.variables) == {"replicas": 1, "keep": "30d"}
    assert body_of(loaded, "hub/stream/S")["num_replicas"] == 1
    connection = loaded.connections["hub"]
    assert (connection.context, connection.url, connection.user, connection.timeout) == (
        "shop-staging",
        None,
        None,
        2 * 10**9,
    )
    assert loaded.domains["hub"].may_be_offline == 7 * 86400 * 10**9
    assert {key: sorted(d.labels) for key, d in loaded.domains.items()} == {
        "hub": [],
        "store-1": ["edge"],
        "store-2": ["lab"],
        "store-3": ["edge"],
    }
    assert loaded.backend.path == workspace.root / "here.json"
    assert loaded.state_name == "shop.staging"


def test_a_url_of_an_environment_keeps_the_login(workspace: Loader) -> None:
    """An environment with another URL keeps the login."""
    connection = workspace(STREAM, head=HEAD + TWO, environment="other").connections["hub"]
    assert (connection.url, connection.user, connection.password) == (
        "nats://other:4222",
        "acc",
        "pw",
    )


def test_an_environment_may_be_empty(workspace: Loader) -> None:
    """An environment may be empty and still has its own state."""
    loaded = workspace(STREAM, head=HEAD + TWO, environment="prod")
    assert loaded.connections["hub"].url == "nats://prod:4222"
    assert loaded.backend == Backend("local", path=workspace.root / "state" / "shop.prod.json")


def test_every_environment_is_checked(workspace: Loader) -> None:
    """A mistake in an environment that is not chosen is reported too."""
    found = workspace.single_finding("environments: {a: {}, b: {streams: []}}\n", environment="a")
    assert (found.code, str(found.range)) == ("JS105", "jsplan.yaml:4:27")


def test_a_resource_may_be_in_some_environments_only(workspace: Loader) -> None:
    """`environments:` limits a stream or consumer to the environments that it names."""
    text = """
        streams:
          - {name: A, domain: hub, environments: [prod]}
          - name: B
            domain: hub
            consumers: [{name: C, environments: [staging, prod]}, {name: D, environments: [other]}]
        """
    assert list(map(str, workspace(text, head=HEAD + TWO, environment="prod").resources)) == [
        "hub/stream/A",
        "hub/stream/B",
        "hub/consumer/B/C",
    ]
    assert list(map(str, workspace(text, head=HEAD + TWO, environment="other").resources)) == [
        "hub/stream/B",
        "hub/consumer/B/D",
    ]
    found = workspace.single_finding(
        "streams: [{name: A, domain: hub, environments: [prd]}]\n",
        head=HEAD + TWO,
        environment="prod",
    )
    assert found.code == "JS118"


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({}, 3),
        ({"environ": {"JSPLAN_VAR_replicas": "5"}}, 5),
        ({"environ": {"JSPLAN_VAR_replicas": "5"}, "var_files": ("v.yaml",)}, 4),
        ({"environ": {"JSPLAN_VAR_replicas": "5"}, "var_files": ("v.yaml", "w.json")}, 2),
        (
            {
                "environ": {"JSPLAN_VAR_replicas": "5"},
                "var_files": ("v.yaml",),
                "variables": ("replicas=1",),
            },
            1,
        ),
        ({"variables": ("replicas=1", "replicas=2")}, 2),
    ],
)
def test_the_stronger_source_of_a_variable_wins(
    options: dict[str, Any], value: int, workspace: Loader
) -> None:
    """Values of variables come from default, JSPLAN_VAR_x, --var-file and --var; the last wins."""
    workspace.write({"v.yaml": "replicas: 4\n", "w.json": '{"replicas": 2}'})
    options["var_files"] = tuple(workspace.root / name for name in options.get("var_files", ()))
    assert (
        workspace("", head=HEAD + "domains: {hub: {}}\nvars: {replicas: 3}\n", **options).variables[
            "replicas"
        ]
        == value
    )


@pytest.mark.parametrize(
    ("default", "given", "value"),
    [
        ("3", "5", 5),
        ("true", "false", False),
        ("1.5", "2", 2),
        ("1.5", "2.5", 2.5),
        ("text", "5", "5"),
        ("text", "true", "true"),
        ("text", "", ""),
        ("text", "a=b", "a=b"),
        ("[a]", "[b, c]", ["b", "c"]),
        ("{a: 1}", "{b: 2}", {"b": 2}),
        ("~", "5", 5),
        ("~", "eu", "eu"),
        ("~", '"5"', "5"),
        ("~", "010", "010"),
        ("~", "[x]", ["x"]),
        ("30d", "7d", "7d"),
        ("~", "", ""),
        ("~", "~", "~"),
    ],
)
def test_a_variable_takes_the_type_of_its_default(
    default: str, given: str, value: Any, workspace: Loader
) -> None:
    """The text of a variable gets the type of its default, or that of YAML without a default."""
    found = workspace(
        "",
        head=HEAD + f"domains: {{hub: {{}}}}\nvars: {{x: {default}}}\n",
        variables=(f"x={given}",),
    ).variables["x"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"variables": ("replicas=three",)}, "JS116", "Its default is 3."),
        ({"variables": ("on=1",)}, "JS116", "Its default is true."),
        ({"variables": ("replicas=true",)}, "JS116", "Its default is 3."),
        ({"variables": ("names=x",)}, "JS116", "Write it as YAML, such as [a, b]."),
        ({"variables": ("table=x",)}, "JS116", "Write it as YAML, such as {a: 1, b: 2}."),
        ({"variables": ("list=[a",)}, "JS101", "flow sequence"),
        ({"variables": ("replica=3",)}, "JS115", 'Did you mean "replicas"?'),
        ({"variables": ("replicas",)}, "JS115", "--var name=value"),
        ({"var_files": ("v.yaml",)}, "JS115", 'Did you mean "replicas"?'),
        ({"var_files": ("gone.yaml",)}, "JS100", "path"),
    ],
)
def test_a_wrong_variable_says_what_to_do(
    options: dict[str, Any], code: str, words: str, workspace: Loader
) -> None:
    """Unknown variables, wrong types and missing files are errors with a correction."""
    workspace.write({"v.yaml": "replicsa: 4\n"})
    options["var_files"] = tuple(workspace.root / name for name in options.get("var_files", ()))
    found = workspace.findings(
        "",
        head=HEAD
        + "domains: {hub: {}}\nvars: {replicas: 3, on: true, list: [a], names: [secret], table: {password: secret}}\n",
        **options,
    )
    assert found[0].code == code
    assert words in found[0].detail
    assert "secret" not in repr(found)


def test_a_variable_without_default_must_be_given(workspace: Loader) -> None:
    """A variable without a default needs a value, and the finding says how to give it."""
    head = HEAD + "domains: {hub: {}}\nvars: {region: ~}\n"
    found = workspace.single_finding("", head=head)
    assert (found.code, str(found.range)) == ("JS114", "jsplan.yaml:4:16")
    assert "--var region=VALUE" in found.detail
    assert workspace("", head=head, environ={"JSPLAN_VAR_region": "eu"}).variables["region"] == "eu"


def test_a_variable_without_a_value_is_one_finding(workspace: Loader) -> None:
    """A variable without a value is one finding, wherever it is used."""
    text = """
        vars: {region: ~}
        streams:
          - {name: A, subjects: ["a.${var.region}", "${var.region}"], max_age: "${var.region}", description: "in ${var.region}"}
    """
    assert workspace.single_finding(text).code == "JS114"


def test_a_default_contains_no_reference(workspace: Loader) -> None:
    """The default of a variable contains no reference."""
    assert workspace.single_finding("vars: {a: x, b: '${var.a}'}\n").code == "JS113"


def test_the_hash_changes_with_files_and_variables_but_not_with_secrets(workspace: Loader) -> None:
    """`config_hash` changes with files and variables, and not with `${env.X}`."""
    text = 'vars: {n: 1}\nconnections: {hub: {url: u, token: "${env.T}"}}\nstreams: [{name: S, config_file: s.json}]\n'

    def hashed(token: str = "t", body: str = "{}", variables: tuple[str, ...] = ()) -> str:
        return workspace(
            text, files={"s.json": body}, environ={"T": token}, variables=variables
        ).config_hash

    first = hashed()
    assert first.startswith("sha256:")
    assert hashed() == first
    assert hashed(token="other") == first
    assert hashed(body='{"max_msgs": 1}') != first
    assert hashed(variables=("n=2",)) != first


def test_paths_of_variable_files_are_relative_to_the_current_folder(
    workspace: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of --var-file is relative to the current folder."""
    workspace.write({"sub/v.yaml": "n: 2\n"})
    monkeypatch.chdir(workspace.root / "sub")
    assert workspace("vars: {n: 1}\n", var_files=(Path("v.yaml"),)).variables["n"] == 2
