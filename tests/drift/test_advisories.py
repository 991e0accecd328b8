"""Parsing of advisories, which any user of the account may publish."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jsplan.drift.service.advisories import AdvisoryEvent, parse_advisory

CREATED = "$JS.EVENT.ADVISORY.STREAM.CREATED.A"
AUDIT = "$JS.EVENT.ADVISORY.API"
AUDITED = {
    "subject": "$JS.API.STREAM.UPDATE.A",
    "client": {"user": "ann", "kind": "Client"},
    "response": "{}",
}


@pytest.mark.parametrize(
    "document",
    [
        [], "x", None, {}, {"stream": 5}, {"stream": ""}, {"stream": "a.b"}, {"stream": "a/b"}, {"stream": ["A"]}, {"stream": {"a": "b"}},
        {"stream": "A", "consumer": 5}, {"stream": "A", "consumer": "c d"},
    ],
)  # fmt: skip
def test_malformed_names_are_no_event(document: Any) -> None:
    """Other JSON and impossible names of streams or consumers are no event."""
    assert parse_advisory(CREATED, json.dumps(document).encode()) is None


@pytest.mark.parametrize("client", [None, 5, "x", [], {}, {"user": 5, "kind": []}])
def test_any_requester(client: Any) -> None:
    """An audit with a malformed client is an event without an actor."""
    data = json.dumps(AUDITED | {"client": client}, separators=(",", ":")).encode()
    event = parse_advisory(AUDIT, data)

    assert event is not None
    assert (event.js_domain, event.stream, event.consumer) == ("", "A", "")


def test_an_event() -> None:
    """An advisory names the stream, the consumer and the domain."""
    document = {"stream": "A", "consumer": "C", "domain": "hub", "brand_new": 1}

    assert parse_advisory(
        "$JS.EVENT.ADVISORY.CONSUMER.CREATED.A.C", json.dumps(document).encode()
    ) == AdvisoryEvent("hub", "A", "C")
