"""Fixtures of history and revert: a workspace, and the content of its servers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.codes import HAZARDS
from jsplan.options import PlanOptions
from jsplan.workflows.history import history
from jsplan.workflows.revert import RevertOptions, plan_revert, revert
from tests.support.explained_steps import require_explained
from tests.support.process import ProcessResult
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, approve, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server

#: Allow every hazard: these tests are not about hazards.
ALL = tuple(code for code, blocks in HAZARDS.items() if blocks)


def apply(space: Space, **options: Any) -> int:
    """Apply with every hazard allowed and return the id of the entry."""
    _, result = space.apply(allow_hazards=ALL, **options)
    assert result.exit_code == 0, result
    return int(result.state["serial"])


def undo(space: Space, number: int, **options: Any) -> tuple[Plan, ApplyResult]:
    """Revert one apply with every hazard allowed."""
    chosen = {name: options.pop(name) for name in ("targets", "excludes") if name in options}
    planning = PlanOptions(**{"allow_hazards": ALL} | options)
    plan, result = revert(
        space.load, RevertOptions(number, planning=planning, **chosen), approve, RecordingObserver()
    )
    return require_explained(plan), result


def plan_undo(space: Space, number: int, **options: Any) -> Plan:
    """Plan the revert of one apply."""
    return require_explained(
        plan_revert(
            space.load, RevertOptions(number, planning=PlanOptions(**options)), RecordingObserver()
        )
    )


def entries(space: Space) -> list[dict[str, Any]]:
    """Return the history as `jsplan history --json` has it, the newest first."""
    result = history(space.load)["entries"]
    assert isinstance(result, list)
    return result


def entry(space: Space, number: int) -> dict[str, Any]:
    """Return one entry with its changes."""
    result = history(space.load, number)["entries"][0]
    assert isinstance(result, dict)
    return result


def findings_of(plan: Plan, code: str) -> list[tuple[str, str, str]]:
    """Return address, summary and detail of the findings of one code."""
    return [(d.address or "", d.summary, d.detail) for d in plan.diagnostics if d.code == code]


def named_by_files(plan: Plan) -> set[str]:
    """Return the addresses that the files change again after a revert."""
    return {line for _, _, text in findings_of(plan, "JS492") for line in text.splitlines()[1:]}


def server_configs(sandbox: Sandbox) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return every stream and consumer of hub and leaf, without the metadata of the server.

    The order of sources means nothing, and the server refuses some orders (10052). A filter for
    every subject is no filter: jsplan writes it where a consumer loses its filters.
    """
    seen: dict[tuple[str, ...], dict[str, Any]] = {}
    hub = sandbox["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        for domain in ("hub", "leaf"):
            api = f"$JS.{domain}.API"
            for stream in raw.api(f"{api}.STREAM.NAMES", {}).get("streams") or []:
                seen[domain, stream] = _plain(raw.api_ok(f"{api}.STREAM.INFO.{stream}")["config"])
                for name in raw.api(f"{api}.CONSUMER.NAMES.{stream}", {}).get("consumers") or []:
                    if not name.startswith("JS_"):
                        seen[domain, stream, name] = _plain(
                            raw.api_ok(f"{api}.CONSUMER.INFO.{stream}.{name}")["config"]
                        )
    return seen


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    own_metadata = {
        name: value
        for name, value in (config.pop("metadata", None) or {}).items()
        if not name.startswith("_nats.")
    }
    if config.get("filter_subject") == ">":
        del config["filter_subject"]
    if "sources" in config:
        config["sources"].sort(key=json.dumps)
    return config | ({"metadata": own_metadata} if own_metadata else {})


@dataclass
class HistorySpace:
    """A workspace on one server, its command line, and the server."""

    space: Space
    server: Server

    def write(self, *streams: dict[str, Any], **sections: Any) -> HistorySpace:
        """Write the files."""
        self.space.write(streams=list(streams), **sections)
        return self

    def run(self, *words: str) -> ProcessResult:
        """Run a command line."""
        return self.space.run(*words)

    def config(self, name: str) -> dict[str, Any] | None:
        """Return the configuration of a stream on the server, or None."""
        with Raw(self.server.url) as raw:
            answer = raw.api(f"$JS.API.STREAM.INFO.{name}")
        return _plain(answer["config"]) if "config" in answer else None

    def change_outside(self, name: str, **fields: Any) -> None:
        """Change a stream outside jsplan."""
        with Raw(self.server.url) as raw:
            raw.api_ok(
                f"$JS.API.STREAM.UPDATE.{name}",
                raw.config(name) | fields,
            )

    def publish(self, subject: str, count: int) -> None:
        """Publish messages to a stream."""
        with Raw(self.server.url) as raw:
            for _ in range(count):
                assert b'"seq"' in raw.request(subject, b"x")[1]


@pytest.fixture
def history_space(tmp_path: Path, server: Server) -> HistorySpace:
    """A workspace without a stream, on an empty server."""
    return HistorySpace(single_space(tmp_path, server), server)


def document(result: ProcessResult) -> dict[str, Any]:
    """Return the JSON on stdout."""
    read = json.loads(result.out)
    assert isinstance(read, dict)
    return read
