"""Real `jsplan drift watch` processes on real servers, their notifications and their HTTP."""

from __future__ import annotations

import json
import queue
import re
import signal
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.support import process
from tests.support.raw import Raw, delete_all_streams
from tests.support.waiting import wait_until
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.workspaces import Space

#: Seconds that one wait may take on a busy machine.
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
    """A running `jsplan drift watch --format json` and the notifications that it prints."""

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
        """Wait for a line on stderr and return it."""
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
        """Wait for the end of the first full check."""
        self.wait_for_line("Watching")
        return self

    @property
    def port(self) -> int:
        """The port of its HTTP endpoint."""
        match = re.search(r"on port (\d+)", self.wait_for_line("Serving"))
        assert match is not None
        return int(match[1])

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a path."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=TIMEOUT
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Return the sum of all series whose name begins with `name`."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def next_alert(self, bound: float = TIMEOUT) -> dict[str, Any]:
        """Wait for the next notification."""
        try:
            notification = self.alerts.get(timeout=bound)
        except queue.Empty:
            raise AssertionError(f"no notification came; stderr: {self.stderr_lines}") from None
        self.seen.append(notification)
        return notification

    def next_alert_key(self) -> tuple[str, str, str]:
        """Wait for the next notification and return its event, kind and address."""
        notification = self.next_alert()
        return (
            notification["event"],
            notification["alert"]["kind"],
            notification["alert"]["address"],
        )

    def wait_for_alert(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first notification that is wanted; `seen` has those before it."""
        while not wanted(notification := self.next_alert()):
            pass
        return notification

    def drain(self) -> list[dict[str, Any]]:
        """Return the notifications that nothing has read yet."""
        rest = []
        while not self.alerts.empty():
            rest.append(self.alerts.get())
        self.seen += rest
        return rest

    def wait_until(self, ready: Callable[[], bool], what: str, bound: float = TIMEOUT) -> None:
        """Poll until `ready` is true."""
        try:
            wait_until(ready, what, bound)
        except AssertionError as error:
            raise AssertionError(f"{error}; stderr: {self.stderr_lines}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code; `alerts` has the last notifications."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(TIMEOUT)
        self.close()
        return code

    def close(self) -> None:
        """End the process, its threads and its pipes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class WatchedSpace:
    """A hub, a leaf, a workspace over both, and changes made outside jsplan."""

    def __init__(self, sandbox: Sandbox, space: Space) -> None:
        self.sandbox = sandbox
        self.space = space
        self.jobs: list[WatchJob] = []

    def write(self, **sections: Any) -> WatchedSpace:
        """Write and apply the streams A (with a consumer C) in the hub and B in the leaf."""
        self.space.write(**{"streams": STREAMS} | sections)
        self.space.apply()
        return self

    def start_job(self, *args: str) -> WatchJob:
        """Start a job and wait for its first full check."""
        self.jobs.append(WatchJob(self.space.folder, *args))
        return self.jobs[-1].wait_until_ready()

    def request(self, verb: str, payload: Any = None, domain: str = "hub") -> dict[str, Any]:
        """Send one request as another user, through the hub."""
        hub = self.sandbox["hub"]
        with Raw(hub.url, hub.user, hub.password) as raw:
            return raw.api_ok(f"$JS.{domain}.API.{verb}", payload)

    def change_stream(self, stream: str, domain: str = "hub", **fields: Any) -> None:
        """Change a stream outside jsplan."""
        hub = self.sandbox["hub"]
        with Raw(hub.url, hub.user, hub.password) as raw:
            raw.update(stream, domain, **fields)


@pytest.fixture(scope="module")
def drift_servers() -> Iterator[Sandbox]:
    """A hub and a leaf for the tests of one file, which may stop and pause them."""
    with Sandbox.hub_and_leaf(binary=PROGRAM) as sandbox:
        yield sandbox


@pytest.fixture
def watched_space(drift_servers: Sandbox, tmp_path: Path) -> Iterator[WatchedSpace]:
    """A running, empty hub and leaf with a workspace; the jobs end with the test."""
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
