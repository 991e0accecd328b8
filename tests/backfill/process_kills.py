"""Kills of processes during a backfill, by the number of staged messages and never by time."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.backfill.backfill_pair import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.backfill.backfill_pair import Pair


def await_progress(pair: Pair, count: int, done: threading.Event | None = None) -> bool:
    """Wait until target and unsealed staging stream have so many messages of the copy.

    Return False when `done` is set before.
    """
    end = time.monotonic() + 120
    while time.monotonic() < end and not (done is not None and done.is_set()):
        # A killed hub does not answer until it has started again.
        with suppress(OSError, AssertionError), pair.raw("hub") as raw:
            infos = raw.api_ok("$JS.hub.API.STREAM.LIST")["streams"] or []
            writing = [
                i
                for i in infos
                if i["config"]["name"].startswith("JSPLAN_") and not i["config"].get("sealed")
            ]
            there = sum(i["state"]["messages"] for i in infos if i["config"]["name"] == "T")
            if (
                writing
                and writing[0]["state"]["messages"]
                and there + writing[0]["state"]["messages"] >= count
            ):
                return True
        time.sleep(0.01)
    return False


def run_and_strike(
    reached: Callable[[threading.Event], bool], strike: Callable[[], None], run: Callable[[], Any]
) -> Any:
    """Run to the end, and call `strike` once when `reached` returns True.

    `reached` returns False when its event is set before.
    """

    def wait() -> bool:
        if not reached(done):
            return False
        strike()
        return True

    with ThreadPoolExecutor(1) as threads:
        done = threading.Event()
        striking = threads.submit(wait)
        try:
            found = run()
        finally:
            done.set()
        assert striking.result(), "the copy was over before it was struck"
        return found


@dataclass(frozen=True)
class SparkWorkers:
    """The Python processes of a Spark: the daemon, its forks and their JVM."""

    jvm: int
    daemon: int
    forked: tuple[int, ...]

    @classmethod
    def of_process(cls, pid: int) -> SparkWorkers:
        """Find those of a driver or of a JVM."""
        found = [p for p in _descendants(pid) if "pyspark.daemon" in _command_line(p)]
        daemon = next(p for p in found if "pyspark.daemon" not in _command_line(_parent(p)))
        return cls(_parent(daemon), daemon, tuple(p for p in found if _parent(p) == daemon))

    def kill(self) -> None:
        """Kill the workers, but not the daemon."""
        for pid in self.forked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Pause all processes. The JVM too, since workers end with their JVM."""
        for pid in (*self.forked, self.daemon, self.jvm):
            os.kill(pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Resume the workers, and kill all processes once each worker has waited again."""
        before = {pid: _voluntary_switches(pid) for pid in self.forked}
        for pid in self.forked:
            os.kill(pid, signal.SIGCONT)
        end = time.monotonic() + 60
        while any(_voluntary_switches(pid) <= count for pid, count in before.items()):
            assert time.monotonic() < end, "a worker does not wake up"
            time.sleep(0.01)
        for pid in (*self.forked, self.daemon, self.jvm):
            os.kill(pid, signal.SIGKILL)


def _voluntary_switches(pid: int) -> int:
    """Count how often a process has begun to wait by itself."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(
        int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")
    )


def _stat(pid: int) -> list[str]:
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat")
            .read_text("ascii", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    return ["X", "0"]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    return ""


def _descendants(pid: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found, more = {pid}, True
    while more:
        more = False
        for each in pids:
            if each not in found and _parent(each) in found:
                found.add(each)
                more = True
    return sorted(found - {pid})


def require_complete(pair: Pair, count: int, live: int = 0) -> None:
    """Require each message of the copy once, in order and unchanged, and `live` others."""
    origin = read_all(pair.sandbox["hub"], "$JS.leaf.API", "S")
    target = read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    copies = [
        (subject, headers, data) for _, subject, headers, data in target if subject != b"t.live"
    ]
    assert [data for _, _, data in copies] == [row[3] for row in origin]
    assert len(origin) == count
    for (subject, headers, _), (seq, expected, block, _) in zip(copies, origin, strict=True):
        assert subject == expected
        assert headers.startswith(block[:-2] + f"Jsplan-Origin: leaf/S/{seq}/20".encode())
    assert [int(data) for _, subject, _, data in target if subject == b"t.live"] == list(
        range(1, live + 1)
    )
