"""Fields for secrets: the values that they accept, and messages that do not quote them."""

from __future__ import annotations

import pytest

from jsplan.config.model import Connection
from jsplan.errors import ConnectError, JsplanError
from jsplan.jetstream.contexts import resolve_settings
from jsplan.resources.kv_entry import VALUE
from jsplan.secrets import conceal, register_secret
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
    """A secret from a variable is an error that does not quote the value."""
    found = [d for d in workspace.findings(VARS + text) if "comes from variable" in d.summary]
    assert len(found) == 1
    assert found[0].code == "JS113"
    assert found[0].summary.startswith(f"{what}")
    assert "${env." in found[0].detail
    assert "hunter22" not in str(found)


def test_other_fields_of_a_connection_take_variables(workspace: Loader) -> None:
    """Address, user and paths of a connection may come from variables."""
    text = 'connections: {hub: {url: "${var.hub}", user: "${var.pw}", password: x, timeout: "${var.n}s", tls: {ca: "${var.pw}"}}}\n'
    assert workspace(VARS + text).connections["hub"].url == "nats://127.0.0.1:4222"


@pytest.mark.parametrize(
    "field", ["password: 4711007", "token: 4711007", "password: [4711007]", "token: {a: 4711007}"]
)
def test_a_literal_secret_is_not_quoted(field: str, workspace: Loader) -> None:
    """A literal secret with a wrong type is not quoted."""
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
    """The content of a file in a variable of the environment is an error that asks for a path."""
    text = f"connections: {{hub: {{url: u, {field.format(chr(34) + '${env.CREDS}' + chr(34))}}}}}\n"
    found = workspace.single_finding(text, environ={"CREDS": content})
    assert found.code == "JS120"
    assert "must be a path, and ${env.CREDS} is the content of a file" in found.summary
    assert "geheim" not in str(found)


@pytest.mark.parametrize("name", ["CREDS", "NKEY", "CA", "CERT", "KEY"])
def test_the_content_of_a_file_in_the_variables_of_nats(name: str) -> None:
    """The content of a file in `NATS_CREDS` and similar variables is an error."""
    with pytest.raises(ConnectError, match="is the content of a file, not a path") as caught:
        resolve_settings(Connection("hub"), {f"NATS_{name}": "-----BEGIN X-----\ngeheim\n"})
    assert "geheim" not in caught.value.full_text


def test_concealed_values() -> None:
    """Long secrets are concealed anywhere, shorter ones as words, and three characters never."""
    for value, name in (
        ("geheimnis", "A"),
        ("acco", "B"),
        ("hub", "C"),
        ("geheimnis2", "E"),
    ):
        register_secret(value, f"${{env.{name}}}")
    assert (
        conceal("xgeheimnisx acco account hub geheimnis2")
        == "x${env.A}x ${env.B} account hub ${env.E}"
    )
    error = JsplanError("no geheimnis", hint="no acco")
    assert error.full_text == "no ${env.A}. no ${env.B}"


ORDINARY = """
connections:
  hub: {url: "nats://${env.USER}:${env.PASSWORD}@${env.HOST}:4222"}
  other: {url: "${env.URL}"}
  third: {url: "nats://${env.HOST}", user: "${env.USER}", password: "x${env.PASSWORD}", inbox_prefix: "${env.INBOX}"}
  fourth: {creds: "${env.CREDS}"}
  token: {url: "nats://${env.HOST}", token: "${env.TOKEN}"}
domains: {hub: {connection: hub}}
backend: {kv: {domain: "${env.DOMAIN}", bucket: "${env.BUCKET}"}}
drift: {sinks: [{webhook: {url: "https://h/${env.HOOK}", headers: {A: "Bearer ${env.HEADER}"}}}, {subject: "${env.SUBJECT}"}]}
defaults: {domain: hub}
kv: [{bucket: B, entries: {K: "${env.ENTRY}", L: {value: [1, "${env.PART}"], sensitive: true}}}]
"""


def test_only_secrets_are_concealed(workspace: Loader) -> None:
    """Passwords, tokens, sinks and entries are concealed; names, hosts and paths are not."""
    secret = {"PASSWORD", "TOKEN", "HOOK", "HEADER", "ENTRY", "PART"}
    ordinary = {"USER", "HOST", "INBOX", "DOMAIN", "BUCKET", "SUBJECT", "CREDS"}
    environ = {name: f"value-of-{name.lower()}" for name in secret | ordinary}
    environ |= {
        "DOMAIN": "hub",
        "SUBJECT": "drift.found",
        "URL": "nats://urluser:urlpassword@urlhost",
        "BUCKET": "bucket",
    }
    workspace(ORDINARY, head="jsplan: 1\nworkspace: shop\n", environ=environ)

    for name in sorted(secret):
        assert conceal(f"a {environ[name]} b") == f"a ${{env.{name}}} b"
    for name in sorted(ordinary):
        assert conceal(f"a {environ[name]} b") == f"a {environ[name]} b"
    assert conceal("hub drift.found") == "hub drift.found"
    assert conceal("urluser urlhost urlpassword") == "urluser urlhost ${env.URL}"


@pytest.mark.parametrize(
    "text",
    [
        "domains: {url: 'tls://u:hunter22@h:1'}\n",
        "connections: {hub: {url: u, user: 'nats://u:hunter22@h'}}\ndomains: {'nats://hunter22@h': {connection: hub}}\n",
        "connections: {hub: {url: u, timeout: 'nats://hunter22@h'}}\n",
    ],
)
def test_the_login_of_a_misplaced_url_is_not_quoted(text: str, workspace: Loader) -> None:
    """The login of a URL in the wrong place is not quoted."""
    found = workspace.findings(text)

    assert found
    assert [d for d in found if "hunter22" in f"{d.summary} {d.detail}"] == []


@pytest.mark.parametrize(
    "text",
    [
        "kv: [{bucket: B, limit_marker_ttl: 1h, entries: {K: {value: x, ttl: '${env.PW}'}}}]\n",
        "streams: [{name: S, subjects: [s, t], allow_msg_schedules: true, schedules: {s: {target: t, every: '${env.PW}'}}}]\n",
    ],
)
def test_a_field_of_contents_from_the_environment_is_not_quoted(
    text: str, workspace: Loader
) -> None:
    """A wrong value of an entry or a schedule is not quoted where it is from the environment."""
    found = workspace.findings(text, environ={"PW": "hunter22"})

    assert [d.code for d in found] == ["JS130"]
    assert "hunter22" not in str(found)


@pytest.mark.parametrize("key", ["kv_entry/B/K", "schedule/S/s"])
def test_a_content_whose_variable_is_not_set_is_unknown(key: str, workspace: Loader) -> None:
    """A value or payload from a variable that is not set is unknown and secret, not empty."""
    loaded = workspace(
        "kv: [{bucket: B, entries: {K: '${env.PW}'}}]\n"
        "streams: [{name: S, subjects: [s, t], allow_msg_schedules: true,"
        " schedules: {s: {target: t, every: 1h, payload: '${env.PW}'}}}]\n",
    )

    (found,) = (d for address, d in loaded.resources.items() if str(address).endswith(key))
    assert (found.content, found.body[VALUE], found.sensitive) == (None, None, True)
