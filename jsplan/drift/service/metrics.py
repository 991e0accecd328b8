"""The Prometheus metrics of the drift job. Only this module uses the library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from jsplan import __version__
from jsplan.documents.alert import Alert
from jsplan.documents.drift import Drift

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
#: Alerts with a series of their own. More are only counted, which protects Prometheus.
MAX_NAMED: Final = 200
_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """All metrics, in their own registry, each with the label `workspace`."""

    def __init__(self, workspace: str) -> None:
        self._registry = CollectorRegistry()
        self._workspace = workspace
        self._build = self._gauge("info", "The version of jsplan.", "version")
        self._build.labels(workspace, __version__).set(1)
        self._resources = self._gauge(
            "resources", "Findings of the last full check, by kind.", "state"
        )
        self._open_alerts = self._gauge("alerts", "Open alerts.", "kind", "severity")
        self._alert = self._gauge(
            "alert", "One for each open alert.", "id", "kind", "severity", "address"
        )
        self._reachable = self._gauge(
            "domain_reachable", "Whether the domain answered the last full check.", "domain"
        )
        self._listening = self._gauge(
            "listening", "Whether the job receives advisories of the connection.", "connection"
        )
        self._last = self._gauge(
            "last_check_timestamp_seconds", "When the last full check succeeded."
        )
        self._due = self._gauge("next_check_timestamp_seconds", "When the next full check is due.")
        self._waiting = self._gauge(
            "sink_waiting", "Notifications that a sink does not have yet.", "sink"
        )
        self._healthy = self._gauge(
            "sink_up", "Whether the sink accepted the last notification.", "sink"
        )
        labels = ["workspace"]
        self._took = Histogram(
            "jsplan_drift_check_seconds",
            "How long checks take.",
            [*labels, "scope"],
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._checks = self._counter("checks", "Checks, by scope and outcome.", "scope", "outcome")
        self._events = self._counter(
            "advisories", "Advisories that named something of the workspace."
        )
        self._notices = self._counter(
            "notifications", "Notifications, by event.", "event", "severity"
        )
        self._sent = self._counter("sink_delivered", "Notifications that a sink has taken.", "sink")
        self._dropped = self._counter(
            "sink_dropped", "Notifications that were dropped because too many waited.", "sink"
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"jsplan_drift_{name}", text, ["workspace", *labels], registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(
            f"jsplan_drift_{name}", text, ["workspace", *labels], registry=self._registry
        )

    def expose(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self._registry)

    def observe_check(self, scope: str, seconds: float, *, done: bool) -> None:
        """Record the end of a check; `scope` is full or partial."""
        self._took.labels(self._workspace, scope).observe(seconds)
        self._checks.labels(self._workspace, scope, "done" if done else "failed").inc()

    def observe_full_check(self, drift: Drift, domains: Iterable[str], now: float) -> None:
        """Record a full check that succeeded at `now`, in seconds since 1970."""
        counts: Mapping[str, Any] = drift.summary
        for state, count in counts.items():
            self._resources.labels(self._workspace, state).set(count)
        missing = {str(domain["domain"]) for domain in drift.offline}
        self._reachable.clear()
        for domain in domains:
            self._reachable.labels(self._workspace, domain).set(domain not in missing)
        self._last.labels(self._workspace).set(now)

    def set_next_check(self, moment: float) -> None:
        """Record when the next full check is due, in seconds since 1970."""
        self._due.labels(self._workspace).set(moment)

    def set_alerts(self, open_: Iterable[Alert]) -> None:
        """Record the open alerts."""
        listed = list(open_)
        self._open_alerts.clear()
        self._alert.clear()
        for alert in listed:
            self._open_alerts.labels(self._workspace, alert.kind, alert.severity).inc()
        for alert in listed[:MAX_NAMED]:
            self._alert.labels(
                self._workspace, alert.id, alert.kind, alert.severity, alert.address
            ).set(1)

    def count_event(self, occasion: str, severity: str) -> None:
        """Count a notification that was given to the sinks."""
        self._notices.labels(self._workspace, occasion, severity).inc()

    def count_advisory(self) -> None:
        """Count an advisory about the workspace."""
        self._events.labels(self._workspace).inc()

    def set_listening(self, connection: str, *, up: bool) -> None:
        """Record whether advisories of a connection are received."""
        self._listening.labels(self._workspace, connection).set(up)

    def update_sink(
        self, name: str, waiting: int, delivered: int, dropped: int, *, up: bool
    ) -> None:
        """Record the status of a sink; `delivered` and `dropped` are added."""
        self._waiting.labels(self._workspace, name).set(waiting)
        self._healthy.labels(self._workspace, name).set(up)
        self._sent.labels(self._workspace, name).inc(delivered)
        self._dropped.labels(self._workspace, name).inc(dropped)
