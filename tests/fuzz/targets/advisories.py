"""Advisories of servers, as the drift job receives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from jsplan.address import Address
from jsplan.drift.service.advisories import SUBJECTS, parse_advisory
from tests.fuzz.documents import Document
from tests.fuzz.harness import Target

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

_STREAM: Final[dict[str, object]] = {
    "type": "io.nats.jetstream.advisory.v1.stream_action",
    "id": "x",
    "timestamp": "2026-01-01T00:00:00Z",
    "stream": "A",
    "action": "modify",
    "domain": "hub",
}
_CLIENT: Final = {
    "start": "2026-01-01T00:00:00Z",
    "host": "127.0.0.1",
    "id": 9,
    "acc": "ACC",
    "user": "u",
    "name": "nats CLI",
    "lang": "go",
    "ver": "1",
    "rtt": 1,
    "kind": "Client",
}


_AUDIT: Final[dict[str, object]] = {
    "type": "api",
    "server": "n",
    "client": _CLIENT,
    "request": "{}",
    "response": json.dumps({"name": "C"}),
    "domain": "hub",
}
_REQUESTS: Final = (
    "STREAM.UPDATE.A",
    "CONSUMER.CREATE.A.C.f",
    "CONSUMER.DURABLE.CREATE.A.C",
    "CONSUMER.CREATE.A",
    "STREAM.DELETE.A",
    "STREAM.INFO.A",
)


def seeds() -> list[Document]:
    """Return one advisory of each kind."""
    subjects = [
        f"$JS.EVENT.ADVISORY.{kind}" for kind in ("STREAM.UPDATED.A", "CONSUMER.DELETED.A.C")
    ]
    advisories = [(subject, _STREAM | {"consumer": "C"}) for subject in subjects]
    advisories += [
        (SUBJECTS[-1], _AUDIT | {"subject": f"$JS.API.{request}"}) for request in _REQUESTS
    ]
    return [
        {
            "$subject": name.encode(),
            "data.json": json.dumps(advisory, separators=(",", ":")).encode(),
        }
        for name, advisory in advisories
    ]


def run(scene: DocumentRun) -> None:
    """Parse an advisory and build the address of its resource."""
    event = parse_advisory(
        scene.part("$subject").decode("utf-8", "replace"), scene.part("data.json")
    )
    if event is not None:
        address = (
            Address(event.js_domain or "hub", "consumer", f"{event.stream}/{event.consumer}")
            if event.consumer
            else Address.of_stream("hub", event.stream)
        )
        _ = str(address), str(event.actor), hash(event)


TARGET: Final = Target(
    "advisories", seeds, run, changes=lambda name: name in ("data.json", "$subject"), share=2
)
