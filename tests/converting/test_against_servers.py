from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.converting.conversion_cases import (
    Case,
    adoption_differences,
    cases,
    create_all,
    plan_adoption,
)
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.converting.model import ConvertResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server
    from tests.support.workspaces import Space


def note_texts(made: ConvertResult) -> str:
    return "\n".join(f"{found.summary} {found.detail}" for found in made.diagnostics)


def require_adopted(made: ConvertResult, space: Space, plan: Plan, found: list[Case]) -> None:
    """Check that everything is imported unchanged, with the notes of the cases and nothing else."""
    assert {} == adoption_differences(plan)
    assert (
        sum(case.resources for case in found)
        == len(plan.resource_changes)
        == len(made.addresses) + sum(len(case.values) for case in found)
        == plan.summary["import"]
    )
    assert [] == [note for case in found for note in case.notes if note not in note_texts(made)]
    space.apply()
    after = space.plan()
    assert {} == adoption_differences(after)
    assert 0 == after.summary["import"]


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["nack", "nack_loop"])
def test_resources_of_nack_are_adopted_unchanged(
    name: str, server: Server, server_version: tuple[int, ...], tmp_path: Path
) -> None:
    """Converted custom resources give an empty plan against what the controller of NACK sends."""
    found = cases(name, server_version)
    source = tmp_path / "manifests"
    source.mkdir()
    for number, case in enumerate(found):
        (source / f"{number:02}.yaml").write_text(str(case.source), "utf-8")
    with Raw(server.url) as raw:
        create_all(raw, found)

    made, space, plan = plan_adoption("nack", source, tmp_path, server)

    require_adopted(made, space, plan, found)


@pytest.mark.matrix
def test_resources_of_terraform_are_adopted_unchanged(
    server: Server, server_version: tuple[int, ...], tmp_path: Path
) -> None:
    """Converted JSON of Terraform gives an empty plan against what its provider sends."""
    found = cases("terraform", server_version)
    source = tmp_path / "shown"
    source.mkdir()
    for number, case in enumerate(found):
        (source / f"{number:02}.json").write_text(str(case.source), "utf-8")
    with Raw(server.url) as raw:
        create_all(raw, found)

    made, space, plan = plan_adoption("terraform", source, tmp_path, server)

    require_adopted(made, space, plan, found)


def write_backup_file(file: Path, kind: str, body: dict[str, Any]) -> None:
    """Write a file as `nats backup` does."""
    data = json.dumps(body, indent=2).encode()
    packed = {
        "configuration": base64.b64encode(data).decode(),
        "checksum": hashlib.sha256(data).hexdigest(),
    }
    file.write_text(json.dumps({"type": kind, "time": "2020-05-01T15:56:11Z"} | packed), "utf-8")


def save_as_cli(raw: Raw, case: Case, number: int, folder: Path) -> None:
    """Write the files that the nats CLI saves of a case."""
    if case.source is not None:
        (folder / f"{number:02}.json").write_text(case.source, "utf-8")
        return
    for stream in case.streams:
        info = raw.api_ok(f"$JS.API.STREAM.INFO.{stream['name']}")
        if case.form == "packed":
            write_backup_file(folder / f"stream_{stream['name']}.json", "stream", info["config"])
            continue
        wrapped = {
            "info": info,
            "backup": {"config": info["config"], "state": info["state"]},
            "plain": stream,
        }[case.form]
        place = (
            folder / stream["name"] / "backup.json"
            if case.form == "backup"
            else folder / f"{stream['name']}.json"
        )
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(wrapped), "utf-8")
    for owner, consumer in case.consumers:
        name = consumer.get("durable_name") or consumer["name"]
        info = raw.api_ok(f"$JS.API.CONSUMER.INFO.{owner}.{name}")
        if case.form == "packed":
            body = {"name": name, "stream": owner, "config": info["config"]}
            write_backup_file(folder / f"stream_{owner}_consumer_{name}.json", "consumer", body)
            continue
        (folder / f"{owner}_{name}.json").write_text(
            json.dumps(info if case.form == "info" else consumer), "utf-8"
        )


@pytest.mark.matrix
def test_resources_of_the_cli_are_adopted_unchanged(
    server: Server, server_version: tuple[int, ...], tmp_path: Path
) -> None:
    """Converted files of the nats CLI give an empty plan against what they were saved from."""
    found = cases("nats", server_version)
    source = tmp_path / "saved"
    source.mkdir()
    with Raw(server.url) as raw:
        create_all(raw, found)
        for number, case in enumerate(found):
            save_as_cli(raw, case, number, source)

    made, space, plan = plan_adoption("nats", source, tmp_path, server)

    require_adopted(made, space, plan, found)


@pytest.mark.parametrize(
    ("tool", "files"),
    [("nats", ["nats"]), ("nack", ["nack", "nack_loop"]), ("terraform", ["terraform"])],
)
def test_there_are_configurations_enough(tool: str, files: list[str]) -> None:
    """Each tool has at least twenty configurations."""
    assert sum(case.resources for name in files for case in cases(name)) >= 20, tool
