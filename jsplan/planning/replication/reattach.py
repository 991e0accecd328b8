"""Sources of a replaced origin: detached, attached again, or left detached by an apply.

A stream with sources that an apply left detached counts as if it had them, so that our own
interrupted work does not look like a change made outside jsplan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.address import PARKING_PREFIX, Address
from jsplan.documents.step_kinds import Op
from jsplan.planning.drafts import Draft, Drafts
from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
from jsplan.planning.replication.impact import source_names
from jsplan.resources.nested import origin_key, source_keys

if TYPE_CHECKING:
    from collections.abc import Collection

    from jsplan.facts.live import LiveObject
    from jsplan.state.document import Entry


def adapt_origin_drafts(
    decision: ResourceDecision, drafts: Iterable[Draft], recorded: str
) -> Iterable[Draft]:
    """Adapt the calls of one resource: continue the sequence of an origin, attach sources."""
    for draft in drafts:
        if "first_seq" in decision.unknown and draft.op in _ORIGIN_OPS:
            yield replace(draft, op=_ORIGIN_OPS[draft.op], params={"state_address": recorded})
        elif decision.sources_to_attach and draft.key[1] in ("update", "last"):
            params: dict[str, Any] = {
                "sources": sorted(decision.sources_to_attach),
                "state_address": recorded,
            }
            if decision.relocated_sources:
                params["relocated_sources"] = decision.relocated_sources
            yield replace(
                draft, op="sources.attach", title=_attach_title(decision, draft), params=params
            )
        else:
            yield draft


def _attach_title(decision: ResourceDecision, draft: Draft) -> str:
    """Return the title of a call that attaches sources, and of what else it changes."""
    attached_paths = {f'sources["{key}"].opt_start_seq' for key in decision.sources_to_attach}
    existing = source_keys(decision.before)
    if not decision.sources_to_attach & existing:
        return draft.title
    attach = f"attach {source_names(decision.sources_to_attach & existing)} again"
    if all(change.path in attached_paths for change in decision.fields):
        return f"{attach} to {draft.title.removeprefix('update ')}"
    return f"{draft.title}, and {attach}"


#: Deleting and creating a stream whose sequence continues.
_ORIGIN_OPS: Final[Mapping[str, Op]] = {
    "stream.delete": "origin.delete",
    "stream.create": "origin.create",
}


def draft_detach(inputs: PlanInputs, decision: ResourceDecision, label: str) -> Draft:
    """Draft the call before an update that detaches sources.

    Apply removes them from the configuration of that time, and those that already are detached.
    """
    address, live = decision.address, decision.live
    assert live is not None
    removed = decision.sources_to_detach | inputs.interrupted.detached_sources.get(address, set())
    moved = {origin_key(source) for source in decision.relocated_sources.values()} >= removed
    after = {origin_key(s): s for s in decision.planned.get("sources") or ()}
    continuing = {origin_key(old): after[key] for key, old in decision.relocated_sources.items()}
    staying, rest = (
        [source for source in config.get("sources") or () if origin_key(source) not in removed]
        for config in (live.compact, live.raw)
    )
    return Draft(
        (address, "leave"),
        "sources.detach",
        f"detach {source_names(decision.sources_to_detach)} from {label} "
        + ("to attach its new source" if moved else "while the origin is recreated"),
        {"api": f"STREAM.UPDATE.{address.stream}", "payload": live.raw | {"sources": rest}},
        live.fingerprint,
        {"sources": staying or None},
        params={
            "sources": sorted(decision.sources_to_detach),
            "state_address": inputs.state_name(address),
        }
        | ({"new_sources": continuing} if continuing else {}),
    )


def order_detaching(decisions: Decisions, inputs: PlanInputs, drafts: Drafts) -> None:
    """Let all steps of an origin wait until its sources are detached."""
    for (address, _), draft in drafts.items():
        if address in decisions and decisions[address].replaces:
            leaving = ((edge.downstream, "leave") for edge in inputs.topology.edges_from(address))
            draft.depends_on |= drafts.keys() & leaving


# --- sources that an apply did not attach again ---------------------------------------------------


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
