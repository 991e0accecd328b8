"""An older server with streams and consumers of a newer one, and what jsplan says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config.model import LoadOptions
from jsplan.errors import ConfigError
from jsplan.sandbox import Sandbox
from jsplan.sandbox.versions import VERSIONS, ensure_version
from jsplan.workflows.validate import validate
from tests.support.raw import NoResponders, Raw
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.diagnostics import Diagnostic

pytestmark = pytest.mark.download
NEWEST = VERSIONS[-1]
STREAMS: dict[str, dict[str, Any]] = {
    "PLAIN": {},
    "TTL": {"allow_msg_ttl": True},
    "MARKERS": {"subject_delete_marker_ttl": 10**10},
    "COUNTER": {"allow_msg_counter": True},
    "ATOMIC": {"allow_atomic": True},
    "SCHEDULES": {"allow_msg_schedules": True},
    "ASYNC": {"persist_mode": "async"},
    "BATCHED": {"allow_batched": True},
    "FED": {"sources": [{"name": "PLAIN", "consumer": {"name": "C", "deliver_subject": "fed"}}]},
}
CONSUMERS: dict[str, dict[str, Any]] = {
    "PLAIN": {},
    "PAUSED": {"pause_until": "2040-01-01T00:00:00Z"},
    "OVERFLOW": {"priority_policy": "overflow", "priority_groups": ["a"]},
    "FLOW": {"ack_policy": "flow_control", "deliver_subject": "flow.x"},
    "PRIORITIZED": {"priority_policy": "prioritized", "priority_groups": ["a"]},
}


def write_space(folder: Path) -> Space:
    """Write a workspace of all of them."""
    base = {
        "jsplan": 1,
        "workspace": "test",
        "connections": {"main": {"url": "nats://127.0.0.1:1"}},
    }
    space = Space(folder, base | {"domains": {"main": {"connection": "main", "js_domain": None}}})
    streams = [{"name": name, "subjects": [f"{name}.>"], **body} for name, body in STREAMS.items()]
    streams[0]["consumers"] = [
        {"name": name, "ack_policy": "explicit", **body} for name, body in CONSUMERS.items()
    ]
    return space.write(defaults={"domain": "main"}, streams=streams)


def create_everything(raw: Raw) -> dict[str, dict[str, Any]]:
    """Create all of them by raw requests; return the answers by address."""
    answers = {}
    for name, body in STREAMS.items():
        config = {"name": name, "subjects": [f"{name}.>"], **body}
        answers[f"main/stream/{name}"] = raw.api(f"$JS.API.STREAM.CREATE.{name}", config)
    for name, body in CONSUMERS.items():
        config = {"durable_name": name, "ack_policy": "explicit", **body}
        request = {"stream_name": "PLAIN", "config": config}
        answers[f"main/consumer/PLAIN/{name}"] = raw.api(
            f"$JS.API.CONSUMER.CREATE.PLAIN.{name}", request
        )
    return answers


def look_at_everything(raw: Raw) -> dict[str, dict[str, Any]]:
    """Return the INFO of all of them by address, errors included."""
    found = {f"main/stream/{n}": raw.api(f"$JS.API.STREAM.INFO.{n}") for n in STREAMS}
    return found | {
        f"main/consumer/PLAIN/{n}": raw.api(f"$JS.API.CONSUMER.INFO.PLAIN.{n}") for n in CONSUMERS
    }


def lacks_settings(address: str, answer: dict[str, Any]) -> bool:
    """Return whether the server has it without its settings."""
    name = address.split("/")[-1]
    body = CONSUMERS[name] if "/consumer/" in address else STREAMS[name]
    return not has_all(answer["config"], body)


def has_all(found: Any, wanted: Any) -> bool:
    """Return whether a part of a configuration has all that is wanted, and maybe more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(has_all(found.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return all(map(has_all, found or [None] * len(wanted), wanted))
    return bool(found == wanted)


def find_version_findings(space: Space, version: str) -> tuple[Diagnostic, ...]:
    """Return what `validate --server-version` finds, errors included."""
    options = LoadOptions(space.folder)
    try:
        return validate(options, version).diagnostics
    except ConfigError as error:
        return tuple(error.diagnostics)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_release_refuses_or_drops_is_an_error(version: str, tmp_path: Path) -> None:
    """The errors of `validate --server-version` are what a real server refuses or does not keep."""
    with (
        Sandbox.single(binary=ensure_version(version)) as servers,
        Raw(servers["server"].url) as raw,
    ):
        answers = create_everything(raw)

    refused = {
        address
        for address, answer in answers.items()
        if "error" in answer or lacks_settings(address, answer)
    }
    found = find_version_findings(write_space(tmp_path), version)
    assert {d.address for d in found if d.severity == "error"} == refused


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_a_downgrade_and_back(version: str, tmp_path: Path) -> None:
    """After a downgrade they are offline, not found, or without settings; an upgrade mends it."""
    store, workspace = tmp_path / "store", tmp_path / "workspace"
    workspace.mkdir()
    with (
        Sandbox.single(binary=ensure_version(NEWEST), folder=store) as servers,
        Raw(servers["server"].url) as raw,
    ):
        assert not any("error" in answer for answer in create_everything(raw).values())
        raw.api_ok("BATCHED.x", b"stored before")
    with (
        Sandbox.single(binary=ensure_version(version), folder=store) as servers,
        Raw(servers["server"].url) as raw,
    ):
        downgraded = look_at_everything(raw)
        if "error" in downgraded["main/stream/BATCHED"]:
            with pytest.raises(NoResponders):
                raw.api("BATCHED.x", b"is not stored")
    with (
        Sandbox.single(binary=ensure_version(NEWEST), folder=store) as servers,
        Raw(servers["server"].url) as raw,
    ):
        upgraded = look_at_everything(raw)

    errors = {
        a: answer["error"]["err_code"] for a, answer in downgraded.items() if "error" in answer
    }
    changed = {
        a for a, answer in downgraded.items() if a not in errors and lacks_settings(a, answer)
    }
    found = find_version_findings(write_space(workspace), version)
    warned = {d.address: d.summary for d in found if d.code == "JS464"}
    assert warned.keys() == errors.keys() | changed
    for address, code in errors.items():
        assert code == (10014 if "/consumer/" in address else 10194)
        said = "neither runs nor lists it" if code == 10014 else "the stream is offline"
        assert said in warned[str(address)]
    assert all("runs it without" in warned[address] for address in changed)
    assert not any("error" in answer or lacks_settings(a, answer) for a, answer in upgraded.items())
    assert upgraded["main/stream/BATCHED"]["state"]["messages"] == 1
