"""Saved plans with a correct checksum: shown in every format, and applied."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from tests.documents import valid_documents
from tests.fuzz import hostile_values
from tests.fuzz.documents import Document, load
from tests.fuzz.harness import Target
from tests.fuzz.played_server import play_servers
from tests.fuzz.targets.common import SEEDS, recorded_seeds, with_commands

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun


def _with_more(content: bytes) -> bytes:
    """Return the plan with entries in lists that are mostly empty."""
    raw = json.loads(content)
    position = {"file": "jsplan.yaml", "line": 3, "column": 1}
    raw["diagnostics"].append(
        {
            "severity": "warning",
            "code": "JS411",
            "summary": "s",
            "detail": "d",
            "address": "hub/stream/A",
            "range": position,
        }
    )
    raw["deferred"].append({"address": "leaf/stream/B", "reason": "domain leaf is offline"})
    raw["targets"], raw["variables"] = ["hub/**"], {"keep": "30d"}
    return json.dumps(raw).encode()


def seeds() -> list[Document]:
    """Return plans of an empty server and with hazards, with answers, and one to show."""
    documents: list[Document] = []
    plans = load(SEEDS / "plans.json")
    for name, planned in plans.items():
        (recorded,) = recorded_seeds(name.removesuffix(".plan"))
        content = _with_more(planned)
        shown = [
            f"show p.plan --format {form}" for form in ("text", "text", "json", "markdown", "html")
        ]
        applied = [
            "apply p.plan --no-input",
            "apply p.plan --no-input --allow-hazard DELETES_STREAM --format json",
        ]
        documents += with_commands(recorded | {"p.plan": content}, *shown, *applied)
    everything = json.dumps(valid_documents.plan()).encode()
    documents += with_commands(recorded | {"p.plan": everything}, *shown)
    return documents


def run(scene: DocumentRun) -> None:
    """Run the command of the document on a plan with a new checksum."""
    with contextlib.suppress(orjson.JSONDecodeError, TypeError, RecursionError):
        raw: Any = orjson.loads(scene.part("p.plan"))
        if isinstance(raw, dict):
            (scene.ws / "p.plan").write_bytes(orjson.dumps(valid_documents.with_checksum(raw)))
    play_servers(scene.document, known=True)
    scene.jsplan(*scene.command())


TARGET: Final = Target(
    "plan", seeds, run, changes=lambda name: name == "p.plan", words=hostile_values.MARKUP, share=2
)
