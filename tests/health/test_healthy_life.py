"""A healthy life of streams is no loss: drift with watermarks raises no alarm."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from jsplan.documents.drift import LOST_KEY
from jsplan.errors import JsplanError
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.older_store import keep_store, put_store_back
from tests.support.raw import NoResponders, Raw
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeHubLeaf

pytestmark = pytest.mark.soak

#: Seconds of life.
SECONDS: Final = float(os.environ.get("HEALTHY_SECONDS", "300"))
SEED: Final = int(os.environ.get("HEALTHY_SEED", "1"))
#: Hazards of the changes here: what they delete is on purpose.
ALLOWED: Final = (
    "REMOVES_SUBJECTS", "DUPLICATES_MESSAGES", "IRREVERSIBLE", "DELETES_MESSAGES",
    "BREAKS_REPLICATION", "LOSES_CONSUMER_POSITION",
)  # fmt: skip
WORKER: Final = {"name": "W", "ack_policy": "explicit"}


def stream(name: str, domain: str = "hub", **config: Any) -> dict[str, Any]:
    """Return a stream of its own subjects."""
    subjects = {} if "mirror" in config else {"subjects": [f"{name.lower()}.>"]}
    return {"name": name, "domain": domain} | subjects | config


class Life:
    """A hub and a leaf whose streams are published to, emptied, changed, moved and restarted."""

    def __init__(self, servers: Sandbox, space: Space, seed: int) -> None:
        self._servers, self._space, self._dice = servers, space, random.Random(seed)
        origin = {"name": "PLAIN", "domain": "hub"}
        self._streams = {
            s["name"]: s
            for s in (
                stream("PLAIN"),
                stream("AGED", max_age="3s"),
                stream("FEW", max_msgs=40),
                stream("LAST", max_msgs_per_subject=1, allow_rollup_hdrs=True),
                stream("SHORT", allow_msg_ttl=True),
                stream("QUEUE", retention="workqueue", consumers=[WORKER]),
                stream("WANTED", retention="interest", consumers=[WORKER]),
                stream("MEMORY", storage="memory"),
                stream("KEPT", "leaf", lifecycle={"on_replace": "preserve"}),
                stream("MOVES", "leaf"),
                stream("COPY", "leaf", mirror=origin),
                stream("ALL", "leaf", sources=[origin | {"name": "FEW"}, origin]),
            )
        }
        self._moved: list[dict[str, str]] = []
        self.done: Counter[str] = Counter()
        self.apply()

    @property
    def acts(self) -> list[Callable[[], None]]:
        """The acts, often or rarely."""
        often = [self.publish] * 12 + [self.purge, self.delete, self.work] * 2
        return [*often, self.restart, self.kill, self.change, self.replace, self.move, self.apply]

    def step(self) -> None:
        """Do one thing."""
        act = self._dice.choice(self.acts)
        with contextlib.suppress(NoResponders, OSError):
            act()
        self.done[act.__name__] += 1

    def apply(self) -> None:
        """Apply the files."""
        self._space.write(
            streams=list(self._streams.values()),
            relocate=self._moved,
            drift={"watermarks": "marks.json"},
        )
        with contextlib.suppress(JsplanError):  # a server that has just restarted
            self._space.apply(allow_hazards=ALLOWED)

    def _server(self, name: str) -> Server:
        return self._servers[str(self._streams[name]["domain"])]

    def _any(self, *, writable: bool = False) -> str:
        names = [n for n, s in self._streams.items() if not writable or "subjects" in s]
        return str(self._dice.choice(names))

    @contextlib.contextmanager
    def _raw(self, name: str) -> Any:
        server = self._server(name)
        with Raw(server.url, server.user, server.password, timeout=10) as raw:
            yield raw, f"$JS.{self._streams[name]['domain']}.API"

    def publish(self) -> None:
        """Publish some messages, with the headers that make servers delete some."""
        name = self._any(writable=True)
        with self._raw(name) as (raw, _):
            for _ in range(self._dice.randint(1, 40)):
                headers = {"SHORT": {"Nats-TTL": "1s"}, "LAST": {"Nats-Rollup": "sub"}}.get(name)
                chosen = headers if self._dice.random() < 0.3 else None
                raw.request(f"{name.lower()}.{self._dice.randint(0, 9)}", b"x" * 50, chosen)

    def purge(self) -> None:
        """Purge a stream, or a subject of it, or its beginning."""
        name = self._any(writable=True)
        last = self._dice.randint(1, 500)
        query = self._dice.choice([{}, {"filter": f"{name.lower()}.1"}, {"seq": last}, {"keep": 3}])
        with self._raw(name) as (raw, api):
            raw.api(f"{api}.STREAM.PURGE.{name}", query)

    def delete(self) -> None:
        """Delete one message, maybe the last one."""
        name = self._any(writable=True)
        with self._raw(name) as (raw, api):
            state = raw.api(f"{api}.STREAM.INFO.{name}").get("state", {})
            seqs = [state.get("last_seq", 0), self._dice.randint(1, state.get("last_seq", 0) + 1)]
            raw.api(f"{api}.STREAM.MSG.DELETE.{name}", {"seq": self._dice.choice(seqs)})

    def work(self) -> None:
        """Finish some messages of a queue."""
        name = self._dice.choice(["QUEUE", "WANTED"])
        with self._raw(name) as (raw, api):
            raw.subscribe("taken")
            request = b'{"batch":10,"no_wait":true}'
            raw.publish(f"{api}.CONSUMER.MSG.NEXT.{name}.W", request, reply="taken")
            with contextlib.suppress(OSError, AssertionError):  # no more
                for _ in range(10):
                    raw.publish(raw.next_reply(), b"+ACK")

    def restart(self) -> None:
        """Restart a server in an orderly way."""
        server = self._servers[self._dice.choice(["hub", "leaf"])]
        server.stop()
        server.start()
        self._servers.wait_ready()

    def kill(self) -> None:
        """Kill a server when it has written everything."""
        time.sleep(0.5)
        server = self._servers[self._dice.choice(["hub", "leaf"])]
        server.kill()
        server.start()
        self._servers.wait_ready()

    def change(self) -> None:
        """Change limits, some of which delete messages."""
        self._streams["FEW"]["max_msgs"] = self._dice.choice([10, 40, 80])
        self._streams["AGED"]["max_age"] = self._dice.choice(["1s", "3s"])
        self.apply()

    def replace(self) -> None:
        """Replace a stream and keep its messages."""
        kept = self._streams["KEPT"]
        kept["storage"] = "memory" if kept.get("storage") != "memory" else "file"
        self.apply()

    def move(self) -> None:
        """Move a stream to the other domain."""
        before = self._streams["MOVES"]["domain"]
        after = "hub" if before == "leaf" else "leaf"
        self._streams["MOVES"]["domain"] = after
        self._moved = [{"from": f"{before}/stream/MOVES", "to": f"{after}/stream/MOVES"}]
        self.apply()


def alarms(space: Space) -> list[str]:
    """Return what drift names as lost."""
    found = drift(space.load, DriftOptions(), RecordingObserver())
    critical = [b for b in found.thresholds if b["level"] == "critical"]
    lost = [f"{b['address']}: {b['cause']}" for b in critical if LOST_KEY in str(b["key"])]
    return lost + [str(f["cause"]) for f in found.replication if "went back" in str(f["cause"])]


@pytest.mark.timeout(SECONDS * 2 + 600)
@pytest.mark.since_2_12
def test_a_healthy_life_raises_no_alarm(make_hub_leaf: MakeHubLeaf, tmp_path: Path) -> None:
    """Publishing, expiring, purging, restarting, changing, replacing and moving lose nothing.

    At the end a store goes back, and is seen.
    """
    servers = make_hub_leaf()
    space = hub_leaf_space(tmp_path, servers)
    life = Life(servers, space, SEED)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        life.step()
        with contextlib.suppress(JsplanError):
            assert alarms(space) == [], life.done
    logging.getLogger(__name__).info("%d checks: %s", sum(life.done.values()), dict(life.done))
    hub = servers["hub"]
    keep_store(hub)
    with Raw(hub.url, hub.user, hub.password) as raw:
        for _ in range(20):
            raw.request("plain.a", b"")
    assert alarms(space) == []
    put_store_back(hub)
    servers.wait_ready()
    assert any("its server lost 20 messages" in alarm for alarm in alarms(space))
