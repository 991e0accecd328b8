"""Reads a generated file back, as a plan would see it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.codegen import CodegenContext, ResourceToWrite, generate_document
from jsplan.config.load import load
from jsplan.config.model import Domain, LoadOptions, Workspace
from jsplan.planning.decide import table_of
from jsplan.planning.merge import expected_new
from jsplan.resources.buckets import client_defaults
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.topology import build_topology

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.resources.fields import Config


def domains(*keys: str, **labels: str) -> dict[str, Domain]:
    """Return domains over one connection, named as they are called; `hub="core"` gives a label."""
    return {
        key: Domain(
            key, "hub", key, f"$JS.{key}.API", frozenset({labels[key]} if key in labels else ())
        )
        for key in keys
    }


def workspace(folder: Path, text: str, world: CodegenContext, **sections: Any) -> Workspace:
    """Load a workspace with these domains and the text. Raises ConfigError."""
    declared = {
        key: {"connection": d.connection, "labels": sorted(d.labels)}
        for key, d in world.domains.items()
    }
    base = {
        "jsplan": 1,
        "workspace": "read",
        "connections": {"hub": {"url": "nats://h"}},
        "domains": declared,
    }
    (folder / "jsplan.yaml").write_text(json.dumps(base | sections), "utf-8")
    (folder / "found.jsplan.yaml").write_text(text, "utf-8")
    return load(LoadOptions(folder))


def planned_configs(found: Workspace, level: int = NEWEST_LEVEL) -> dict[Address, Config]:
    """Return what each resource of the workspace would be on an empty server, in compact form."""
    topology = build_topology(found)
    assert [one for one in topology.diagnostics if one.severity == "error"] == []
    out = {}
    for address, body in topology.bodies.items():
        name = address.consumer if address.kind == "consumer" else address.stream
        whole = {"name": name} | body
        limits = (
            topology.bodies.get(address.parent, {}).get("consumer_limits") or {}
            if address.parent
            else {}
        )
        out[address] = expected_new(
            table_of(address), whole | client_defaults(address.kind, whole), level, limits
        )
    return out


def config_on_server(
    address: Address, config: Config, level: int = NEWEST_LEVEL
) -> ResourceToWrite:
    """Return the resource as a server of the level would show it after a create."""
    table = table_of(address)
    return ResourceToWrite(
        address, table.with_defaults(expected_new(table, config, level, {}), level), complete=True
    )


def read_back(
    folder: Path, found: list[ResourceToWrite], world: CodegenContext, **sections: Any
) -> str:
    """Write, read and compare: the workspace means exactly what was found. Return the text."""
    written = generate_document(found, world)
    assert written.notes == ()
    expected = {one.address: table_of(one.address).compact(dict(one.config)) for one in found}
    expected |= {
        one.address: expected_new(table_of(one.address), one.config, NEWEST_LEVEL, {})
        for one in found
        if not one.complete
    }
    assert planned_configs(workspace(folder, written.text, world, **sections)) == expected, (
        written.text
    )
    return written.text
