"""Copies of streams at max_consumers: the rule behind `jsplan.planning.full_origins`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.resources.server_features import OWN_CONSUMER_LEVEL
from tests.applying.consumer_helpers import fill
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("how", ["mirror", "sources"])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_copy_of_a_full_stream(server: Server, retention: str, how: str, most: int) -> None:
    """Before 2.15 the consumer of the server needs a free place, although it takes none."""
    with Raw(server.url) as raw:
        level = raw.api_level()
        stream = {"name": "A", "subjects": ["a.>"], "retention": retention, "max_consumers": most}
        raw.api_ok("$JS.API.STREAM.CREATE.A", stream)
        consumer = {"durable_name": "C", "ack_policy": "explicit", "filter_subject": "a.c"}
        raw.api_ok("$JS.API.CONSUMER.CREATE.A.C", {"stream_name": "A", "config": consumer})
        fill(raw, 3, ("a.a",))
        origin = {"name": "A", "filter_subject": "a.a"}
        copy = {"name": "M", how: origin if how == "mirror" else [origin]}
        raw.api_ok("$JS.API.STREAM.CREATE.M", copy)

        def shown() -> str:
            info = raw.api_ok("$JS.API.STREAM.INFO.M")
            flow = info["mirror"] if how == "mirror" else info["sources"][0]
            return "copied" if info["state"]["messages"] == 3 else str(flow.get("error") or "")

        server.wait_until(lambda: shown() != "", "the copy to begin or fail", 30)
        if most == 1 and level < OWN_CONSUMER_LEVEL:
            assert "10026" in shown()
        else:
            assert shown() == "copied"
            another = consumer | {"durable_name": "D", "filter_subject": "a.d"}
            payload = {"stream_name": "A", "config": another}
            assert ("error" in raw.api("$JS.API.CONSUMER.CREATE.A.D", payload)) == (most == 1)
