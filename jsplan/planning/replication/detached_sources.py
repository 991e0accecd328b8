"""Sources that an apply took out for a replaced origin and did not put back: the stream counts as it was with them. Pure.

What puts them back is decided in `downstream`; here is only what keeps our own half-done work from looking like somebody's change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jsplan.address import PARKING_PREFIX, Address
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from collections.abc import Collection

    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.state.document import Entry


def restore_detached_view(inputs: PlanInputs) -> None:
    """Put streams in the middle of it into `inputs.live` with their sources; which those are into `inputs.taken_out`."""
    for address, record in inputs.replacement_records.items():
        live, entry = inputs.live.get(address), inputs.entries.get(address)
        if (
            "detached" not in record
            or live is None
            or entry is None
            or entry.created != live.created
        ):
            continue
        there = {origin_key(source) for source in live.raw.get("sources") or ()}
        out = {origin_key(source) for source in entry.config.get("sources") or ()} & set(
            record["detached"]
        ) - there
        if out:
            inputs.detached_sources[address] = out
            inputs.live.objects[address] = _with_sources(live, entry, out)


#: What a stream gets when it has no source any more: a subject from us, a window from the server (2 minutes, measured on 2.15).
_TEMPORARY_FIELDS: Final = ("subjects", "duplicate_window")


def _with_sources(live: LiveObject, entry: Entry, detached: Collection[str]) -> LiveObject:
    """The stream with the sources that are out where they were, and without what it got for that time."""
    now = {origin_key(source): source for source in live.raw.get("sources") or ()}
    before = {origin_key(source): source for source in entry.config["sources"]}
    sources = [
        now.get(key, source) for key, source in before.items() if key in now or key in detached
    ]
    raw = live.raw | {
        "sources": sources + [source for key, source in now.items() if key not in before]
    }
    if not now and raw.get("subjects") in (
        None,
        [PARKING_PREFIX + live.address.stream],
        entry.config.get("subjects"),
    ):
        raw = {
            name: value
            for name, value in raw.items()
            if name not in _TEMPORARY_FIELDS or entry.config.get(name)
        }
    return replace(live, raw=raw, actual_fingerprint=live.fingerprint, _config=None, _compact=None)


def closing_record(inputs: PlanInputs, address: Address) -> dict[str, str]:
    """What a step that records the stream records besides, so that it is in the middle of nothing any more."""
    record = inputs.replacement_records.get(address, {})
    return {"replaced": record["address"]} if "detached" in record or "first_seq" in record else {}
