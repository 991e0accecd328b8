"""No plan stores a message twice or pushes one out beyond what it announces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.flows.random_flows import RandomFlows, describe, list_in_vain
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Sandbox

#: Seeds that have most of what is drawn: republish, rollups, limits, counters, readers by consumers.
SEEDS = (11, 45, 135, 394)
#: Seeds where a stream of a chain moves to the other domain.
RELOCATED = (30_000,)


def require_announced(
    seed: int,
    folder: Path,
    sandbox: Sandbox,
    quiet: float = 1.5,
    *,
    relocates: bool = False,
    returns: bool = False,
) -> Counter[str] | None:
    """Play a seed; return what was announced in vain. None: its plan was refused or empty."""
    folder.mkdir(exist_ok=True)
    flows = RandomFlows(seed, hub_leaf_space(folder, sandbox), sandbox, relocates=relocates)
    in_vain: Counter[str] | None = None
    for result in flows.play(quiet, returns=returns):
        assert result["twice"] <= result["said twice"], describe(flows, result)
        assert result["gone"] <= result["said gone"], describe(flows, result)
        assert result["left out"] <= result["said left out"], describe(flows, result)
        assert not result["not republished"], describe(flows, result)
        in_vain = (in_vain or Counter()) + (Counter() if flows.recreated else list_in_vain(result))
    return in_vain


@pytest.mark.matrix
@pytest.mark.since_2_12
@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8))]
)
def test_some_seeds(seed: int, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The number of copies and of lost messages was announced, for a few workspaces."""
    require_announced(seed, tmp_path, clean_hub_leaf)


@pytest.mark.matrix
@pytest.mark.since_2_12
@pytest.mark.parametrize("seed", RELOCATED)
def test_relocated_streams(seed: int, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """So it was where streams that others read are relocated, with other edits."""
    require_announced(seed, tmp_path, clean_hub_leaf, relocates=True)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(30))
def test_many_seeds(
    block: int,
    tmp_path: Path,
    clean_hub_leaf: Sandbox,
    record_property: Callable[[str, object], None],
) -> None:
    """The same for 3,000 workspaces, most of which change something.

    A third relocates streams, too, and a third goes back to the files before, in another plan.

    What was announced and did not happen is no failure: the summary of the run counts it.
    """
    seeds = range(1_000 + 100 * block, 1_100 + 100 * block)
    played = [
        require_announced(
            seed,
            tmp_path / str(seed),
            clean_hub_leaf,
            relocates=block % 3 == 0,
            returns=block % 3 == 1,
        )
        for seed in seeds
    ]
    changed = [in_vain for in_vain in played if in_vain is not None]
    record_property("in vain", dict(sum(changed, Counter[str]())))

    assert len(changed) > (20 if block % 3 == 0 else 50)  # many relocations are refused


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10))
def test_late_effects(block: int, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The same, looked at until servers have found that origins are others: some 20 seconds."""
    for seed in range(9_000 + 10 * block, 9_010 + 10 * block):
        require_announced(seed, tmp_path / str(seed), clean_hub_leaf, 26)
