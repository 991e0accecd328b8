"""No plan stores a message twice or pushes one out beyond what it announces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.flows.random_flows import RandomFlows, describe
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


def require_announced(seed: int, folder: Path, sandbox: Sandbox, quiet: float) -> bool:
    """Play a seed; return False if its plan was refused or empty."""
    folder.mkdir(exist_ok=True)
    flows = RandomFlows(seed, hub_leaf_space(folder, sandbox), sandbox)
    result = flows.play(quiet)
    if result is None:
        return False
    assert result["twice"] <= result["said twice"], describe(flows, result)
    assert result["gone"] <= result["said gone"], describe(flows, result)
    assert result["left out"] <= result["said left out"], describe(flows, result)
    return True


@pytest.mark.matrix
@pytest.mark.since_2_12
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 12))]
)
def test_some_seeds(seed: int, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The number of copies and of lost messages was announced, for a few workspaces."""
    require_announced(seed, tmp_path, clean_hub_leaf, 1.5)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(30))
def test_many_seeds(block: int, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The same for 3,000 workspaces, most of which change something."""
    seeds = range(1_000 + 100 * block, 1_100 + 100 * block)
    played = [require_announced(seed, tmp_path / str(seed), clean_hub_leaf, 1.5) for seed in seeds]

    assert sum(played) > 50


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10))
def test_late_effects(block: int, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The same, looked at until servers have found that origins are others: some 20 seconds."""
    for seed in range(9_000 + 10 * block, 9_010 + 10 * block):
        require_announced(seed, tmp_path / str(seed), clean_hub_leaf, 26)
