"""Replicas disagree only where counts differ that do not change meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.facts import replicas
from jsplan.facts.replicas import find_disagreeing

if TYPE_CHECKING:
    from jsplan.facts.replicas import Replicas

#: What each look reads of three replicas: messages, first and last sequence.
Look = list[tuple[int, int, int]]
GOOD = (60, 1, 60)
LATER = (70, 1, 70)


def counts(look: Look) -> Replicas:
    """Return a look at the stream S, beside one whose replicas agree."""
    names = ("messages", "first_seq", "last_seq")
    rows = {
        f"c-{number}": dict(zip(names, row, strict=True)) | {"num_deleted": row[2] - row[0]}
        for number, row in enumerate(look, 1)
    }
    return {"S": rows, "T": dict.fromkeys(rows, rows["c-1"])}


@pytest.mark.parametrize(
    ("looks", "disagrees"),
    [
        pytest.param([[GOOD, GOOD, GOOD]], False, id="equal"),
        pytest.param([[GOOD, (40, 21, 60), GOOD]] * 3, True, id="a part is gone"),
        pytest.param([[GOOD, (40, 1, 40), GOOD]] * 3, True, id="it stands"),
        pytest.param(
            [[GOOD, (40, 1, 40), GOOD], [GOOD, (50, 1, 50), GOOD]],
            False,
            id="it is behind and follows",
        ),
        pytest.param(
            [
                [GOOD, (40, 21, 60), GOOD],
                [LATER, (50, 21, 70), LATER],
                [LATER, (50, 21, 70), LATER],
            ],
            True,
            id="a part is gone while messages arrive",
        ),
        pytest.param(
            [[GOOD, GOOD, (59, 2, 60)], [(59, 2, 60)] * 3], False, id="one deleted by age earlier"
        ),
    ],
)
async def test_replicas(
    looks: list[Look], disagrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is behind, or that deletes a little later, has lost nothing."""
    monkeypatch.setattr(replicas, "PAUSES", (0, 0, 0))
    left = [counts(look) for look in looks]

    async def read() -> Replicas:
        return left.pop(0)

    found = await find_disagreeing(read, {"S", "T"})

    assert list(found) == (["S"] if disagrees else [])
    assert left == []
