"""The changes that one pass makes to the decisions of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jsplan.address import Address

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, ResourceDecision


class Revision:
    """The decisions as one pass over them leaves them; `overrides` are those that it changed."""

    def __init__(self, decisions: Decisions) -> None:
        self._before = decisions
        self.overrides: dict[Address, ResourceDecision] = {}

    def __getitem__(self, address: Address) -> ResourceDecision:
        """Return the decision about a resource. Raises KeyError."""
        return self.overrides.get(address) or self._before[address]

    def change(self, address: Address, **fields: Any) -> None:
        """Let the decision have these fields."""
        self.overrides[address] = replace(self[address], **fields)
