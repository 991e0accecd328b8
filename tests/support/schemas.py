"""The schemas of the documents, as they ship."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[2] / "state" / "schema"


@cache
def validator(document: str) -> Any:
    """Return what checks documents of a kind.

    It is made of the file, which is current (`tests/render/test_schemas.py`): to make all schemas
    takes a tenth of a second.
    """
    return jsonschema.Draft202012Validator(json.loads((FOLDER / f"{document}-v1.json").read_text()))
