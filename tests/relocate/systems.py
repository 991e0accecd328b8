"""Two servers that do not know each other; a stream moves from one to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.relocate.scene import BODY, PERMITTED, Scene
from tests.support import stream_content
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server


class TwoSystems:
    """Two servers that do not know each other; the stream A moves from one to the other."""

    #: The stream in the files, but for its name and domain.
    body = BODY

    def __init__(self, folder: Path, old: Server, new: Server, name: str = "B") -> None:
        self.servers = {"old": old, "new": new}
        self.name = name
        self.space = Space(
            folder,
            {
                "jsplan": 1,
                "workspace": "test",
                "connections": {key: {"url": s.url} for key, s in self.servers.items()},
                "domains": {key: {"connection": key, "js_domain": None} for key in self.servers},
            },
        )

    def raw(self, domain: str) -> Raw:
        """Open a connection to one server."""
        return Raw(self.servers[domain].url)

    def reset(self, **fields: Any) -> None:
        """Empty both servers, make the stream with messages and consumers, and write the files."""
        for domain in self.servers:
            with self.raw(domain) as raw:
                delete_all_streams(raw)
        (self.space.folder / "state" / "test.json").unlink(missing_ok=True)
        self.declare_before(**fields)
        self.space.apply()
        self.fill(fields)
        self.declare_after(**fields)

    def fill(self, fields: dict[str, Any]) -> None:
        """Publish messages, and let consumers take some."""
        counter = {"Nats-Incr": "+1"} if fields.get("allow_msg_counter") else None
        with self.raw("old") as raw:
            for number in range(60):
                body = b"" if counter else b"%d" % number
                assert b'"seq"' in raw.request(f"A.{number % 3}", body, counter)[1]
            stream_content.delete(raw, "A", 30) if not counter else None
            stream_content.acknowledge(raw, stream_content.pull_acks(raw, "A", "C", 10))
            self.expected = stream_content.messages(raw, "A")
            self.unread = Scene.count_unread(raw, "A")

    def declare_before(self, **fields: Any) -> None:
        """Write the files with the stream on the old server."""
        self.space.write(streams=[self.body | {"domain": "old"} | fields])

    def declare_after(self, **fields: Any) -> None:
        """Write the files with the stream on the new server."""
        self.space.write(
            streams=[self.body | {"name": self.name, "domain": "new"} | fields],
            relocate=[{"from": "old/stream/A", "to": f"new/stream/{self.name}"}],
        )

    def apply(self, **options: Any) -> Plan:
        """Apply without a failure."""
        plan, result = self.space.apply(**{"allow_hazards": PERMITTED} | options)
        assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
        assert [s.error for s in result.steps if s.error] == []
        return plan

    def require_relocated(self) -> None:
        """Check messages and positions on the new server, and that the old one is empty."""
        with self.raw("old") as raw:
            assert streams(raw) == []
        with self.raw("new") as raw:
            assert stream_content.messages(raw, self.name) == self.expected
            assert Scene.count_unread(raw, self.name) == self.unread
            config = raw.config(self.name)
            assert (config["subjects"], config["max_age"]) == (["A.>"], 86_400_000_000_000)
        state = read_state(self.space.folder)
        assert (state.pending, state.replacements) == ({}, {})
        again = self.space.plan()
        assert (again.steps, again.errored) == ([], False)
        report = drift(self.space.load, DriftOptions(), RecordingObserver())
        assert (report.resource_drift, report.unmanaged) == ([], [])

    def require_restored(self) -> None:
        """Check that the old server has the stream as it was, and the new one nothing."""
        with self.raw("old") as raw:
            assert stream_content.messages(raw, "A") == self.expected
            config = raw.config("A")
            assert (config["subjects"], config["max_age"]) == (["A.>"], 86_400_000_000_000)
        with self.raw("new") as raw:
            assert streams(raw) == []
