"""References such as `${var.x}` in the files."""

from __future__ import annotations

from typing import Any

import pytest

from jsplan.secrets import conceal
from tests.config.conftest import HEAD, Loader, body_of

VARS = "vars: {n: 3, big: 1GiB, on: true, list: [a.x, a.y], word: edge, f: 1.50}\ndomains: {hub: {vars: {size: 2GiB, m: 5}}}\n"


@pytest.mark.parametrize(
    ("field", "written", "value"),
    [
        ("num_replicas", '"${var.n}"', 3),
        ("num_replicas", "${var.n}", 3),
        ("max_bytes", '"${var.big}"', 2**30),
        ("max_bytes", '"${domain.size}"', 2 * 2**30),
        ("max_msgs", '"${ domain.m }"', 5),
        ("no_ack", '"${var.on}"', True),
        ("subjects", '"${var.list}"', ["a.x", "a.y"]),
        ("subjects", '["s.${domain}.>", "${var.word}"]', ["s.hub.>", "edge"]),
        ("description", '"${var.n} of ${var.word}"', "3 of edge"),
        ("description", '"v${var.f}, ${var.on}"', "v1.50, true"),
        ("description", '"$${var.n} costs $5"', "${var.n} costs $5"),
        ("description", "$JS.FC.>", "$JS.FC.>"),
        ("description", '"$$ {x} $"', "$$ {x} $"),
        (
            "placement",
            '{cluster: "${var.word}", tags: ["t-${domain}"]}',
            {"cluster": "edge", "tags": ["t-hub"]},
        ),
        ("metadata", '{k: "${var.word}-${domain}"}', {"k": "edge-hub"}),
    ],
)
def test_references_are_replaced(field: str, written: str, value: Any, workspace: Loader) -> None:
    """A value that is one reference keeps its type; a reference inside text becomes text."""
    loaded = workspace(f"streams:\n  - name: S\n    {field}: {written}\n", head=HEAD + VARS)
    assert body_of(loaded, "hub/stream/S")[field] == value


def test_keys_hold_no_references(workspace: Loader) -> None:
    """A reference in a key is an error."""
    found = workspace.single_finding(
        'streams:\n  - name: S\n    metadata: {"${var.word}": x}\n', head=HEAD + VARS
    )
    assert (found.code, str(found.range)) == ("JS113", "jsplan.yaml:7:16")


def test_values_of_environment_variables_are_secrets(workspace: Loader) -> None:
    """Values of `${env.X}` in connections are concealed as secrets."""
    loaded = workspace(
        'connections: {hub: {url: "nats://${env.HOST}:4222", user: acc, password: "${env.PW}", inbox_prefix: "_I${env.NONE}"}}\n',
        environ={"HOST": "h1", "PW": "geheim", "NONE": ""},
    )
    connection = loaded.connections["hub"]
    assert (connection.url, connection.password, connection.inbox_prefix) == (
        "nats://h1:4222",
        "geheim",
        "_I",
    )
    assert conceal("geheim at h1") == "${env.PW} at h1"
    assert "geheim" not in repr(loaded)


def test_an_environment_variable_that_is_not_set_is_an_error(workspace: Loader) -> None:
    """An unset environment variable is an error with a suggestion that contains no value."""
    found = workspace.single_finding(
        'connections: {hub: {url: u, user: a, password: "${env.ACC_PASWORD}"}}\n',
        environ={"ACC_PASSWORD": "geheim"},
    )
    assert found.code == "JS111"
    assert 'Did you mean "ACC_PASSWORD"?' in found.detail
    assert "geheim" not in found.detail + found.summary


def test_a_secret_is_not_shown_in_a_finding_about_it(workspace: Loader) -> None:
    """A secret with a wrong value or type is described without being printed."""
    text = 'connections: {hub: {url: u, timeout: "${env.PW}", inbox_prefix: "${env.PW}", tls: "${env.PW}", account: ["${env.PW}"]}}\n'
    found = workspace.findings(text, environ={"PW": "geheim >"})
    assert len(found) == 4
    assert not any("geheim" in problem.summary + problem.detail for problem in found)


def test_a_config_file_is_taken_literally(workspace: Loader) -> None:
    """A reference in a config_file stays text."""
    files = {"s.json": '{"description": "${var.n}"}'}
    loaded = workspace("streams: [{name: S, config_file: s.json}]\n", files=files)
    assert body_of(loaded, "hub/stream/S")["description"] == "${var.n}"
