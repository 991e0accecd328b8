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
