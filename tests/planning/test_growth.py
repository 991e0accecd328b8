"""The work of planning grows with the resources, not with their square."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import pytest

import jsplan
from jsplan.lint.plan import lint_plan
from jsplan.planning.build import build_plan, decide_all
from jsplan.planning.measurements import list_measurements
from jsplan.planning.options import PlanningOptions
from jsplan.planning.replication.checks import continue_sequence_for_unmanaged
from jsplan.planning.unmanaged import required_reads
from tests.support.model_server import ServerModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import TraceFunction

    from jsplan.planning.model import PlanInputs

Body = dict[str, Any]
#: Streams of the small workspace; the large one has twice as many.
STREAMS: Final = 20
#: Lines of one function that may run in a plan, whatever their number was in the small one.
MOST: Final = 150
_OWN: Final = str(Path(jsplan.__file__).parent)

#: What each stream gets, by its number.
CHANGES: Final[dict[str, Callable[[int], Body]]] = {
    "nothing": lambda _: {},
    "update": lambda _: {"max_age": "7d"},
    "limits": lambda _: {"max_msgs": 1},
    "retention": lambda _: {"retention": "interest"},
    "subjects": lambda i: {"subjects": [f"new{i}.>"]},
    "recreate": lambda _: {"storage": "memory", "lifecycle": {"on_replace": "recreate"}},
    "preserve": lambda _: {"storage": "memory", "lifecycle": {"on_replace": "preserve"}},
    "refuse": lambda _: {"storage": "memory"},
    "consumers gone": lambda _: {"consumers": []},
    "consumers replaced": lambda _: {"consumers": [{"name": "C", "ack_policy": "none"}]},
    "filters": lambda i: {
        "consumers": [{"name": "C", "ack_policy": "explicit", "filter_subject": f"s{i}.b"}]
    },
    "sources": lambda i: {"sources": [{"name": f"S{i}", "domain": "hub"}], "domain": "leaf"},
}


def streams(count: int, flow: str = "mirror") -> list[Body]:
    """Return streams of the hub with a consumer each, and their downstream streams in the leaf."""
    origins = [
        {
            "name": f"S{i}",
            "domain": "hub",
            "subjects": [f"s{i}.>"],
            "consumers": [{"name": "C", "ack_policy": "explicit"}],
        }
        for i in range(count)
    ]
    sides = [{"name": f"S{i}", "domain": "hub"} for i in range(count)]
    readers = [{"mirror": side} if flow == "mirror" else {"sources": [side]} for side in sides]
    return [
        *origins,
        *({"name": f"M{i}", "domain": "leaf"} | reader for i, reader in enumerate(readers)),
    ]


def count_lines(inputs: PlanInputs) -> Counter[str]:
    """Plan, and return how many lines of each of our functions ran; each turn of a loop is one."""
    lines = Counter[CodeType]()

    def trace(frame: FrameType, event: str, _argument: object) -> TraceFunction | None:
        if not frame.f_code.co_filename.startswith(_OWN):
            return None  # a library is asked by lines of ours
        if event == "line":
            lines[frame.f_code] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decisions = decide_all(inputs)
        required_reads(inputs, decisions)
        decisions |= continue_sequence_for_unmanaged(inputs, decisions)
        list_measurements(inputs, decisions)
        build_plan(inputs, decisions, lint_plan(inputs, decisions))
    finally:
        sys.settrace(before)
    named = Counter[str]()
    for code, count in lines.items():
        named[f"{Path(code.co_filename).name}: {code.co_qualname}"] += count
    return named


def plan_change(folder: Path, count: int, change: str) -> Counter[str]:
    """Return the lines that the plan of a change of this many streams runs."""
    change, _, flow = change.partition(" with ")
    folder.mkdir()
    world = ServerModel(folder)
    before, wanted = streams(count, flow or "mirror"), streams(count, flow or "mirror")
    world.execute(world.plan(before), random.Random(1))
    world.contents = {
        "stream": {"messages": 9, "bytes": 900, "first_seq": 1, "last_seq": 9, "consumer_count": 1},
        "consumer": {"num_pending": 4, "ack_floor": {"stream_seq": 3, "consumer_seq": 3}},
    }
    if change == "destroy":
        return count_lines(world.inputs(before, PlanningOptions(destroy=True)))
    for i, body in enumerate(wanted[:count]):
        body.update(CHANGES[change](i))
    return count_lines(world.inputs(wanted))


@pytest.mark.parametrize(
    "change", [*CHANGES, "destroy", "recreate with source", "preserve with source"]
)
def test_twice_as_many_streams(change: str, tmp_path: Path) -> None:
    """A plan that changes twice as many streams runs about twice the lines of each function."""
    small = plan_change(tmp_path / "small", STREAMS, change)
    large = plan_change(tmp_path / "large", 2 * STREAMS, change)

    grown = {name: (small[name], lines) for name, lines in large.items() if lines > MOST}
    assert {name: (a, b) for name, (a, b) in grown.items() if b > 3 * a} == {}
