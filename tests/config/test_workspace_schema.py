"""The schema for editors accepts and refuses the same documents as the reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jsplan import units
from jsplan.config.findings import Findings
from jsplan.config.node import Source, to_plain
from jsplan.config.read import parse_document
from jsplan.config.schema_parts import field_schema
from jsplan.config.workspace_schema import workspace_schema
from jsplan.documents.base import dumps
from jsplan.resources import KV
from tests.config.conftest import Loader
from tests.support.yaml_text import read_yaml

ROOT = Path(__file__).parents[2]
SCHEMA = workspace_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
CASES: dict[str, list[Any]] = read_yaml(
    Path(__file__).with_name("schema_cases.yaml").read_text("utf-8")
)
HEAD: dict[str, Any] = {"jsplan": 1, "workspace": "shop"}
EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").rglob("*")
    if path.suffix in (".yaml", ".json") and "\njsplan: 1\n" in "\n" + path.read_text("utf-8")
)


def document(text: str) -> Any:
    """Parse text with the reader of jsplan, without locations."""
    findings = Findings()
    node = parse_document(Source(Path("jsplan.yaml"), "jsplan.yaml"), text.encode(), findings)
    findings.raise_if_failed()
    assert node is not None
    return to_plain(node)


def problems(**sections: Any) -> list[str]:
    """Return the paths of the errors of the schema."""
    return sorted({error.json_path for error in VALIDATOR.iter_errors(HEAD | sections)})


def test_the_schema_is_one_and_its_file_is_current() -> None:
    """The schema is valid, and its file is what `tools/make_schemas.py` writes."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    assert (ROOT / "state" / "schema" / "workspace-v1.json").read_bytes() == dumps(SCHEMA)


@pytest.mark.parametrize(
    "path",
    [*EXAMPLES, Path(__file__).parent / "contract.yaml"],
    ids=lambda path: path.parent.name + "/" + path.name,
)
def test_every_example_is_valid(path: Path) -> None:
    """The examples and the workspace of the contract are valid."""
    VALIDATOR.validate(document(path.read_text("utf-8")))


def test_there_are_examples() -> None:
    """The list of examples is not empty."""
    assert len(EXAMPLES) >= 2


def test_workspaces_of_acceptance_cases_are_valid() -> None:
    """The workspaces of all acceptance cases are valid."""
    found = 0
    for path in sorted((ROOT / "tests" / "cases").rglob("*.yaml")):
        case = document(path.read_text("utf-8"))
        for sections in (case.get("first"), case.get("desired")):
            if sections is not None and not case.get("expect", {}).get("error"):
                errors = [
                    f"{path.name} {error.json_path}: {error.message[:200]}"
                    for error in VALIDATOR.iter_errors(sections)
                ]
                assert errors == []
                found += 1
    assert found >= 60


def test_errors_are_at_their_path() -> None:
    """Typing errors and values out of range are reported at their path."""
    rows = CASES["refused"]
    assert [problems(**sections) for _, sections in rows] == [[path] for path, _ in rows]


def test_valid_values_have_no_error() -> None:
    """Anchors, units, references, null and raw fields are valid."""
    assert [sections for sections in CASES["valid"] if problems(**sections)] == []


DURATIONS = ["1d", "-1d", " 1h30m ", "0", "1.5s", "1µs", "1", "d", "1 d", "", "1fortnight", "1d1"]
SIZES = ["1GiB", "1gb", "1 K", "1.5M", "5B", "7", "1XB", "GiB", "1iB", ""]


@pytest.mark.parametrize(
    ("kind", "parse", "text"),
    [
        *(("duration", units.parse_duration, text) for text in DURATIONS),
        *(("size", units.parse_size, text) for text in SIZES),
    ],
)
def test_units_are_those_of_the_reader(
    kind: str, parse: Callable[[object], int], text: str
) -> None:
    """The patterns for units accept the same text as the reader."""
    try:
        parse(text)
    except ValueError:
        accepted = False
    else:
        accepted = True

    assert (
        jsonschema.Draft202012Validator(
            {"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{kind}"}
        ).is_valid(text)
        is accepted
    )


def test_fields_have_description_default_and_version() -> None:
    """The schema has description, default and server version of each field."""
    history, marker = (
        field_schema(KV.by_name["history"]),
        field_schema(KV.by_name["limit_marker_ttl"]),
    )

    assert (history["description"], history["default"]) == ("Values kept of each key.", 1)
    assert marker["description"].endswith("Needs nats-server 2.11.")


def test_included_files_are_workspace_files_too(workspace: Loader) -> None:
    """A file without version and name of a workspace is valid, and may be included."""
    text = "streams: [{name: S}]\n"

    assert list(VALIDATOR.iter_errors(document(text))) == []
    assert [str(a) for a in workspace("", files={"more.jsplan.yaml": text}).resources] == [
        "hub/stream/S"
    ]
