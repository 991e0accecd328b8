"""Runs with strategy snapshot that are killed, and `verify` of their copies."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.workflows import backfill
from jsplan.workflows.backfill import VerifyOptions
from tests.backfill.backfill_pair import (
    Pair,
    create_bulk_stream,
    numbered_rows,
    read_all,
    without_spark,
)
from tests.support.process import PROGRAM
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(300)
COUNT = 40_000
TARGET: dict[str, Any] = {"name": "T", "domain": "hub", "subjects": ["t.>"]}


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream."""
    return Pair.create(tmp_path, clean_hub_leaf, mode="exact")


def payloads(pair: Pair, domain: str, name: str) -> list[bytes]:
    """Return the payloads of a stream, in order."""
    return [row[3] for row in read_all(pair.sandbox["hub"], f"$JS.{domain}.API", name)]


@pytest.mark.parametrize("seed", [4, pytest.param(5, marks=pytest.mark.soak)])
def test_a_snapshot_whose_apply_is_killed(pair: Pair, seed: int) -> None:
    """An apply after killed ones completes the target, and the next plan is empty."""
    create_bulk_stream(pair.sandbox["leaf"], "S", COUNT, 500)
    pair.space.write(streams=[TARGET], backfills=[pair.entry])
    dice = random.Random(seed)

    for share in (dice.random(), dice.random()):
        # Kill an apply when the target has that share of the messages.
        with (pair.space.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [PROGRAM, "apply", "-y"],
                cwd=pair.space.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + 120
        try:
            while process.poll() is None and time.monotonic() < end:
                info = None
                with suppress(OSError):
                    info = pair.raw_info("hub", "T")
                if info is not None and info["state"]["messages"] >= share * COUNT:
                    break
                time.sleep(0.005)
        finally:
            process.kill()
            process.wait()
    with without_spark():
        _, result = pair.space.apply()

    assert result.exit_code == 0
    assert payloads(pair, "hub", "T") == payloads(pair, "leaf", "S")
    assert pair.ask("hub", "STREAM.INFO.T")["config"]["subjects"] == ["t.>"]
    plan = pair.space.plan()
    assert (plan.has_changes, plan.backfills) == (False, [])
    pair.require_nothing_left(readers=4)


@pytest.mark.usefixtures("spark")
def test_verify_counts_missing_messages(pair: Pair) -> None:
    """`verify` compares messages that a server copied, and counts a missing one."""
    pair.stream(
        "leaf",
        "S",
        [(b"s.x", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % n, b"%d" % n) for n in range(1, 51)],
    )
    pair.delete("leaf", "S", 9)
    pair.space.write(streams=[TARGET], backfills=[pair.entry])
    with without_spark():
        pair.space.apply()
    pair.publish("hub", [(b"t.a", b"", b"new")])
    assert pair.state_record["origins"][0]["strategy"] == "snapshot"

    equal = backfill.verify(pair.space.load, VerifyOptions("x"), RecordingObserver())
    pair.delete("hub", "T", 30)
    lacking = backfill.verify(pair.space.load, VerifyOptions("x"), RecordingObserver())

    assert (equal.origins[0].counts["equal"], equal.others, equal.differences) == (49, 1, 0)
    assert (lacking.origins[0].counts["missing"], lacking.differences) == (1, 1)


@pytest.mark.matrix
def test_a_snapshot_under_its_own_name(pair: Pair) -> None:
    """A snapshot is restored in another domain with the subjects of the files.

    Servers of every release restore a stream under its own name.
    """
    pair.stream("leaf", "S", numbered_rows(20))
    pair.delete("leaf", "S", 7)
    pair.entry = pair.entry | {"to": {"domain": "hub", "stream": "S"}}
    pair.space.write(
        streams=[{"name": "S", "domain": "hub", "subjects": ["t.>"]}], backfills=[pair.entry]
    )

    with without_spark():
        plan, result = pair.space.apply()

    assert (plan.backfills[0]["strategy"], result.exit_code) == ("snapshot", 0)
    assert pair.stored("hub", "S") == pair.stored("leaf", "S")
    assert not pair.space.plan().has_changes
    pair.require_nothing_left()
