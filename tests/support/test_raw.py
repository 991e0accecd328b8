from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.raw import NoResponders, Raw, delete_all_streams, encode, publish, streams

if TYPE_CHECKING:
    from jsplan.sandbox import Server


def test_headers_and_payload_come_back_as_they_were_sent(server: Server) -> None:
    """A published message is received with its headers and its bytes."""
    with Raw(server.url) as raw:
        raw.subscribe("a.*")
        raw.publish("a.b", b"\r\n\x00", {"Some": "thing: else"})

        assert raw.next_message() == ("a.b", {"Some": "thing: else"}, b"\r\n\x00")


def test_no_responders_is_not_silence(server: Server) -> None:
    """A subject without listeners raises NoResponders; a silent listener TimeoutError."""
    with Raw(server.url, timeout=0.2) as raw:
        with pytest.raises(NoResponders):
            raw.request("unused")
        raw.subscribe("mute")
        with Raw(server.url, timeout=0.2) as other, pytest.raises(TimeoutError):
            other.request("mute")


def test_many_requests_at_once_are_answered_in_their_order(server: Server) -> None:
    """Each payload has its own answer, and one without a listener raises NoResponders."""
    with Raw(server.url) as raw:
        raw.create("S")
        raw.publish_all(encode("S", b"%d" % number) for number in range(99))
        assert json.loads(raw.request("S")[1])["seq"] == 100
        payloads = [b'{"seq": %d}' % number for number in range(100, 0, -1)]
        answers = raw.request_all("$JS.API.STREAM.MSG.GET.S", payloads)

        found = [json.loads(body)["message"]["seq"] for _, body in answers]
        assert found == list(range(100, 0, -1))
        with pytest.raises(NoResponders):
            raw.request_all("unused", [b"", b""])


def test_publishing_waits_for_the_ack_and_fails_without_one(server: Server) -> None:
    """A stream acknowledges each message; a subject without a stream raises NoResponders."""
    with Raw(server.url) as raw:
        raw.create("S")
        publish(server.url, None, None, "S", b"1", b"2", headers={"H": "v"})

        assert raw.state("S")["messages"] == 2
    with pytest.raises(NoResponders):
        publish(server.url, None, None, "elsewhere", b"1")


def test_all_streams_are_found_and_deleted(server: Server) -> None:
    """Names are sorted as the server sorts them, and none is left after the deletion."""
    with Raw(server.url) as raw:
        for name in ("B", "A"):
            raw.create(name)
        assert ["A", "B"] == streams(raw)

        delete_all_streams(raw)

        assert [] == streams(raw)


def test_an_error_in_the_answer_can_be_read_or_raised(server: Server) -> None:
    """`api` returns the error, `api_ok` raises it."""
    with Raw(server.url) as raw:
        assert raw.api("$JS.API.STREAM.INFO.NONE")["error"]["err_code"] == 10059
        with pytest.raises(AssertionError, match="10059"):
            raw.api_ok("$JS.API.STREAM.INFO.NONE")
