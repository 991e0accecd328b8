"""Sources that an apply detached for a replaced origin and did not attach again.

The stream counts as if it had them, so that our own interrupted work does not look like a
change made outside jsplan.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from jsplan.address import PARKING_PREFIX, Address
from jsplan.resources.nested import origin_key, source_keys

if TYPE_CHECKING:
    from collections.abc import Collection

    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.state.document import Entry


def restore_detached_view(inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with the sources of these streams in `live`, and with their keys."""
    found: dict[Address, set[str]] = {}
    restored: list[LiveObject] = []
    for address, record in inputs.interrupted.replacements.items():
        live, entry = inputs.live.get(address), inputs.entries.get(address)
        if live is None or entry is None or entry.created != live.created:
            continue
        waiting = set(record.get("detached", ())) - source_keys(live.raw)
        if detached := source_keys(entry.config) & waiting:
            found[address] = detached
            restored.append(_with_sources(live, entry, detached))
    return replace(
        inputs,
        live=inputs.live.with_objects(restored),
        interrupted=replace(inputs.interrupted, detached_sources=found),
    )


#: What a stream without sources gets: a subject from jsplan, and a window of 2 minutes from the
#: server (measured on 2.15).
_TEMPORARY_FIELDS: Final = ("subjects", "duplicate_window")


def _with_sources(live: LiveObject, entry: Entry, detached: Collection[str]) -> LiveObject:
    """Return the stream with its detached sources in place, without its temporary fields."""
    now = {origin_key(source): source for source in live.raw.get("sources") or ()}
    before = {origin_key(source): source for source in entry.config["sources"]}
    sources = [
        now.get(key, source) for key, source in before.items() if key in now or key in detached
    ]
    raw = live.raw | {
        "sources": sources + [source for key, source in now.items() if key not in before]
    }
    parked = [PARKING_PREFIX + live.address.stream]
    if not now and raw.get("subjects") in (None, parked, entry.config.get("subjects")):
        temporary = {name for name in _TEMPORARY_FIELDS if not entry.config.get(name)}
        raw = {name: value for name, value in raw.items() if name not in temporary}
    return dataclasses.replace(live.with_raw(raw), actual_fingerprint=live.fingerprint)


def closing_record(inputs: PlanInputs, address: Address) -> dict[str, str]:
    """Return what the record of the stream adds to close its replacement."""
    record = inputs.interrupted.replacements.get(address, {})
    lost = "staging" in record and address not in inputs.interrupted.streams
    ends = lost or "detached" in record or "first_seq" in record
    return {"replaced": record["address"]} if ends else {}
