"""Every configuration of the suite as raw requests.

Each has a name and subjects of its own, so that one server can hold all of them at once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.config.load import load
from jsplan.config.model import LoadOptions
from jsplan.errors import ConfigError
from jsplan.planning.merge import build_create
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.buckets import client_defaults
from jsplan.topology import build_topology
from tests.acceptance.case_runner import CASES
from tests.fields.measured_rules import cases
from tests.support.workspaces import HUB_LEAF_DOMAINS
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: A consumer that is not used meanwhile has to outlive the test.
HOUR, MINUTE = 3_600_000_000_000, 60_000_000_000
#: What is there at one moment of a case.
_State = list[tuple[Address, dict[str, Any]]]
_BASE = {
    "jsplan": 1,
    "workspace": "known",
    "connections": {"hub": {"url": "nats://127.0.0.1:1"}},
    "domains": HUB_LEAF_DOMAINS,
}


@dataclass(frozen=True)
class KnownConfig:
    """One configuration: where it is made, and as what."""

    address: Address
    config: dict[str, Any]

    @property
    def create_request(self) -> tuple[str, dict[str, Any]]:
        """Return the verb that creates it, and the payload."""
        stream = self.address.stream
        if self.address.kind != "consumer":
            return f"STREAM.CREATE.{stream}", self.config
        return f"CONSUMER.CREATE.{stream}.{self.address.consumer}", {
            "stream_name": stream,
            "action": "create",
            "config": self.config,
        }


def configs_of_cases(folder: Path, level: int) -> list[KnownConfig]:
    """Return what every file under tests/cases makes, in each of its states, streams first.

    The states are the raw requests, the workspace before and the desired workspace. Each has its own
    mark, so that it cannot be confused with another stream of the same name.
    """
    found: list[KnownConfig] = []
    for number, path in enumerate(sorted(CASES.rglob("*.yaml"))):
        text = read_yaml(path.read_text("utf-8"))
        if text.get("level", 0) > level:
            continue
        states: list[_State] = [
            [
                (Address.parse(address), config)
                for address, config in text.get("streams", {}).items()
            ]
        ]
        # Circles (10052) and copies that never start (10082) are taken by the server in parts, and made by no plan.
        error = str((text.get("expect") or {}).get("error"))
        parts = ("first",) if "(10052)" in error or "(10082)" in error else ("first", "desired")
        states += [_declared(folder, text.get(part) or {}, level) for part in parts]
        found += _configs_of_states(states, f"c{number}")
    return sorted({one.address: one for one in found}.values(), key=_create_order)


def _configs_of_states(states: list[_State], mark: str) -> Iterator[KnownConfig]:
    marks = [
        {(a.domain, a.stream): f"{mark}s{turn}" for a, _ in some if a.kind != "consumer"}
        for turn, some in enumerate(states)
    ]
    for turn, some in enumerate(states):
        for address, config in some:
            stream = (address.domain, address.stream)
            where = next(
                (known[stream] for known in (marks[turn], *marks) if stream in known),
                f"{mark}s{turn}",
            )
            yield _isolate(address, config, where)


def _create_order(known: KnownConfig) -> tuple[bool, bool, Address]:
    return known.address.kind == "consumer", bool(known.config.get("mirror")), known.address


def _declared(folder: Path, sections: dict[str, Any], level: int) -> _State:
    """Return the resources of a workspace as they are sent when they are created."""
    folder.mkdir(exist_ok=True)
    (folder / "jsplan.yaml").write_text(json.dumps(_BASE | sections), "utf-8")
    try:
        workspace = load(LoadOptions(folder))
    except ConfigError:
        return []
    topology = build_topology(workspace)
    out: _State = []
    for address, body in topology.bodies.items():
        table = CONSUMER if address.kind == "consumer" else STREAM
        out.append(
            (address, build_create(table, body | client_defaults(address.kind, body), level))
        )
    return out


def _with_name(address: Address, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": address.consumer if address.kind == "consumer" else address.stream} | config


# --- out of each other's way ----------------------------------------------------------------------------------


def _isolate(address: Address, config: dict[str, Any], mark: str) -> KnownConfig:
    """Return the configuration under a name and subjects of its own."""
    stream, own = _stream(address.stream, mark), _with_name(address, config)
    if address.kind == "consumer":
        config = _consumer(own, address.stream, mark)
        return KnownConfig(
            Address(address.domain, "consumer", f"{stream}/{address.consumer}"), config
        )
    out = {key: value for key, value in own.items() if key not in ("name", "subjects")} | {
        "name": stream
    }
    if own.get("subjects"):
        out["subjects"] = [_subject(subject, mark) for subject in own["subjects"]]
    for key in ("subject_transform", "republish"):
        if out.get(key, {}) and out[key].get("src", ">") not in ("", ">"):
            out[key] = out[key] | {"src": _subject(out[key]["src"], mark)}
    if out.get("mirror"):
        out["mirror"] = out["mirror"] | {"name": _stream(out["mirror"]["name"], mark)}
    if out.get("sources"):
        out["sources"] = [
            origin | {"name": _stream(origin["name"], mark)} for origin in out["sources"]
        ]
    return KnownConfig(Address.of_stream(address.domain, stream), out)


def _consumer(config: dict[str, Any], stream: str, mark: str) -> dict[str, Any]:
    out = dict(config)
    if out.get("filter_subject"):
        out["filter_subject"] = _subject(out["filter_subject"], mark)
    if out.get("filter_subjects"):
        out["filter_subjects"] = [_subject(subject, mark) for subject in out["filter_subjects"]]
    if out.get("deliver_subject"):
        out["deliver_subject"] = f"{out['deliver_subject']}.{mark}"
    if not out.get("durable_name") and "durable_name" not in out:
        out["durable_name"] = out["name"]
    return with_long_threshold(out)


def with_long_threshold(config: dict[str, Any]) -> dict[str, Any]:
    """Return a consumer that stays on the server although it is not used."""
    durable = bool(config.get("durable_name"))
    threshold = config.get("inactive_threshold") or 0
    if (durable and not threshold) or threshold >= MINUTE:
        return config
    return config | {"inactive_threshold": HOUR}


def _stream(name: str, mark: str) -> str:
    prefix = next((p for p in ("KV_", "OBJ_") if name.startswith(p)), "")
    return f"{prefix}{mark}{name.removeprefix(prefix)}"


def _subject(subject: str, mark: str) -> str:
    bucket = re.fullmatch(r"(\$KV|\$O)\.([^.]+)(\..*)", subject)
    return f"{bucket[1]}.{mark}{bucket[2]}{bucket[3]}" if bucket else f"{mark}.{subject}"


# --- the measured rules ---------------------------------------------------------------------------------------


def measured_configs() -> Iterator[KnownConfig]:
    """Return both configurations of each measured update, on a server without a domain."""
    seen = set()
    for case in cases():
        for config in (case.before, case.after):
            shape = json.dumps([case.kind, config], sort_keys=True)
            if shape not in seen:
                seen.add(shape)
                yield _measured(case.kind, config, f"m{len(seen)}")


def measured_updates() -> Iterator[tuple[KnownConfig, KnownConfig]]:
    """Return each measured update: the first configuration, and the second."""
    for number, case in enumerate(cases()):
        yield (
            _measured(case.kind, case.before, f"u{number}"),
            _measured(case.kind, case.after, f"u{number}"),
        )


def _measured(kind: str, config: dict[str, Any], mark: str) -> KnownConfig:
    if kind == "stream":
        return _measured_stream(config, mark)
    return KnownConfig(Address("main", "consumer", f"S/{mark}"), _measured_consumer(config, mark))


def _measured_stream(config: dict[str, Any], mark: str) -> KnownConfig:
    """Change its own name and subjects only: the origins that it names are there."""
    out = config | {"name": mark}
    if out.get("subjects"):
        out["subjects"] = [_subject(subject, mark) for subject in out["subjects"]]
    for key in ("subject_transform", "republish"):
        if out.get(key) and out[key].get("src", ">") not in ("", ">"):
            out[key] = out[key] | {"src": _subject(out[key]["src"], mark)}
    return KnownConfig(Address("main", "stream", mark), out)


def _measured_consumer(config: dict[str, Any], mark: str) -> dict[str, Any]:
    out = config | {"name": mark} | ({"durable_name": mark} if config.get("durable_name") else {})
    return with_long_threshold(out)
