"""Values that are too large for their stream or for the server, found before the apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.planning.decide import planned_config
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.resources.contents import CONTENTS
from jsplan.resources.kv_entry import WRITE_HEADERS

TOO_LARGE = "JS138"


def check_sizes(
    inputs: PlanInputs,
    contents: Mapping[Address, ResourceDecision],
    decisions: Mapping[Address, ResourceDecision],
) -> Iterator[Diagnostic]:
    """Yield an error for each value that its stream (10054) or the server would refuse.

    `decisions` are those about the streams. An object is stored in chunks that fit.
    """
    limits: dict[Address | None, list[tuple[str, int, str]]] = {}
    for address, decision in contents.items():
        if decision.actions == ["no-op"] or decision.after is None:
            continue
        declared = inputs.declared(address)
        if declared is None or declared.content is None:
            continue
        size = len(declared.content)
        more = CONTENTS[address.kind].header_size(address.stream, decision.after)
        headers = WRITE_HEADERS + more
        if address.parent not in limits:
            limits[address.parent] = _list_limits(inputs, decisions, address)
        for holder, most, hint in limits[address.parent]:
            if 0 < most < size + headers:
                text = (
                    f"has {size:,} bytes; {holder} takes {most:,} in a message, of which a "
                    f"conditional write needs {headers} for headers"
                )
                yield Diagnostic("error", TOO_LARGE, text, hint, str(address), declared.range)
                break


def _list_limits(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], address: Address
) -> list[tuple[str, int, str]]:
    """List who limits a message, to how many bytes, and what to do about it."""
    parent, facts = address.parent, inputs.live.domains.get(address.domain)
    assert parent is not None
    config = planned_config(inputs, decisions, inputs.topology.find_declared(parent)) or {}
    word = "max_value_size" if parent.kind == "kv" else "max_msg_size"
    return [
        (str(parent), int(config.get("max_msg_size") or -1), f"Store less, or raise {word}."),
        (
            "the server",
            facts.max_payload if facts is not None else 0,
            "Store less, or raise max_payload of the server.",
        ),
    ]
