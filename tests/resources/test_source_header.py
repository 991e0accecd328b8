"""The header that names the source of a message."""

from __future__ import annotations

import pytest

from jsplan.resources.source_header import (
    SourceHeader,
    SourceName,
    parse_source_header,
    source_name,
)

PLAIN = {"name": "A"}
MANY = {
    "name": "A",
    "external": {"api": "$JS.hub.API"},
    "subject_transforms": [{"src": "a.*", "dest": "b.{{wildcard(1)}}"}, {"src": "c"}],
}
THROUGH = MANY | {"consumer": {"name": "DEF", "deliver_subject": "d.x"}}


@pytest.mark.parametrize("origin", [PLAIN, PLAIN | {"filter_subject": "a.>"}, MANY, THROUGH])
def test_names_are_found_again(origin: dict[str, object]) -> None:
    """The name of a configured source is the one in the header that a server writes for it."""
    name = source_name(origin)
    line = f"Nats-Stream-Source: {name.stream} 17 {name.filters} {name.destinations} a.b"
    block = f"NATS/1.0\r\nX: 1\r\n{line}\r\nY: 2\r\n\r\n".encode()
    assert parse_source_header(block) == SourceHeader(name, 17)


def test_names() -> None:
    """A name has hashes of API prefix and consumer, and a form feed between several filters."""
    assert source_name(PLAIN) == ("A", ">", ">")
    assert source_name(MANY) == ("A:bTMUkJQk", "a.*\fc", "b.{{wildcard(1)}}\f>")
    assert source_name(THROUGH).stream == "A:bTMUkJQk:C=Q0ST2l1f"


def test_older_servers_write_no_filters() -> None:
    """A header of an older server has a stream and a sequence."""
    block = b"NATS/1.0\r\nNats-Stream-Source: A:x 5\r\n\r\n"
    assert parse_source_header(block) == SourceHeader(SourceName("A:x", "", ""), 5)


@pytest.mark.parametrize(
    "value", ["", "A", "A x > >", "A ² > >", "A -1 > >", f"A {'9' * 5000} > >"]
)
def test_what_a_user_may_write(value: str) -> None:
    """A header that no server writes names no source."""
    block = f"NATS/1.0\r\nNats-Stream-Source: {value}\r\n\r\n".encode()
    assert parse_source_header(block) is None
    assert parse_source_header(b"NATS/1.0\r\nX: Nats-Stream-Source: A 1 > >\r\n\r\n") is None
