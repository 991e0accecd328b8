"""The calls for a replaced origin: continue its sequence, reattach its sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.documents.plan_types import Op
from jsplan.planning.drafts import Draft, Drafts
from jsplan.planning.model import ResourceDecision
from jsplan.planning.replication.impact import source_names
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import PlanInputs


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
    existing = {
        origin_key(source)
        for source in (decision.live.compact if decision.live else {}).get("sources") or ()
    }
    if not decision.sources_to_attach & existing:
        return draft.title
    attach, names = (
        f"attach {source_names(decision.sources_to_attach & existing)} again",
        draft.title.removeprefix("update "),
    )
    return (
        f"{attach} to {names}"
        if all(change.path in attached_paths for change in decision.fields)
        else f"{draft.title}, and {attach}"
    )


#: Deleting and creating a stream whose sequence continues.
_ORIGIN_OPS: Final[Mapping[str, Op]] = {
    "stream.delete": "origin.delete",
    "stream.create": "origin.create",
}


def draft_detach(
    decision: ResourceDecision, label: str, recorded: str, detached: set[str]
) -> Draft:
    """Draft the call that detaches sources; `detached` already are.

    Apply removes them from the configuration of that time.
    """
    address, live = decision.address, decision.live
    assert live is not None
    removed = decision.sources_to_detach | detached
    moved = {origin_key(source) for source in decision.relocated_sources.values()} >= removed
    after = {origin_key(s): s for s in (decision.after or {}).get("sources") or ()}
    continuing = {origin_key(old): after[key] for key, old in decision.relocated_sources.items()}
    staying = [
        source for source in live.compact.get("sources") or () if origin_key(source) not in removed
    ]
    rest = {
        "sources": [source for source in live.raw["sources"] if origin_key(source) not in removed]
    }
    return Draft(
        (address, "leave"),
        "sources.detach",
        f"detach {source_names(decision.sources_to_detach)} from {label} "
        + ("to attach its new source" if moved else "while the origin is recreated"),
        {"api": f"STREAM.UPDATE.{address.stream}", "payload": live.raw | rest},
        live.fingerprint,
        {"sources": staying or None},
        params={"sources": sorted(decision.sources_to_detach), "state_address": recorded}
        | ({"new_sources": continuing} if continuing else {}),
    )


def order_detaching(
    decisions: Mapping[Address, ResourceDecision], inputs: PlanInputs, drafts: Drafts
) -> None:
    """Let all steps of an origin wait until its sources are detached."""
    for (address, _), draft in drafts.items():
        if address in decisions and decisions[address].replaces:
            leaving = ((edge.downstream, "leave") for edge in inputs.topology.edges_from(address))
            draft.depends_on |= drafts.keys() & leaving
