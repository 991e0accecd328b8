"""The servers' advisories for the drift job: received, and parsed: what changed, by whom.

`STREAM.*` and `CONSUMER.*` advisories name the object that was created, changed or deleted, but not
the client. The update of a consumer has no advisory: only the audit of the API
(`$JS.EVENT.ADVISORY.API`) reports it, and only the audit names the client. Behind a leafnode it
names the link, not the client (facts, section 7).
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import orjson
from msgspec import Struct

from jsplan.address import Address
from jsplan.config.model import Workspace
from jsplan.documents.alert import Actor
from jsplan.drift.service.worker import cancel_and_wait
from jsplan.jetstream.contexts import resolve_settings
from jsplan.jetstream.subscriber import Subscriber, listen_until_cancelled
from jsplan.resources.nested import NAME

SUBJECTS: Final = (
    "$JS.EVENT.ADVISORY.STREAM.>",
    "$JS.EVENT.ADVISORY.CONSUMER.>",
    "$JS.EVENT.ADVISORY.API",
)
_NAME: Final = re.compile(NAME)
_AUDIT: Final = "$JS.EVENT.ADVISORY.API"
_API: Final = "$JS.API."
_AUDITED_REQUEST: Final = b'"subject":"$JS.API.'
#: Verbs that change a stream or consumer, after `$JS.API.`.
_STREAM_VERBS: Final = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.RESTORE")
_CONSUMER_VERBS: Final = (
    "CONSUMER.CREATE",
    "CONSUMER.DELETE",
    "CONSUMER.PAUSE",
    "CONSUMER.RESET",
    "CONSUMER.UNPIN",
)
_CHANGING_VERBS: Final = tuple(
    verb.encode() for verb in (*_STREAM_VERBS, *_CONSUMER_VERBS, "CONSUMER.DURABLE.CREATE")
)
#: Kinds of stream and consumer advisories that are not about configuration.
_IGNORED_ADVISORIES: Final = (
    "LEADER_ELECTED",
    "QUORUM_LOST",
    "SNAPSHOT_CREATE",
    "SNAPSHOT_COMPLETE",
    "RESTORE_CREATE",
    "BATCH_ABANDONED",
)
#: Addresses that may wait for a check; if there are more, everything is checked.
MAX_CHANGED: Final = 5_000

#: Reports whether advisories of a connection are received, with the reason.
ReportConnection = Callable[[str, bool, str], None]


class AdvisoryEvent(Struct, frozen=True):
    """A stream or consumer that may have changed. `js_domain` is empty for a server without."""

    js_domain: str
    stream: str
    consumer: str = ""
    actor: Actor | None = None


def parse_advisory(subject: str, data: bytes) -> AdvisoryEvent | None:
    """Parse an advisory. None if nothing changed, such as for an audit of reads or refusals."""
    if subject == _AUDIT:
        at = data.find(_AUDITED_REQUEST)
        if at >= 0 and data.startswith(_CHANGING_VERBS, at + len(_AUDITED_REQUEST)):
            return _parse_audit(data)
        return None
    words = subject.split(".")
    if len(words) < 6 or words[4] in _IGNORED_ADVISORIES:
        return None
    document = _parse_object(data)
    return _build_event(document, document.get("stream"), document.get("consumer") or "", None)


def _build_event(
    document: dict[str, Any], stream: object, consumer: object, actor: Actor | None
) -> AdvisoryEvent | None:
    """Build the event. None for invalid names: other clients may publish on these subjects."""
    named = (stream, consumer) if consumer else (stream,)
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in named):
        return None
    return AdvisoryEvent(str(document.get("domain") or ""), str(stream), str(consumer), actor)


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _parse_audit(data: bytes) -> AdvisoryEvent | None:
    document = _parse_object(data)
    tokens = str(document.get("subject", "")).removeprefix(_API).split(".")
    if tokens[1:2] == ["DURABLE"]:
        del tokens[1]
    answer = _parse_object(str(document.get("response") or "").encode())
    if len(tokens) < 3 or "error" in answer:
        return None
    consumer = ""
    if tokens[0] == "CONSUMER":
        consumer = tokens[3] if len(tokens) > 3 else str(answer.get("name") or "")
        if not consumer:
            return None
    client = document.get("client")
    return _build_event(
        document, tokens[2], consumer, _parse_actor(client if isinstance(client, dict) else {})
    )


def _parse_actor(client: dict[str, Any]) -> Actor:
    user, name, host, account = (
        str(client.get(key) or "") for key in ("user", "name", "host", "acc")
    )
    return Actor(user, name, host, account, client.get("kind") == "Leafnode")


class AdvisoryListener:
    """Collects `changed` addresses, and in `actors` the last client that changed each, if known.

    `has_gap` is set when advisories may have been missed, `wake` when there is anything new.
    """

    def __init__(
        self,
        workspace: Workspace,
        environ: Mapping[str, str],
        report: ReportConnection,
        count_advisory: Callable[[], None],
    ) -> None:
        self.changed: set[Address] = set()
        self.actors: OrderedDict[str, Actor] = OrderedDict()
        self.has_gap = False
        self.wake = asyncio.Event()
        self._report = report
        self._count_advisory = count_advisory
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._domains: dict[tuple[str, str], list[str]] = {}
        self._settings: object = None
        self._ending_tasks: list[asyncio.Task[None]] = []
        self._connected: dict[str, asyncio.Event] = {}
        self._denied: dict[str, str] = {}
        self.update_workspace(workspace, environ)

    def update_workspace(self, workspace: Workspace, environ: Mapping[str, str]) -> None:
        """Listen on the connections of the workspace; unchanged ones stay open."""
        own = [domain for domain in workspace.domains.values() if domain.is_own]
        domains: dict[tuple[str, str], list[str]] = {}
        for domain in own:
            domains.setdefault((domain.connection, domain.js_domain or ""), []).append(domain.key)
        self._domains = domains
        settings = {key: workspace.connections[key] for key, _ in domains}
        if settings == self._settings:
            return
        self._cancel()
        self._settings = settings
        self._connected = {key: asyncio.Event() for key in settings}
        for key, connection in settings.items():
            target = resolve_settings(connection, environ)
            make = partial(
                Subscriber,
                target,
                SUBJECTS,
                on_message=partial(self._on_advisory, key),
                on_gap=partial(self._on_gap, key),
                on_denied=partial(self._on_denied, key),
            )
            self._tasks[key] = asyncio.create_task(
                listen_until_cancelled(make, partial(self._on_connection_change, key))
            )

    async def wait_connected(self, seconds: float) -> None:
        """Wait at most `seconds` until every connection receives; the first check follows."""
        waits = [asyncio.create_task(event.wait()) for event in self._connected.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for task in late:
                task.cancel()
        self.has_gap = False

    def take_changed(self) -> set[Address]:
        """Return and clear the changed addresses."""
        changed, self.changed = self.changed, set()
        return changed

    def forget_actors(self, addresses: Iterable[Address]) -> None:
        """Forget who changed these: it was reported, or does not matter."""
        for address in addresses:
            self.actors.pop(str(address), None)

    def _on_advisory(self, connection: str, subject: str, data: bytes) -> None:
        event = parse_advisory(subject, data)
        for key in (
            self._domains.get((connection, event.js_domain), ()) if event is not None else ()
        ):
            assert event is not None
            address = Address.of_stream(key, event.stream)
            if event.consumer:
                address = Address(key, "consumer", f"{event.stream}/{event.consumer}")
            self._record_change(address, event.actor)

    def _record_change(self, address: Address, actor: Actor | None) -> None:
        self._count_advisory()
        self.changed.add(address)
        if actor is not None:
            self.actors[str(address)] = actor
            self.actors.move_to_end(str(address))
            if len(self.actors) > 2 * MAX_CHANGED:
                self.actors.popitem(last=False)
        if len(self.changed) > MAX_CHANGED:
            self.changed.clear()
            self.has_gap = True
        self.wake.set()

    def _on_gap(self, connection: str, reason: str) -> None:
        self._connected[connection].set()
        self._report(
            connection, connection not in self._denied, self._denied.get(connection, reason)
        )
        self.has_gap = True
        self.wake.set()

    def _on_denied(self, connection: str, reason: str) -> None:
        if not reason:
            self._denied.pop(connection, None)
            return
        self._denied[connection] = reason
        self._report(connection, False, reason)

    def _on_connection_change(
        self, connection: str, listener: Subscriber | None, reason: str
    ) -> None:
        if listener is None:
            self._report(connection, False, reason)
        else:
            self._denied.pop(connection, None)

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._ending_tasks += self._tasks.values()
        self._tasks = {}

    async def close(self) -> None:
        """Close all connections."""
        self._cancel()
        await cancel_and_wait(self._ending_tasks)
