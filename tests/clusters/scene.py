"""Three servers with a tag each, and workspaces on them."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from jsplan.sandbox import Sandbox
from jsplan.sandbox.sites import Account, Site
from tests.conftest import PROGRAM
from tests.support.raw import NoResponders, Raw
from tests.support.workspaces import RecordingObserver, Space, new_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.sandbox import Server

#: The error of a cluster without a leader.
NO_LEADER: Final = 10008
PASSWORD: Final = "secret"
TAGS: Final = (("az:1",), ("az:2",), ("az:3",))
SITE: Final = Site("c", (Account("A"),), cluster="C", size=3, tags=TAGS)


@contextlib.contextmanager
def start_cluster() -> Iterator[Sandbox]:
    """Start `c-1`, `c-2` and `c-3`; server N has the tag `az:N`."""
    with Sandbox.of_sites([SITE], PASSWORD, binary=PROGRAM) as sandbox:
        yield sandbox


def make_space(folder: Path, cluster: Sandbox, server: str = "c-1") -> Space:
    """Return a workspace whose one domain, `main`, is reached through this server."""
    connection = {"url": cluster[server].url, "user": "A", "password": PASSWORD}
    return new_space(
        folder,
        connections={"main": connection},
        domains={"main": {"connection": "main", "js_domain": None}},
        defaults={"domain": "main"},
    )


def connect(cluster: Sandbox, account: str = "A", timeout: float = 5) -> Raw:
    """Connect to `c-1`."""
    return Raw(cluster["c-1"].url, account, PASSWORD, timeout=timeout)


def ask(cluster: Sandbox, subject: str, payload: Any = None, account: str = "A") -> dict[str, Any]:
    """Ask until there is an answer: an election takes some seconds."""
    for _ in range(30):
        with contextlib.suppress(OSError), connect(cluster, account, 2) as raw:
            answer = raw.api(subject, payload)
            if answer.get("error", {}).get("err_code") != NO_LEADER:
                return answer
        time.sleep(0.2)
    raise AssertionError(f"no answer to {subject}")


def publish_acknowledged(server: Server, count: int, size: int = 8) -> None:
    """Publish messages to `s.a`, each acknowledged by a majority."""
    with Raw(server.url, "A", PASSWORD, timeout=10) as raw:
        stored = 0
        while stored < count:
            with contextlib.suppress(NoResponders):  # a new leader is not known everywhere at once
                stored += b'"seq"' in raw.request("s.a", b"%d" % stored + b"x" * size)[1]


def find_servers(cluster: Sandbox, stream: str) -> tuple[str, list[str]]:
    """Return the leader of a stream, and its other servers that have all messages."""
    found = ask(cluster, f"$JS.API.STREAM.INFO.{stream}").get("cluster", {})
    others = [peer["name"] for peer in found.get("replicas") or [] if peer.get("current")]
    return found.get("leader", ""), sorted(others)


def find_bystander(cluster: Sandbox) -> int:
    """Return the number of a server that is neither `c-1` nor leads the cluster."""
    answer = ask(cluster, "$SYS.REQ.SERVER.PING.JSZ", account="SYS")
    leader = answer["data"]["meta_cluster"]["leader"]
    return 2 if leader == "c-3-server" else 3


class Interference(RecordingObserver):
    """Does something at the first event of a type."""

    def __init__(self, at: type[ApplyEvent], action: Callable[[], object]) -> None:
        super().__init__()
        self._at = at
        self._actions = [action]

    def event(self, event: ApplyEvent) -> None:
        """Act once."""
        if isinstance(event, self._at) and self._actions:
            self._actions.pop()()
        super().event(event)


class Publisher:
    """Publishes to one subject in a thread, one message after the other, each with its own id.

    `longest_gap` is the longest time between two acknowledgements, in seconds.
    """

    def __init__(self, cluster: Sandbox, subject: str) -> None:
        self.sent = self.acknowledged = 0
        self.longest_gap = 0.0
        self._cluster, self._subject = cluster, subject
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._cluster["c-1"].wait_until(lambda: self.acknowledged > 0, "acknowledgement", 30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.is_set():
            self.sent += 1
            lost = contextlib.suppress(OSError, NoResponders)
            with lost, connect(self._cluster, timeout=1) as raw:
                while not self._stop.is_set() and "seq" in raw.api(self._subject, "message"):
                    now = time.monotonic()
                    self.longest_gap, last = max(self.longest_gap, now - last), now
                    self.acknowledged += 1
                    self.sent += 1
