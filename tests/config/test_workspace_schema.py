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

ROOT = Path(__file__).parents[2]
SCHEMA = workspace_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
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


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"stream": []}, "$"),
        ({"streams": [{"subjects": ["a"]}]}, "$.streams[0]"),
        ({"streams": [{"name": "A", "max_mesgs": 3}]}, "$.streams[0]"),
        ({"streams": [{"name": "A", "max_msgs": "many"}]}, "$.streams[0].max_msgs"),
        ({"streams": [{"name": "A", "max_age": "1 fortnight"}]}, "$.streams[0].max_age"),
        ({"streams": [{"name": "A", "max_bytes": "10 apples"}]}, "$.streams[0].max_bytes"),
        ({"streams": [{"name": "A", "retention": "forever"}]}, "$.streams[0].retention"),
        ({"streams": [{"name": "A", "num_replicas": 7}]}, "$.streams[0].num_replicas"),
        ({"streams": [{"name": "A.B"}]}, "$.streams[0].name"),
        ({"streams": [{"name": "A", "mirror": {"domain": "hub"}}]}, "$.streams[0].mirror"),
        (
            {"streams": [{"name": "A", "consumers": [{"ack_policy": "all"}]}]},
            "$.streams[0].consumers[0]",
        ),
        (
            {"streams": [{"name": "A", "consumers": [{"name": "C", "stream": "A"}]}]},
            "$.streams[0].consumers[0]",
        ),
        (
            {"streams": [{"name": "A", "lifecycle": {"on_replace": "maybe"}}]},
            "$.streams[0].lifecycle.on_replace",
        ),
        ({"consumers": [{"name": "C"}]}, "$.consumers[0]"),
        ({"kv": [{"bucket": "A", "history": 65}]}, "$.kv[0].history"),
        ({"kv": [{"bucket": "A", "max_age": "1d"}]}, "$.kv[0]"),
        ({"kv": [{"bucket": "A", "compression": "s2"}]}, "$.kv[0].compression"),
        ({"object_stores": [{"bucket": "A", "history": 3}]}, "$.object_stores[0]"),
        ({"domains": {"hub": {"conection": "x"}}}, "$.domains.hub"),
        ({"defaults": {"stream": {"name": "A"}}}, "$.defaults.stream"),
        ({"overrides": [{"max_age": "1d"}]}, "$.overrides[0]"),
        ({"removed": [{"address": "hub/**"}]}, "$.removed[0]"),
        ({"jsplan": 2}, "$.jsplan"),
    ],
)
def test_errors_are_at_their_path(sections: dict[str, Any], path: str) -> None:
    """Typing errors and values out of range are reported at their path."""
    assert problems(**sections) == [path]


@pytest.mark.parametrize(
    "sections",
    [
        {"x-anchors": {"anything": [1]}},
        {"streams": None},
        {
            "streams": [
                {
                    "name": "A",
                    "max_age": 5,
                    "max_bytes": 5,
                    "duplicate_window": "1h30m",
                    "max_msg_size": "1.5KiB",
                }
            ]
        },
        {
            "streams": [
                {
                    "name": "A",
                    "max_age": "${var.keep}",
                    "num_replicas": "${var.n}",
                    "deny_delete": "${var.b}",
                    "storage": "${var.s}",
                }
            ]
        },
        {
            "streams": [
                {
                    "name": "A",
                    "max_msgs": None,
                    "retention": None,
                    "mirror": None,
                    "subjects": None,
                    "lifecycle": None,
                }
            ]
        },
        {
            "streams": [
                {
                    "name": "A",
                    "x_raw": {"anything": {"at": "all"}},
                    "domain": ["hub", "!leaf"],
                    "environments": "prod",
                }
            ]
        },
        {
            "kv": [
                {
                    "bucket": "A",
                    "compression": True,
                    "allow_direct": False,
                    "sources": [{"name": "B", "domain": "label:edge"}],
                }
            ]
        },
        {
            "consumers": [
                {
                    "stream": "A",
                    "durable_name": "C",
                    "sample_freq": 100,
                    "backoff": ["1s", 5, "${var.wait}"],
                }
            ]
        },
        {
            "overrides": [
                {"address": "hub/kv/*", "compression": True, "history": 3},
                {"address": "hub/stream/*", "compression": "s2"},
            ]
        },
    ],
)
def test_valid_values_have_no_error(sections: dict[str, Any]) -> None:
    """Anchors, units, references, null and raw fields are valid."""
    assert problems(**sections) == []


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
