"""Write `state/schema/*.json`; a test checks that the files are current."""

from __future__ import annotations

from pathlib import Path

from jsplan.config.workspace_schema import workspace_schema
from jsplan.documents.base import dumps
from jsplan.workflows.schemas import schemas

FOLDER = Path(__file__).parent.parent / "state" / "schema"


def main() -> None:
    """Write every schema and name it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, schema in (schemas() | {"workspace-v1.json": workspace_schema()}).items():
        (FOLDER / name).write_bytes(dumps(schema))
        print(FOLDER.name + "/" + name)


if __name__ == "__main__":
    main()
