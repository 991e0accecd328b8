from __future__ import annotations

from typing import Any

import jsonschema
import orjson

from jsplan.codes import HAZARDS
from jsplan.config.workspace_schema import workspace_schema
from jsplan.documents.base import dumps
from jsplan.documents.plan import Plan
from jsplan.state.document import State
from jsplan.workflows.schemas import schemas
from tests.render import samples
from tests.support.schemas import FOLDER, validator

DOCUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("plan", samples.everything().to_json()),
    ("plan", samples.plan().to_json()),
    ("apply", samples.partial_apply().to_json()),
    ("apply", samples.complete_apply().to_json()),
    ("drift", samples.drift().to_json()),
    ("state", samples.state()),
    ("state", State("shop", None).to_json()),
]


def test_the_files_are_current() -> None:
    """The schemas in the repository are what `tools/make_schemas.py` writes."""
    every = schemas() | {"workspace-v1.json": workspace_schema()}
    assert {path.name: path.read_bytes() for path in FOLDER.glob("*.json")} == {
        name: dumps(s) for name, s in every.items()
    }


def test_each_schema_is_one() -> None:
    """Every schema is valid against the meta-schema of its dialect."""
    for path in FOLDER.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(orjson.loads(path.read_bytes()))


def test_real_documents_are_valid() -> None:
    """Documents that the code writes are valid."""
    for kind, document in DOCUMENTS:
        validator(kind).validate(orjson.loads(dumps(document)))


def test_every_field_is_in_the_schema() -> None:
    """Every top-level field is in the schema; without one that is required it is refused."""
    for kind, document in DOCUMENTS:
        schema = validator(kind).schema
        assert set(schema["required"]) <= set(document) <= set(schema["properties"]), kind
        head = jsonschema.Draft202012Validator({"required": schema["required"]})
        for name in schema["required"]:
            assert not head.is_valid({k: v for k, v in document.items() if k != name}), name


def test_a_plan_survives_the_way_through_json() -> None:
    """A saved plan read back is the same document."""
    document = samples.everything().to_json()

    assert Plan.from_json(orjson.loads(dumps(document)), "plan").to_json() == document


def test_an_unknown_hazard_is_no_plan() -> None:
    """A plan with an unknown hazard is refused."""
    document = samples.everything().to_json()
    document["resource_changes"][3]["hazards"][0]["code"] = "EATS_LUNCH"

    assert "EATS_LUNCH" not in HAZARDS
    assert not validator("plan").is_valid(document)
