"""Everything that the scheduled drift job tells: sinks, files, metrics, health. What there is to tell is left to `drift_watcher`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from jsplan.documents.drift import Drift
from jsplan.documents.notice import Notice
from jsplan.drift.endpoint import Answer, plain, serving
from jsplan.drift.sinks.delivery import Delivery, deliver_all
from jsplan.drift.sinks.file import FileSink
from jsplan.drift.sinks.latest import Latest
from jsplan.drift.sinks.sink import Sink
from jsplan.drift.sinks.subject import SubjectSink
from jsplan.drift.sinks.webhook import Webhook
from jsplan.drift.tasks import end
from jsplan.jetstream.contexts import resolve
from jsplan.jetstream.speaker import Speaker
from jsplan.workflows.options import Observer, WatchOptions
from jsplan.workflows.world import World

if TYPE_CHECKING:
    from jsplan.drift.metrics import Metrics

#: Seconds that sinks get at the end for what they do not have yet.
FAREWELL: Final = 3.0


class Views(Protocol):
    """How notices and reports look: the caller's, since layout is no business of a workflow."""

    def notice(self, notice: Notice) -> None:
        """Print one."""

    def report(self, drift: Drift, path: Path) -> bytes:
        """The content of a report file; its name may say in which format."""


class Health:
    """What the endpoint says about the job. `period` is how many seconds may be between two full checks."""

    def __init__(self, period: float, grace: float) -> None:
        self._patience = 2 * period + grace
        self._begun = self.beat = time.monotonic()
        self.checked: float | None = None
        self.failing = False
        self.stopping = False

    def live(self) -> Answer:
        """Whether the job goes on; Kubernetes starts it again where it does not."""
        if time.monotonic() - self.beat > self._patience + 600:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "no sign of life from the checks")
        return plain(HTTPStatus.OK, "alive")

    def ready(self) -> Answer:
        """Whether what it tells can be relied on: a full check has succeeded, and not too long ago. It gives no names or reasons."""
        if self.stopping:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "ending")
        if self.checked is None:
            first = "no full check has succeeded yet; the log says why" if self.failing else "the first check is under way"
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, first)
        age = time.monotonic() - self.checked
        if age > self._patience:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, f"the last full check was {age:.0f} s ago")
        return plain(HTTPStatus.OK, f"the last full check was {age:.0f} s ago")


def sinks_of(world: World) -> list[Sink]:
    """The sinks of `drift.sinks`. Raises ConnectError for a connection whose settings cannot be read, SinkError for a wrong URL."""
    workspace, found = world.workspace, list[Sink]()
    for number, written in enumerate(workspace.drift.sinks, 1):
        if "webhook" in written:
            hook = written["webhook"]
            found.append(Webhook(number, str(hook["url"]), hook.get("headers") or {}))
        elif "subject" in written:
            domain = workspace.domains[written.get("domain") or next(iter(workspace.domains))]
            target = resolve(workspace.connections[domain.connection], world.environ)
            found.append(SubjectSink(str(written["subject"]), Speaker(target, str(written["subject"]))))
        else:
            found.append(FileSink(workspace.root / str(written["file"])))
    return found


class Outlets:
    """All of it together. Used as `async with outlets.open()`; on the way out sinks get what they do not have yet."""

    def __init__(self, sinks: Sequence[Sink], options: WatchOptions, name: str, views: Views, observer: Observer) -> None:
        self.drift: Drift | None = None
        self.health = Health(options.schedule.period, options.grace / 1e9)
        self.metrics = _metrics(name) if options.metrics is not None or options.metrics_file is not None else None
        self._place = options.metrics
        self._views = views
        self._observer = observer
        self._deliveries = [Delivery(sink, self._told) for sink in sinks]
        self._counted: dict[str, tuple[int, int]] = {}
        self._failing: dict[str, float] = {}
        self._report = self._latest(options.report, self._content)
        self._exposed = self._latest(options.metrics_file, self._exposition, public=True)

    def _latest(self, path: Path | None, make: Callable[[], bytes | None], *, public: bool = False) -> list[Latest]:
        if path is None:
            return []
        return [Latest(path, make, lambda path, error: self._say(f"file {path.name}", error), public=public)]

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve, deliver and write as long as the context lasts. Raises JsplanError when the endpoint's address cannot be had."""
        async with contextlib.AsyncExitStack() as stack:
            if self._place is not None:
                routes = {"/metrics": self._scraped, "/healthz": self.health.live, "/readyz": self.health.ready}
                port = await stack.enter_async_context(serving(self._place, routes))
                self._observer.phase(f"Serving /metrics, /healthz and /readyz on port {port}")
            files = [*self._report, *self._exposed]
            tasks = [asyncio.create_task(delivery.run()) for delivery in self._deliveries]
            tasks += [asyncio.create_task(file.run()) for file in files]
            try:
                yield
                self.health.stopping = True
                await deliver_all(self._deliveries, FAREWELL)
            finally:
                await end(tasks)
                await asyncio.gather(*(file.write(FAREWELL) for file in files))
                await asyncio.gather(*(delivery.sink.close() for delivery in self._deliveries))
        self._farewell()

    def _farewell(self) -> None:
        for delivery in self._deliveries:
            if delivery.waiting:
                self._observer.warn(
                    f"{delivery.sink.name} does not have {delivery.waiting} notification(s); open alerts are sent again next time"
                )

    def tell(self, notices: Iterable[Notice]) -> None:
        """Hand notices to everybody; never waits."""
        listed = list(notices)
        for notice in listed:
            self._views.notice(notice)
            if self.metrics is not None:
                self.metrics.noticed(notice.occasion, notice.situation.severity)
        for delivery in self._deliveries:
            delivery.put(listed)

    def show(self, drift: Drift) -> None:
        """What there is now, for the report."""
        self.drift = drift
        for file in (*self._report, *self._exposed):
            file.due()

    def _content(self) -> bytes | None:
        return self._views.report(self.drift, self._report[0].path) if self.drift is not None else None

    def _exposition(self) -> bytes | None:
        self._count_sinks()
        return self.metrics.text() if self.metrics is not None else None

    def _scraped(self) -> Answer:
        from jsplan.drift.metrics import CONTENT_TYPE  # noqa: PLC0415 - the library is loaded only where it is wanted

        return HTTPStatus.OK, CONTENT_TYPE, self._exposition() or b""

    def _count_sinks(self) -> None:
        for delivery in self._deliveries if self.metrics is not None else ():
            assert self.metrics is not None
            name, (delivered, dropped) = delivery.sink.name, self._counted.get(delivery.sink.name, (0, 0))
            self.metrics.sink(
                name, delivery.waiting, delivery.delivered - delivered, delivery.dropped - dropped, up=name not in self._failing
            )
            self._counted[name] = (delivery.delivered, delivery.dropped)

    def checked(self, error: str | None) -> None:
        """Log that full checks begin to fail, and why; with None that they succeed again."""
        self.health.failing = error is not None
        self._say("the full check", error and f"the full check failed: {error}")

    def _told(self, delivery: Delivery, error: str | None) -> None:
        self._say(delivery.sink.name, error)

    def _say(self, name: str, error: str | None) -> None:
        """Once when something begins to fail, once when it works again."""
        if error is not None and name not in self._failing:
            self._failing[name] = time.monotonic()
            self._observer.warn(f"{error}; it is tried again until it works")
        elif error is None and name in self._failing:
            self._observer.warn(f"{name} works again after {time.monotonic() - self._failing.pop(name):.0f} s")


def _metrics(name: str) -> Metrics:
    from jsplan.drift.metrics import Metrics  # noqa: PLC0415 - the library is loaded only where it is wanted

    return Metrics(name)
