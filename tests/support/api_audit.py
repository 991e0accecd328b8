"""Requests to the JetStream API of hub and leaf, from the audit advisories of the servers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Sandbox

#: Verbs that change nothing.
READING = (
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.INFO.",
    "CONSUMER.NAMES.",
    "CONSUMER.LIST.",
    "CONSUMER.INFO.",
)

#: A mirror or source creates its own consumer at any time: no client made that request.
SERVERS_OWN = "a copy's own consumer"


@contextmanager
def audit_requests(sandbox: Sandbox) -> Iterator[list[str]]:
    """Record the requests of the block, such as `hub STREAM.INFO.A`, in a list.

    The list is complete after the block.
    """
    hub = sandbox["hub"]
    seen: list[str] = []
    with (
        Raw(hub.url, hub.user, hub.password) as watch,
        Raw(hub.url, hub.user, hub.password) as client,
    ):
        watch.subscribe("$JS.EVENT.ADVISORY.API")
        for domain in sandbox.servers:
            _read_until_mark(watch, client, domain, [])
        yield seen
        for domain in sandbox.servers:
            _read_until_mark(watch, client, domain, seen)
    seen[:] = [line for line in seen if "JSPLAN_MARK" not in line]


def _read_until_mark(watch: Raw, client: Raw, domain: str, seen: list[str]) -> None:
    """Request a missing stream and read advisories up to the one of that request.

    Each server sends its advisories in order.
    """
    mark = f"JSPLAN_MARK_{os.urandom(6).hex()}"
    end = time.monotonic() + 10
    # The subscription may not have crossed the leafnode link at the first request.
    while time.monotonic() < end:
        client.api(f"$JS.{domain}.API.STREAM.INFO.{mark}")
        while (line := _read_request(watch)) is not None:
            seen.append(line)
            if mark in line:
                return
    raise AssertionError(f"{domain} sends no advisories")


def _read_request(watch: Raw) -> str | None:
    try:
        advisory = json.loads(watch.next_message()[2])
    except TimeoutError:
        return None
    by_server = '"direct":true' in advisory.get("request", "")
    return f"{advisory['domain']} {SERVERS_OWN if by_server else advisory['subject'].removeprefix('$JS.API.')}"


def writes(seen: list[str]) -> list[str]:
    """Return the requests that can change something."""
    return [line for line in seen if not line.partition(" ")[2].startswith((*READING, SERVERS_OWN))]
