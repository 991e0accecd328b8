"""What an apply that died had written without recording it: found again by what its step was to leave behind.

A create whose end nobody recorded is ours, not a stranger's that needs `--adopt` (contract, promise 7).
"""

from __future__ import annotations

from typing import Any

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.diff import lacking
from jsplan.planning.inputs import Inputs
from jsplan.planning.verdict import table_of
from jsplan.state.document import Entry


def recover(inputs: Inputs) -> None:
    """Give `inputs.entries` what the pending steps turn out to have done; `inputs.live` must cover them.

    Only an object that is just as the step was to leave it counts as done: before its call the step had seen the
    object absent (or ours), and nobody but us knows that exact configuration.
    """
    for address, begun in inputs.pending.items():
        live = inputs.live.get(address)
        if live is None or not _was_written(inputs, address, begun, live):
            continue
        record = begun["record"]
        inputs.entries[address] = Entry(
            config=live.config, declared=record["declared"], created=live.created, origin=record["origin"],
            prevent_destroy=record["prevent_destroy"], depends_on=record["depends_on"],
        )  # fmt: skip
        inputs.recovered.add(address)


def _was_written(inputs: Inputs, address: Address, begun: dict[str, Any], live: LiveObject) -> bool:
    if not begun.get("record") or not begun.get("op", "").endswith((".create", ".update")):
        return False
    entry = inputs.entries.get(address)
    known = entry is not None and entry.created == live.created
    if begun["op"].endswith(".create") and known:
        return False
    if begun["op"].endswith(".update") and entry is not None and not known:
        return False
    return not lacking(table_of(address), live.compact, begun.get("expect") or {})
