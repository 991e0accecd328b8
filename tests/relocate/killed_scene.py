"""A relocation by the real program, which kill -9 ends at one of its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.relocate.scene import BODY, PERMITTED, TO_HUB, Route, Scene
from tests.relocate.test_accounts import Accounts
from tests.support import stream_content
from tests.support.kill_proxy import KillPoint, KillProxy, writes
from tests.support.process import jsplan, start_process
from tests.support.raw import streams
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.support.raw import Raw
    from tests.support.workspaces import Space

ALLOWED = [part for code in PERMITTED for part in ("--allow-hazard", code)]


def changes_something(subject: str) -> bool:
    """Return True for a request that changes something, the end marker included."""
    return writes(subject) or subject.startswith("jsplan.staging.")


def compares(subject: str) -> bool:
    """Return True for a request that reads messages."""
    return ".DIRECT.GET." in subject or ".STREAM.MSG.GET." in subject


class Killed:
    """A stream that moves, by an apply in a process of its own. `killed` says how it ended.

    The process reaches all domains at `port`.
    """

    space: Space
    port: int
    killed = False

    def connect_to(self, url: str) -> None:
        """Reach the domains by this URL; nothing else in the files changes."""
        raise NotImplementedError

    def reset(self) -> None:
        """Make everything as it was before the relocation."""
        raise NotImplementedError

    def require_nothing_lost(self) -> None:
        """Check that one side has every message."""
        raise NotImplementedError

    def require_relocated(self) -> None:
        """Check that the relocation is finished."""
        raise NotImplementedError

    def apply_in_process(self, point: KillPoint | None) -> list[str]:
        """Apply in a process that is killed at this point, and return its requests."""
        with KillProxy(self.port, point) as proxy:
            self.connect_to(proxy.url)
            process = start_process(self.space.folder, "apply", "-y", *ALLOWED)
            proxy.watch(process)
            _, err = process.communicate(timeout=120)
            # Not every request is repeated in each run: one about the identity of a server is not.
            assert process.returncode in ({-9, 0} if point else {0}), err.decode()
            self.killed = process.returncode == -9
            self.connect_to(f"nats://127.0.0.1:{self.port}")
            return list(proxy.seen)

    def kill_points(self) -> list[KillPoint]:
        """Return each boundary of a whole apply: requests that change something, and readings."""
        self.reset()
        seen = self.apply_in_process(None)
        self.require_relocated()
        changes, reads = (sum(map(counted, seen)) for counted in (changes_something, compares))
        assert changes >= 5
        points = [
            KillPoint(number, moment, changes_something)
            for number in range(changes)
            for moment in ("before it arrives", "before its answer")
        ]
        return points + [
            KillPoint(reads * share // 10, "before its answer", compares) for share in range(10)
        ]

    def require_ended(self) -> None:
        """Check that a new process ends what the killed one began."""
        self.require_nothing_lost()
        ended = jsplan(self.space.folder, "apply", "-y", *ALLOWED)
        assert ended.code == 0, ended.text
        self.require_relocated()
        planned = jsplan(self.space.folder, "plan", "--detailed-exitcode")
        assert planned.code == 0, planned.text


class KilledScene(Scene, Killed):
    """A stream of a leaf, which gets another domain or another name."""

    @property
    def port(self) -> int:  # type: ignore[override]
        """The port of the hub."""
        return self.server("hub").port

    def connect_to(self, url: str) -> None:
        """Reach the hub by this URL; nothing else in the files changes."""
        self.space.base["connections"]["hub"]["url"] = url
        self.declare_after()

    @staticmethod
    def count_messages(raw: Raw, stream: str) -> int:
        """Return how many messages a stream has; 0 where there is none."""
        return int(raw.api(f"$JS.API.STREAM.INFO.{stream}").get("state", {}).get("messages", 0))


class KilledSnapshot(KilledScene):
    """A stream that a snapshot moves: with its `consumer_limits` no mirror could read it."""

    body = BODY | {"consumer_limits": {"max_ack_pending": 500}}

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        super().__init__(folder, sandbox, ("leaf", "hub", "B"))


class KilledQueue(KilledScene):
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
        stream_content.acknowledge(raw, stream_content.pull_acks(raw, "A", "C", 10))
        stream_content.pull_acks(raw, "A", "C", 5)


class KilledAccounts(Accounts, Killed):
    """A stream that moves to another account."""

    @property
    def port(self) -> int:  # type: ignore[override]
        """The port of the server of both accounts."""
        return self.sandbox["hub"].port

    def connect_to(self, url: str) -> None:
        """Reach both accounts by this URL; nothing else in the files changes."""
        self.connect(url)
        self.declare_after()

    def require_nothing_lost(self) -> None:
        """Check that one account has every message."""
        found = []
        for account, name in (("acc", "A"), ("imp", "B")):
            with self.raw(account) as raw:
                found.append(stream_content.messages(raw, name) if name in streams(raw) else [])
        wanted = {message[3] for message in self.expected}
        assert any({message[3] for message in side} >= wanted for side in found)


class KilledBucket(KilledScene):
    """The same for a bucket with history, deleted and purged keys, and a watcher's revisions."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        super().__init__(folder, sandbox, TO_HUB)

    def declare_before(self) -> None:
        """Write the files with the bucket in the leaf."""
        self.space.write(kv=[{"bucket": "A", "history": 3, "domain": "leaf"}])

    def declare_after(self, **fields: Any) -> None:
        """Write the files with the bucket in the hub."""
        self.space.write(
            kv=[{"bucket": "A", "history": 3, "domain": "hub"} | fields],
            relocate=[{"from": "leaf/kv/A", "to": "hub/kv/A"}],
        )

    def reset(self, **fields: Any) -> None:
        """Empty both domains, create the bucket, and write keys."""
        self.empty()
        self.declare_before()
        self.space.apply()
        with self.raw("leaf") as raw:
            for number in range(60):
                raw.request(f"$KV.A.key.{number % 17}", f"value {number}".encode())
            raw.request("$KV.A.key.3", b"", {"KV-Operation": "DEL"})
            raw.request("$KV.A.key.5", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
            self.expected = stream_content.messages(raw, "KV_A")
        self.declare_after(**fields)

    def require_nothing_lost(self) -> None:
        """Check that one side has every revision."""
        found = [self._content(domain) for domain in ("leaf", "hub")]
        assert self.expected in found
        report = drift(self.space.load, DriftOptions(), RecordingObserver())
        assert (report.resource_drift, report.unmanaged) == ([], [])

    def require_relocated(self) -> None:
        """Check the revisions in the hub, and that nothing else is left."""
        assert (self._content("leaf"), self._content("hub")) == ([], self.expected)
        state = read_state(self.space.folder)
        assert (state.pending, state.replacements) == ({}, {})
        assert {str(address) for address in state.resources} == {"hub/kv/A"}
        assert self.space.plan().steps == []
        report = drift(self.space.load, DriftOptions(), RecordingObserver())
        assert (report.resource_drift, report.unmanaged) == ([], [])

    def _content(self, domain: str) -> list[stream_content.Message]:
        with self.raw(domain) as raw:
            return stream_content.messages(raw, "KV_A") if "KV_A" in streams(raw) else []
