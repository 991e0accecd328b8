"""Thresholds in metadata, on a real server and on answers of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.cli.main import main
from jsplan.drift.service.alerts import build_alerts
from jsplan.drift.service.metrics import Metrics
from jsplan.facts.live import LiveObject
from jsplan.health import find_breaches
from jsplan.health.thresholds import PREFIX, ROWS, known_keys, parse_value
from jsplan.options import DriftOptions
from jsplan.units import SECOND, parse_instant
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.support.raw import Raw
from tests.support.schemas import validator
from tests.support.workspaces import RecordingObserver, Space, single_space
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from jsplan.sandbox import Server

NOW = parse_instant("2026-01-01T12:00:00Z")
#: Thresholds by resource, and what is expected of them with the content of `space`.
EXPECTED: dict[str, dict[str, tuple[str, str | None, str]]] = read_yaml(
    Path(__file__).with_name("thresholds.yaml").read_text("utf-8")
)


def metadata(address: str) -> dict[str, str]:
    return {PREFIX + key: value for key, (value, *_) in EXPECTED[address].items()}


@pytest.fixture
def space(tmp_path: Path, server: Server) -> Space:
    """A workspace whose streams and consumer have thresholds, with messages."""
    space = single_space(tmp_path, server).write(
        streams=[
            {
                "name": "FEW",
                "subjects": ["few.>"],
                "metadata": metadata("main/stream/FEW"),
                "consumers": [
                    {
                        "name": "LATE",
                        "ack_policy": "explicit",
                        "metadata": metadata("main/consumer/FEW/LATE"),
                    }
                ],
            },
            *(
                {
                    "name": name,
                    "subjects": [f"{name.lower()}.>"],
                    "metadata": metadata(f"main/stream/{name}"),
                }
                for name in ("MANY", "FINE", "OFF", "WRONG")
            ),
        ],
        kv=[{"bucket": "BUCKET", "metadata": metadata("main/kv/BUCKET")}],
    )
    space.apply()
    with Raw(server.url) as raw:
        for number in range(5):
            raw.request("few.a", b"x")
            if number < 3:
                raw.request(f"many.{number}", b"x")
        raw.pull("FEW", "LATE", 2)
    return space


def wanted(*, level: str | None = None) -> set[tuple[str, str, str, str]]:
    """Return what should be exceeded: address, key, level and cause."""
    return {
        (address, PREFIX + key, found, cause)
        for address, keys in EXPECTED.items()
        for key, (_, found, cause) in keys.items()
        if found is not None and level in (None, found)
    }


def test_status_marks_what_is_exceeded(
    space: Space, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status has each exceeded threshold with its cause, and marks its stream or consumer."""
    found = status(space.load, RecordingObserver())
    document = found.to_json()

    validator("status").validate(document)
    assert wanted() == {
        (item["address"], breach["key"], breach["level"], breach["cause"])
        for item in (*document["streams"], *document["consumers"])
        for breach in item["thresholds"]
    }
    assert document["summary"]["breached"] == 5
    monkeypatch.chdir(space.folder)
    assert main(["status"]) == document["exit_code"] == 2
    text = capsys.readouterr().out
    assert main(["status", "--target", "main/stream/FINE"]) == 0
    rows = {line.split()[0]: line for line in reversed(text.splitlines()) if line.strip()}
    assert rows["main/stream/FEW"].endswith("CRITICAL")
    assert rows["LATE"].endswith("CRITICAL")
    assert "CRITICAL" not in rows["main/stream/FINE"] + rows["main/stream/OFF"]
    assert "  ! main/stream/FEW: 5 messages (msgs-warn: 10)" in text
    assert text.rstrip().endswith("5 need attention.")


def test_drift_is_unhealthy(
    space: Space, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Critical thresholds are unhealthy and exit 2; warnings are only listed."""
    found = drift(space.load, DriftOptions(), RecordingObserver())

    document = found.to_json()
    validator("drift").validate(document)
    assert wanted() == {
        (breach["address"], breach["key"], breach["level"], breach["cause"])
        for breach in document["thresholds"]
    }
    assert document["summary"]["unhealthy"] == len(wanted(level="critical"))
    assert found.exit_code == 2
    monkeypatch.chdir(space.folder)
    assert main(["drift", "--fail-on", "changed,missing,replication"]) == 0
    assert "! main/stream/MANY: 3 subjects (subjects-critical: 3)" in capsys.readouterr().out
    for format_ in ("markdown", "html", "junit", "github"):
        assert main(["drift", "--format", format_]) == 2
        assert "subjects-critical: 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("silent", "code"),
    [
        ({"mute": [{"address": "**", "owner": "ops", "reason": "known"}]}, 0),
        ({"ignore": ["**"]}, 0),
        ({"ignore": ["main/stream/FEW"]}, 2),
    ],
    ids=["muted", "ignored", "one-ignored"],
)
def test_status_does_not_fail_for_what_is_silent(
    space: Space, silent: dict[str, Any], code: int
) -> None:
    """Status still names what is muted or ignored, and ends with 2 for the rest, like drift."""
    files = {name: space_sections(space)[name] for name in ("streams", "kv")}
    space.write(**files, drift=silent)

    found = status(space.load, RecordingObserver())

    assert (
        found.exit_code == code == drift(space.load, DriftOptions(), RecordingObserver()).exit_code
    )
    assert found.summary["breached"] == 5


def test_a_mute_covers_a_threshold(space: Space) -> None:
    """Muted thresholds are counted as muted, and no failure."""
    mute = {"address": "**", "owner": "ops", "reason": "known"}
    files = {name: space_sections(space)[name] for name in ("streams", "kv")}
    space.write(**files, drift={"mute": [mute]})

    found = drift(space.load, DriftOptions(), RecordingObserver())

    assert found.exit_code == 0
    assert found.thresholds == []
    assert {m["kind"] for m in found.mutes} == {"threshold"}


def space_sections(space: Space) -> dict[str, Any]:
    """Return the sections of the workspace file."""
    sections: dict[str, Any] = json.loads((space.folder / "jsplan.yaml").read_text())
    return sections


def test_the_drift_job_alerts_and_counts(space: Space) -> None:
    """Each exceeded threshold is an alert, whose content does not have the present number."""
    found = drift(space.load, DriftOptions(), RecordingObserver())
    alerts = build_alerts(found, {"threshold"})
    metrics = Metrics("test")
    metrics.set_alerts(alerts)

    exposed = metrics.expose().decode()

    assert {(a.address, a.severity) for a in alerts if a.address.endswith("/FEW")} == {
        ("main/stream/FEW", "cosmetic"),
        ("main/stream/FEW", "functional"),
    }
    assert len({a.id for a in alerts}) == len(wanted())
    with Raw(space_sections(space)["connections"]["main"]["url"]) as raw:
        raw.request("few.a", b"x")
    again = build_alerts(drift(space.load, DriftOptions(), RecordingObserver()), {"threshold"})
    assert [(a.id, a.content) for a in again] == [(a.id, a.content) for a in alerts]
    assert [a.summary for a in again] != [a.summary for a in alerts]
    assert 'jsplan_drift_alert{address="main/stream/MANY"' in exposed
    assert 'kind="threshold"' in exposed


# --- what one server alone cannot show --------------------------------------------------------------


def live(config: dict[str, Any], **more: Any) -> LiveObject:
    """Return a stream with one threshold, as an answer shows it."""
    return LiveObject(Address("d", "stream", "S"), config, "2026-01-01T00:00:00Z", **more)


def breaches(key: str, value: str, config: dict[str, Any], **more: Any) -> list[str]:
    """Return the causes for a stream with this one threshold."""
    found = live(config | {"metadata": {PREFIX + key: value}}, **{"state": {}} | more)
    return [breach.cause for breach in find_breaches(found, NOW)]


MIRROR: dict[str, Any] = {"name": "S", "mirror": {"name": "O"}}
ORIGIN = {"name": "O", "lag": 100, "active": 60 * SECOND}
REPLICATED: dict[str, Any] = {"name": "S", "num_replicas": 3}
PEERS = {
    "name": "cluster",
    "leader": "a",
    "replicas": [
        {"name": "b", "current": True, "active": 5 * SECOND, "lag": 0},
        {"name": "c", "current": False, "active": 90 * SECOND, "lag": 7},
    ],
}


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("lag-critical", "100", "O is 100 messages behind"),
        ("lag-critical", "101", None),
        ("lag-critical", "0", None),
        ("seen-critical", "1m", "O was last seen 1m ago"),
        ("seen-critical", "61s", None),
    ],
)
def test_origins(key: str, value: str, cause: str | None) -> None:
    """A mirror or source that reaches the threshold exceeds it."""
    expected = [] if cause is None else [f"{cause} ({key}: {value})"]

    assert breaches(key, value, MIRROR, flows=[ORIGIN]) == expected
    sources = {"name": "S", "sources": [{"name": "P"}, {"name": "O"}]}
    others = {"name": "P", "lag": 0, "active": 0}
    assert breaches(key, value, sources, flows=[others, ORIGIN]) == expected


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [
        ("peer-expect", "3", None),
        ("peer-expect", "5", "3 replicas"),
        ("peer-lag-critical", "7", None),
        ("peer-lag-critical", "6", "c is 7 operations behind"),
        ("peer-seen-critical", "90s", None),
        ("peer-seen-critical", "1m", "c was last seen 1m30s ago"),
    ],
)
def test_replicas(key: str, value: str, cause: str | None) -> None:
    """A replica has to be beyond the threshold, and their number has to be equal."""
    expected = [] if cause is None else [f"{cause} ({key}: {value})"]

    assert breaches(key, value, REPLICATED, server=PEERS) == expected


def test_an_offline_replica_and_a_lost_leader() -> None:
    """The expected replicas must be online and have a leader."""
    offline = PEERS | {"replicas": [{"name": "b"}, {"name": "c", "offline": True}]}
    headless = {"name": "cluster", "replicas": PEERS["replicas"]}

    assert breaches("peer-expect", "3", REPLICATED, server=offline) == [
        "c offline (peer-expect: 3)"
    ]
    assert breaches("peer-expect", "3", REPLICATED, server=headless) == [
        "it has no leader (peer-expect: 3)"
    ]


@pytest.mark.parametrize(
    ("count", "level"), [(4, "critical"), (5, "critical"), (9, "warning"), (11, None)]
)
def test_few_subjects_where_critical_is_smaller(count: int, level: str | None) -> None:
    """A critical value that is not greater than the warning turns the check round."""
    keys = {PREFIX + "subjects-warn": "10", PREFIX + "subjects-critical": "5"}
    found = live({"name": "S", "metadata": keys}, state={"num_subjects": count})

    assert [breach.level for breach in find_breaches(found, NOW)] == ([level] if level else [])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.key}")
def test_every_key_of_the_table_is_tried(row: Any) -> None:
    """Each key of the table is documented and has a test here."""
    tried = {key for keys in EXPECTED.values() for key in keys}
    tried |= {"lag-critical", "seen-critical", "peer-lag-critical", "peer-seen-critical"}

    assert row.key in tried
    assert row.key in known_keys(row.kind)
    assert row.text.endswith(".")


def test_values() -> None:
    """Values are those that Go parses: what it refuses is refused here."""
    for value, text, parsed in [
        ("unsigned", "10", 10),
        ("integer", "-1", -1),
        ("duration", "1h30m", 5400 * SECOND),
        ("flag", "T", 1),
        ("unsigned", "-1", None),
        ("unsigned", "1.5", None),
        ("unsigned", "١", None),
        ("duration", "5", None),
        ("duration", "", None),
        ("flag", "yes", None),
    ]:
        if parsed is not None:
            assert parse_value(value, text) == parsed, (value, text)
            continue
        with pytest.raises(ValueError, match=r"^not "):
            parse_value(value, text)
