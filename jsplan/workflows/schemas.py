"""The JSON Schemas that are published, from which `state/schema/*.json` is generated."""

from __future__ import annotations

from jsplan.backup.manifest import Manifest
from jsplan.documents.alert import AlertEvent
from jsplan.documents.apply import ApplyResult
from jsplan.documents.backfill import BackfillPreview, BackfillResult, BackfillStatus, Verification
from jsplan.documents.comparison import Comparison
from jsplan.documents.drift import Drift
from jsplan.documents.graph import Graph
from jsplan.documents.history import History
from jsplan.documents.json_schema import Schema, schema_of
from jsplan.documents.lint import Lint
from jsplan.documents.plan import Plan
from jsplan.documents.status import Status
from jsplan.state import State


def schemas() -> dict[str, Schema]:
    """All published schemas by file name, such as `plan-v1.json`."""
    documents = (
        AlertEvent, ApplyResult, BackfillPreview, BackfillResult, BackfillStatus, Comparison, Drift,
        Graph, History, Lint, Manifest, Plan, State, Status, Verification,
    )  # fmt: skip
    return {f"{kind.__struct_config__.tag}-v1.json": schema_of(kind) for kind in documents}
