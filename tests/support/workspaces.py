"""Workspaces in temporary folders that use the embedded servers, and a silent observer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jsplan.config.model import LoadOptions
from jsplan.documents.apply import ApplyEvent
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from jsplan.workflows import plan as planning
from tests.support.explained_steps import require_explained
from tests.support.process import jsplan

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server
    from tests.support.process import ProcessResult

HUB_LEAF_DOMAINS = {"hub": {"connection": "hub"}, "leaf": {"connection": "hub", "labels": ["edge"]}}


@dataclass
class RecordingObserver:
    """An observer that records the texts and events of a workflow."""

    texts: list[str] = field(default_factory=list)
    events: list[ApplyEvent] = field(default_factory=list)

    def phase(self, text: str) -> None:
        """Record a phase."""
        self.texts.append(text)

    def event(self, event: ApplyEvent) -> None:
        """Record a step."""
        self.events.append(event)

    def warn(self, text: str) -> None:
        """Record a warning."""
        self.texts.append(text)


def approve(plan: Plan) -> None:
    """Approve everything."""


@dataclass
class Space:
    """One workspace folder, on which the real workflows run.

    `write` replaces its files.
    """

    folder: Path
    base: dict[str, Any]

    def write(self, **sections: Any) -> Space:
        """Write jsplan.yaml, as JSON, with these sections over the base."""
        (self.folder / "jsplan.yaml").write_text(
            json.dumps(self.base | sections, ensure_ascii=False), "utf-8"
        )
        return self

    @property
    def load(self) -> LoadOptions:
        """The options to load it."""
        return LoadOptions(self.folder)

    def run(self, *words: str) -> ProcessResult:
        """Run a command line in the folder."""
        return jsplan(self.folder, *words)

    def plan(self, **options: Any) -> Plan:
        """Plan, and check that every step is explained."""
        return require_explained(
            planning.plan(self.load, PlanOptions(**options), RecordingObserver())
        )

    def apply(self, **options: Any) -> tuple[Plan, ApplyResult]:
        """Plan and apply, with approval."""
        plan, result = applying.apply(
            self.load, PlanOptions(**options), approve, RecordingObserver()
        )
        return require_explained(plan), result

    def apply_saved(self, plan: Plan, **options: Any) -> ApplyResult:
        """Save a plan and apply exactly that."""
        path = self.folder / "saved.plan"
        planning.save_plan(plan, path)
        return applying.apply_saved(self.load, path, PlanOptions(**options), RecordingObserver())[1]


def new_space(folder: Path, **sections: Any) -> Space:
    """A workspace with these sections in its files."""
    return Space(folder, dict({"jsplan": 1, "workspace": "test"}, **sections))


def hub_leaf_space(folder: Path, sandbox: Sandbox) -> Space:
    """A workspace with the domains hub and leaf, both reached through the hub as account ACC."""
    hub = sandbox["hub"]
    connection = {"url": hub.url, "user": hub.user, "password": hub.password}
    return new_space(folder, connections={"hub": connection}, domains=HUB_LEAF_DOMAINS)


def single_space(folder: Path, server: Server) -> Space:
    """A workspace with one domain, `main`, on a server without a JetStream domain."""
    connections, domains = (
        {"main": {"url": server.url}},
        {"main": {"connection": "main", "js_domain": None}},
    )
    return new_space(folder, connections=connections, domains=domains, defaults={"domain": "main"})


def shown_changes(plan: Plan, kind: str) -> dict[str, list[str]]:
    """Return the actions of what a plan changes inside of streams or buckets, by name."""
    return {
        c.name.partition("/")[2]: list(c.change.actions)
        for c in plan.resource_changes
        if c.type == kind and c.change.actions != ["no-op"]
    }


def changes(plan: Plan) -> dict[str, list[str]]:
    """Return the actions of all that a plan changes, by address."""
    return {
        c.address: list(c.change.actions)
        for c in plan.resource_changes
        if c.change.actions != ["no-op"]
    }


def errors(plan: Plan) -> list[str]:
    """Return the errors of a plan."""
    return [d.summary for d in plan.diagnostics if d.severity == "error"]


def left_to_do(plan: Plan) -> list[str]:
    """Return the steps of a plan and its errors: a plan with an error has no steps."""
    errors = [f"{d.address}: {d.summary}" for d in plan.diagnostics if d.severity == "error"]
    return [step.title for step in plan.steps] + errors
