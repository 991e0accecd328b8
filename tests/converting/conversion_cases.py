"""Configurations of other tools, each with the requests that the tool sends for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsplan.converting.model import ConvertTarget
from jsplan.workflows.convert import convert
from tests.support.workspaces import single_space
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from jsplan.converting.model import ConvertResult, Tool
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server
    from tests.support.raw import Raw
    from tests.support.workspaces import Space

FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    """One file of the other tool, and the requests that it stands for."""

    title: str
    source: str | None
    form: str
    streams: list[dict[str, Any]]
    consumers: list[tuple[str, dict[str, Any]]]
    notes: list[str]
    since: tuple[int, ...]
    values: dict[str, str]

    @property
    def resources(self) -> int:
        """Count the configurations of the case."""
        return len(self.streams) + len(self.consumers) + len(self.values)


def cases(name: str, version: tuple[int, ...] = (99,)) -> list[Case]:
    """Return all cases of one file that a server of the version can have."""
    document = read_yaml((FOLDER / f"{name}.yaml").read_text("utf-8"))
    return [
        Case(
            found["title"],
            terraform_json(found["resources"]) if "resources" in found else found.get("source"),
            found.get("form", ""),
            found.get("streams", []),
            [tuple(one) for one in found.get("consumers", [])],
            found.get("notes", []),
            tuple(int(part) for part in str(found.get("since", "2.10")).split(".")),
            found.get("values", {}),
        )
        for found in document["cases"]
        if version >= tuple(int(part) for part in str(found.get("since", "2.10")).split("."))
    ]


def terraform_json(resources: list[list[Any]], **more: Any) -> str:
    """Return what `terraform show -json` prints of a state with these types and their values."""
    made = [
        {
            "address": f"jetstream_{kind}.r{number}",
            "mode": "managed",
            "type": f"jetstream_{kind}",
            "name": f"r{number}",
            "provider_name": "registry.terraform.io/nats-io/jetstream",
            "schema_version": 0,
            "values": values,
            "sensitive_values": {},
        }
        for number, (kind, values) in enumerate(resources)
    ]
    chart = {"values": ["{{ .Values.of.a.chart }}"]}  # a state has more than JetStream
    made.append({"address": "helm_release.r", "type": "helm_release", "values": chart})
    return json.dumps(
        {"format_version": "1.0", "terraform_version": "1.9.8"}
        | {"values": {"root_module": {"resources": made}}}
        | more
    )


def create_all(raw: Raw, found: list[Case]) -> None:
    """Create everything as the other tool does."""
    for case in found:
        for stream in case.streams:
            raw.api_ok(f"$JS.API.STREAM.CREATE.{stream['name']}", stream)
        for subject, value in case.values.items():
            assert b'"seq"' in raw.request(subject, value.encode())[1]
    for case in found:
        for owner, consumer in case.consumers:
            name = consumer.get("durable_name") or consumer["name"]
            raw.api_ok(
                f"$JS.API.CONSUMER.CREATE.{owner}.{name}",
                {"stream_name": owner, "config": {"name": name} | consumer},
            )


def plan_adoption(
    tool: Tool, source: Path, folder: Path, server: Server, **more: Any
) -> tuple[ConvertResult, Space, Plan]:
    """Convert the files into a workspace of one domain, and plan it against the server."""
    space = single_space(folder, server).write(include=["converted.yaml"])
    (folder / "converted.yaml").write_text("streams: []\n", "utf-8")
    made = convert(tool, source, ConvertTarget(space.load, "test"), **more)
    (folder / "converted.yaml").write_text(made.text, "utf-8")
    return made, space, space.plan()


def adoption_differences(plan: Plan) -> dict[str, Any]:
    """Return each resource that the plan would not import unchanged, with what differs."""
    return {
        str(change.address): (
            change.change.actions,
            [(one.path, one.before, one.after) for one in change.change.fields],
        )
        for change in plan.resource_changes
        if list(change.change.actions) != ["no-op"]
    }
