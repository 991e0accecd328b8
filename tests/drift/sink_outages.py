"""Outages of the sinks: one after the other, then all at once."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.drift.conftest import WatchJob
    from tests.drift.test_sinks import WebhookServer

#: Seconds that a sink may take to catch up. The job tries it again after at most 30.
CATCH_UP = 120.0
STREAM = {"name": "OPS", "subjects": ["ops.drift"], "storage": "file"}


@dataclass
class FailingSink:
    """One sink: how to break it, how to repair it, and the ids of what it received."""

    name: str
    fail: Callable[[], object]
    repair: Callable[[], object]
    delivered_ids: Callable[[], set[str]]


def webhook_sink(hook: WebhookServer) -> FailingSink:
    """A web server that answers 500."""
    return FailingSink(
        "webhook 1",
        lambda: setattr(hook, "status", 500),
        lambda: setattr(hook, "status", 200),
        lambda: set(hook.ids),
    )


def folder_sink(path: Path) -> FailingSink:
    """A missing folder: for the JSON lines in it."""
    aside = path.with_name(f"{path.name}.aside")

    def ids() -> set[str]:
        lines = (path if path.exists() else aside) / "drift.jsonl"
        return (
            {json.loads(line)["id"] for line in lines.read_text("utf-8").splitlines()}
            if lines.exists()
            else set()
        )

    return FailingSink(
        "file drift.jsonl", lambda: path.rename(aside), lambda: aside.rename(path), ids
    )


def subject_sink(server: Server) -> FailingSink:
    """A stopped server. A stream in it holds what was published."""

    def ids() -> set[str]:
        with Raw(server.url) as raw:
            last = raw.state("OPS", "ops")["last_seq"]
            messages = [
                raw.api_ok("$JS.ops.API.STREAM.MSG.GET.OPS", {"seq": number})["message"]
                for number in range(1, last + 1)
            ]
        return {str(json.loads(base64.b64decode(message["data"]))["id"]) for message in messages}

    return FailingSink("subject ops.drift", server.stop, server.start, ids)


@dataclass
class SinkOutages:
    """Outages of `seconds` or more for each sink, then for all, with a notification in each."""

    job: WatchJob
    sinks: list[FailingSink]
    seconds: float
    started_at: float = 0.0
    alerts_before: int = 0
    failing: list[FailingSink] = field(default_factory=list)
    durations: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._turns = [*([sink] for sink in self.sinks), self.sinks]

    @property
    def is_over(self) -> bool:
        """True after every outage, once all sinks have caught up."""
        return not self._turns and not self.failing

    def step(self) -> None:
        """Begin the next outage, or end the one that has lasted long enough."""
        self.job.drain()
        if not self.failing and self._turns:
            self._begin(self._turns.pop(0))
        elif (
            self.failing
            and time.monotonic() - self.started_at >= self.seconds
            and len(self.job.seen) > self.alerts_before
        ):
            self._end()

    def _begin(self, sinks: list[FailingSink]) -> None:
        self.wait_until_delivered()
        for sink in sinks:
            sink.fail()
        self.failing, self.started_at, self.alerts_before = (
            sinks,
            time.monotonic(),
            len(self.job.seen),
        )

    def _end(self) -> None:
        for sink in self.failing:
            self._wait_until_down(sink.name)
        lasted = time.monotonic() - self.started_at
        self.durations += [(sink.name, lasted) for sink in self.failing]
        for sink in self.failing:
            sink.repair()
        self.failing = []
        self.wait_until_delivered()

    def _wait_until_down(self, name: str) -> None:
        text = f"the metric of {name} going down"
        self.job.wait_until(lambda: name in self._down_metrics(), text, CATCH_UP)

    def _wait_for_ids(self, sink: Any, ids: set[str]) -> None:
        text = f"the delivery of everything to {sink.name}"
        self.job.wait_until(lambda: ids <= sink.delivered_ids(), text, CATCH_UP)

    def _down_metrics(self) -> str:
        """The metrics of the sinks that fail now."""
        return "\n".join(
            line
            for line in self.job.get("/metrics")[1].splitlines()
            if line.startswith("jsplan_drift_sink_up") and line.endswith(" 0.0")
        )

    def wait_until_delivered(self) -> None:
        """Wait until each sink has every notification so far."""
        self.job.drain()
        expected = {notification["id"] for notification in self.job.seen}
        for sink in self.sinks:
            self._wait_for_ids(sink, expected)
