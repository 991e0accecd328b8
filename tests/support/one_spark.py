"""Deals tests to workers as `--dist worksteal` does, with Spark in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler.worksteal import (  # type: ignore[import-untyped]  # it has no stubs
    MIN_PENDING,
    WorkStealingScheduling,
)

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # as above

#: The tests with Spark come first of all (`COSTLY` in `tests/conftest.py`), and are in this folder.
FOLDER: Final = "tests/backfill/"


class OneSpark(WorkStealingScheduling):  # type: ignore[misc]  # as above
    """Work stealing that leaves the tests with Spark in the worker that got them.

    At the end of a run each worker would steal some, and start a JVM for them.
    """

    steal_requested_from_node: WorkerController | None

    def check_schedule(self) -> None:
        """Give idle workers what is left, or what one that has most of it can spare."""
        nodes = [node for node in self.node2pending if not node.shutting_down]
        idle = self._list_idle(nodes)
        if self.pending:
            for index, node in enumerate(idle):
                self._send_tests(node, len(self.pending) // (len(idle) - index))
            idle = self._list_idle(nodes)
        if not idle or self.steal_requested_from_node is not None:
            return
        spare = {node: self._list_spare(node) for node in nodes}
        richest = max(nodes, key=lambda node: len(spare[node]))
        stolen = spare[richest][len(spare[richest]) // 2 :]
        if stolen:
            richest.send_steal(stolen)
            self.steal_requested_from_node = richest
            return
        for node in idle:
            node.shutdown()

    def _list_idle(self, nodes: list[WorkerController]) -> list[WorkerController]:
        return [node for node in nodes if len(self.node2pending[node]) < MIN_PENDING]

    def _list_spare(self, node: WorkerController) -> list[int]:
        """List what a worker has queued beyond the next tests, without Spark."""
        first = self._count_spark()
        return [index for index in self.node2pending[node][MIN_PENDING:] if index >= first]

    def _count_spark(self) -> int:
        """Return the number of tests with Spark, which are the first ones."""
        ids = self.collection or []
        others = (index for index, name in enumerate(ids) if not name.startswith(FOLDER))
        return next(others, len(ids))
