"""Streams that servers from 2.14 on empty by mistake (`interest.empties_stream`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.deletions import ConsumerChange
from jsplan.facts.interest import ConsumerInterest, empties_stream
from jsplan.resources.server_features import PURGE_LEVEL
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    """A connection to a server with an interest stream of three messages for consumer ALL."""
    with Raw(server.url) as connection:
        connection.create("I", subjects=["i.>"], retention="interest")
        connection.consumer("I", "ALL")
        for _ in range(3):
            connection.request("i.a", b"x")
        yield connection


def behind_the_end(first: int) -> dict[str, Any]:
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": first}


def test_another_filter_behind_the_end(server: Server, raw: Raw) -> None:
    """A changed filter of a consumer that starts behind the end deletes wanted messages."""
    raw.consumer("I", "LATE", **behind_the_end(8))
    raw.consumer("I", "LATE", **behind_the_end(8), filter_subject="i.>", action="update")

    raw.wait_for("I", 0 if raw.api_level() >= PURGE_LEVEL else 3)


def test_the_deletion_of_one_of_two(server: Server, raw: Raw) -> None:
    """A deleted consumer behind the end deletes everything if there is a second one."""
    raw.consumer("I", "LATE", **behind_the_end(8))
    raw.consumer("I", "LATER", **behind_the_end(9))
    raw.api_ok("$JS.API.CONSUMER.DELETE.I.LATER")

    raw.wait_for("I", 0 if raw.api_level() >= PURGE_LEVEL else 3)


def test_the_deletion_of_the_only_one(server: Server, raw: Raw) -> None:
    """The deletion of the only consumer behind the end deletes no message."""
    raw.consumer("I", "LATE", **behind_the_end(8))
    raw.api_ok("$JS.API.CONSUMER.DELETE.I.LATE")

    raw.wait_for("I", 3)


@pytest.mark.parametrize(
    ("changes", "emptied"),
    [
        ([ConsumerChange("LATE", "same", ("i.>",))], True),
        ([ConsumerChange("LATE", "same")], False),
        ([ConsumerChange("LATE", "gone")], True),
        ([ConsumerChange("LATE", "floor")], True),
        ([ConsumerChange("ALL", "gone")], False),
    ],
)
def test_the_rule_of_empties_stream(changes: list[ConsumerChange], emptied: bool) -> None:
    """Only changes of consumers behind the end empty a stream, a deletion only with two."""
    now = [
        ConsumerInterest("ALL", (), 0, 0),
        ConsumerInterest("LATE", (), 7, 7),
        ConsumerInterest("LATER", (), 8, 8),
    ]

    assert empties_stream(now, changes, 3) is emptied
    assert not empties_stream(
        [consumer for consumer in now if consumer.name != "LATER"],
        [ConsumerChange("LATE", "gone")],
        3,
    )
