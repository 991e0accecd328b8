"""Before 2.11, consumers apply the interest retention that their stream had once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

pytestmark = pytest.mark.matrix

SUBJECTS = ("i.a", "i.b", "i.c")


def put_stream(raw: Raw, verb: str, retention: str) -> None:
    config = {"name": "I", "subjects": ["i.>"], "retention": retention}
    raw.api_ok(f"$JS.API.STREAM.{verb}.I", config)


def delete_consumer(raw: Raw, name: str) -> None:
    raw.api_ok(f"$JS.API.CONSUMER.DELETE.I.{name}")


def narrow(raw: Raw) -> None:
    raw.consumer("I", "C", filter_subject="i.a")


def narrow_with_placeholder(raw: Raw) -> None:
    raw.consumer("I", "HOLD")
    narrow(raw)
    delete_consumer(raw, "HOLD")


def recreate_and_narrow(raw: Raw) -> None:
    delete_consumer(raw, "C")
    raw.consumer("I", "C")
    narrow(raw)


def repeat_after_placeholder(raw: Raw) -> None:
    """Do what an application does that creates its consumer at each start."""
    narrow_with_placeholder(raw)
    narrow(raw)


def count_after(raw: Raw, change: Callable[[Raw], None]) -> int:
    """Count the messages of six that remain after `change`."""
    put_stream(raw, "CREATE", "interest")
    raw.consumer("I", "C")
    raw.consumer("I", "D", filter_subject="i.b")
    for subject in SUBJECTS:
        raw.api_ok(subject, b"x")
    put_stream(raw, "UPDATE", "limits")
    for subject in SUBJECTS:
        raw.api_ok(subject, b"x")
    change(raw)
    return raw.count("I")


@pytest.mark.parametrize("change", [narrow, repeat_after_placeholder])
def test_an_update_of_a_consumer_deletes_what_none_wants(
    server: Server, server_version: tuple[int, ...], change: Callable[[Raw], None]
) -> None:
    """Before 2.11, a consumer applies the retention that its stream had once."""
    with Raw(server.url) as raw:
        left = count_after(raw, change)
    assert left == (4 if server_version < (2, 11) else 6)


@pytest.mark.parametrize(
    "change",
    [narrow_with_placeholder, recreate_and_narrow, lambda raw: delete_consumer(raw, "C")],
    ids=["placeholder", "recreated", "deleted"],
)
def test_nothing_is_deleted(server: Server, change: Callable[[Raw], None]) -> None:
    """A placeholder prevents it. A recreated consumer, or a deletion, does not do it."""
    with Raw(server.url) as raw:
        assert count_after(raw, change) == len(SUBJECTS) * 2


def test_a_restart_ends_it(make_server: MakeServer) -> None:
    """A restarted server knows only the retention that the stream has now."""
    server = make_server()
    with Raw(server.url) as raw:
        count_after(raw, lambda _: None)
    server.restart()
    with Raw(server.url) as raw:
        narrow(raw)
        assert raw.count("I") == len(SUBJECTS) * 2
