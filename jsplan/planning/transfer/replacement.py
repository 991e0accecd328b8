"""The transfer of a stream that is replaced at its own address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.facts.live import LiveObject
from jsplan.planning.transfer.methods import first_method
from jsplan.planning.transfer.progress import Transfer

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs


def list_consumers(inputs: PlanInputs, stream: Address) -> list[LiveObject]:
    """Return every consumer of the stream that was read, without the server's own."""
    return [
        found
        for found in inputs.consumers_of(stream)
        if not found.address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
    ]


def plan_replacement(inputs: PlanInputs, address: Address, live: LiveObject) -> Transfer:
    """Return the transfer of a stream that is replaced: the one that has begun, or a new one."""
    begun = inputs.interrupted.streams.get(address)
    if begun is not None and not begun.is_activated:
        return begun
    method = first_method(live, inputs.level(address), list_consumers(inputs, address))
    return Transfer(address, address, origin_now=live, method=method)
