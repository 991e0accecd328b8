"""The outputs of the drift job: sinks, metrics, health."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from jsplan.config.tables.settings import SINKS
from jsplan.context import Context
from jsplan.documents.alert import AlertEvent
from jsplan.drift.service.endpoint import Answer, serve, text_answer
from jsplan.drift.service.options import WatchOptions
from jsplan.drift.service.sinks import Delivery, FileSink, Sink, SubjectSink, Webhook, deliver_all
from jsplan.drift.service.worker import cancel_and_wait
from jsplan.jetstream.contexts import resolve_settings
from jsplan.jetstream.publisher import Publisher
from jsplan.options import Observer

if TYPE_CHECKING:
    from jsplan.drift.service.metrics import Metrics

#: Seconds for the last delivery to the sinks at the end.
FINAL_DELIVERY_TIMEOUT: Final = 3.0


class Views(Protocol):
    """The layout of notifications, which the caller provides."""

    def notice(self, notice: AlertEvent) -> None:
        """Print one notification."""


class JobHealth:
    """The health of the job. `period` is the longest time between two full checks, in seconds."""

    def __init__(self, period: float, grace: float) -> None:
        self._max_check_age = 2 * period + grace
        self._started = self.last_beat = time.monotonic()
        self.last_checked: float | None = None
        self.failing = False
        self.stopping = False

    def answer_liveness(self) -> Answer:
        """Answer if the job is alive; Kubernetes restarts it otherwise."""
        if time.monotonic() - self.last_beat > self._max_check_age + 600:
            return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, "no sign of life from the checks")
        return text_answer(HTTPStatus.OK, "alive")

    def answer_readiness(self) -> Answer:
        """Answer if the last full check succeeded recently, without names or reasons."""
        if self.stopping:
            return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, "ending")
        if self.last_checked is None:
            first = "the first check is under way"
            if self.failing:
                first = "no full check has succeeded yet; the log says why"
            return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, first)
        age = time.monotonic() - self.last_checked
        if age > self._max_check_age:
            return text_answer(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the last full check was {age:.0f} s ago"
            )
        return text_answer(HTTPStatus.OK, f"the last full check was {age:.0f} s ago")


def build_sinks(context: Context) -> list[Sink]:
    """Build `drift.sinks`. Raises ConnectError for invalid settings, SinkError for a wrong URL."""
    found = []
    for number, written in enumerate(context.workspace.drift.sinks, 1):
        kind = next(kind for kind in SINKS if kind in written)
        found.append(SINK_BUILDERS[kind](context, number, written))
    return found


def _build_webhook(_: Context, number: int, written: Mapping[str, Any]) -> Sink:
    hook = written["webhook"]
    headers, format_ = hook.get("headers") or {}, str(hook.get("format") or "chat")
    return Webhook(number, str(hook["url"]), headers, format_)


def _build_subject(context: Context, _: int, written: Mapping[str, Any]) -> Sink:
    workspace, subject = context.workspace, str(written["subject"])
    domain = workspace.domains[written.get("domain") or next(iter(workspace.domains))]
    target = resolve_settings(workspace.connections[domain.connection], context.environ)
    return SubjectSink(subject, Publisher(target, subject))


def _build_file(context: Context, _: int, written: Mapping[str, Any]) -> Sink:
    return FileSink(context.workspace.root / str(written["file"]))


#: By the key that names the target, for each of `SINKS`; the number is that of the sink.
SINK_BUILDERS: Final[dict[str, Callable[[Context, int, Mapping[str, Any]], Sink]]] = {
    "webhook": _build_webhook,
    "subject": _build_subject,
    "file": _build_file,
}


class DriftOutputs:
    """All outputs, used as `async with outputs.open()`; at the end sinks get the rest."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        options: WatchOptions,
        name: str,
        views: Views,
        observer: Observer,
    ) -> None:
        self.health = JobHealth(options.schedule.period, options.grace / 1e9)
        self.metrics = _create_metrics(name) if options.metrics is not None else None
        self._listen_address = options.metrics
        self._views = views
        self._observer = observer
        self._deliveries = [Delivery(sink, self._report_delivery) for sink in sinks]
        self._counted_deliveries: dict[str, tuple[int, int]] = {}
        self._failing_since: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve, deliver and write as long as the context lasts. Raises JsplanError."""
        async with contextlib.AsyncExitStack() as stack:
            if self._listen_address is not None:
                routes = {
                    "/metrics": self._answer_metrics,
                    "/healthz": self.health.answer_liveness,
                    "/readyz": self.health.answer_readiness,
                }
                port = await stack.enter_async_context(serve(self._listen_address, routes))
                self._observer.phase(f"Serving /metrics, /healthz and /readyz on port {port}")
            tasks = [asyncio.create_task(delivery.run()) for delivery in self._deliveries]
            try:
                yield
                self.health.stopping = True
                await deliver_all(self._deliveries, FINAL_DELIVERY_TIMEOUT)
            finally:
                await cancel_and_wait(tasks)
                await asyncio.gather(*(delivery.sink.close() for delivery in self._deliveries))
        self._warn_undelivered()

    def _warn_undelivered(self) -> None:
        for delivery in self._deliveries:
            if delivery.queued:
                self._observer.warn(
                    f"{delivery.sink.name} does not have {delivery.queued} notification(s);"
                    " open alerts are sent again next time"
                )

    def publish(self, notifications: Iterable[AlertEvent]) -> None:
        """Print, count and queue notifications; never waits."""
        listed = list(notifications)
        for event in listed:
            self._views.notice(event)
            if self.metrics is not None:
                for alert in event.alerts or (event.alert,):
                    self.metrics.count_event(event.event, alert.severity)
        for delivery in self._deliveries:
            delivery.put(listed)

    def _answer_metrics(self) -> Answer:
        from jsplan.drift.service.metrics import CONTENT_TYPE  # noqa: PLC0415 - loads a library

        self._update_sink_metrics()
        return HTTPStatus.OK, CONTENT_TYPE, self.metrics.expose() if self.metrics else b""

    def _update_sink_metrics(self) -> None:
        for delivery in self._deliveries if self.metrics is not None else ():
            assert self.metrics is not None
            name, (delivered, dropped) = (
                delivery.sink.name,
                self._counted_deliveries.get(delivery.sink.name, (0, 0)),
            )
            self.metrics.update_sink(
                name,
                delivery.queued,
                delivery.delivered - delivered,
                delivery.dropped - dropped,
                up=name not in self._failing_since,
            )
            self._counted_deliveries[name] = (delivery.delivered, delivery.dropped)

    def report_check(self, error: str | None) -> None:
        """Log when full checks begin to fail, with the reason, and when they succeed again."""
        self.health.failing = error is not None
        self._report_change("the full check", error and f"the full check failed: {error}")

    def _report_delivery(self, delivery: Delivery, error: str | None) -> None:
        self._report_change(delivery.sink.name, error)

    def _report_change(self, name: str, error: str | None) -> None:
        """Log once when it begins to fail, and once when it works again."""
        if error is not None and name not in self._failing_since:
            self._failing_since[name] = time.monotonic()
            self._observer.warn(f"{error}; it is tried again until it works")
        elif error is None and name in self._failing_since:
            self._observer.warn(
                f"{name} works again after {time.monotonic() - self._failing_since.pop(name):.0f} s"
            )


def _create_metrics(name: str) -> Metrics:
    from jsplan.drift.service.metrics import Metrics  # noqa: PLC0415 - loads a library

    return Metrics(name)
