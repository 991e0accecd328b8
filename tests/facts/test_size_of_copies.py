"""The size of what a source copies: its header counts, also against `max_msg_size`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.resources.source_header import measure_headers
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix
PAYLOAD = bytes(100)
#: What nats-server 2.15 adds to the header, and what older ones do not: the subject since 2.12.
HASH, SUBJECT = 9, len(" E.a")


def info(raw: Raw, name: str) -> dict[str, Any]:
    return raw.api_ok(f"$JS.API.STREAM.INFO.{name}")


@pytest.mark.parametrize("source", [{"name": "E"}, {"name": "E", "filter_subject": "E.*"}])
@pytest.mark.parametrize("headers", [{}, {"X": "1"}], ids=["none", "one"])
def test_the_header_of_a_source_counts(
    server: Server, source: dict[str, Any], headers: dict[str, str]
) -> None:
    """JS217: a source takes what fits with its header, and stops at a message that does not.

    A mirror adds nothing.
    """
    with Raw(server.url) as raw:
        most = len(PAYLOAD) + (len("NATS/1.0\r\nX: 1\r\n\r\n") if headers else 0)
        raw.create("E", subjects=["E.>"], max_msg_size=most)
        raw.publish("E.a", PAYLOAD, headers)
        raw.create("MIRROR", mirror={"name": "E"}, max_msg_size=most)
        raw.create("FREE", sources=[source])
        for name in ("MIRROR", "FREE"):
            server.wait_until(lambda name=name: info(raw, name)["state"]["messages"] == 1, "copy")  # type: ignore[misc]
        stored = raw.api_ok("$JS.API.STREAM.MSG.GET.FREE", {"seq": 1})["message"]
        size = len(base64.b64decode(stored["hdrs"]))
        raw.create("FITS", sources=[source], max_msg_size=size + len(PAYLOAD))
        # A server says the same only once in a while.
        stops = f"STOPS_{len(source)}_{len(headers)}"
        words = f"'{stops}': maximum payload exceeded"
        refused = server.log_path.read_text().count(words)
        raw.create(stops, sources=[source], max_msg_size=size + len(PAYLOAD) - 1)
        server.wait_until(lambda: info(raw, "FITS")["state"]["messages"] == 1, "copy")
        server.wait_until(lambda: server.log_path.read_text().count(words) > refused, "refuse")
        assert info(raw, stops)["state"]["messages"] == 0

        block = "NATS/1.0\r\nX: 1\r\n\r\n" if headers else ""
        measured = measure_headers(block.encode(), source, 1, "E.a")
        level = raw.api_level()
        assert measured - size == (0 if level >= 5 else HASH if level >= 2 else HASH + SUBJECT)
        again = measure_headers(base64.b64decode(stored["hdrs"]), source, 1, "E.a")
        assert again == measured
