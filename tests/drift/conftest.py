"""Real jobs on real servers: `jsplan drift watch` as a process, its notices as they come, and what it is asked over HTTP."""

from __future__ import annotations

import json
import queue
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.support import process
from tests.support.raw import Raw, delete_all_streams
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.workspaces import Space

#: Seconds that anything may take on a machine that is busy with other things.
TIMEOUT = 30.0
STREAMS: list[dict[str, Any]] = [
    {
        "name": "A",
        "domain": "hub",
        "subjects": ["a"],
        "consumers": [{"name": "C", "ack_policy": "explicit"}],
    },
    {"name": "B", "domain": "leaf", "subjects": ["b"]},
]


class WatchJob:
    """`jsplan drift watch --format json` in a folder. `next_alert` is the next notice; `stop` ends it as Kubernetes does."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.process = process.start_process(
            folder, "drift", "watch", "--format", "json", "--metrics", "127.0.0.1:0", *args
        )
        self.alerts: queue.Queue[dict[str, Any]] = queue.Queue()
        self.seen: list[dict[str, Any]] = []
        self.stderr_lines: list[str] = []
        self._stderr_changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read_out),
            threading.Thread(target=self._read_err),
        ]
        for thread in self._threads:
            thread.start()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.alerts.put(json.loads(line))

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._stderr_changed:
                self.stderr_lines.append(line.decode())
                self._stderr_changed.notify_all()

    def wait_for_line(self, words: str, bound: float = TIMEOUT) -> str:
        """Wait for a line on stderr, and give it."""
        with self._stderr_changed:
            assert self._stderr_changed.wait_for(
                lambda: (
                    any(words in line for line in self.stderr_lines)
                    or self.process.poll() is not None
                ),
                bound,
            ), self.stderr_lines
        return next(line for line in self.stderr_lines if words in line)

    def wait_until_ready(self) -> WatchJob:
        """After its first full check."""
        self.wait_for_line("Watching")
        return self

    @property
    def port(self) -> int:
        """Where it serves."""
        found = re.search(r"on port (\d+)", self.wait_for_line("Serving"))
        assert found is not None
        return int(found[1])

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a path."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=TIMEOUT
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """The sum of all series that begin so."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def next_alert(self, bound: float = TIMEOUT) -> dict[str, Any]:
        """The next notice."""
        try:
            notice = self.alerts.get(timeout=bound)
        except queue.Empty:
            raise AssertionError(f"no notice came; it said {self.stderr_lines}") from None
        self.seen.append(notice)
        return notice

    def next_alert_key(self) -> tuple[str, str, str]:
        """Occasion, kind and address of the next notice."""
        notice = self.next_alert()
        return notice["event"], notice["alert"]["kind"], notice["alert"]["address"]

    def wait_for_alert(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first notice that is wanted; those before it are in `seen`."""
        while not wanted(notice := self.next_alert()):
            pass
        return notice

    def drain(self) -> list[dict[str, Any]]:
        """What has come and was not asked for."""
        rest = []
        while not self.alerts.empty():
            rest.append(self.alerts.get())
        self.seen += rest
        return rest

    def wait_until(self, ready: Callable[[], bool], what: str, bound: float = TIMEOUT) -> None:
        """Ask until it is so."""
        end = time.monotonic() + bound
        while not ready():
            assert time.monotonic() < end, f"{what} did not happen; it said {self.stderr_lines}"
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and give its exit code; what it printed last is in `alerts`."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(TIMEOUT)
        self.close()
        return code

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class WatchedSpace:
    """A hub, a leaf, a workspace over both, and the hands of somebody else."""

    def __init__(self, sandbox: Sandbox, space: Space) -> None:
        self.sandbox = sandbox
        self.space = space
        self.jobs: list[WatchJob] = []

    def write(self, **sections: Any) -> WatchedSpace:
        """Write the workspace with the streams A (with a consumer C) in the hub and B in the leaf, and apply it."""
        self.space.write(**{"streams": STREAMS} | sections)
        self.space.apply()
        return self

    def start_job(self, *args: str) -> WatchJob:
        """A job that has done its first full check."""
        self.jobs.append(WatchJob(self.space.folder, *args))
        return self.jobs[-1].wait_until_ready()

    def request(self, verb: str, payload: Any = None, domain: str = "hub") -> dict[str, Any]:
        """One request of somebody else, by way of the hub."""
        hub = self.sandbox["hub"]
        with Raw(hub.url, hub.user, hub.password) as raw:
            return raw.api_ok(f"$JS.{domain}.API.{verb}", payload)

    def change_stream(self, stream: str, domain: str = "hub", **fields: Any) -> None:
        """Somebody else changes a stream."""
        self.request(
            f"STREAM.UPDATE.{stream}",
            self.request(f"STREAM.INFO.{stream}", domain=domain)["config"] | fields,
            domain,
        )


@pytest.fixture(scope="module")
def drift_servers() -> Iterator[Sandbox]:
    """A hub and a leaf for the tests of one file, which may stop and freeze them."""
    with Sandbox.hub_and_leaf(binary=PROGRAM) as sandbox:
        yield sandbox


@pytest.fixture
def watched_space(drift_servers: Sandbox, tmp_path: Path) -> Iterator[WatchedSpace]:
    """Hub and leaf, running and empty, with a workspace; jobs end with the test."""
    for server in drift_servers.servers.values():
        server.resume()
    drift_servers.start()
    for server in drift_servers.servers.values():
        with Raw(server.url, server.user, server.password) as raw:
            delete_all_streams(raw)
    made = WatchedSpace(drift_servers, hub_leaf_space(tmp_path, drift_servers))
    yield made
    for job in made.jobs:
        job.close()
