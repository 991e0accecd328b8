"""The begin of a source: in a stream that others write, and after a restart of its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL
from tests.support.raw import Raw

if TYPE_CHECKING:
    from tests.conftest import MakeServer

pytestmark = pytest.mark.matrix


def create_origin(raw: Raw) -> None:
    """Create the stream S with five messages."""
    raw.create("S", subjects=["s"])
    for _ in range(5):
        raw.request("s", b"")


@pytest.mark.parametrize(
    ("start", "gone", "copied"),
    [
        ({}, False, 5),
        ({}, True, 0),
        ({"opt_start_time": "2020-01-01T00:00:00Z"}, False, 0),
        ({"opt_start_seq": 1}, True, 5),
    ],
)
def test_a_source_of_a_stream_with_newer_messages(
    make_server: MakeServer, start: dict[str, Any], *, gone: bool, copied: int
) -> None:
    """It begins with what is newer, if it has a time, or the first messages are gone."""
    server = make_server()
    with Raw(server.url, server.user, server.password) as raw:
        create_origin(raw)
        own = {"name": "T", "subjects": ["t"]}
        raw.api_ok("$JS.API.STREAM.CREATE.T", own)
        for _ in range(2):
            raw.request("t", b"")
        if gone:
            raw.api_ok("$JS.API.STREAM.PURGE.T", {"keep": 1})
        before = raw.state("T")["last_seq"]

        raw.api_ok("$JS.API.STREAM.UPDATE.T", own | {"sources": [{"name": "S"} | start]})
        raw.request("s", b"newer")

        server.wait_until(
            lambda: (
                raw.api_ok("$JS.API.STREAM.INFO.T")["sources"][0].get("active", -1) >= 0
                and raw.state("T")["last_seq"] > before
            ),
            "source",
        )
        server.wait_until(lambda: raw.state("T")["last_seq"] >= before + copied + 1, "copy")
        assert raw.state("T")["last_seq"] == before + copied + 1


def test_a_source_with_a_sequence_and_a_restart(make_server: MakeServer) -> None:
    """A server before 2.15 copies again what the stream has deleted."""
    server = make_server()
    with Raw(server.url, server.user, server.password) as raw:
        level = raw.api_level()
        create_origin(raw)
        sources = [{"name": "S", "opt_start_seq": 1}]
        raw.create("T", sources=sources)
        raw.wait_for("T", 5)
        raw.api_ok("$JS.API.STREAM.PURGE.T")

    server.restart()

    with Raw(server.url, server.user, server.password) as raw:
        raw.request("s", b"newer")
        expected = 1 if level >= ORIGIN_IDENTITY_LEVEL else 6
        server.wait_until(lambda: raw.state("T")["messages"] >= expected, "copy")
        assert raw.state("T")["messages"] == expected
