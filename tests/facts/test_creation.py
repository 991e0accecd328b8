"""Creating what exists: refused with another configuration, answered where it is equal.

So a creation proves that no different object existed. That no equal one did, only `created` shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.units import parse_instant
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

STREAM: dict[str, Any] = {"name": "S", "subjects": ["s"]}
CONSUMER: dict[str, Any] = {"name": "C", "durable_name": "C", "ack_policy": "explicit"}
CREATE_STREAM, CREATE_CONSUMER = "$JS.API.STREAM.CREATE.S", "$JS.API.CONSUMER.CREATE.S.C"


def consumer(**fields: Any) -> dict[str, Any]:
    """Return the request that creates the consumer."""
    return {"stream_name": "S", "config": CONSUMER | fields, "action": "create"}


@pytest.mark.matrix
def test_what_exists_is_created_again(server: Server) -> None:
    """An equal object keeps its `created`, and the answer has the time of the server as `ts`."""
    with Raw(server.url) as raw:
        first = {
            CREATE_STREAM: raw.api_ok(CREATE_STREAM, STREAM),
            CREATE_CONSUMER: raw.api_ok(CREATE_CONSUMER, consumer()),
        }
        again = {
            CREATE_STREAM: raw.api_ok(CREATE_STREAM, STREAM),
            CREATE_CONSUMER: raw.api_ok(CREATE_CONSUMER, consumer()),
        }

    assert again[CREATE_STREAM]["did_create"]  # so a single server does not say that it existed
    for api, answer in again.items():
        assert answer["created"] == first[api]["created"]
        assert parse_instant(answer["created"]) <= parse_instant(first[api]["ts"])
        assert parse_instant(first[api]["ts"]) < parse_instant(answer["ts"])


@pytest.mark.matrix
def test_what_exists_with_another_configuration_is_refused(server: Server) -> None:
    """The server compares and creates in one step: no other client can write in between."""
    with Raw(server.url) as raw:
        raw.api_ok(CREATE_STREAM, STREAM)
        raw.api_ok(CREATE_CONSUMER, consumer())

        refused = [
            raw.api(CREATE_STREAM, STREAM | {"max_msgs": 1})["error"]["err_code"],
            raw.api(CREATE_CONSUMER, consumer(max_deliver=2))["error"]["err_code"],
        ]

    assert refused == [10058, 10148]


@pytest.mark.matrix
def test_the_answer_to_a_creation_is_what_info_answers(server: Server) -> None:
    """A single server answers a creation with the configuration and `created` that it keeps."""
    with Raw(server.url) as raw:
        stream = raw.api_ok(CREATE_STREAM, STREAM)
        created = raw.api_ok(CREATE_CONSUMER, consumer())
        kept = raw.api_ok("$JS.API.STREAM.INFO.S"), raw.api_ok("$JS.API.CONSUMER.INFO.S.C")

    for answer, info in zip((stream, created), kept, strict=True):
        assert (answer["config"], answer["created"]) == (info["config"], info["created"])
