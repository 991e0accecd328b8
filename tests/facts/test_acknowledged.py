"""Acknowledgements by limits that leave gaps, for consumers with ack policy `all`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.documents.deletions import DeletionRequest, Limits
from jsplan.facts.measure import measure_deletion
from jsplan.facts.measurement import MEASURE_LIMIT, Measurement, MeasurementRequest
from jsplan.jetstream import DomainApi
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

STREAM = Address("main", "stream", "A")
#: With one message per subject, the server deletes the first two of these.
SUBJECTS = ("a.1", "a.1", "a.1", "a.2", "a.3")
LAST_OF_EACH = Limits(max_msgs_per_subject=1)


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    """A connection to a server with a stream of five messages and its consumer ALL."""
    with Raw(server.url) as connection:
        connection.create("A", subjects=["a.*"])
        for subject in SUBJECTS:
            connection.request(subject, b"x")
        config = {"name": "ALL", "durable_name": "ALL", "ack_policy": "all"}
        connection.api_ok("$JS.API.CONSUMER.CREATE.A.ALL", {"stream_name": "A", "config": config})
        yield connection


async def measure(
    api: DomainApi, raw: Raw, *, limit: int = MEASURE_LIMIT, count_only: bool = False, **more: Any
) -> Measurement:
    """Measure the deletions of a limit of one message per subject."""
    level = raw.api_level()
    request = MeasurementRequest(STREAM, STREAM, DeletionRequest(LAST_OF_EACH, **more))
    found = await measure_deletion(api, request, level, limit, count_only=count_only)
    assert found is not None
    return found


@pytest.mark.parametrize("count_only", [False, True])
async def test_a_deletion_above_the_floor_acknowledges(
    api: DomainApi, raw: Raw, count_only: bool
) -> None:
    """A deleted message that is delivered acknowledges the delivered messages before it."""
    raw.pull("A", "ALL", len(SUBJECTS))

    found = await measure(api, raw, count_only=count_only)

    assert (found.at_least, found.newest, found.acknowledged) == (2, 2, (("ALL", 4),))


@pytest.mark.parametrize("count_only", [False, True])
async def test_a_deletion_below_the_floor_acknowledges_nothing(
    api: DomainApi, raw: Raw, count_only: bool
) -> None:
    """A deletion of acknowledged messages loses none, also where bytes are not asked for."""
    raw.ack([raw.pull("A", "ALL", len(SUBJECTS))[2]])

    found = await measure(api, raw, count_only=count_only)

    assert (found.at_least, found.newest, found.acknowledged) == (2, 2, ())


async def test_an_unknown_deletion_may_acknowledge(api: DomainApi, raw: Raw) -> None:
    """A measurement that reaches its limit of reads assumes that any message may go."""
    raw.ack([raw.pull("A", "ALL", len(SUBJECTS))[2]])

    found = await measure(api, raw, limit=1)

    assert (found.newest, found.acknowledged) == (0, (("ALL", 1),))


async def test_consumers_are_listed_once(
    api: DomainApi, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits and interest are measured on one list of consumers, requested once."""
    raw.pull("A", "ALL", len(SUBJECTS))
    asked: list[str] = []
    send = DomainApi.request

    async def remembering(self: DomainApi, verb: str, *args: Any, **more: Any) -> dict[str, Any]:
        asked.append(verb)
        return await send(self, verb, *args, **more)

    monkeypatch.setattr(DomainApi, "request", remembering)

    found = await measure(api, raw, interest="becomes")

    assert "max_msgs_per_subject" in found.causes
    assert [verb for verb in asked if verb.startswith("CONSUMER.LIST")] == ["CONSUMER.LIST.A"]
