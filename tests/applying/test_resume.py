"""Consumers that were paused deliver again, without a new message that wakes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.applying.consumer_helpers import fill, stream_sequence
from tests.preserve.test_streams import PERMITTED, PRESERVE
from tests.support.raw import Raw
from tests.support.refused_request import refuse_request
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

CONSUMER: dict[str, Any] = {
    "name": "C",
    "ack_policy": "explicit",
    "ack_wait": "1s",
    "deliver_subject": "pushed",
}
FAR = "2100-01-01T00:00:00Z"


@pytest.fixture
def listener(server: Server) -> Iterator[Raw]:
    """A subscriber of the consumer, which acknowledges nothing."""
    with Raw(server.url) as connection:
        connection.subscribe("pushed")
        yield connection


def write(space: Space, storage: str = "file", **consumer: Any) -> Space:
    """Write a stream that keeps its data, with its consumer."""
    body = {"name": "A", "subjects": ["a.>"], "storage": storage, **PRESERVE}
    return space.write(streams=[body | {"consumers": [CONSUMER | consumer]}])


def receive(listener: Raw, count: int) -> list[int]:
    """Receive messages; raise TimeoutError if too few come."""
    return [stream_sequence(listener.next_reply()) for _ in range(count)]


def test_a_lifted_pause_does_not_wake_a_consumer(
    server: Server, raw: Raw, server_version: tuple[int, ...]
) -> None:
    """The next message does; a pause that ends by itself needs none. Before 2.11 there is none."""
    raw.create("A", subjects=["a.>"])
    fill(raw, 3)
    config = {"durable_name": "C", "deliver_subject": "pushed", "pause_until": FAR}
    raw.api_ok("$JS.API.CONSUMER.CREATE.A.C", {"stream_name": "A", "config": config})
    if server_version < (2, 11):
        with Raw(server.url) as listener:
            listener.subscribe("pushed", wait=False)
            assert receive(listener, 3) == [1, 2, 3]
        return
    with Raw(server.url, timeout=1) as listener:
        listener.subscribe("pushed")
        # A subscriber wakes it, too: it has to be known before.
        server.wait_until(lambda: "push_bound" in raw.consumer_info("A", "C"), "see interest")
        raw.api_ok("$JS.API.CONSUMER.PAUSE.A.C")
        with pytest.raises(TimeoutError):
            receive(listener, 1)
    assert raw.consumer_info("A", "C")["num_pending"] == 3


@pytest.mark.since_2_12
@pytest.mark.parametrize("refused", [False, True], ids=["replaced", "rolled_back"])
def test_a_replaced_stream_delivers_again(
    refused: bool, tmp_path: Path, server: Server, raw: Raw, listener: Raw
) -> None:
    """Messages without an acknowledgement come again, also if the replacement fails.

    2.15 copies consumers with their deliveries; before it the new one starts where it was.
    """
    space = single_space(tmp_path, server)
    write(space).apply()
    fill(raw, 3)
    assert receive(listener, 3) == [1, 2, 3]
    write(space, "memory")
    with refuse_request("STREAM.DELETE.A", 1 if refused else 0):
        _, result = space.apply(allow_hazards=PERMITTED)
    assert result.exit_code == (6 if refused else 0)
    assert sorted(set(receive(listener, 3))) == [1, 2, 3]


def test_a_pause_that_leaves_the_files_ends(
    tmp_path: Path, server: Server, raw: Raw, listener: Raw, server_version: tuple[int, ...]
) -> None:
    """Its subscriber gets what came meanwhile. Servers before 2.11 refuse the pause in a plan."""
    space = single_space(tmp_path, server)
    write(space).apply()
    if server_version < (2, 11):
        (found,) = write(space, pause_until=FAR).plan().diagnostics
        assert "pause_until" in found.summary
        return
    write(space, pause_until=FAR).apply()
    fill(raw, 3)
    write(space).apply()
    assert receive(listener, 3) == [1, 2, 3]
    assert not space.plan().steps
