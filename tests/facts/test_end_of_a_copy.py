"""A promoted mirror gets the last sequence of its origin by messages that are purged again.

A mirror ends with the last stored message of its origin. Where that one was deleted, the next
message of the copy would get a sequence that the origin has used already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.raw import Raw, delete_all_streams

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = [pytest.mark.matrix, pytest.mark.since_2_12]
PARKING = "jsplan.parking.COPY"


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("limits", [{}, {"max_msgs_per_subject": 1}], ids=["plain", "per subject"])
def test_the_end_of_a_copy_is_moved(server: Server, storage: str, limits: dict[str, Any]) -> None:
    """Stored and purged messages move the end; the others keep their sequences."""
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        origin = {"name": "O", "subjects": ["o.>"], "storage": storage} | limits
        raw.api_ok("$JS.API.STREAM.CREATE.O", origin)
        for number in range(20):
            raw.request(f"o.{number}", b"%d" % number)
        for seq in range(13, 21):
            raw.api_ok("$JS.API.STREAM.MSG.DELETE.O", {"seq": seq})
        copy = {"name": "COPY", "storage": storage} | limits
        raw.api_ok("$JS.API.STREAM.CREATE.COPY", copy | {"mirror": {"name": "O"}})
        raw.wait_for("COPY", 12)
        assert raw.state("COPY")["last_seq"] == 12
        raw.api_ok("$JS.API.STREAM.UPDATE.COPY", copy | {"subjects": [PARKING]})

        for _ in range(8):
            raw.request(PARKING, b"")
        raw.api_ok("$JS.API.STREAM.PURGE.COPY", {"filter": PARKING})

        found = raw.state("COPY")
        assert (found["messages"], found["first_seq"], found["last_seq"]) == (12, 1, 20)
        raw.api_ok("$JS.API.STREAM.DELETE.O")
        raw.api_ok("$JS.API.STREAM.UPDATE.COPY", copy | {"subjects": ["o.>"]})
        assert b'"seq":21' in raw.request("o.next", b"next")[1].replace(b" ", b"")


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_the_end_of_an_empty_copy_is_moved(server: Server, storage: str) -> None:
    """A purge up to a later sequence moves the end of an empty stream, however far it is."""
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        copy = {"name": "COPY", "storage": storage, "subjects": [PARKING]}
        raw.api_ok("$JS.API.STREAM.CREATE.COPY", copy)

        raw.api_ok("$JS.API.STREAM.PURGE.COPY", {"seq": 5_000_001})

        found = raw.state("COPY")
        assert (found["messages"], found["first_seq"], found["last_seq"]) == (
            0,
            5_000_001,
            5_000_000,
        )
        assert b'"seq":5000001' in raw.request(PARKING, b"next")[1].replace(b" ", b"")
