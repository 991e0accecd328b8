"""Advisories of servers, as the drift job hears them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from jsplan.address import Address
from jsplan.drift.advisories import SUBJECTS, parse_advisory
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
_ASKED: Final = (
    "STREAM.UPDATE.A",
    "CONSUMER.CREATE.A.C.f",
    "CONSUMER.DURABLE.CREATE.A.C",
    "CONSUMER.CREATE.A",
    "STREAM.DELETE.A",
    "STREAM.INFO.A",
)


def seeds() -> list[Document]:
    """One of each kind."""
    about = [f"$JS.EVENT.ADVISORY.{kind}" for kind in ("STREAM.UPDATED.A", "CONSUMER.DELETED.A.C")]
    said = [(subject, _STREAM | {"consumer": "C"}) for subject in about]
    said += [(SUBJECTS[-1], _AUDIT | {"subject": f"$JS.API.{asked}"}) for asked in _ASKED]
    return [
        {"$subject": name.encode(), "data.json": json.dumps(one, separators=(",", ":")).encode()}
        for name, one in said
    ]


def run(scene: DocumentRun) -> None:
    """What it says, and the address that this becomes."""
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
