"""The steps that begin next: their dependencies are done, and a slot of the domain is free."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable

from jsplan.documents.plan import Step
from jsplan.documents.plan_types import VERIFY_OP


class Schedule:
    """The order of some steps of a plan. Each method returns the steps that begin now.

    A step holds one of `parallelism` slots of its domain from its begin to `release`. A step that
    lets a cluster move a stream also holds one of `moves` slots of its domain, until `finish`.
    Steps that only verify replication may wait for long, so they take no slot. Dependencies outside
    of these steps are done.
    """

    def __init__(self, steps: Collection[Step], parallelism: int, moves: int = 2) -> None:
        self._steps = steps
        self._parallelism, self._moves = max(1, parallelism), max(1, moves)
        self._waiting_for = dict.fromkeys((step.id for step in steps), 0)
        self._dependents: dict[str, list[Step]] = {}
        for step in steps:
            for other in self._waiting_for.keys() & step.depends_on:
                self._waiting_for[step.id] += 1
                self._dependents.setdefault(other, []).append(step)
        self._ready: dict[str, deque[Step]] = defaultdict(deque)
        self._ready_moves: dict[str, deque[Step]] = defaultdict(deque)
        self._active: Counter[str] = Counter()
        self._moving: Counter[str] = Counter()

    def start(self) -> list[Step]:
        """Begin with the steps that wait for none."""
        return self._begin(step for step in self._steps if not self._waiting_for[step.id])

    def release(self, steps: Iterable[Step]) -> list[Step]:
        """Give the slots of these steps to the next ones. Their dependents wait for `finish`."""
        freed = [step.domain for step in steps if step.op != VERIFY_OP]
        self._active.subtract(freed)
        return [step for domain in dict.fromkeys(freed) for step in self._fill_slots(domain)]

    def finish(self, steps: Iterable[Step]) -> list[Step]:
        """Let the steps begin that waited only for these."""
        begun, ready = list[Step](), list[Step]()
        for step in steps:
            for other in self._dependents.pop(step.id, ()):
                self._waiting_for[other.id] -= 1
                if not self._waiting_for[other.id]:
                    ready.append(other)
            if step.moves_in_cluster:
                self._moving[step.domain] -= 1
                begun += self._fill_slots(step.domain)
        return begun + self._begin(ready)

    def _begin(self, steps: Iterable[Step]) -> list[Step]:
        begun: list[Step] = []
        for step in steps:
            if step.op == VERIFY_OP:
                begun.append(step)
            else:
                waiting = self._ready_moves if step.moves_in_cluster else self._ready
                waiting[step.domain].append(step)
                begun += self._fill_slots(step.domain)
        return begun

    def _fill_slots(self, domain: str) -> list[Step]:
        free = self._parallelism - self._active[domain]
        ready, moves = self._ready[domain], self._ready_moves[domain]
        begun = [
            moves.popleft()
            for _ in range(min(free, len(moves), self._moves - self._moving[domain]))
        ]
        self._moving[domain] += len(begun)
        begun += [ready.popleft() for _ in range(min(free - len(begun), len(ready)))]
        self._active[domain] += len(begun)
        return begun
