"""Consumers after a purge by filter: the reason to purge a stream before it has any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import stream_content
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

#: Each of five messages ends with its token. Those with `c` before the fifth are purged.
TOKENS = "cbcbc"
#: By filters: what a consumer gets after the purge, which is all that is left for it.
FILTERS = {(): "bbc", ("S.>",): "bbc", ("S.c",): "c", ("S.b",): "bb", ("S.b", "S.c"): "bbc"}


@pytest.mark.parametrize("created", ["after", "before"])
@pytest.mark.parametrize("filters", FILTERS, ids=lambda filters: " ".join(filters) or "all")
def test_a_purge_by_filter(
    filters: tuple[str, ...],
    created: str,
    server: Server,
    server_version: tuple[int, ...],
) -> None:
    """Up to 2.14 an existing consumer with several filters skips more than was purged."""
    with Raw(server.url) as raw:
        config = {"name": "S", "subjects": ["S.>"], "retention": "workqueue", "storage": "memory"}
        raw.api_ok("$JS.API.STREAM.CREATE.S", config)
        for token in TOKENS:
            raw.request(f"S.{token}", token.encode())
        if created == "before":
            raw.consumer("S", "C", filter_subjects=list(filters))
        purged = raw.api_ok("$JS.API.STREAM.PURGE.S", {"filter": "S.c", "seq": 5})["purged"]
        if created == "after":
            raw.consumer("S", "C", filter_subjects=list(filters))
        got = b"".join(stream_content.payloads(raw, "S", "C")).decode()

    assert purged == 2
    skips = created == "before" and len(filters) > 1 and server_version < (2, 15)
    assert got == ("c" if skips else FILTERS[filters])
