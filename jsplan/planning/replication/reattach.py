"""The calls for a replaced origin: continue its sequence, reattach its sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.documents.plan_types import Op
from jsplan.planning.drafts import Draft, Drafts
from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
from jsplan.planning.replication.impact import source_names
from jsplan.resources.nested import origin_key, source_keys

if TYPE_CHECKING:
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
