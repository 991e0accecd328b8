"""Random configurations and changes: the real server does what the checks and tables say.

The seeded run is the same on every machine; `make soak` takes JSPLAN_EXAMPLES (or many) new ones each time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsplan.resources.server_features import NEWEST_LEVEL
from tests.fields import strategies
from tests.fields.server_bench import PARENTS

if TYPE_CHECKING:
    from tests.fields.server_bench import ServerBench

MANY = int(os.environ.get("JSPLAN_EXAMPLES", "30000"))
SEEDED = settings(
    max_examples=800,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
FEW = settings(SEEDED, max_examples=200)
OPEN_ENDED = settings(SEEDED, max_examples=MANY, derandomize=False)

Pair = tuple[dict[str, Any], dict[str, Any]]
STREAM_PAIRS = strategies.pairs(strategies.streams("U", NEWEST_LEVEL))
CONSUMER_PAIRS = st.sampled_from(sorted(PARENTS)).flatmap(
    lambda stream: st.tuples(
        st.just(stream), strategies.pairs(strategies.consumers("c", stream, NEWEST_LEVEL))
    )
)


@FEW
@given(pair=STREAM_PAIRS)
def test_streams_are_what_the_table_says(bench: ServerBench, pair: Pair) -> None:
    """Refusals, echoes and updates of random streams are as the table predicts."""
    bench.stream(*pair)


@FEW
@given(drawn=CONSUMER_PAIRS)
def test_consumers_are_what_the_table_says(bench: ServerBench, drawn: tuple[str, Pair]) -> None:
    """Refusals, echoes and updates of random consumers are as the table predicts.

    Their streams have every retention, limits for consumers, and memory storage.
    """
    stream, pair = drawn
    bench.consumer(stream, *pair)


@pytest.mark.timeout(300)
@pytest.mark.matrix
@pytest.mark.soak
@SEEDED
@given(pair=STREAM_PAIRS)
def test_more_streams_are_what_the_table_says(bench: ServerBench, pair: Pair) -> None:
    """The same for four times as many streams, on every server."""
    bench.stream(*pair)


@pytest.mark.timeout(300)
@pytest.mark.matrix
@pytest.mark.soak
@SEEDED
@given(drawn=CONSUMER_PAIRS)
def test_more_consumers_are_what_the_table_says(
    bench: ServerBench, drawn: tuple[str, Pair]
) -> None:
    """The same for four times as many consumers, on every server."""
    stream, pair = drawn
    bench.consumer(stream, *pair)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "new",
    [
        {"discard_new_per_subject": True, "max_msgs_per_subject": 1},
        {"allow_msg_counter": True},
        {"max_age": 10**9},
        {},
    ],
    ids=str,
)
def test_sealing_sets_discard_itself(bench: ServerBench, new: dict[str, Any]) -> None:
    """Sealing sets `discard: new`; only `discard_new_per_subject` needs it in the request."""
    old = {name: value for name, value in new.items() if name == "allow_msg_counter"}
    bench.stream({"name": "U"} | old, {"name": "U", "sealed": True} | new)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "new",
    [{"subject_delete_marker_ttl": 1_000_000_000}, {"allow_msg_schedules": True}, {}],
    ids=str,
)
def test_sealing_where_purging_is_denied(bench: ServerBench, new: dict[str, Any]) -> None:
    """Markers and schedules cancel `deny_purge`, which is refused even where the update seals."""
    bench.stream({"name": "U", "deny_purge": True}, {"name": "U", "sealed": True} | new)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "old",
    [
        {"subject_delete_marker_ttl": 1_000_000_000},
        {"allow_msg_schedules": True},
        {"allow_rollup_hdrs": True},
        {"deny_purge": True},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "new",
    [
        {"description": "x"},
        {"metadata": {"a": "b"}},
        {"subject_delete_marker_ttl": 2_000_000_000},
        {"subject_delete_marker_ttl": 0, "description": "x"},
    ],
    ids=str,
)
def test_updates_of_a_sealed_stream(
    bench: ServerBench, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """One with markers or schedules refuses every update: both cancel `deny_purge`."""
    bench.stream({"name": "U"} | old, {"name": "U", "sealed": True} | old | new, seal=True)


@pytest.mark.soak
@OPEN_ENDED
@given(pair=STREAM_PAIRS)
def test_soak_streams(bench: ServerBench, pair: Pair) -> None:
    """Refusals, echoes and updates of many random streams are as the table predicts."""
    bench.stream(*pair)


@pytest.mark.soak
@OPEN_ENDED
@given(drawn=CONSUMER_PAIRS)
def test_soak_consumers(bench: ServerBench, drawn: tuple[str, Pair]) -> None:
    """Refusals, echoes and updates of many random consumers are as the table predicts."""
    stream, pair = drawn
    bench.consumer(stream, *pair)
