"""Delivery by `last_per_subject` after the last message of a subject was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import stream_content
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("filters", [["S.>"], ["S.a"], ["S.a", "S.b"]], ids=" ".join)
def test_the_last_message_of_a_subject_was_deleted(
    filters: list[str], server: Server, server_version: tuple[int, ...]
) -> None:
    """Up to 2.10 nothing of this subject, from 2.11 on the last one that is left."""
    with Raw(server.url) as raw:
        config = {"name": "S", "subjects": ["S.>"], "storage": "memory"}
        raw.api_ok("$JS.API.STREAM.CREATE.S", config)
        for token in "aba":
            raw.request(f"S.{token}", token.encode())
        raw.delete("S", 3)
        raw.consumer("S", "C", deliver_policy="last_per_subject", filter_subjects=filters)
        got = stream_content.payloads(raw, "S", "C")

    others = [b"b"] if filters != ["S.a"] else []
    assert got == ([b"a"] if server_version >= (2, 11) else []) + others
