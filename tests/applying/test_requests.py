"""The requests of an apply: how many of each kind, and what they notice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import StepStarted
from jsplan.errors import StalePlanError
from jsplan.facts.reader import MIN_STREAMS
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from tests.support.api_audit import audit_requests
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, approve, hub_leaf_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.sandbox import Sandbox, Server

#: More than `preconditions.MIN_NAMES`.
MANY = 25
CONSUMER: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}


def streams(count: int) -> list[dict[str, Any]]:
    """Return streams of the domain `hub` with a consumer each."""
    return [
        {"name": f"S{n}", "subjects": [f"s{n}"], "domain": "hub", "consumers": [CONSUMER]}
        for n in range(count)
    ]


def create_consumer(raw: Raw, stream: str, **fields: Any) -> None:
    """Create a consumer named C outside jsplan, by default exactly that of the files."""
    config = {"name": "C", "durable_name": "C", "ack_policy": "explicit"} | fields
    raw.api_ok(f"$JS.API.CONSUMER.CREATE.{stream}.C", {"stream_name": stream, "config": config})


@pytest.mark.parametrize("count", [MANY, MIN_STREAMS], ids=["few", "many"])
def test_the_requests_of_a_plan_that_creates(
    count: int, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A plan asks for no consumer of a stream that does not exist; one page shows all streams.

    Where it is complete, no stream that it omits is asked for.
    """
    with Raw((hub := clean_hub_leaf["hub"]).url, hub.user, hub.password) as raw:
        raw.create("S0", subjects=["s0"])
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams(count))
    with audit_requests(clean_hub_leaf) as seen:
        plan = space.plan()

    assert plan.summary["add"] == 2 * count - 1
    sent = Counter(".".join(line.removeprefix("hub ").split(".")[:2]) for line in seen)
    wanted = (
        {"STREAM.LIST": 1, "STREAM.INFO": 1} if count >= MIN_STREAMS else {"STREAM.INFO": count}
    )
    assert {verb: sent[verb] for verb in ("STREAM.LIST", "STREAM.INFO", "CONSUMER.INFO")} == {
        "STREAM.LIST": 0, "CONSUMER.INFO": 1
    } | wanted  # fmt: skip


def test_the_requests_of_a_creation(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A stream is read before its creation, after it, and before that of its consumer.

    All preconditions before the first write are one more read of each.
    """
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams(MANY))
    plan = space.plan()
    with audit_requests(clean_hub_leaf) as seen:
        assert space.apply_saved(plan).exit_code == 0

    sent = Counter(".".join(line.removeprefix("hub ").split(".")[:2]) for line in seen)
    assert {verb: count for verb, count in sent.items() if verb != "INFO"} == {
        "STREAM.INFO": 4 * MANY,
        "STREAM.CREATE": MANY,
        "CONSUMER.CREATE": MANY,
        "CONSUMER.INFO": MANY,
    }


def test_the_requests_of_an_import(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A resource that is only taken into state is read once after the plan, and never written.

    The streams are read by the list of their domain, and INFO of one names the server.
    """
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams(MIN_STREAMS))
    space.apply()
    (tmp_path / "other").mkdir()
    other = hub_leaf_space(tmp_path / "other", clean_hub_leaf)
    plan = other.write(workspace="other", streams=streams(MIN_STREAMS)).plan()
    with audit_requests(clean_hub_leaf) as seen:
        assert other.apply_saved(plan).exit_code == 0

    sent = Counter(".".join(line.removeprefix("hub ").split(".")[:2]) for line in seen)
    assert {verb: count for verb, count in sent.items() if verb != "INFO"} == {
        "STREAM.LIST": 1,
        "STREAM.INFO": 1,
        "CONSUMER.INFO": MIN_STREAMS,
    }
    assert not other.plan().has_changes


@pytest.mark.parametrize("thing", ["stream", "consumer"])
def test_a_creation_outside_makes_a_large_plan_stale(
    thing: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """One of many resources that was created outside jsplan stops the apply before its writes."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(streams=streams(MANY))
    plan, hub = space.plan(), clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("S7", subjects=["s7"])
        if thing == "consumer":
            create_consumer(raw, "S7")

        with pytest.raises(StalePlanError, match=rf"hub/{thing}/S7.*Nothing was changed"):
            space.apply_saved(plan)

        assert raw.api_ok("$JS.API.STREAM.NAMES")["streams"] == ["S7"]


class InterferingObserver(RecordingObserver):
    """Creates a consumer when the first step begins."""

    def __init__(self, raw: Raw, fields: dict[str, Any]) -> None:
        super().__init__()
        self._raw, self._fields = raw, fields

    def event(self, event: ApplyEvent) -> None:
        """Create the consumer, before the step of its creation reads."""
        if isinstance(event, StepStarted):
            create_consumer(self._raw, "S0", **self._fields)


@pytest.mark.parametrize("fields", [{}, {"description": "theirs"}], ids=["equal", "another"])
def test_a_consumer_that_was_created_right_before_its_step(
    fields: dict[str, Any], tmp_path: Path, server: Server
) -> None:
    """A consumer that another client created is not taken for one that the step creates."""
    space: Space = single_space(tmp_path, server)
    stream = {"name": "S0", "subjects": ["s0"]}
    space.write(streams=[stream]).apply()
    space.write(streams=[stream | {"consumers": [CONSUMER]}])
    with Raw(server.url) as raw:
        result = applying.apply(
            space.load, PlanOptions(), approve, InterferingObserver(raw, fields)
        )[1]

        assert [step.status for step in result.steps] == ["failed"]
        assert "was changed by another client" in str(result.steps[0].error)
        found = raw.api_ok("$JS.API.CONSUMER.INFO.S0.C")["config"]
        assert found.get("description") == fields.get("description")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "fields",
    [{}, {"mem_storage": True}, {"inactive_threshold": 10**12}, {"deliver_subject": "inbox"}],
    ids=["file", "memory", "expires", "push"],
)
def test_the_count_of_consumers_has_every_kind(fields: dict[str, Any], server: Server) -> None:
    """INFO of a stream counts each consumer from its creation to its deletion."""
    with Raw(server.url) as raw:
        raw.create("S0", subjects=["s0"])
        for number in range(20):
            create_consumer(raw, "S0", **fields)
            assert raw.state("S0")["consumer_count"] == 1, number
            raw.api_ok("$JS.API.CONSUMER.DELETE.S0.C")
        assert raw.state("S0")["consumer_count"] == 0
