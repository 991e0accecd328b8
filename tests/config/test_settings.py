"""The sections moved, removed, drift, lint, ownership, imports and backfills."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsplan.config.model import Mute
from jsplan.errors import ConfigError
from jsplan.workflows.validate import validate
from tests.config.conftest import HEAD, Loader


def test_moved_and_removed_are_read(workspace: Loader) -> None:
    """Addresses and globs are read, and domains that no longer exist are allowed."""
    text = """
        streams: [{name: S}]
        moved:
          - {from: "leaf/**", to: "hub/**"}
          - {from: old/consumer/S/C, to: hub/consumer/S/C}
          - {from: "shop-*/**", to: "store-*/**"}
        removed:
          - {address: "store-200/**", destroy: false}
          - {address: hub/stream/X, destroy: true, prevent_destroy: false}
        """
    loaded = workspace(text)
    assert [(entry.old_address, entry.new_address, str(entry.range)) for entry in loaded.moved] == [
        ("leaf/**", "hub/**", "jsplan.yaml:7:5"),
        ("old/consumer/S/C", "hub/consumer/S/C", "jsplan.yaml:8:5"),
        ("shop-*/**", "store-*/**", "jsplan.yaml:9:5"),
    ]
    assert [(entry.address, entry.destroy, entry.prevent_destroy) for entry in loaded.removed] == [
        ("store-200/**", False, None),
        ("hub/stream/X", True, False),
    ]


def test_relocate_is_read(workspace: Loader) -> None:
    """Streams that move are addresses or globs; what is declared is the new address."""
    loaded = workspace("""
        streams: [{name: S}]
        relocate:
          - {from: hub/stream/OLD, to: hub/stream/S}
          - {from: "hub/stream/?-X", to: "hub/stream/?"}
        """)

    assert [(e.old_address, e.new_address, str(e.range)) for e in loaded.relocate] == [
        ("hub/stream/OLD", "hub/stream/S", "jsplan.yaml:7:5"),
        ("hub/stream/?-X", "hub/stream/?", "jsplan.yaml:8:5"),
    ]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("relocate: [{from: hub/stream/S, to: hub/stream/S}]", "JS144", "Remove"),
        ("relocate: [{from: hub/stream/A, to: hub/stream/B}]", "JS144", "under its new address"),
        ("relocate: [{from: hub/stream/S, to: hub/stream/T}]", "JS144", "declaration"),
        ("relocate: [{from: 'leaf/**', to: 'hub/stream/*'}]", "JS144", "wildcards"),
        ("relocate: [{from: hbu/stream/A, to: hub/stream/S}]", "JS122", '"hub"'),
        ("relocate: [{from: hub/kv/B, to: hub/kv/A}]", "JS149", "as a source"),
        ("relocate: [{from: hub/consumer/A/C, to: hub/consumer/S/D}]", "JS149", "its stream only"),
        (
            (
                "relocate: [{from: hub/consumer/A/C, to: hub/consumer/S/D}, "
                "{from: hub/stream/B, to: hub/stream/S}]"
            ),
            "JS149",
            "Add the entry of the stream",
        ),
        ("relocate: [{from: hub/object_store/B, to: hub/object_store/A}]", "JS149", "copy"),
        ("relocate: [{from: hub/stream/A}]", "JS106", "to"),
        ("moved: [{from: hub/stream/A, to: hub/consumer/A/B}]", "JS144", "same kind"),
        ("moved: [{from: 'leaf/**', to: 'hub/stream/*'}]", "JS144", "wildcards"),
        ("moved: [{from: hub/stream/A, to: hub/stream/A}]", "JS144", "Remove"),
        ("moved: [{from: hub/stream/S, to: hub/stream/T}]", "JS144", "declaration"),
        ("moved: [{from: hub/stream/A, to: hbu/stream/A}]", "JS122", '"hub"'),
        ("moved: [{from: hub/stream/A, to: hub/stream/B}]", "JS147", "rename-or-split-a-stream.md"),
        (
            "moved: [{from: leaf/stream/A, to: hub/stream/B}]",
            "JS147",
            "`relocate:` in place of `moved:`",
        ),
        (
            "moved: [{from: 'leaf/stream/A*', to: 'hub/stream/B*'}]",
            "JS147",
            "`relocate:` in place of `moved:`",
        ),
        (
            "moved: [{from: 'leaf/stream/?_A', to: 'hub/stream/?_B'}]",
            "JS147",
            "`relocate:` in place of `moved:`",
        ),
        ("moved: [{from: hub/kv/A, to: hub/kv/B}]", "JS147", "bucket"),
        ("moved: [{from: hub/object_store/A, to: hub/object_store/B}]", "JS147", "object store"),
        ("moved: [{from: hub/consumer/A/C, to: hub/consumer/A/D}]", "JS147", "consumer"),
        ("moved: [{from: hub/consumer/A/C, to: hub/consumer/B/C}]", "JS147", "consumer"),
        ("moved: [{from: '**_A', to: '**_B'}]", "JS147", "renamed in place"),
        ("moved: [{from: hub/stream/A}]", "JS106", "to"),
        ("moved: [{from: hub/topic/A, to: hub/topic/B}]", "JS143", "hub/stream/ORDERS"),
        ("removed: [{address: hub/stream/A}]", "JS106", "destroy: false"),
        ("removed: [{address: hub/stream/S, destroy: false}]", "JS144", "declaration"),
        ("removed: [{address: 'hub//x*', destroy: false}]", "JS143", "glob"),
        ("drift: {ignore: [S]}", "JS143", "hub/stream/ORDERS"),
        ("drift: {mute: [{address: hub/stream/S, reason: x}]}", "JS106", "owner"),
        (
            "drift: {mute: [{address: hub/stream/S, reason: x, owner: o, until: soon}]}",
            "JS142",
            "2026-12-31",
        ),
        ("drift: {ignored: []}", "JS105", '"ignore"'),
        ("lint: {JS201: off}", "JS130", "ignore, warning, error"),
        ("lint: {201: error}", "JS140", "JS201"),
        ("ownership: {marker: 'true'}", "JS104", "quotes"),
        ("ownership: true", "JS104", "key: value"),
    ],
)
def test_wrong_settings_are_errors(text: str, code: str, words: str, workspace: Loader) -> None:
    """Each mistake is an error with a correction."""
    found = workspace.findings(f"streams: [{{name: S}}]\n{text}\n")
    assert found[0].code == code
    assert words in found[0].detail


def test_drift_and_lint_are_read(workspace: Loader) -> None:
    """Ignored globs, mutes, severities and the owner tag setting are read."""
    text = """
        drift:
          ignore: ["hub/stream/TMP_*"]
          mute: [{address: hub/stream/X, fields: [max_age], owner: ops, reason: "…", until: 2026-12-31}]
        lint: {JS201: warning}
        ownership: {marker: false}
        """
    loaded = workspace(text)
    assert loaded.drift.ignore == ("hub/stream/TMP_*",)
    assert loaded.drift.mute == (Mute("hub/stream/X", "…", "ops", ("max_age",), "2026-12-31"),)
    assert loaded.drift.mute[0].range is not None
    assert dict(loaded.lint) == {"JS201": "warning"}
    assert loaded.ownership_marker is False


def test_sinks_are_read_and_not_shown(workspace: Loader) -> None:
    """The URL of a sink from the environment is in no representation of the workspace."""
    text = 'drift: {sinks: [{webhook: {url: "${env.HOOK}"}}, {subject: ops.drift, domain: hub}, {file: drift.jsonl}]}\n'
    loaded = workspace(text, head=DOMAINS, environ={"HOOK": "https://hooks.example/T0/S3CRET"})
    assert [next(iter(sink)) for sink in loaded.drift.sinks] == ["webhook", "subject", "file"]
    assert loaded.drift.sinks[0]["webhook"]["url"].endswith("S3CRET")
    assert "S3CRET" not in repr(loaded)


SINKS = {
    "{webhook: {url: 'http://['}}": "its host is no name",
    "{webhook: {url: 'http://'}}": "it names no host",
    "{webhook: {url: 'http:///x'}}": "it names no host",
    "{webhook: {url: 'http://u:pass@:80/x'}}": "it names no host",
    "{webhook: {url: 'http://h:x/y'}}": '"x" is no port',
    "{webhook: {url: 'http://h:99999999999999999999/y'}}": "is no port",
    "{webhook: {url: 'http://[::1]:0/'}}": "is no port",
    "{webhook: {url: 'ftp://h/x'}}": '"ftp" is not one of http, https',
    "{webhook: {url: 'hooks.example/x'}}": "it has no scheme",
    '{webhook: {url: "http://h/a b"}}': "a blank",
    '{webhook: {url: "http://h/a\\nb"}}': "a blank",
    "{webhook: {url: 5}}": "text",
    "{webhook: {url: 'http://h', headers: abc}}": "a mapping",
    "{webhook: {url: 'http://h', headers: [a]}}": "a mapping",
    "{webhook: {url: 'http://h', headers: {X: 5}}}": "text",
    "{webhook: {url: 'http://h', headers: {'X Y': a}}}": "not a name for a header",
    "{webhook: {url: 'http://h', headers: {'X\\n': a}}}": "not a name for a header",
    "{webhook: {url: 'http://h', headers: {X: \"a\\r\\nY: b\"}}}": "cannot be sent",
    "{webhook: {url: 'http://h', headers: {X: '\u4e16'}}}": "cannot be sent",
    '{file: "a\\0b"}': "no file's name",
    "{file: [a]}": "text",
}


@pytest.mark.parametrize("sink", SINKS)
def test_an_invalid_sink_is_an_error(sink: str, workspace: Loader) -> None:
    """A mistake in a sink is an error with a location, and its URL is not quoted."""
    found = workspace.findings(f"drift: {{sinks: [{sink}]}}\n")

    assert SINKS[sink] in f"{found[0].summary} {found[0].detail}"
    assert found[0].range is not None
    assert not [d for d in found if "pass" in d.summary or "hooks.example" in d.summary]


@pytest.mark.parametrize("url", ["http://[", "s3cret", "http://h:s3cret/", "s3cret://h"])
def test_a_wrong_url_from_the_environment_is_not_shown(url: str, workspace: Loader) -> None:
    """No part of a wrong URL from the environment is in a finding."""
    text = 'connections: {c: {url: "${env.HOOK}"}}\ndrift: {sinks: [{webhook: {url: "${env.HOOK}"}}]}\n'
    found = workspace.findings(text, environ={"HOOK": url})

    assert any("${env.HOOK} is not a URL" in d.summary for d in found)
    assert not [
        d
        for d in found
        if "s3cret" in f"{d.summary} {d.detail}" or "[" in d.summary.replace("[JS", "")
    ]


BACKFILLS = """\
backfills:
  - name: orders-history
    from: {domain: hub, stream: ORDERS, start_time: 2026-01-01T00:00:00Z, filter_subjects: ["ORDERS.received"]}
    to: {domain: imp, stream: ORDERS_ALL}
    order: subject
    strategy: auto
    mode: tagged
    oversize: error
    rate: 2MB/s
    where: "subject LIKE 'ORDERS.%'"
    transform: clean.py:run
    subject_transform: {src: "ORDERS.>", dest: "ALL.ORDERS.>"}
  - {name: files, from: [{domain: hub, stream: A, start_seq: 1, end_seq: 9}, {parquet: a}], to: {parquet: out}}
  - {name: everywhere, from: {domain: ["hub", "imp"], stream: A, filter_subject: a.b}, to: {stream: B}}
"""
DOMAINS = (
    HEAD
    + "connections: {c: {}, d: {}}\ndomains: {hub: {connection: c}, imp: {connection: d, js_domain: hub}}\ndefaults: {domain: hub}\n"
)


def test_a_transform_is_relative_to_the_file_that_names_it(workspace: Loader) -> None:
    """A transform of a file in a folder is found from there, and `validate` looks for the file."""
    entry = "backfills: [{name: a, from: {stream: A}, to: {parquet: x}, transform: '%s'}]\n"
    head = f"include: [copies/*.yaml]\n{DOMAINS}"
    for name, found in (
        ("../clean.py:run", "copies/../clean.py:run"),
        ("/nowhere/clean.py:run", "/nowhere/clean.py:run"),
    ):
        files = {"clean.py": "", "copies/a.yaml": entry % name}
        made = workspace("", head=head, files=files).backfills["a"].transform

        assert made == found
    with pytest.raises(ConfigError) as raised:
        validate(workspace.options())
    assert "there is no file /nowhere/clean.py" in raised.value.full_text
    workspace.write({"copies/a.yaml": entry % "../clean.py:run"})
    validate(workspace.options())


def test_backfills(workspace: Loader) -> None:
    """Backfills are read in the names and units of the API, with one origin per domain."""
    found = workspace(BACKFILLS, head=DOMAINS).backfills

    assert [
        (name, [str(side) for side in backfill.origins], str(backfill.target))
        for name, backfill in found.items()
    ] == [
        ("orders-history", ["hub/stream/ORDERS"], "imp/stream/ORDERS_ALL"),
        ("files", ["hub/stream/A", "a"], "out"),
        ("everywhere", ["hub/stream/A", "imp/stream/A"], "hub/stream/B"),
    ]
    history, files, everywhere = found.values()
    assert (history.order, history.rate) == ("subject", 2 << 20)
    assert history.subject_transform == ("ORDERS.>", "ALL.ORDERS.>")
    assert history.origins[0].filters == ("ORDERS.received",)
    assert history.origins[0].start_time == "2026-01-01T00:00:00Z"
    assert (files.origins[0].start_seq, files.origins[0].end_seq) == (1, 9)
    assert (files.order, files.strategy, files.mode, files.oversize) == (
        "stream",
        "auto",
        "tagged",
        "error",
    )
    assert everywhere.origins[1].filters == ("a.b",)


@pytest.mark.parametrize(
    "text", ["kv: []", "imports: []", "backfills:", "drift: {sinks: []}", "ownership: {}"]
)
def test_empty_settings_are_accepted(text: str, workspace: Loader) -> None:
    """Empty sections are accepted."""
    assert workspace(text + "\n").diagnostics == ()


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("kv: [{bucket: CONFIG, history: 65}]", "JS130", "at most 64"),
        ("kv: [{bucket: A, name: CONFIG}]", "JS105", '"bucket"'),
        ("kv: [{bucket: A.B}]", "JS131", "letters"),
        ("kv: [{bucket: A, max_age: 1d}]", "JS105", '"ttl"'),
        ("object_stores: [{bucket: A, replicas: 3}]", "JS105", '"num_replicas"'),
        ("imports: [{from: hub, into: hbu, api: x}]", "JS122", '"hub"'),
        ("imports: [{from: hub, into: imp}]", "JS106", "api"),
        (
            "imports: [{from: hub, into: imp, api: x}, {from: hub, into: imp, api: y}]",
            "JS110",
            "hub into imp",
        ),
        ("imports: [{from: hub, into: imp, api: x, consumers: [ORDERS]}]", "JS143", "ORDERS/NEW"),
        ("imports: [{from: hub, into: imp, api: 'x.*'}]", "JS130", "wildcards"),
        ("drift: {sinks: [{webhook: {}}]}", "JS106", "url"),
        ("drift: {sinks: [{mail: x}]}", "JS104", "webhook"),
        ("drift: {sinks: [{file: x, subject: y}]}", "JS104", "webhook"),
        ("drift: {sinks: [{subject: y, domain: hbu}]}", "JS122", '"hub"'),
        (
            "drift: {sinks: [{subject: $JS.API.STREAM.DELETE.X, domain: hub}]}",
            "JS130",
            "belong to the server",
        ),
        ("drift: {sinks: [{subject: ops.*}]}", "JS130", "without wildcards"),
        ("backfills: [{name: a, from: {domain: hub, stream: A}}]", "JS106", "parquet"),
        (
            "backfills: [{name: a, from: {stream: A, start_seq: 0}, to: {parquet: x}}]",
            "JS130",
            "Correct",
        ),
        (
            "backfills: [{name: a, from: {stream: A, start_seq: 1, start_time: 2026-01-01T00:00:00Z}, to: {parquet: x}}]",
            "JS104",
            "Keep one",
        ),
        (
            "backfills: [{name: a, from: {parquet: x}, to: {parquet: y}, order: time}]",
            "JS130",
            "stream, subject, none",
        ),
        (
            "backfills: [{name: a, from: {parquet: x}, to: {parquet: y}, rate: 2MB}]",
            "JS130",
            "Correct",
        ),
        (
            "backfills: [{name: a, from: {parquet: x}, to: {parquet: y}, ordr: none}]",
            "JS105",
            '"order"',
        ),
        (
            "backfills: [{name: a, from: {parquet: 's3://key:sesame@bucket/x'}, to: {parquet: y}}]",
            "JS130",
            "`parquet` of a backfill: it has a user, password or port. The environment has",
        ),
        ("backfills: [{name: a, from: {parquet: 's3a://b/x'}, to: {parquet: y}}]", "JS130", "s3a"),
        ("backfills: [{name: a, from: {parquet: 's3://b'}, to: {parquet: y}}]", "JS130", "no path"),
        ("backfills: [{name: a, from: {parquet: 'gs:///x'}, to: {parquet: y}}]", "JS130", "bucket"),
        (
            "backfills: [{name: a, from: {parquet: 'az://b/x?sig=sesame'}, to: {parquet: y}}]",
            "JS130",
            "it has a query",
        ),
        (
            "backfills: [{name: a, from: {parquet: 's3://b/a/../c'}, to: {parquet: y}}]",
            "JS130",
            "..",
        ),
        (
            "backfills: [{name: a, from: {parquet: 'file://h/x'}, to: {parquet: y}}]",
            "JS130",
            "machine",
        ),
        (
            "backfills: [{name: a, from: {parquet: x}, to: {parquet: y}}, {name: a, from: {parquet: x}, to: {parquet: y}}]",
            "JS110",
            "Keep one",
        ),
    ],
)
def test_wrong_sections_are_errors(text: str, code: str, words: str, workspace: Loader) -> None:
    """Each mistake is an error with a correction."""
    found = workspace.findings(text + "\n", head=DOMAINS)
    assert found[0].code == code
    assert any(words in problem.summary + problem.detail for problem in found)


def test_the_example_of_the_contract_parses(workspace: Loader) -> None:
    """The example of the contract is valid in each environment."""
    text = (Path(__file__).parent / "contract.yaml").read_text(encoding="utf-8")
    files = {
        "legacy.json": '{"stream_name": "X", "config": {"name": "X", "subjects": ["legacy.>"]}}',
        "streams/a.yaml": "streams: []\n",
    }
    for environment in ("staging", "prod"):
        found = workspace(
            text,
            head="",
            files=files,
            environment=environment,
            variables=("region=eu",),
            environ={"ACC_PASSWORD": "p", "HOOK": "https://h"},
        )
        assert (found.environment, list(found.backfills)) == (environment, ["orders-history"])
