"""Two streams are compared by the content of each message, read in batches or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.facts.compare_streams import Comparison, compare_streams
from tests.support import stream_content
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.jetstream import DomainApi

pytestmark = pytest.mark.matrix


def create(raw: Raw, name: str, *, direct: bool) -> None:
    """Create a stream of 30 messages, some with headers."""
    config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": direct}
    raw.api_ok(f"$JS.API.STREAM.CREATE.{name}", config)
    stream_content.fill(raw, name, 30)


async def compare(api: DomainApi, level: int, last: int = 100) -> Comparison:
    """Compare A and its mirror B up to a sequence."""
    sides = [(api, await api.request(f"STREAM.INFO.{name}"), level) for name in ("A", "B")]
    return await compare_streams(sides[0], sides[1], 1, last)


def mirror(raw: Raw, *, direct: bool) -> None:
    """Create the mirror B of A, and wait until it is complete."""
    raw.api_ok(
        "$JS.API.STREAM.CREATE.B", {"name": "B", "mirror": {"name": "A"}, "allow_direct": direct}
    )
    while raw.api_ok("$JS.API.STREAM.INFO.B")["state"]["messages"] < 30:
        pass


@pytest.mark.parametrize("direct", [True, False], ids=["batches", "single"])
async def test_a_mirror_is_equal(direct: bool, raw: Raw, api: DomainApi) -> None:
    """Every message of a mirror equals that of its origin, in each way to read it."""
    create(raw, "A", direct=direct)
    mirror(raw, direct=direct)

    found = await compare(api, raw.api_level())

    assert (found.messages, found.missing, found.different, found.extra) == (30, [], [], [])


async def test_differences_are_listed(raw: Raw, api: DomainApi) -> None:
    """Messages of one side only are missing or extra, within the range that was asked for."""
    create(raw, "A", direct=True)
    mirror(raw, direct=False)
    stream_content.delete(raw, "A", 4, 20)

    found = await compare(api, raw.api_level(), last=10)

    assert (found.messages, found.missing, found.different, found.extra) == (9, [], [], [4])


async def test_other_content_differs(raw: Raw, api: DomainApi) -> None:
    """Two streams with the same sequences and other times or subjects are not equal."""
    create(raw, "A", direct=True)
    create(raw, "B", direct=True)

    found = await compare(api, raw.api_level())

    assert (len(found.different), found.missing, found.extra) == (30, [], [])


async def test_conditions_of_a_publish_do_not_differ(raw: Raw, api: DomainApi) -> None:
    """A mirror lacks the `Nats-Expected-*` headers of its origin, and is equal; others count."""
    raw.api_ok("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["A.>"]})
    for headers in (
        {"Nats-Expected-Last-Sequence": "0"},
        {"Nats-Expected-Last-Subject-Sequence": "1", "K": "1"},
    ):
        raw.request("A.1", b"x", headers)
    raw.api_ok("$JS.API.STREAM.CREATE.B", {"name": "B", "mirror": {"name": "A"}})
    while raw.api_ok("$JS.API.STREAM.INFO.B")["state"]["messages"] < 2:
        pass

    found = await compare(api, raw.api_level())

    assert (found.messages, found.missing, found.different, found.extra) == (2, [], [], [])
