"""Sinks that fail one after the other, then all at once, each for as long as is asked for; and what each has in the end."""

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

#: Seconds that a sink may take to have what it missed: it is tried again after 30 at the latest.
CATCH_UP = 120.0
STREAM = {"name": "OPS", "subjects": ["ops.drift"], "storage": "file"}


@dataclass
class FailingSink:
    """One sink: how it fails, how it works again, and the ids of the notices that it has."""

    name: str
    fail: Callable[[], object]
    repair: Callable[[], object]
    delivered_ids: Callable[[], set[str]]


def webhook_sink(hook: WebhookServer) -> FailingSink:
    """A web server that refuses."""
    return FailingSink(
        "webhook 1",
        lambda: setattr(hook, "status", 500),
        lambda: setattr(hook, "status", 200),
        lambda: set(hook.ids),
    )


def folder_sink(path: Path) -> FailingSink:
    """A folder that is not there: for the JSON lines in it, and for the report and the metrics that are kept beside them."""
    aside = path.with_name(f"{path.name}.aside")

    def ids() -> set[str]:
        place = (path if path.exists() else aside) / "drift.jsonl"
        return (
            {json.loads(line)["id"] for line in place.read_text("utf-8").splitlines()}
            if place.exists()
            else set()
        )

    return FailingSink(
        "file drift.jsonl", lambda: path.rename(aside), lambda: aside.rename(path), ids
    )


def subject_sink(server: Server) -> FailingSink:
    """A server that is down. A stream of its own has what was published."""

    def ids() -> set[str]:
        with Raw(server.url) as raw:
            last = raw.api_ok("$JS.ops.API.STREAM.INFO.OPS")["state"]["last_seq"]
            found = [
                raw.api_ok("$JS.ops.API.STREAM.MSG.GET.OPS", {"seq": number})["message"]
                for number in range(1, last + 1)
            ]
        return {_id(message) for message in found}

    return FailingSink("subject ops.drift", server.stop, server.start, ids)


def _id(message: dict[str, Any]) -> str:
    return str(json.loads(base64.b64decode(message["data"]))["id"])


@dataclass
class SinkOutages:
    """Each of the sinks alone, then all together, fails for `seconds` and until something is told meanwhile."""

    job: WatchJob
    sinks: list[FailingSink]
    seconds: float
    started_at: float = 0.0
    alerts_before: int = 0
    failing: list[FailingSink] = field(default_factory=list)
    durations: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._turns = [*([outlet] for outlet in self.sinks), self.sinks]

    @property
    def is_over(self) -> bool:
        """Whether every outage has been and everything was caught up with."""
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

    def _begin(self, outlets: list[FailingSink]) -> None:
        self.wait_until_delivered()
        for outlet in outlets:
            outlet.fail()
        self.failing, self.started_at, self.alerts_before = (
            outlets,
            time.monotonic(),
            len(self.job.seen),
        )

    def _end(self) -> None:
        for outlet in self.failing:
            self._wait_until_down(outlet.name)
        lasted = time.monotonic() - self.started_at
        self.durations += [(outlet.name, lasted) for outlet in self.failing]
        for outlet in self.failing:
            outlet.repair()
        self.failing = []
        self.wait_until_delivered()

    def _wait_until_down(self, name: str) -> None:
        text = f"{name} was seen to fail"
        self.job.wait_until(lambda: name in self._down_metrics(), text, CATCH_UP)

    def _wait_for_ids(self, sink: Any, ids: set[str]) -> None:
        text = f"{sink.name} had everything"
        self.job.wait_until(lambda: ids <= sink.delivered_ids(), text, CATCH_UP)

    def _down_metrics(self) -> str:
        """The metrics of the sinks that are down."""
        return "\n".join(
            line
            for line in self.job.get("/metrics")[1].splitlines()
            if line.startswith("jsplan_drift_sink_up") and line.endswith(" 0.0")
        )

    def wait_until_delivered(self) -> None:
        """Wait until each sink has everything that was told so far."""
        self.job.drain()
        told = {notice["id"] for notice in self.job.seen}
        for outlet in self.sinks:
            self._wait_for_ids(outlet, told)
