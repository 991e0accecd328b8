"""A consumer whose filters are removed gets no new messages; one with the filter `>` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

FILTERS: list[dict[str, Any]] = [
    {"filter_subject": "s.a"},
    {"filter_subjects": ["s.a", "s.b"]},
]


def _write(raw: Raw, action: str, name: str, **fields: Any) -> None:
    config = {"durable_name": name, "ack_policy": "explicit"} | fields
    request = {"stream_name": "S", "config": config, "action": action}
    raw.api_ok(f"$JS.API.CONSUMER.CREATE.S.{name}", request)


def _pending(raw: Raw, name: str) -> int:
    return int(raw.api_ok(f"$JS.API.CONSUMER.INFO.S.{name}")["num_pending"])


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_consumer_is_not_notified_of_new_messages(filters: dict[str, Any], server: Server) -> None:
    """It does not count what comes after the update, until it gets the filter `>`."""
    with Raw(server.url) as raw:
        raw.create("S", subjects=["s.>"])
        for name, after in (("NONE", {}), ("ALL", {"filter_subject": ">"})):
            _write(raw, "create", name, **filters)
            _write(raw, "update", name, **after)
        for token in "ac":
            raw.api_ok(f"s.{token}", b"x")
        server.wait_until(lambda: _pending(raw, "ALL") == 2, "count what is new")
        assert _pending(raw, "NONE") == 0

        _write(raw, "update", "NONE", filter_subject=">")
        raw.api_ok("s.c", b"x")
        server.wait_until(lambda: _pending(raw, "NONE") == 3, "count again")
