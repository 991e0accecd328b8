"""History that a new source leaves out, since it begins later than its origin does: listed once, with the command that brings it. Pure.

Whether it is wanted only the user knows, so nothing of it is copied unasked; once the source is there it is not listed again.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.backfill.choosing import SAYS_WHERE_FROM
from jsplan.backfill.estimating import estimate
from jsplan.planning.backfills import between, past_legs
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.inputs import Inputs
    from jsplan.planning.verdict import Verdict


def left_out(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[dict[str, Any]]:
    """The elements of the plan's `backfills` that no entry declares."""
    return [found for verdict in verdicts.values() for found in _of(inputs, verdict)]


def left_out_places(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> set[tuple[Address, str]]:
    """The times of which a plan wants to know where in their stream they are."""
    new = ((source, origin) for verdict in verdicts.values() for source, origin in _new(inputs, verdict))
    return {(origin.address, source["opt_start_time"]) for source, origin in new if source.get("opt_start_time")}


def _of(inputs: Inputs, verdict: Verdict) -> Iterable[dict[str, Any]]:
    for source, origin in _new(inputs, verdict):
        start = source.get("opt_start_seq") or inputs.places.get((origin.address, source.get("opt_start_time") or ""))
        messages, size = between(origin, 1, int(start) - 1) if start else (None, None)
        if messages != 0:
            yield _element(inputs, verdict.address, source, origin, start, messages, size)


def _element(
    inputs: Inputs, target: Address, source: Mapping[str, Any], origin: LiveObject, start: Any, messages: int | None, size: int | None
) -> dict[str, Any]:
    begins = f"sequence {int(start):,}" if source.get("opt_start_seq") else str(source["opt_start_time"])
    side = {"domain": origin.address.domain, "stream": origin.address.stream} | ({"end_seq": int(start) - 1} if start else {})
    filters = [source["filter_subject"]] if source.get("filter_subject") else []
    pair, known = {(origin.address.domain, target.domain)}, messages is not None and size is not None
    guess = estimate("spark", messages or 0, size or 0, None, pair, past_legs(inputs.state)).to_json() if known else None
    return {
        "name": f"{origin.address}>{target}", "from": [side | ({"filter_subjects": filters} if filters else {})],
        "to": {"domain": target.domain, "stream": target.stream}, "messages": messages, "bytes": size, "strategy": "spark",
        "reason": f"its new source begins at {begins} and leaves out what is before; {SAYS_WHERE_FROM}", "estimate": guess,
        "declared": False, "command": command(origin.address, target),
    }  # fmt: skip


def command(origin: Address, target: Address) -> str:
    """What brings it."""
    return f"jsplan backfill run --from {shlex.quote(str(origin))} --to {shlex.quote(str(target))}"


def _new(inputs: Inputs, verdict: Verdict) -> Iterable[tuple[Mapping[str, Any], LiveObject]]:
    """Sources that the plan adds and that begin later than at the first message, with their origins as far as those are known."""
    address = verdict.address
    if address.kind != "stream" or verdict.actions not in (["create"], ["update"]) or address not in inputs.workspace.resources:
        return
    there = {origin_key(source) for source in (verdict.live.raw.get("sources") or () if verdict.live else ())}
    for source in inputs.body(address).get("sources") or ():
        if origin_key(source) in there or not (int(source.get("opt_start_seq") or 0) > 1 or source.get("opt_start_time")):
            continue
        domain = inputs.topology.reach.leads_to(address.domain, (source.get("external") or {}).get("api"))
        origin = inputs.live.get(Address.of_stream(domain, source["name"])) if domain is not None else None
        if origin is not None and origin.state.get("messages") and not _is_declared(inputs, origin.address, address):
            yield source, origin


def _is_declared(inputs: Inputs, origin: Address, target: Address) -> bool:
    """Whether an entry brings it, or has brought it."""
    entries = [entry for entry in inputs.workspace.backfills.values() if str(entry.target) == str(target)]
    real = inputs.topology.real
    sides = [side for entry in entries for side in entry.origins if side.parquet is None]
    return any(real(Address.of_stream(side.domain, side.stream)) == real(origin) for side in sides)
