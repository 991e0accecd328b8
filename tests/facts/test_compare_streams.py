"""Two streams are compared by the content of each message, read in batches or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.facts import compare_streams as module
from jsplan.facts.compare_streams import (
    LONG_PAYLOAD,
    Comparison,
    ContentReader,
    Sequences,
    compare_streams,
)
from jsplan.facts.pages import ReadBudget
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


def reader_of(api: DomainApi, raw: Raw, name: str) -> ContentReader:
    """Return a reader of four messages: one by one from A, in batches from B."""
    batches = name == "B" and raw.api_level() > 0
    return ContentReader(api, name, "file", 1, 4, batches, ReadBudget(10**6))


def mirror(raw: Raw, *, direct: bool) -> None:
    """Create the mirror B of A, and wait until it is complete."""
    raw.create("B", mirror={"name": "A"}, allow_direct=direct)
    raw.wait_for("B", 30)


def differences(found: Comparison) -> tuple[int, list[int], list[int], list[int]]:
    """Return how many messages were compared, and the sequences that differ."""
    return found.messages, list(found.missing), list(found.different), list(found.extra)


@pytest.mark.parametrize("direct", [True, False], ids=["batches", "single"])
async def test_a_mirror_is_equal(direct: bool, raw: Raw, api: DomainApi) -> None:
    """Every message of a mirror equals that of its origin, in each way to read it."""
    create(raw, "A", direct=direct)
    mirror(raw, direct=direct)

    found = await compare(api, raw.api_level())

    assert differences(found) == (30, [], [], [])


async def test_differences_are_listed(raw: Raw, api: DomainApi) -> None:
    """Messages of one side only are missing or extra, within the range that was asked for."""
    create(raw, "A", direct=True)
    mirror(raw, direct=False)
    raw.delete("A", 4, 20)

    found = await compare(api, raw.api_level(), last=10)

    assert differences(found) == (9, [], [], [4])


@pytest.mark.parametrize("direct", [True, False], ids=["batches", "single"])
async def test_differences_are_listed_across_pages(
    direct: bool, raw: Raw, api: DomainApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of both sides need not begin or end with the same messages."""
    monkeypatch.setattr(ContentReader, "page_messages", 7)
    create(raw, "A", direct=True)
    mirror(raw, direct=True)
    for name in ("A", "B"):
        config = raw.config(name) | {"allow_direct": direct}
        raw.api_ok(f"$JS.API.STREAM.UPDATE.{name}", config)
    raw.delete("A", 1, *range(5, 13), 30)
    raw.delete("B", 2, 9, *range(20, 28), 29)

    found = await compare(api, raw.api_level())

    missing, extra = [2, *range(20, 28), 29], [1, 5, 6, 7, 8, 10, 11, 12, 30]
    assert differences(found) == (10, missing, [], extra)
    assert found.missing.ranges == [(2, 2), (20, 27), (29, 29)]


async def test_payloads_of_any_length_are_compared(raw: Raw, api: DomainApi) -> None:
    """Two messages that differ in the last byte only are different, short ones and long ones."""
    for name, last in (("A", b"a"), ("B", b"b")):
        config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": name == "B"}
        raw.api_ok(f"$JS.API.STREAM.CREATE.{name}", config)
        for size in (0, LONG_PAYLOAD - 1, LONG_PAYLOAD, 100_000):
            raw.request(f"{name}.1", b"x" * size + last)
    both = [await reader_of(api, raw, name).read_page(1, 4) for name in ("A", "B")]

    payloads = [[message.payload for message in page] for page, _ in both]

    assert [len(set(found)) for found in zip(*payloads, strict=True)] == [2, 2, 2, 2]
    assert max(map(len, payloads[0])) <= LONG_PAYLOAD


async def test_other_content_differs(raw: Raw, api: DomainApi) -> None:
    """Two streams with the same sequences and other times or subjects are not equal."""
    create(raw, "A", direct=True)
    create(raw, "B", direct=True)

    found = await compare(api, raw.api_level())

    assert differences(found) == (30, [], list(range(1, 31)), [])
    assert found.different.ranges == [(1, 30)]


async def test_conditions_of_a_publish_do_not_differ(raw: Raw, api: DomainApi) -> None:
    """A mirror lacks the `Nats-Expected-*` headers of its origin, and is equal; others count."""
    raw.create("A", subjects=["A.>"])
    for headers in (
        {"Nats-Expected-Last-Sequence": "0"},
        {"Nats-Expected-Last-Subject-Sequence": "1", "K": "1"},
    ):
        raw.request("A.1", b"x", headers)
    raw.create("B", mirror={"name": "A"})
    raw.wait_for("B", 2)

    found = await compare(api, raw.api_level())

    assert differences(found) == (2, [], [], [])


def test_each_difference_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of more ranges than are kept are counted, and none joins a range before them."""
    monkeypatch.setattr(module, "MAX_RANGES", 2)
    found = Sequences()

    for seq in (1, 2, 5, 9, 10, 11):
        found.add(seq)

    assert (found.count, found.omitted, found.ranges) == (6, 3, [(1, 2), (5, 5)])
    assert (list(found), found.first) == ([1, 2, 5], 1)
