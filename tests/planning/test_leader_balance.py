"""The moves that balance leaders, compared with every possible assignment."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from jsplan.address import Address
from jsplan.planning.leader_balance import LeaderMove, LedObject, balance_leaders

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVERS = ("s1", "s2", "s3", "s4")


def make_objects(replicas: Sequence[Sequence[str]]) -> list[LedObject]:
    """Return one stream for each list of servers, which the first one leads."""
    return [
        LedObject(Address.of_stream("hub", f"S{number}"), names[0], frozenset(names[1:]))
        for number, names in enumerate(replicas)
    ]


def count(objects: list[LedObject], moves: dict[Address, LeaderMove]) -> Counter[str]:
    """Count the leaders of each server after the moves."""
    return Counter(moves[o.address].target if o.address in moves else o.leader for o in objects)


def find_best(objects: list[LedObject]) -> tuple[int, int]:
    """Return the least sum of squares, and the fewest moves that reach it, by trying all."""
    choices = [[o.leader, *sorted(o.others)] for o in objects]
    return min(
        (
            sum(number**2 for number in Counter(chosen).values()),
            sum(name != o.leader for name, o in zip(chosen, objects, strict=True)),
        )
        for chosen in itertools.product(*choices)
    )


replica_sets = st.lists(
    st.lists(st.sampled_from(SERVERS), min_size=1, max_size=3, unique=True), max_size=6
)


@given(replica_sets)
def test_no_assignment_is_more_even_or_takes_fewer_moves(replicas: list[list[str]]) -> None:
    """The moves are as even as the replicas allow, as few as that takes, and only to replicas."""
    objects = make_objects(replicas)
    moves = balance_leaders(objects)
    after = count(objects, moves)

    assert (sum(number**2 for number in after.values()), len(moves)) == find_best(objects)
    assert all(
        move.target in next(o for o in objects if o.address == address).others
        for address, move in moves.items()
    )


@given(replica_sets)
def test_after_the_moves_there_are_none(replicas: list[list[str]]) -> None:
    """A balanced domain stays unchanged: the moves do not oscillate."""
    objects = make_objects(replicas)
    moves = balance_leaders(objects)
    moved = [
        LedObject(o.address, move.target, (o.others | {o.leader}) - {move.target})
        if (move := moves.get(o.address))
        else o
        for o in objects
    ]

    assert balance_leaders(moved) == {}


def test_a_leader_more_of_many_is_no_reason_to_move_any() -> None:
    """Up to a tenth too many is tolerated; beyond it the numbers differ by one at most."""
    first, second = ["s1", "s2"], ["s2", "s1"]
    within = make_objects([first] * 22 + [second] * 18)
    beyond = make_objects([first] * 23 + [second] * 17)

    assert balance_leaders(within) == {}
    assert sorted(count(beyond, balance_leaders(beyond)).values()) == [20, 20]


def test_a_chain_of_moves_is_found() -> None:
    """A stream moves on to let another one take its place, if no replica of that one is idle."""
    objects = make_objects([["s1", "s2"], ["s1", "s2"], ["s2", "s3"]])
    moves = balance_leaders(objects)

    assert sorted(count(objects, moves).values()) == [1, 1, 1]
    assert len(moves) == 2
