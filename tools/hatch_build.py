"""Put the JSON Schemas of `state/schema` into the wheel as `jsplan/schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SchemaHook(BuildHookInterface[Any]):
    """Called by hatchling for each build of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the schemas to a wheel. Raises FileNotFoundError if there are none."""
        if version == "editable":
            return
        schemas = sorted(Path(self.root, "state", "schema").glob("*.json"))
        if not schemas:
            raise FileNotFoundError(
                "state/schema/*.json is missing: the wheel would have no document schemas"
            )
        build_data["force_include"].update(
            {str(path): f"jsplan/schema/{path.name}" for path in schemas}
        )
