from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config.model import LoadOptions
from jsplan.converting.model import ConvertResult, ConvertTarget, Tool
from jsplan.errors import ConfigError, JsplanError, UsageError
from jsplan.workflows.convert import convert
from jsplan.workflows.validate import validate
from tests.converting.conversion_cases import terraform_json

if TYPE_CHECKING:
    from jsplan.config.model import Workspace

#: The output of `terraform show -json`; `values` of the stream are in line 2.
STREAM = (
    '{"format_version": "1.0", "values": {"root_module": {"resources": [{"address": "jetstream_stream.A", "type": "jetstream_stream",\n'
    '"values": {"name": "A", "subjects": ["a"]}}]}}}'
)
API = "apiVersion: jetstream.nats.io/v1beta2\n"
NACK_STREAM = (
    API
    + "kind: Stream\nmetadata: {name: a}\nspec: {name: A, subjects: [a], maxAge: 1h, storage: file%s}\n"
)
SUFFIX: dict[str, str] = {"nats": "json", "nack": "yaml", "terraform": "json"}


def convert_file(
    folder: Path, tool: Tool, text: str, *, domain: str | None = None, name: str = "", **more: Any
) -> ConvertResult:
    """Convert one file of the other tool, for the workspace in `shop` if there is one."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / (name or f"a.{SUFFIX[tool]}")).write_text(text, "utf-8")
    return convert(
        tool, source, ConvertTarget(LoadOptions(folder / "shop"), "shop", domain), **more
    )


def note_texts(made: ConvertResult) -> list[str]:
    return [
        f"{found.severity} {found.code} {found.address}: {found.summary}"
        for found in made.diagnostics
    ]


def new_workspace(folder: Path, made: ConvertResult) -> Workspace:
    """Load the conversion as a workspace of its own; raise if that is not valid."""
    shop = folder / "shop"
    shop.mkdir()
    (shop / "jsplan.yaml").write_text(made.text, "utf-8")
    return validate(
        LoadOptions(
            shop,
            environ={"APP_USER": "u", "APP_PASSWORD": "p", "NATS_PASSWORD": "p", "NATS_USER": "u"},
        )
    )


def write_workspace(folder: Path) -> None:
    shop = folder / "shop"
    shop.mkdir()
    domains = "domains: {hub: {connection: main}, leaf: {connection: main}, edge: {connection: edge, js_domain: ~}}"
    head = "jsplan: 1\nworkspace: shop\nconnections: {main: {}, edge: {url: 'nats://e'}}\n"
    text = f"{head}{domains}\ndefaults: {{stream: {{max_age: 1d}}}}\n"
    (shop / "jsplan.yaml").write_text(text, "utf-8")


# --- places and what is left out ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "text", "place", "summary"),
    [
        (
            "terraform",
            STREAM.replace('["a"]', '["a"], "colour": 3, "empty": ""'),
            "2:44",
            '"colour" is not carried over',
        ),
        (
            "terraform",
            STREAM.replace('["a"]', '["a"], "placement_tags": ["ssd"]'),
            "2:44",
            "the provider does not send them",
        ),
        (
            "terraform",
            STREAM.replace("[{", '[{"type": "jetstream_stream", "values": {}}, {'),
            "1:68",
            "jetstream_stream is not carried over: it needs `name`, and it has no value",
        ),
        (
            "terraform",
            STREAM.replace("[{", '[{"type": "jetstream_other", "address": "jetstream_other.t"}, {'),
            "1:68",
            "jetstream_other.t is not carried over",
        ),
        ("nack", NACK_STREAM % ", colour: red", "4:59", '"colour" is not carried over'),
        (
            "nack",
            "---\n" + NACK_STREAM % ", preventUpdate: true",
            "5:74",
            "preventUpdate is not carried over",
        ),
        ("nats", '{"name": "A", "subjects": ["a"]}\n', None, None),
        (
            "nats",
            '[{"name": "A", "subjects": ["a"]},\n {"hello": 1}]\n',
            "2:2",
            "neither a stream nor a consumer",
        ),
        (
            "nats",
            '{"config": {"name": "A", "subjects": ["a"]}, "state": {"consumer_count": 2}}',
            "1:12",
            "2 of its 2 consumers",
        ),
        (
            "nats",
            '[{"name": "A", "subjects": ["a"]}, {"durable_name": "C", "ack_policy": "explicit"}]',
            "1:36",
            "does not say its stream",
        ),
    ],
)
def test_left_out_settings_are_reported_with_their_place(
    tool: Tool, text: str, place: str | None, summary: str | None, tmp_path: Path
) -> None:
    """A setting that is not converted is a warning with file, line and column."""
    made = convert_file(tmp_path, tool, text)

    found = [one for one in made.diagnostics if one.code == "JS180"]
    assert ([] if summary is None else [True]) == [
        summary in one.summary for one in found if summary
    ]
    assert [place] * len(found) == [
        f"{one.range.line}:{one.range.column}" for one in found if one.range
    ]
    assert all(
        one.range is not None and one.range.file.endswith(f"source/a.{SUFFIX[tool]}")
        for one in found
    )


def test_a_stream_in_two_files_is_converted_once(tmp_path: Path) -> None:
    """A stream in two files is taken from the first; a difference is reported with both places."""
    convert_file(tmp_path, "nats", '{"name": "A", "subjects": ["a"]}', name="1.json")
    same = convert_file(
        tmp_path,
        "nats",
        '{"config": {"name": "A", "subjects": ["a"], "max_msgs": -1}}',
        name="2.json",
    )
    other = convert_file(tmp_path, "nats", '{"name": "A", "subjects": ["b"]}', name="3.json")

    assert [] == note_texts(same)
    assert ["warning JS180 main/stream/A: is also at "] == [
        text.split(str(tmp_path))[0] for text in note_texts(other)
    ]
    assert "subjects: [a]" in other.text


def test_keys_of_client_libraries_are_reported(tmp_path: Path) -> None:
    """A key that is no field is a warning with its place, and with the field if that is known."""
    text = '{"stream_name": "A", "config": {"name": "C", "SampleFrequency": "5", "odd": 1}}'
    text = f'[{{"name": "A", "subjects": ["a"], "duplicates": 300000000000}},\n{text}]'
    made = convert_file(tmp_path, "nats", text)

    found = [(d.summary, d.detail, d.range and d.range.line) for d in made.diagnostics]
    assert sorted(found) == [
        (
            '"SampleFrequency" is not a field of a consumer: it is written under x_raw',
            'Did you mean "sample_freq"?',
            2,
        ),
        (
            '"duplicates" is not a field of a stream: it is written under x_raw',
            'Did you mean "duplicate_window"?',
            1,
        ),
        (
            '"odd" is not a field of a consumer: it is written under x_raw',
            "Remove it if the server does not know it either.",
            2,
        ),
    ]


def test_internal_streams_and_consumers_are_left_out(tmp_path: Path) -> None:
    """Streams of MQTT and consumers of mirrors are left out with a note."""
    text = (
        '[{"name": "$MQTT_msgs", "subjects": ["$MQTT.msgs.>"]}, {"name": "A", "subjects": ["a"]},'
    )
    text += ' {"stream_name": "A", "config": {"name": "JS_SRC_x", "ack_policy": "flow_control"}}]'
    made = convert_file(tmp_path, "nats", text)

    assert ["main/stream/A"] == [str(address) for address in made.addresses]
    assert ["JS180", "JS183"] == [found.code for found in made.diagnostics]


# --- what cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "text", "words"),
    [
        (
            "terraform",
            STREAM.replace('["a"]', '["a"], "max_age": "soon"'),
            'max_age: "soon" is not a duration',
        ),
        ("terraform", STREAM.replace("1.0", "2.0"), "format_version 2.0 is newer than"),
        (
            "terraform",
            '{"version": 4, "resources": []}',
            "a state file, which Terraform alone reads",
        ),
        ("nack", "kind: [\njetstream.nats.io/", "broken YAML"),
        (
            "nack",
            NACK_STREAM % ", duplicateWindow: soon",
            'duplicate_window: "soon" is not a duration',
        ),
        (
            "nack",
            API + "kind: Consumer\nmetadata: {name: c}\nspec: {durableName: C}\n",
            "c has no `streamName`",
        ),
        ("nats", '{"name": ', "broken YAML"),
        ("nats", '{{- if .on }}\n{"name": "A"}\n{{- end }}', "looks like a template"),
        ("nats", '{"name": "A", "subjects": ["{{ .Values.subject }}"]}', "looks like a template"),
        ("nack", NACK_STREAM % ", description: {{ .Release.Name }}", "looks like a template"),
        ("nack", NACK_STREAM % ", description: '{{ tpl .x . }}'", "looks like a template"),
    ],
)
def test_a_broken_file_is_an_error_with_its_place(
    tool: Tool, text: str, words: str, tmp_path: Path
) -> None:
    """A file that cannot be converted is an error with file and line."""
    with pytest.raises(ConfigError) as raised:
        convert_file(tmp_path, tool, text)

    assert [True] == [
        words in found.summary and found.range is not None for found in raised.value.diagnostics
    ]


def test_lines_of_a_later_document_are_those_of_the_file(tmp_path: Path) -> None:
    """Both places of a key that is written twice are counted from the begin of the file."""
    before = f"{NACK_STREAM % ''}---\n"
    with pytest.raises(ConfigError) as raised:
        convert_file(tmp_path, "nack", f"{before}kind: Stream\nkind: Stream\n")

    found, line = raised.value.diagnostics[0], before.count("\n") + 1
    assert found.range is not None
    assert found.range.line == line + 1
    assert f"a.yaml:{line}:1;" in found.detail


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("nats", "no .json file"),
        ("nack", "no .yaml or .yml"),
        ("terraform", "no .json file"),
    ],
)
def test_a_folder_without_files_is_reported(tool: Tool, words: str, tmp_path: Path) -> None:
    """An empty folder, a missing path and a file of another tool are one line each."""
    target = ConvertTarget(LoadOptions(tmp_path / "shop"), "shop")
    (tmp_path / "empty").mkdir()
    other = tmp_path / f"other.{'yaml' if tool == 'nack' else 'json'}"
    other.write_text("{}", "utf-8")

    for path, expected in (
        (tmp_path / "empty", words),
        (tmp_path / "missing", "there is no"),
        (other, "noth"),
    ):
        with pytest.raises(JsplanError, match=re.escape(expected)):
            convert(tool, path, target)


def test_files_that_only_terraform_reads(tmp_path: Path) -> None:
    """For HCL, a plan file and a folder of them the hint is the command that writes the JSON."""
    for name, data in (("main.tf", b'resource "x" "y" {}\n'), ("tfplan", b"PK\x03\x04\x00")):
        (tmp_path / name).write_bytes(data)
    target = ConvertTarget(LoadOptions(tmp_path / "shop"), "shop")

    for path in (tmp_path / "main.tf", tmp_path / "tfplan", tmp_path):
        with pytest.raises(JsplanError) as raised:
            convert("terraform", path, target)
        assert "terraform show -json > tf.json" in str(raised.value.hint)


# --- workspaces and domains -----------------------------------------------------------------------------------


def test_a_new_workspace_is_complete(tmp_path: Path) -> None:
    """Without a workspace the text is a valid one with the provider's connection."""
    made = convert_file(
        tmp_path,
        "terraform",
        terraform_plan(
            servers="nats://u:hidden@one:4222,two:4222",
            password="hidden",
            credentials="./a.creds",
        ),
    )
    workspace = new_workspace(tmp_path, made)

    assert made.new_workspace
    assert "hidden" not in made.text + str(made.diagnostics)
    assert ("nats://one:4222,nats://two:4222", None) == (
        workspace.connections["main"].url,
        workspace.connections["main"].password,
    )
    assert ["main/stream/A", "main/consumer/A/C"] == [str(one) for one in workspace.resources]
    assert "$JS.API" == workspace.domains["main"].api_prefix


def test_secrets_of_the_provider_are_not_carried_over(tmp_path: Path) -> None:
    """A user, a password, a seed and credentials as text are left out."""
    files = {"nkey": "SUAhidden", "credentials": "-----BEGIN\n./hidden"}
    plan = terraform_plan(user="hidden", password="hidden", credential_data="hidden", **files)
    made = convert_file(tmp_path, "terraform", plan)

    assert "hidden" not in made.text + str(made.diagnostics)
    assert 'user: "${env.NATS_USER}", password: "${env.NATS_PASSWORD}"' in made.text
    lost = ("nkey", "credentials", "credential_data")
    assert [
        *(f"warning JS180 None: connection main: {word} is not carried over" for word in lost),
        "info JS183 None: connection main: its user is not carried over",
        "info JS183 None: connection main: its password is not carried over",
    ] == sorted(note_texts(made), reverse=True)


def test_accounts_and_domains_of_nack_become_connections_and_domains(tmp_path: Path) -> None:
    """An Account of NACK becomes a connection with files and variables for its secrets.

    jsDomain becomes a domain.
    """
    account = API + "kind: Account\nmetadata: {name: app}\nspec:\n  name: app\n"
    account += "  servers: ['nats://u:secret@hub:4222']\n  creds: {secret: {name: s}, file: app.creds}\n  tls: {secret: {name: t}, ca: ca.crt}\n"  # noqa: E501
    text = "---\n".join(
        [
            account,
            NACK_STREAM % ", account: app, jsDomain: leaf, preventDelete: true",
            NACK_STREAM % ", account: app",
        ]
    )
    made = convert_file(tmp_path, "nack", text)
    workspace = new_workspace(tmp_path, made)

    assert "secret@" not in made.text
    assert ("nats://hub:4222", "app.creds") == (
        workspace.connections["app"].url,
        Path(str(workspace.connections["app"].creds)).name,
    )
    assert {"leaf": "$JS.leaf.API", "app": "$JS.API"} == {
        key: domain.api_prefix for key, domain in workspace.domains.items()
    }
    guarded = [
        str(a) for a, declared in workspace.resources.items() if declared.lifecycle.prevent_destroy
    ]
    assert ["leaf/stream/A"] == guarded


def test_servers_of_a_resource_of_nack_become_its_connection(tmp_path: Path) -> None:
    """Servers and files beside a resource of NACK become its connection.

    Others that differ, and an Account that does not exist, are reported.
    """
    texts = [
        ", servers: ['nats://one'], creds: /a.creds",
        ", servers: ['nats://two']",
        ", account: gone",
    ]
    made = convert_file(
        tmp_path,
        "nack",
        "---\n".join(
            NACK_STREAM.replace("A,", f"S{number},").replace("[a]", f"[a{number}]") % more
            for number, more in enumerate(texts)
        ),
    )
    workspace = new_workspace(tmp_path, made)

    assert ("nats://one", Path("/a.creds")) == (
        workspace.connections["main"].url,
        workspace.connections["main"].creds,
    )
    assert ["JS180", "JS183"] == [found.code for found in made.diagnostics]
    assert ["gone/stream/S2", "main/stream/S0", "main/stream/S1"] == sorted(
        str(address) for address in workspace.resources
    )


def test_a_folder_of_several_clusters_is_reported(tmp_path: Path) -> None:
    """A stream that is read through the prefix of a domain and declared beside is a warning."""
    reader = NACK_STREAM.replace("A, subjects: [a]", "ALL, %s") % (
        "sources: [{name: A, externalApiPrefix: $JS.core.API}]",
        "",
    )
    for texts, domain, expected in (
        ([NACK_STREAM % "", reader], None, ["JS183"]),
        ([NACK_STREAM % "", reader], "core", []),
        ([reader], "d1a", []),
    ):
        made = convert_file(tmp_path, "nack", "---\n".join(texts), domain=domain)

        assert [one.code for one in made.diagnostics] == expected
        assert all("several clusters" in one.summary for one in made.diagnostics)


def test_aliases_of_the_provider_are_connections(tmp_path: Path) -> None:
    """A resource with another provider is in a domain over that connection, also in a module."""
    workspace = new_workspace(
        tmp_path, convert_file(tmp_path, "terraform", terraform_plan("edge", servers="edge"))
    )

    assert ["edge/stream/A", "edge/consumer/A/C"] == [str(one) for one in workspace.resources]
    assert "nats://edge" == workspace.connections["edge"].url


@pytest.mark.parametrize(
    ("domain", "address"), [("hub", "hub/stream/A"), ("edge", "edge/stream/A")]
)
def test_in_a_workspace_its_domains_are_taken(domain: str, address: str, tmp_path: Path) -> None:
    """With a workspace the text has resources alone, in the domain that was named."""
    write_workspace(tmp_path)
    made = convert_file(tmp_path, "terraform", STREAM, domain=domain)

    assert not made.new_workspace
    assert [address] == [str(one) for one in made.addresses]
    assert "connections:" not in made.text
    assert "max_age: 0s" in made.text


def test_a_domain_that_the_workspace_lacks_is_wrong_usage(tmp_path: Path) -> None:
    """A domain that the workspace lacks is wrong usage, and the message says which is missing."""
    write_workspace(tmp_path)
    text = NACK_STREAM % ", jsDomain: leaf"

    assert ["leaf/stream/A"] == [str(one) for one in convert_file(tmp_path, "nack", text).addresses]
    for more, source, words in (
        ({}, '{"name": "A", "subjects": ["a"]}', "3 domains"),
        ({"domain": "nowhere"}, '{"name": "A", "subjects": ["a"]}', "there is no domain nowhere"),
        ({}, '{"domain": "mars", "config": {"name": "A", "subjects": ["a"]}}', "calls itself mars"),
    ):
        with pytest.raises(UsageError, match=words):
            convert_file(tmp_path, "nats", source, **more)


@pytest.mark.parametrize(("control_loop", "age"), [(None, None), (True, "1y"), (False, None)])
def test_a_missing_max_age_depends_on_the_control_loop(
    control_loop: bool | None, age: str | None, tmp_path: Path
) -> None:
    """A missing maxAge is a year with the control loop and unlimited without.

    Where the user does not say which it is, nothing is written and both are reported.
    """
    made = convert_file(
        tmp_path, "nack", (NACK_STREAM % "").replace(", maxAge: 1h", ""), control_loop=control_loop
    )

    assert (age is not None) == ("max_age: 1y" in made.text)
    assert {None: ["JS183"], True: ["JS181"], False: []}[control_loop] == [
        found.code for found in made.diagnostics
    ]


def test_finalizers_are_a_sign_of_the_control_loop(tmp_path: Path) -> None:
    """Finalizers on a resource show that the control loop runs."""
    text = (
        (NACK_STREAM % "")
        .replace(", maxAge: 1h", "")
        .replace("{name: a}", "{name: a, finalizers: [stream.nats.io/finalizer]}")
    )

    assert "max_age: 1y" in convert_file(tmp_path, "nack", text).text


# --- Terraform's JSON -----------------------------------------------------------------------------------------

SOURCE = {
    "name": "B",
    "start_seq": 5,
    "start_time": "",
    "filter_subject": "",
    "external": [{"api": "$JS.b.API", "deliver": ""}],
}
ATTRIBUTES: dict[str, Any] = {
    "name": "A", "subjects": ["a"], "max_age": 60, "duplicate_window": 60, "ack": True, "allow_direct": False, "mirror": [],
    "metadata": None, "source": [SOURCE],
}  # fmt: skip
CONSUMER: dict[str, Any] = {
    "stream_id": "JETSTREAM_STREAM_A", "durable_name": "C", "deliver_all": False, "stream_sequence": 7, "start_time": "", "backoff": [],
    "ack_policy": "explicit", "sample_freq": 0, "max_ack_pending": 20000, "heartbeat": None,
}  # fmt: skip


def terraform_module(**more: Any) -> dict[str, Any]:
    """Return a stream, and its consumer in a module, as Terraform writes them."""
    consumer = {"address": 'module.m["x.y"].jetstream_consumer.c[0]', "values": CONSUMER}
    stream = {"address": "jetstream_stream.s", "values": ATTRIBUTES} | more
    named = {"mode": "managed", "type": "jetstream_consumer", "name": "c"}
    child = {"address": 'module.m["x.y"]', "resources": [named | consumer]}
    return {
        "resources": [named | {"type": "jetstream_stream", "name": "s"} | stream],
        "child_modules": [child],
    }


def terraform_plan(alias: str = "", **expressions: Any) -> str:
    """Return the JSON of a saved plan with a provider that has an alias."""
    key = f"jetstream.{alias}" if alias else "jetstream"
    provider = {
        "name": "jetstream",
        "expressions": {word: {"constant_value": value} for word, value in expressions.items()},
    } | ({"alias": alias} if alias else {})

    def declare(kind: str, name: str) -> dict[str, Any]:
        one = {"type": f"jetstream_{kind}", "name": name, "provider_config_key": key}
        return {"resources": [one]}

    module = declare("stream", "s") | {"module_calls": {"m": {"module": declare("consumer", "c")}}}
    configuration = {"provider_config": {key: provider}, "root_module": module}
    planned = {"root_module": terraform_module()}
    return json.dumps(
        {"format_version": "1.2", "planned_values": planned, "configuration": configuration}
    )


def test_the_json_of_a_state_and_of_a_plan_give_the_same_text(tmp_path: Path) -> None:
    """The JSON of a state and of a saved plan give the same text, child modules included.

    No default is filled in, and none that is there is a note.
    """
    state = {"format_version": "0.2", "values": {"root_module": terraform_module()}}
    made = convert_file(tmp_path, "terraform", json.dumps(state))
    planned = convert_file(tmp_path, "terraform", terraform_plan())
    declared = new_workspace(tmp_path, made).resources
    stream, consumer = (
        dict(one.body)
        for _, one in sorted(declared.items(), key=lambda pair: str(pair[0]), reverse=True)
    )

    assert ([], []) == (note_texts(made), note_texts(planned))
    assert made.text == planned.text
    assert {"name": "B", "opt_start_seq": 5, "external": {"api": "$JS.b.API"}} == stream["sources"][
        0
    ]
    assert (60_000_000_000, "a") == (stream["max_age"], stream["subjects"][0])
    assert "allow_direct" not in stream
    assert ("by_start_sequence", 7, 20000, "0%") == tuple(
        consumer[n] for n in ("deliver_policy", "opt_start_seq", "max_ack_pending", "sample_freq")
    )


def test_values_that_are_sensitive_or_not_known_yet_are_left_out(tmp_path: Path) -> None:
    """A sensitive value is never written, and one that an apply finds out is no default."""
    secret = ATTRIBUTES | {"description": "hidden", "metadata": {"key": "hidden", "team": "a"}}
    marks = {"subjects": [False], "description": True, "metadata": {"key": True}, "source": [{}]}
    planned = {"root_module": terraform_module(values=secret, sensitive_values=marks)}
    change = {
        "address": "jetstream_stream.s",
        "change": {"after_unknown": {"id": True, "max_msgs": True}},
    }
    document = {"format_version": "1.2", "planned_values": planned, "resource_changes": [change]}
    made = convert_file(tmp_path, "terraform", json.dumps(document))

    assert "hidden" not in made.text + str(made.diagnostics)
    assert [
        f"warning JS180 None: jetstream_stream.s: {what}"
        for what in (
            "description is not carried over: it is sensitive",
            "max_msgs is not carried over: it is known only after an apply",
            "metadata is not carried over: it is sensitive",
        )
    ] == sorted(note_texts(made))


NAMED = base64.b64encode(b'{"name": "A"}').decode()


@pytest.mark.parametrize(
    ("packed", "summary"),
    [
        ({"configuration": "{}"}, "`configuration` is not base64: left out"),
        (
            {"configuration": base64.b64encode(b"{").decode()},
            "`configuration` is not a JSON object: left out",
        ),
        (
            {"configuration": NAMED, "checksum": "0" * 64},
            "`configuration` does not have the checksum that the file says: left out",
        ),
        (
            {"configuration": NAMED, "type": "stream_template"},
            "neither a stream nor a consumer: left out",
        ),
    ],
)
def test_a_damaged_file_of_nats_backup_is_left_out(
    packed: dict[str, str], summary: str, tmp_path: Path
) -> None:
    """A damaged file of `nats backup` is left out with a note, and the rest is converted."""
    whole = {"name": "B", "subjects": ["b"]}
    made = convert_file(
        tmp_path,
        "nats",
        json.dumps([whole, {"type": "stream", "time": "2020-05-01T15:56:11Z"} | packed]),
    )

    assert ["main/stream/B"] == [str(address) for address in made.addresses]
    assert [summary] == [found.summary for found in made.diagnostics]


@pytest.mark.parametrize("tool", ["terraform", "nack", "nats"])
def test_ack_policy_none_is_written(tool: Tool, tmp_path: Path) -> None:
    """`ack_policy: none` is written although it is the default.

    Left out, the next plan would warn that it was forgotten.
    """
    nack = "kind: Consumer\nmetadata: {name: c}\nspec: {streamName: A, durableName: C, ackPolicy: none}\n"
    values = {"stream_id": "A", "durable_name": "C", "deliver_all": True, "ack_policy": "none"}
    text = {
        "terraform": terraform_json([["stream", ATTRIBUTES], ["consumer", values]]),
        "nack": f"{NACK_STREAM % ''}---\n{API}{nack}",
        "nats": '[{"name": "A", "subjects": ["a"]}, {"stream_name": "A", "config": {"durable_name": "C", "ack_policy": "none"}}]',
    }[tool]
    made = convert_file(tmp_path, tool, text)

    assert "ack_policy: none" in made.text
