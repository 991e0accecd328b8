"""Copies by the servers themselves, with `mode: exact`: the choice of `auto`.

Both with everything that makes them exact: the comparison of both sides, and the settings that are
changed before and after.
"""

from __future__ import annotations

from datetime import UTC, datetime

from backfill_bench import Bench

from jsplan.backfill.snapshot_copy import SnapshotRestore
from jsplan.config.model import Backfill, BackfillSide
from jsplan.planning.backfill.model import OriginState
from jsplan.planning.backfill.strategy import StrategyFacts, StreamTraits, choose_strategy

ENTRY = Backfill(
    "tools", (BackfillSide("leaf", "BENCH"),), BackfillSide("hub", "COPY"), mode="exact"
)
CONFIG = {"name": "COPY", "subjects": ["copies.>"], "num_replicas": 1, "storage": "file"}


async def whole_by_auto(bench: Bench) -> float:
    """Copy the whole stream by the strategy of `auto`: a snapshot, restored and verified."""
    bench.start()
    info = await bench.leaf.request("STREAM.INFO.BENCH")
    levels = [(await api.request("INFO"))["api"]["level"] for api in (bench.leaf, bench.hub)]
    origin, target = (
        StreamTraits(info["config"], info["state"], levels[0]),
        StreamTraits(CONFIG, {}, levels[1], exists=False),
    )
    choice = choose_strategy(ENTRY, StrategyFacts((origin,), target, datetime.now(UTC)))
    assert choice.strategy == "snapshot", choice
    state = info["state"]
    origin_state = OriginState(
        "leaf/stream/BENCH",
        "hub/stream/COPY",
        info["created"],
        state["first_seq"],
        state["last_seq"],
        [],
        "",
        1,
    )
    await SnapshotRestore(
        origin_state, bench.endpoints(), CONFIG, "bench/tools", lambda: None, lambda _: None
    ).run()
    seconds = bench.stop()
    assert (await bench.hub.request("STREAM.INFO.COPY"))["state"]["messages"] == bench.count
    return seconds
