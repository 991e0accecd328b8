"""Streams that a server does not delete although it says so (`jetstream.leftovers`).

The rule: a deletion under a name removes nothing while the folder `.NAME` exists. The server itself
makes that folder for each deletion, and removes it in the background. So the second of two
deletions that follow one another closely may remove nothing. How close depends on the size of the
first stream and on the disk (measured, 3 messages: 17 % directly, none after 100 ms). The time from
the second deletion to the creation decides nothing.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.jetstream.leftovers import has_leftovers
from tests.support import undeleted_folder
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

pytestmark = pytest.mark.matrix
CONSUMER = {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}}


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A server of its own: what it does not remove would be in the streams of later tests."""
    return make_server()


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    """A connection to an empty server."""
    with Raw(server.url, timeout=20) as connection:
        yield connection


def create(raw: Raw, name: str = "S", **config: Any) -> dict[str, Any]:
    """Create a stream and return the answer, which says that it was created just now."""
    config = {"name": name} | ({} if "mirror" in config else {"subjects": [name]}) | config
    answer = raw.api_ok(f"$JS.API.STREAM.CREATE.{name}", config)
    assert answer["did_create"]
    return answer


def fill(raw: Raw, count: int = 3, name: str = "S") -> None:
    for number in range(count):
        raw.request(name, b"x", {"Nats-Msg-Id": str(number)})


def delete(raw: Raw, name: str = "S") -> None:
    assert raw.api_ok(f"$JS.API.STREAM.DELETE.{name}")["success"]


def leave_messages(server: Server, raw: Raw) -> Path:
    """Fill and delete a stream whose messages the server does not remove.

    Returns the folder that prevents it.
    """
    create(raw)
    raw.api_ok("$JS.API.CONSUMER.CREATE.S.C", CONSUMER)
    fill(raw)
    folder = undeleted_folder.place(server, "S")
    delete(raw)
    assert raw.api("$JS.API.STREAM.INFO.S")["error"]["err_code"] == 10059
    return folder


def test_the_next_stream_has_the_old_messages(server: Server, raw: Raw) -> None:
    """The deletion succeeds, the next stream is full, and refuses the old message ids."""
    leave_messages(server, raw)
    answer = create(raw)

    assert has_leftovers(answer)
    assert answer["state"]["messages"] == 3
    assert json.loads(raw.request("S", b"new", {"Nats-Msg-Id": "1"})[1])["duplicate"]


def test_a_new_consumer_has_the_old_position(server: Server, raw: Raw) -> None:
    """A consumer of the next stream is behind what the old one of that name finished."""
    create(raw)
    raw.api_ok("$JS.API.CONSUMER.CREATE.S.C", CONSUMER)
    fill(raw)
    raw.subscribe("_INBOX.next")
    raw.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b"2", reply="_INBOX.next")
    for _ in range(2):
        raw.publish(raw.next_with_reply()[1], b"+ACK")
    raw.unsubscribe()
    server.wait_until(
        lambda: raw.api_ok("$JS.API.CONSUMER.INFO.S.C")["ack_floor"]["stream_seq"] == 2, "acks", 20
    )
    raw.close()
    server.stop()  # it writes the position, which it otherwise does up to 0.1 s later
    server.start()
    with Raw(server.url) as again:
        undeleted_folder.place(server, "S")
        delete(again)
        create(again)
        consumer = again.api_ok("$JS.API.CONSUMER.CREATE.S.C", CONSUMER)

    assert consumer["ack_floor"]["stream_seq"] == 2


def test_a_restart_removes_the_folder_but_not_the_messages(server: Server, raw: Raw) -> None:
    """The next stream has the old messages at any later time, also after a restart."""
    leave_messages(server, raw)
    raw.close()
    server.stop()
    server.start()
    with Raw(server.url) as again:
        assert not (undeleted_folder.streams_folder(server) / ".S").exists()
        assert has_leftovers(create(again))
        delete(again)
        assert not has_leftovers(create(again))


def test_another_deletion_removes_them_when_the_folder_is_gone(server: Server, raw: Raw) -> None:
    """Deleting the full stream works as soon as nothing has the hidden name."""
    folder = leave_messages(server, raw)
    create(raw)
    delete(raw)
    assert has_leftovers(create(raw))

    shutil.rmtree(folder)
    delete(raw)
    answer = create(raw)
    assert (answer["state"]["messages"], answer["state"]["last_seq"]) == (0, 0)
    assert not has_leftovers(answer)


def test_a_purged_stream_has_the_old_sequences(server: Server, raw: Raw) -> None:
    """Old messages that the new configuration removes at once still leave their last time."""
    leave_messages(server, raw)
    answer = create(raw, first_seq=100)

    assert (answer["state"]["messages"], answer["state"]["first_seq"]) == (0, 100)
    assert has_leftovers(answer)


def test_memory_streams_have_nothing_left(server: Server, raw: Raw) -> None:
    """A memory stream has no old messages, neither of a memory stream nor of a file stream."""
    undeleted_folder.streams_folder(server).mkdir(parents=True)
    undeleted_folder.place(server, "S")
    create(raw, storage="memory")
    fill(raw)
    delete(raw)
    assert create(raw, storage="memory")["state"]["last_seq"] == 0
    delete(raw)
    create(raw)
    fill(raw)
    delete(raw)
    assert create(raw, storage="memory")["state"]["last_seq"] == 0


def test_first_answers_are_empty(server: Server, raw: Raw) -> None:
    """The answer to the creation of a mirror has none of the origin's older messages."""
    create(raw, "ORIGIN")
    fill(raw, 100, "ORIGIN")
    for number in range(20):
        for origin in ({"mirror": {"name": "ORIGIN"}}, {"sources": [{"name": "ORIGIN"}]}):
            answer = create(raw, f"S{number}{next(iter(origin))}", subjects=[], **origin)
            assert not has_leftovers(answer)


def test_one_deletion_at_a_time_removes_everything(server: Server, raw: Raw) -> None:
    """Without an earlier deletion of the name the next stream is always empty."""
    create(raw, "OTHER")  # the last stream of an account takes its folder along
    for number in range(50):
        name = f"S{number}"
        create(raw, name)
        fill(raw, 3, name)
        delete(raw, name)
        assert create(raw, name)["state"]["last_seq"] == 0


def test_deletions_in_a_loop(server: Server, raw: Raw) -> None:
    """A stream is empty or shows that it is not, also with folders of the server itself.

    How many are not empty depends on the disk.
    """
    create(raw, "OTHER")
    expected = 0
    for _ in range(100):
        answer = create(raw)
        count = answer["state"]["messages"]
        assert count in (0, expected)
        assert has_leftovers(answer) == (count > 0)
        fill(raw, 3 if count == 0 else 0)
        expected = raw.state("S")["messages"]
        delete(raw)


def test_restores_over_old_messages(
    server: Server, raw: Raw, server_version: tuple[int, ...]
) -> None:
    """Up to 2.14 a restore replaces the old messages; 2.15 refuses it after the transfer."""
    create(raw)
    fill(raw, 2)
    snapshot, chunks = take_snapshot(server, raw, "S")
    raw.request("S", b"more")
    undeleted_folder.place(server, "S")
    delete(raw)

    started = raw.api_ok(
        "$JS.API.STREAM.RESTORE.S", {"config": snapshot["config"], "state": snapshot["state"]}
    )
    for chunk in chunks:
        raw.request(started["deliver_subject"], chunk)
    ended = json.loads(raw.request(started["deliver_subject"], b"")[1])
    if server_version >= (2, 15):
        assert ended["error"]["err_code"] == 10062
    else:
        assert ended["state"]["messages"] == 2


def take_snapshot(server: Server, raw: Raw, stream: str) -> tuple[dict[str, Any], list[bytes]]:
    """Take a snapshot; return the answer of the server and the archive."""
    with Raw(server.url) as receiver:
        receiver.subscribe("_INBOX.snapshot")
        request = {"deliver_subject": "_INBOX.snapshot"}
        answer = raw.api_ok(f"$JS.API.STREAM.SNAPSHOT.{stream}", request)
        chunks: list[bytes] = []
        while True:
            _, reply, _, body = receiver.next_with_reply()
            if not body:
                return answer, chunks
            receiver.publish(reply, b"")
            chunks.append(body)
