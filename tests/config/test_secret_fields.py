"""Which values a secret may have, and that none is quoted."""

from __future__ import annotations

import pytest

from jsplan.config.model import Connection
from jsplan.errors import ConnectError, JsplanError
from jsplan.jetstream.contexts import resolve_settings
from jsplan.secrets import conceal, register_secret, unregister_secret
from tests.config.conftest import Loader

VARS = "vars: {pw: hunter22, hub: 'nats://127.0.0.1:4222', login: 'nats://a:hunter22@h', all: {url: u, password: hunter22}, n: 1}\n"
HOOK = "drift: {sinks: [{webhook: %s}]}\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            'connections: {hub: {url: u, user: a, password: "${var.pw}"}}\n',
            "`password` of connection hub",
        ),
        (
            'connections: {hub: {url: u, user: a, password: "x${var.pw}"}}\n',
            "`password` of connection hub",
        ),
        ('connections: {hub: {url: u, token: "${ var.pw }"}}\n', "`token` of connection hub"),
        ('connections: {hub: {url: "nats://a:${var.pw}@h"}}\n', "`url` of connection hub"),
        ('connections: {hub: {url: "nats://${var.pw}@h"}}\n', "`url` of connection hub"),
        ('connections: {hub: {url: "${var.login}"}}\n', "`url` of connection hub"),
        ('connections: {hub: "${var.all}"}\n', "connection hub"),
        ('connections: "${var.all}"\n', "`connections`"),
        (HOOK % '{url: "http://h/${var.pw}"}', "`url` of a webhook"),
        (
            HOOK % '{url: "http://h", headers: {Authorization: "Bearer ${var.pw}"}}',
            "header Authorization of a webhook",
        ),
        (HOOK % '"${var.all}"', "a webhook"),
        ('drift: {sinks: ["${var.all}"]}\n', "a sink"),
    ],
)
def test_a_secret_does_not_come_from_a_variable(text: str, what: str, workspace: Loader) -> None:
    """Plans, pages and hints show variables; the finding says what to write, and not the value."""
    found = [one for one in workspace.findings(VARS + text) if "comes from variable" in one.summary]
    assert len(found) == 1
    assert found[0].code == "JS113"
    assert found[0].summary.startswith(f"{what}")
    assert "${env." in found[0].detail
    assert "hunter22" not in str(found)


def test_other_fields_of_a_connection_take_variables(workspace: Loader) -> None:
    """An address, a user and a path are no secrets; a literal password is one that the files hold by choice."""
    text = 'connections: {hub: {url: "${var.hub}", user: "${var.pw}", password: x, timeout: "${var.n}s", tls: {ca: "${var.pw}"}}}\n'
    assert workspace(VARS + text).connections["hub"].url == "nats://127.0.0.1:4222"


@pytest.mark.parametrize(
    "field", ["password: 4711007", "token: 4711007", "password: [4711007]", "token: {a: 4711007}"]
)
def test_a_literal_secret_is_not_quoted(field: str, workspace: Loader) -> None:
    """A number without quotes is wrong, and still a password."""
    assert "4711007" not in str(
        workspace.findings(f"connections: {{hub: {{url: u, user: a, {field}}}}}\n")
    )


@pytest.mark.parametrize(
    "field",
    [
        "creds: {}",
        "nkey: {}",
        "tls: {{ca: {}}}",
        "tls: {{cert: {}, key: k}}",
        "tls: {{cert: c, key: {}}}",
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        "-----BEGIN NATS USER JWT-----\neyJ0geheim\n",
        "-----BEGIN",
        "S" + "A" * 57,
        "eyJ0geheim.eyJ1geheim.geheim",
        "geheim" * 1000,
        "geheim\nb",
    ],
)
def test_the_content_of_a_file_is_no_path(field: str, content: str, workspace: Loader) -> None:
    """A pipeline has it in a variable; the finding names that and asks for a path."""
    text = f"connections: {{hub: {{url: u, {field.format(chr(34) + '${env.CREDS}' + chr(34))}}}}}\n"
    found = workspace.single_finding(text, environ={"CREDS": content})
    assert found.code == "JS120"
    assert "must be a path, and ${env.CREDS} is the content of a file" in found.summary
    assert "geheim" not in str(found)


@pytest.mark.parametrize("name", ["CREDS", "NKEY", "CA", "CERT", "KEY"])
def test_the_content_of_a_file_in_the_variables_of_nats(name: str) -> None:
    """`NATS_CREDS` and the like fill a connection that names nothing."""
    with pytest.raises(ConnectError, match="is the content of a file, not a path") as caught:
        resolve_settings(Connection("hub"), {f"NATS_{name}": "-----BEGIN X-----\ngeheim\n"})
    assert "geheim" not in caught.value.full_text


def test_what_is_concealed_and_what_is_not() -> None:
    """A long value wherever it is, a shorter one as a word, one of three characters never, a public one no longer."""
    for value, name in (
        ("geheimnis", "A"),
        ("acco", "B"),
        ("hub", "C"),
        ("leaf", "D"),
        ("geheimnis2", "E"),
    ):
        register_secret(value, f"${{env.{name}}}")
    unregister_secret("leaf")
    assert (
        conceal("xgeheimnisx acco account hub leaf geheimnis2")
        == "x${env.A}x ${env.B} account hub leaf ${env.E}"
    )
    error = JsplanError("no geheimnis", hint="no acco")
    assert error.full_text == "no ${env.A}. no ${env.B}"


@pytest.mark.parametrize(
    "text",
    [
        "domains: {url: 'tls://u:hunter22@h:1'}\n",
        "connections: {hub: {url: u, user: 'nats://u:hunter22@h'}}\ndomains: {'nats://hunter22@h': {connection: hub}}\n",
        "connections: {hub: {url: u, timeout: 'nats://hunter22@h'}}\n",
    ],
)
def test_the_login_of_a_misplaced_url_is_not_quoted(text: str, workspace: Loader) -> None:
    """A URL may stand where none is expected, with a mistake in the indentation for instance."""
    found = workspace.findings(text)

    assert found
    assert [one for one in found if "hunter22" in f"{one.summary} {one.detail}"] == []
