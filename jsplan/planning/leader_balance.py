"""The fewest moves of leaders that balance them over the servers of a cluster. Pure.

The moves with the least sum of squares of the servers' numbers of leaders, and of these the fewest:
a minimum cost flow. It starts from the leaders as they are and cancels negative cycles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from jsplan.address import Address
from jsplan.documents.plan import FieldChange

#: The node of the graph that stands for no server: a leader less, or one more.
_OUTSIDE: Final = ""
#: Leaders of one server for each of which that may be too many or too few, before any is moved.
TOLERANCE: Final = 10


class LeaderMove(Struct, frozen=True):
    """The move of an object's leader from one server to another, as a decision has it."""

    origin: str
    target: str

    def to_json(self) -> dict[str, str]:
        """Return `params` of the step."""
        return {"old_leader": self.origin, "new_leader": self.target}

    def field_change(self) -> FieldChange:
        """Return what a plan shows of it, beside the changed fields."""
        return FieldChange("leader", self.origin, self.target, "in_place")


class LedObject(Struct, frozen=True):
    """A stream or consumer with its `leader`, and the `others` that could lead it."""

    address: Address
    leader: str
    others: frozenset[str]


def balance_leaders(found: Iterable[LedObject]) -> dict[Address, LeaderMove]:
    """Return the moves after which the numbers of leaders differ by one at most.

    Or by as little as the replicas of the objects allow. None while no server has a tenth too many
    or too few: one election is then no reason for another.
    """
    balance = _Balance(found)
    before = Counter(balance.leads)
    while cycle := _find_negative_cycle(balance.servers, balance.list_edges()):
        balance.shift(cycle)
    tolerated = sum(before.values()) // max(1, len(balance.servers)) // TOLERANCE
    if all(abs(balance.leads[name] - before[name]) <= tolerated for name in balance.servers):
        return {}
    return balance.list_moves()


class _Group(Struct):
    """Objects with the same leader and the same others, by the server that leads them now."""

    leader: str
    others: frozenset[str]
    by_server: dict[str, list[Address]]

    def price(self, now: str, other: str) -> int | None:
        """Return by how much the number of moves grows with such a shift; None: not possible."""
        if other == now or not self.by_server.get(now):
            return None
        if other != self.leader and other not in self.others:
            return None
        return (other != self.leader) - (now != self.leader)


class _Balance:
    """Objects with the servers that lead them after the moves so far.

    `leads` is the number of each server. `servers` are its keys, sorted.
    """

    def __init__(self, objects: Iterable[LedObject]) -> None:
        groups: dict[tuple[str, frozenset[str]], list[Address]] = {}
        for led in objects:
            groups.setdefault((led.leader, led.others), []).append(led.address)
        self._groups = [
            _Group(leader, others, {leader: sorted(group, reverse=True)})
            for (leader, others), group in groups.items()
        ]
        self._groups.sort(key=lambda group: group.by_server[group.leader][-1])
        self.leads = Counter({name: 0 for led in groups for name in (led[0], *led[1])})
        for (leader, _), group in groups.items():
            self.leads[leader] += len(group)
        self.servers = sorted(self.leads)
        self._step = self.leads.total() + 1

    def list_edges(self) -> dict[tuple[str, str], int]:
        """Return the cost of each possible shift; what balances outweighs any number of moves."""
        edges: dict[tuple[str, str], int] = {}
        for group in self._groups:
            for now in group.by_server:
                for other in (group.leader, *group.others):
                    price = group.price(now, other)
                    if price is not None and price < edges.get((now, other), 2):
                        edges[now, other] = price
        for name in self.servers:
            edges[_OUTSIDE, name] = -(2 * self.leads[name] - 1) * self._step
            edges[name, _OUTSIDE] = (2 * self.leads[name] + 1) * self._step
        return edges

    def shift(self, cycle: Sequence[tuple[str, str]]) -> None:
        """Move one leader along each edge between servers, one that costs least."""
        for now, other in cycle:
            if _OUTSIDE in (now, other):
                continue
            priced = [
                (price, number)
                for number, group in enumerate(self._groups)
                if (price := group.price(now, other)) is not None
            ]
            servers = self._groups[min(priced)[1]].by_server
            servers.setdefault(other, []).append(servers[now].pop())
            self.leads[now] -= 1
            self.leads[other] += 1

    def list_moves(self) -> dict[Address, LeaderMove]:
        """Return the objects that another server leads than before, sorted."""
        return {
            address: LeaderMove(group.leader, now)
            for address, group, now in sorted(
                (
                    (address, group, now)
                    for group in self._groups
                    for now, addresses in group.by_server.items()
                    for address in addresses
                    if now != group.leader
                ),
                key=lambda found: found[0],
            )
        }


def _find_negative_cycle(
    servers: Sequence[str], edges: dict[tuple[str, str], int]
) -> list[tuple[str, str]]:
    """Return the edges of a cycle with a negative cost; empty without one (Bellman-Ford)."""
    nodes = [_OUTSIDE, *servers]
    distance, before = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, _OUTSIDE)
    last: str | None = None
    for _ in nodes:
        last = None
        for (now, other), cost in edges.items():
            if distance[now] + cost < distance[other]:
                distance[other], before[other], last = distance[now] + cost, now, other
        if last is None:
            return []
    assert last is not None
    for _ in nodes:
        last = before[last]
    cycle, node = [(before[last], last)], before[last]
    while node != last:
        cycle.append((before[node], node))
        node = before[node]
    return cycle
