"""Real workspaces in temporary folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jsplan.address import Address
from jsplan.config import LoadOptions, Workspace, load
from jsplan.config.model import DeclaredResource
from jsplan.diagnostics import Diagnostic
from jsplan.errors import ConfigError

HEAD = "jsplan: 1\nworkspace: shop\n"
HUB = "domains: {hub: {}}\n"


@dataclass(frozen=True, slots=True)
class Loader:
    """Writes files into one folder and loads it as a workspace."""

    root: Path

    def write(self, files: Mapping[str, str | bytes]) -> None:
        """Write each file, without the indentation of the test."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())

    def options(self, **options: object) -> LoadOptions:
        """Build options for this folder; `var` and `environ` in short."""
        return LoadOptions(self.root, **options)  # type: ignore[arg-type]

    def __call__(
        self,
        text: str,
        *,
        head: str = HEAD + HUB,
        files: Mapping[str, str | bytes] | None = None,
        **options: object,
    ) -> Workspace:
        """Load a workspace whose main file is `head` and `text`."""
        self.write(files or {})
        (self.root / "jsplan.yaml").write_text(head + dedent(text), encoding="utf-8")
        return load(self.options(**options))

    def single_resource(self, text: str, **options: object) -> DeclaredResource:
        """Load the workspace and return its only resource."""
        (declared,) = self(text, **options).resources.values()  # type: ignore[arg-type]
        return declared

    def findings(self, text: str, **options: object) -> tuple[Diagnostic, ...]:
        """Return all findings of a workspace that cannot be loaded."""
        with pytest.raises(ConfigError) as caught:
            self(text, **options)  # type: ignore[arg-type]
        return caught.value.diagnostics

    def single_finding(self, text: str, **options: object) -> Diagnostic:
        """Return the only finding."""
        found = self.findings(text, **options)
        assert len(found) == 1, found
        return found[0]


@pytest.fixture
def workspace(tmp_path: Path) -> Loader:
    """An empty folder that can be loaded as a workspace."""
    return Loader(tmp_path)


Body = Callable[[Workspace, str], object]


def placed(template: Any, element: Any) -> Any:
    """Return a template with the element where `<>` stands."""
    if isinstance(template, dict):
        return {key: placed(part, element) for key, part in template.items()}
    if isinstance(template, list):
        return [placed(part, element) for part in template]
    return element if template == "<>" else template


def body_of(loaded: Workspace, address: str) -> dict[str, object]:
    """Return the body of one resource as a plain dict."""
    return dict(loaded.resources[Address.parse(address)].body)
