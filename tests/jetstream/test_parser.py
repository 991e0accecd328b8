"""Answers are found in the received bytes wherever a read ends, and among other messages."""

from __future__ import annotations

from urllib.parse import urlparse

import nats.errors
import pytest
from nats.aio.client import Srv

from jsplan.jetstream.client import Client, ManyAnswers, NumberedAnswers
from jsplan.jetstream.contexts import ConnectionSettings

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
STATUS = b"NATS/1.0 204 EOB\r\n\r\n"


def frame(sid: int, subject: bytes, headers: bytes, payload: bytes) -> bytes:
    """Return a message as the server sends it."""
    if not headers:
        return b"MSG %s %d %d\r\n%s\r\n" % (subject, sid, len(payload), payload)
    size = len(headers) + len(payload)
    return b"HMSG %s %d %d %d\r\n%s%s\r\n" % (subject, sid, len(headers), size, headers, payload)


#: Payloads that look like messages themselves, and messages that no one waits for in between.
MESSAGES = [
    (HEADERS, b"MSG a 7 1\r\nx\r\n"),
    (b"", b""),
    (HEADERS, b""),
    (b"", b"\r\n"),
    (STATUS, b""),
]
RECEIVED = b"+OK\r\n" + b"".join(
    frame(7, b"i.%d" % number, *message) + between
    for number, (message, between) in enumerate(
        zip(MESSAGES, (b"", frame(3, b"other", HEADERS, b"x"), b"+OK\r\n", b"", b""), strict=True)
    )
)


@pytest.mark.parametrize("piece", [*range(1, 40), len(RECEIVED)])
async def test_answers_arrive_whole(piece: int) -> None:
    """Each answer is found once, in order, with its headers unparsed."""
    client, answers = Client(ConnectionSettings(key="x", url="nats://x", shown="x")), ManyAnswers(9)
    client.answers_of[7], parser = answers, client._ps  # noqa: SLF001 - what nats-py reads with

    for at in range(0, len(RECEIVED), piece):
        await parser.parse(RECEIVED[at : at + piece])

    assert answers.messages == MESSAGES
    assert answers.has_ended
    assert not parser.buf


class EndedClient(Client):
    """A client that forgets what it has read at an error, as it does before it connects again."""

    async def _process_err(self, err_msg: str) -> None:  # noqa: ARG002 - nats-py calls it so
        self._ps.reset()


async def test_a_new_connection_begins_with_nothing_of_the_last_one() -> None:
    """An incomplete message of an ended connection is forgotten, and all behind its error."""
    client = EndedClient(ConnectionSettings(key="x", url="nats://x", shown="x"))
    client.answers_of[7] = answers = ManyAnswers(9)
    parser, message = client._ps, frame(7, b"i.0", HEADERS, b"x")  # noqa: SLF001 - as above

    await parser.parse(message[:-5])
    parser.reset()
    await parser.parse(message + b"-ERR 'stale connection'\r\n" + message)
    await parser.parse(message)

    assert len(answers.messages) == 2


async def test_a_head_with_more_spaces_is_read_too() -> None:
    """nats-py reads heads that other servers may write, and this parser what comes after them."""
    client, answers = Client(ConnectionSettings(key="x", url="nats://x", shown="x")), ManyAnswers(9)
    client.answers_of[7] = answers
    odd = b"MSG  i.0 7  3\r\nabc\r\nHMSG i.0  7 %d %d\r\n%sx\r\n"
    odd %= len(HEADERS), len(HEADERS) + 1, HEADERS

    for piece in (1, 7, 1000):
        received = odd + frame(7, b"i.0", HEADERS, b"y")
        for at in range(0, len(received), piece):
            await client._ps.parse(received[at : at + piece])  # noqa: SLF001 - as above

    assert answers.messages == [(b"", b"abc"), (HEADERS, b"x"), (HEADERS, b"y")] * 3


@pytest.mark.parametrize("line", [b"MSG i.1 x 5\r\n", b"HMSG i.1 7 5\r\n", b"MSG i.1 7 5x\r\n"])
async def test_a_malformed_line_ends_the_connection(line: bytes) -> None:
    """A line that no server sends is left to nats-py, which names it."""
    client = Client(ConnectionSettings(key="x", url="nats://x", shown="x"))
    client.answers_of[7] = ManyAnswers(9)

    with pytest.raises(nats.errors.ProtocolError):
        await client._ps.parse(line)  # noqa: SLF001 - what nats-py reads with


def test_numbered_answers() -> None:
    """Answers in any order are kept by their number, once; foreign subjects are ignored."""
    answers = NumberedAnswers(2, lambda _, __, payload: int(payload), {})
    for subject, payload in ((b"i.1", b"11"), (b"i.x", b"5"), (b"i.2", b"5"), (b"i.1", b"12")):
        answers.add(subject, b"", payload)
    assert (answers.found, answers.has_ended) == ({1: 11}, False)

    answers.add(b"i.0", b"", b"10")

    assert (answers.found, answers.has_ended, answers.largest) == ({0: 10, 1: 11}, True, 2)


def test_an_answer_that_cannot_be_parsed_ends_the_wait() -> None:
    """The error is kept for the caller; the connection continues."""
    answers = NumberedAnswers(2, lambda _, __, payload: int(payload), {})

    answers.add(b"i.0", b"", b"x")

    assert answers.has_ended
    assert isinstance(answers.error, ValueError)


async def test_a_hostile_server_fills_no_memory() -> None:
    """A message or a line that has no end is refused before it is stored."""
    line = b"INFO {" + b"x" * (9 << 20)
    for sent in (b"MSG x 1 99999999999\r\n", b"MSG i.1 7 99999999999\r\n", line):
        client = Client(ConnectionSettings(key="x", url="nats://x", shown="x"))
        client.answers_of[7] = ManyAnswers(9)
        with pytest.raises(nats.errors.ProtocolError):
            await client._ps.parse(sent)  # noqa: SLF001 - what nats-py reads with


async def test_a_hostile_server_announces_few_servers() -> None:
    """Of many announced servers only so many are kept that comparing them takes no time."""
    client = Client(ConnectionSettings(key="x", url="nats://x", shown="x"))
    first = Srv(urlparse("nats://x:4222"))
    client._server_pool, client._current_server = [first], first  # noqa: SLF001 - as nats-py connects
    client.options["dont_randomize"] = True
    urls = [f"10.0.{number // 250}.{number % 250}:4222" for number in range(60_000)]
    for _ in range(2):
        await client._process_info({"connect_urls": list(urls)})  # noqa: SLF001 - as above
    assert len(client._server_pool) == 256  # noqa: SLF001 - as above
