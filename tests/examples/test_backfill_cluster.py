"""The example of a backfill on a standalone Spark cluster, one worker of which is killed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.backfill.backfill_pair import read_all
from tests.conftest import PROGRAM

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLE = Path(__file__).parent.parent.parent / "examples/backfill"
COUNT = 60_000


def shipped() -> ModuleType:
    """Import the script of the example."""
    spec = importlib.util.spec_from_file_location("example_cluster", EXAMPLE / "cluster.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.mark.download
@pytest.mark.timeout(1200)
def test_a_worker_is_killed_in_the_middle(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run copies every message once and in order, although the worker that copies is killed.

    The workers read their passwords from their environment and from files.
    """
    example: Any = shipped()
    example.unpack(tmp_path)
    with Sandbox.hub_and_leaf(binary=PROGRAM) as sandbox:
        example.fill(sandbox["leaf"], COUNT)
        with example.cluster(tmp_path, sandbox["leaf"]) as (master, workers):
            code = example.story(tmp_path, sandbox["hub"], master, workers)
            assert [node.process.poll() is None for node in workers].count(False) == 1
        said = capfd.readouterr().out
        origin, target = (
            read_all(sandbox["leaf"], "$JS.API", "ORDERS"),
            read_all(sandbox["hub"], "$JS.API", "ORDERS_ALL"),
        )

    assert code == 0, said
    assert "is killed]" in said
    assert f"Verified: {COUNT:,} equal. Both sides agree." in said
    assert [row[3] for row in target] == [row[3] for row in origin]
    assert len(target) == COUNT
    for (seq, subject, _, _), (_, copied, headers, _) in zip(origin, target, strict=True):
        assert copied == subject
        assert f"\r\nJsplan-Origin: leaf/ORDERS/{seq}/20".encode() in headers


@pytest.mark.download
@pytest.mark.timeout(1200)
def test_partitions_and_a_fleet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Runs with partitions and of a fleet copy every message once, each subject in its order.

    A worker is killed, and a store is offline at first: the next run copies it. The entry with
    partitions has SQL and a function.
    """
    example: Any = shipped()
    example.unpack(tmp_path)
    with Sandbox.hub_and_leaf(leaves=("leaf", *example.STORES), binary=PROGRAM) as sandbox:
        example.fill(sandbox["leaf"], COUNT)
        for store in example.STORES:
            example.fill(sandbox[store], 2000, "SALES", f"sales.{store}")
        with example.cluster(tmp_path, sandbox["leaf"]) as (master, workers):
            partitioned = example.story(tmp_path, sandbox["hub"], master, workers, "orders-clean")
            fleet = example.story(
                tmp_path, sandbox["hub"], master, [], "sales-history", sandbox["store-2"]
            )
        said = capfd.readouterr().out
        clean, sales = (
            read_all(sandbox["hub"], "$JS.API", name) for name in ("ORDERS_CLEAN", "ALL_SALES")
        )

    assert (partitioned, fleet) == (0, 0), said
    assert "is killed]" in said
    assert "store-2/stream/SALES  deferred:" in said
    assert sorted(int(data) for *_, data in clean) == [n for n in range(1, COUNT + 1) if n % 10]
    for number in range(9):
        mine = [
            int(data) for _, subject, _, data in clean if subject == b"clean.orders.%d" % number
        ]
        assert mine == sorted(mine)
    for store in example.STORES:
        mine = [
            int(data)
            for _, _, headers, data in sales
            if f"\r\nJsplan-Origin: {store}/SALES/".encode() in headers
        ]
        assert mine == list(range(1, 2001))
    assert len(sales) == 4000
