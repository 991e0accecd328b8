"""One stream with messages, gaps and consumers that gets another domain or name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support import stream_content
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server

DAY = 86_400_000_000_000
PERMITTED = ("REMOVES_SUBJECTS", "DUPLICATES_MESSAGES")
#: One that can be reset to its position, one that starts there, and one without acknowledgements.
CONSUMERS: list[dict[str, Any]] = [
    {"name": "C", "ack_policy": "explicit"},
    {"name": "NEW", "ack_policy": "explicit", "deliver_policy": "new"},
    {"name": "N", "ack_policy": "none"},
]
BODY: dict[str, Any] = {"name": "A", "subjects": ["A.>"], "max_age": "1d", "consumers": CONSUMERS}
#: Where the stream moves: its old domain, its new domain and its new name.
TO_HUB, TO_LEAF, RENAMED = ("leaf", "hub", "A"), ("hub", "leaf", "A"), ("leaf", "leaf", "B")
Route = tuple[str, str, str]


class HubLeaf:
    """A workspace of hub and leaf, in which something moves."""

    domains: tuple[str, ...] = ("hub", "leaf")

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.space: Space = hub_leaf_space(folder, sandbox)
        self.sandbox = sandbox

    def server(self, domain: str) -> Server:
        """Return the server of a domain."""
        return self.sandbox[domain]

    def raw(self, domain: str) -> Raw:
        """Open a connection to the server of a domain."""
        server = self.server(domain)
        return Raw(server.url, server.user, server.password)

    def empty(self) -> None:
        """Delete every stream of the domains, and the state."""
        for domain in self.domains:
            with self.raw(domain) as raw:
                delete_all_streams(raw)
        shutil.rmtree(self.space.folder / "state", ignore_errors=True)

    def apply(self, **options: Any) -> Plan:
        """Apply without a failure."""
        plan, result = self.space.apply(**{"allow_hazards": PERMITTED} | options)
        assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
        assert [s.error for s in result.steps if s.error] == []
        assert result.exit_code == 0
        return plan

    def require_settled(self) -> None:
        """Check that nothing is begun, planned, changed by others, or left."""
        state = read_state(self.space.folder)
        assert (state.pending, state.replacements) == ({}, {})
        again = self.space.plan()
        assert ([s.title for s in again.steps], [d.summary for d in again.diagnostics]) == ([], [])
        report = drift(self.space.load, DriftOptions(), RecordingObserver())
        assert (report.resource_drift, report.unmanaged) == ([], [])


class Scene(HubLeaf):
    """The stream A in the domain of the route, made the same way each time."""

    #: The stream in the files, but for its name and domain.
    body = BODY
    count = 60
    #: Whether state still has a move that was taken back, as it does where a snapshot copies.
    stays_begun = False

    def __init__(self, folder: Path, sandbox: Sandbox, route: Route, count: int = 60) -> None:
        super().__init__(folder, sandbox)
        self.before, self.after, self.name = route
        self.count = count
        self.expected: list[stream_content.Message] = []
        self.unread: dict[str, int] = {}

    @property
    def origin(self) -> str:
        """The old address."""
        return f"{self.before}/stream/A"

    @property
    def target(self) -> str:
        """The new address."""
        return f"{self.after}/stream/{self.name}"

    def reset(self, **fields: Any) -> None:
        """Empty both domains, apply the first files, publish, and write the files after it."""
        self.empty()
        self.declare_before()
        self.space.apply()
        with self.raw(self.before) as raw:
            self.fill(raw)
            self.work(raw)
            self.remember(raw)
        self.declare_after(**fields)

    def fill(self, raw: Raw) -> None:
        """Publish messages, and delete one among them and the last one."""
        stream_content.fill(raw, "A", self.count)
        raw.delete("A", self.count // 2, self.count)

    def remember(self, raw: Raw) -> None:
        """Note what is in the stream now, and what its consumers have to do."""
        self.expected = stream_content.messages(raw, "A")
        self.unread = stream_content.unread(raw, "A")

    def work(self, raw: Raw) -> None:
        """Let consumers take some messages."""
        raw.ack(raw.pull("A", "C", 10))
        raw.pull("A", "N", 5)

    def declare_before(self) -> None:
        """Write the files in which the stream is at its old address."""
        self.space.write(streams=[self.body | {"domain": self.before}])

    def declare_after(self, **fields: Any) -> None:
        """Write the files in which the stream is at its new address."""
        self.space.write(
            streams=[self.body | {"name": self.name, "domain": self.after} | fields],
            relocate=[{"from": self.origin, "to": self.target}],
        )

    def new_unread(self) -> dict[str, int]:
        """Return what each consumer at the new address has left, by its name there."""
        return self.unread

    def require_nothing_lost(self) -> None:
        """Check that one stream has every message, and that drift reports no change."""
        with self.raw(self.before) as raw:
            old = stream_content.messages(raw, "A") if "A" in streams(raw) else []
        with self.raw(self.after) as raw:
            new = stream_content.messages(raw, self.name) if self.name in streams(raw) else []
        payloads = [{m[3] for m in side} for side in (old, new)]
        assert any(side >= {m[3] for m in self.expected} for side in payloads)
        report = drift(self.space.load, DriftOptions(), RecordingObserver())
        assert report.resource_drift == []
        assert report.unmanaged == []

    def require_relocated(self) -> None:
        """Check messages and positions at the new address, and that nothing else is left."""
        others = {self.before, self.after} - {self.after}
        for domain in others:
            with self.raw(domain) as raw:
                assert streams(raw) == []
        with self.raw(self.after) as raw:
            assert streams(raw) == [self.name]
            assert stream_content.messages(raw, self.name) == self.expected
            info = raw.api_ok(f"$JS.API.STREAM.INFO.{self.name}")
            assert info["config"]["subjects"] == ["A.>"]
            assert not info["config"].get("mirror")
            assert info["config"]["max_age"] == (DAY if "max_age" in self.body else 0)
            assert info["state"]["last_seq"] >= self.count
            assert stream_content.unread(raw, self.name) == self.new_unread()
        assert {str(a) for a in read_state(self.space.folder).resources} == {
            self.target,
            *(f"{self.after}/consumer/{self.name}/{name}" for name in self.new_unread()),
        }
        self.require_settled()

    def require_restored(self) -> None:
        """Check that the origin has its subjects, messages and consumers, and no copy is left."""
        with self.raw(self.before) as raw:
            assert streams(raw) == ["A"]
            assert stream_content.messages(raw, "A") == self.expected
            config = raw.config("A")
            assert (config["subjects"], config["max_age"]) == (["A.>"], DAY)
            assert stream_content.unread(raw, "A") == self.unread
        if self.after != self.before:
            with self.raw(self.after) as raw:
                assert streams(raw) == []
        assert self.stays_begun or read_state(self.space.folder).replacements == {}


class QueueScene(Scene):
    """A work queue or an interest stream, which moves to the hub or another way."""

    def __init__(
        self, folder: Path, sandbox: Sandbox, retention: str, route: Route = TO_HUB
    ) -> None:
        super().__init__(folder, sandbox, route)
        self.body = {
            "name": "A",
            "subjects": ["A.>"],
            "max_age": "1d",
            "retention": retention,
            "consumers": [{"name": "C", "ack_policy": "explicit"}],
        }

    def work(self, raw: Raw) -> None:
        """Finish ten messages, and take five more."""
        raw.ack(raw.pull("A", "C", 10))
        raw.pull("A", "C", 5)
