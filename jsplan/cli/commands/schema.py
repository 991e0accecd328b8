"""`jsplan schema`: the JSON Schema of workspace files and of the documents."""

from __future__ import annotations

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start

DOCUMENTS = (
    "workspace", "plan", "apply", "drift", "notification", "state", "history", "status", "lint",
    "graph", "backup", "comparison",
    "backfill", "backfill-plan", "backfill-verify", "backfill-status",
)  # fmt: skip


@declare("schema", examples=["jsplan schema > workspace-v1.json", "jsplan schema plan"])
@click.argument(
    "document",
    required=False,
    default="workspace",
    type=click.Choice(DOCUMENTS),
    metavar="[DOCUMENT]",
)
@click.pass_context
def command(ctx: click.Context, /, document: str) -> int:
    """Print the JSON Schema of workspace files, or of another DOCUMENT.

    DOCUMENT is plan, apply, drift, notification (of drift watch), state, history, status, lint,
    graph, backup, comparison, backfill, backfill-plan, backfill-verify or backfill-status.

    An editor with a YAML language server uses it with this first line in jsplan.yaml. `jsplan init
    --schema` writes both. After an upgrade write it again: `jsplan schema > workspace-v1.json`.

    # yaml-language-server: $schema=workspace-v1.json
    """
    _, output = start(ctx)
    from jsplan.config.workspace_schema import workspace_schema
    from jsplan.documents.base import dumps
    from jsplan.workflows.schemas import schemas

    schema = workspace_schema() if document == "workspace" else schemas()[f"{document}-v1.json"]
    output.result(
        lambda: schema,
        lambda _: output.line(text),
        plain=(text := dumps(schema).decode().rstrip("\n")),
    )
    return 0
