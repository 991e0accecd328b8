"""Consumers that get another filter when their stream becomes interest, and the count."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from jsplan.address import Address
from jsplan.documents.deletions import DeletionRequest
from jsplan.facts.interest import build_change
from jsplan.facts.measure import measure_deletion
from jsplan.facts.measurement import MeasurementRequest
from tests.applying.consumer_helpers import fill, pull
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.jetstream import DomainApi
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

#: The subjects of the stream in order, and how many messages OTHER asks for.
LOADS: Final = {
    "searched to the end": ("abaa", 5),
    "stopped at its last message": ("abaa", 1),
    "has one left": ("abaaba", 1),
    "never asked": ("aaba", 0),
}
#: The new filter of OTHER, and how many messages it matches where OTHER searched to the end.
FILTERS: Final[tuple[tuple[dict[str, Any], int], ...]] = (
    ({}, 4),
    ({"filter_subjects": ["i.a", "i.b"]}, 4),
    ({"filter_subject": "i.a"}, 3),
)
STREAM: Final = {"name": "I", "subjects": ["i.>"], "storage": "memory"}


def put_consumer(raw: Raw, name: str, **config: Any) -> dict[str, Any]:
    """Create or update a consumer and return its configuration."""
    body = {"name": name, "durable_name": name} | config
    raw.api_ok(f"$JS.API.CONSUMER.CREATE.I.{name}", {"stream_name": "I", "config": body})
    return body


def finished(subjects: str, taken: int, fields: dict[str, Any]) -> int:
    """Return how many messages up to the last delivery of OTHER match its new filter."""
    places = [place for place, letter in enumerate(subjects) if letter == "b"][:taken]
    before = subjects[: places[-1] + 1] if places else ""
    return before.count("a") if fields == {"filter_subject": "i.a"} else len(before)


def _holds(raw: Raw, count: int) -> bool:
    return raw.count("I") == count


@pytest.mark.parametrize("acks", ["none", "all", "explicit"])
@pytest.mark.parametrize("earlier", [False, True], ids=["together", "filter first"])
async def test_what_a_consumer_has_passed(
    raw: Raw, api: DomainApi, server: Server, earlier: bool, acks: str
) -> None:
    """A consumer that acknowledges each message never wants what it passed with its old filter.

    Before the filter changes, INFO does not show how far it searched. Afterwards num_pending leaves
    out what it passed.
    """
    level = raw.api_level()
    address = Address.of_stream("main", "I")
    for (load, (subjects, taken)), (fields, matched) in itertools.product(LOADS.items(), FILTERS):
        # Make a stream with limits. READER finishes `i.a`, OTHER takes some of `i.b`.
        raw.api_ok("$JS.API.STREAM.CREATE.I", STREAM)
        put_consumer(raw, "READER", filter_subject="i.a", ack_policy="explicit")
        put_consumer(raw, "OTHER", filter_subject="i.b", ack_policy=acks)
        for letter in subjects:
            fill(raw, 1, (f"i.{letter}",))
        pull(raw, "I", "READER", 9, None)
        if taken:
            pull(raw, "I", "OTHER", taken, () if acks == "none" else None)
        if earlier:
            put_consumer(raw, "OTHER", ack_policy=acks, **fields)
        change = build_change("OTHER", "same", {"name": "OTHER", "ack_policy": acks} | fields)
        counts = DeletionRequest(interest="becomes", consumers=(change,))
        request = MeasurementRequest(address, address, counts)
        found = await measure_deletion(api, request, level)
        least, most = (found.at_least, found.at_most) if found is not None else (0, 0)

        put_consumer(raw, "OTHER", ack_policy=acks, **fields)
        raw.api_ok("$JS.API.STREAM.UPDATE.I", STREAM | {"retention": "interest"})

        passed = acks == "explicit" and load == "searched to the end"
        left = len(subjects) - (matched if passed else finished(subjects, taken, fields))
        what = f"{left} to be left ({load}, {fields})"
        server.wait_until(partial(_holds, raw, left), what, 20)
        assert least <= len(subjects) - left <= most, (load, fields)
        raw.api_ok("$JS.API.STREAM.DELETE.I")
