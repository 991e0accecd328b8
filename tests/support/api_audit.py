"""What was asked of the JetStream API of hub and leaf, as the servers' own audit advisories tell it."""

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

#: A mirror or source asks for its own consumer, by itself and at a time of its own: nobody's request.
SERVERS_OWN = "a copy's own consumer"


@contextmanager
def audit_requests(sandbox: Sandbox) -> Iterator[list[str]]:
    """The requests made meanwhile, as `hub STREAM.INFO.A`, complete once the block is left."""
    hub = sandbox["hub"]
    seen: list[str] = []
    with Raw(hub.url, hub.user, hub.password) as watch, Raw(hub.url, hub.user, hub.password) as ask:
        watch.subscribe("$JS.EVENT.ADVISORY.API")
        for domain in sandbox.servers:
            _read_until_mark(watch, ask, domain, [])
        yield seen
        for domain in sandbox.servers:
            _read_until_mark(watch, ask, domain, seen)
    seen[:] = [line for line in seen if "JSPLAN_MARK" not in line]


def _read_until_mark(watch: Raw, ask: Raw, domain: str, seen: list[str]) -> None:
    """Ask for a stream that is not there, and read advisories up to that question's own. Each server tells in order."""
    mark = f"JSPLAN_MARK_{os.urandom(6).hex()}"
    end = time.monotonic() + 10
    while (
        time.monotonic() < end
    ):  # the interest in advisories may not have crossed the link at the first question
        ask.api(f"$JS.{domain}.API.STREAM.INFO.{mark}")
        while (line := _read_request(watch)) is not None:
            seen.append(line)
            if mark in line:
                return
    raise AssertionError(f"{domain} tells nothing")


def _read_request(watch: Raw) -> str | None:
    try:
        advisory = json.loads(watch.next_message()[2])
    except TimeoutError:
        return None
    theirs = '"direct":true' in advisory.get("request", "")
    return f"{advisory['domain']} {SERVERS_OWN if theirs else advisory['subject'].removeprefix('$JS.API.')}"


def writes(seen: list[str]) -> list[str]:
    """Those requests that can change something."""
    return [line for line in seen if not line.partition(" ")[2].startswith((*READING, SERVERS_OWN))]
