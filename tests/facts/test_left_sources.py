"""A source that left keeps messages of its origin for some seconds more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix


def test_the_consumer_of_a_source_that_left_goes_by_itself(server: Server) -> None:
    """Its consumer is interest, hidden in `consumer_count`, until the server removes it."""
    origin = {"name": "A", "subjects": ["a.>"]}
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.A", origin)
        raw.create("M", sources=[{"name": "A"}])
        for number in range(5):
            raw.api_ok(f"a.{number}", b"x")
        raw.wait_for("M", 5)

        raw.api_ok("$JS.API.STREAM.UPDATE.M", {"name": "M", "subjects": ["m"]})
        raw.api_ok("$JS.API.STREAM.UPDATE.A", origin | {"retention": "interest"})

        assert raw.state("A")["consumer_count"] == 0
        server.wait_until(lambda: raw.count("A") == 0, "remove the consumer", timeout=60)
