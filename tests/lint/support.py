"""Workspaces for the rules: read from data, and linted without a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jsplan.address import Address
from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.facts.live import LiveObject
from jsplan.lint.engine import Report, run_rules
from jsplan.lint.rules import RULES
from jsplan.lint.view import View
from jsplan.topology import build_topology
from tests.support.yaml_text import read_yaml

CASES = Path(__file__).parent / "cases"
#: Two domains of one account, and one of another that hears neither.
HEAD: dict[str, Any] = {
    "jsplan": 1,
    "workspace": "advice",
    "connections": {
        "acc": {"url": "nats://127.0.0.1:4222"},
        "other": {"url": "nats://127.0.0.1:4223"},
    },
    "domains": {
        "hub": {"connection": "acc"},
        "leaf": {"connection": "acc"},
        "other": {"connection": "other"},
    },
    "defaults": {"domain": "hub"},
}


@dataclass(frozen=True)
class Case:
    """One file: `bad` has the findings, `good` looks alike and has none.

    `find` is a part of each message, by address; `live` are configurations on the servers.
    """

    path: Path
    text: dict[str, Any]

    @property
    def code(self) -> str:
        """Return the code of the rule, from the file's name."""
        return self.path.stem[:5].upper()

    def view(self, which: str, folder: Path) -> View:
        """Return the workspace of one side."""
        return view(self.text[which], folder, self.text.get("live", {}))


def cases() -> list[Case]:
    """Return every case, by name."""
    return [Case(path, read_yaml(path.read_text("utf-8"))) for path in sorted(CASES.glob("*.yaml"))]


def view(sections: dict[str, Any], folder: Path, live: dict[str, Any] | None = None) -> View:
    """Return a view of a workspace that consists of the head and these sections."""
    (folder / "jsplan.yaml").write_text(
        yaml.safe_dump(HEAD | sections, sort_keys=False), encoding="utf-8"
    )
    workspace = load(LoadOptions(folder))
    topology = build_topology(workspace)
    assert not [d for d in (*workspace.diagnostics, *topology.diagnostics) if d.severity == "error"]
    there = {
        Address.parse(a): LiveObject(Address.parse(a), config, "2026-01-01T00:00:00Z", {})
        for a, config in (live or {}).items()
    }
    return View(workspace, topology, live=there)


def lint_findings(sections: dict[str, Any], folder: Path) -> Report:
    """Return the findings of all rules on a workspace."""
    return run_rules(view(sections, folder), RULES)
