"""The calls that replaced origins ask of themselves and of those that source them. When they are needed is left to `downstream`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jsplan.documents.plan import Op
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.order import Draft, Drafts
from jsplan.planning.replication.impact import source_names
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import PlanInputs


def adapt_origin_drafts(
    verdict: ResourceDecision, drafts: Iterable[Draft], recorded: str
) -> Iterable[Draft]:
    """The calls of one resource, with what replaced origins ask of them: numbers that go on, sources that are put back."""
    for draft in drafts:
        if "first_seq" in verdict.unknown and draft.op in _ORIGIN_OPS:
            yield replace(draft, op=_ORIGIN_OPS[draft.op], params={"state_address": recorded})
        elif verdict.sources_to_attach and draft.key[1] in ("update", "last"):
            params = {"sources": sorted(verdict.sources_to_attach), "state_address": recorded}
            yield replace(
                draft, op="sources.attach", title=_attach_title(verdict, draft), params=params
            )
        else:
            yield draft


def _attach_title(verdict: ResourceDecision, draft: Draft) -> str:
    """That sources are put back; and that more changes, where it does."""
    back = {f'sources["{key}"].opt_start_seq' for key in verdict.sources_to_attach}
    there = {
        origin_key(source)
        for source in (verdict.live.compact if verdict.live else {}).get("sources") or ()
    }
    if not verdict.sources_to_attach & there:
        return draft.title
    put, names = (
        f"attach {source_names(verdict.sources_to_attach & there)} again",
        draft.title.removeprefix("update "),
    )
    return (
        f"{put} to {names}"
        if all(change.path in back for change in verdict.fields)
        else f"{draft.title}, and {put}"
    )


#: Deleting and making a stream whose numbers go on.
_ORIGIN_OPS: Final[Mapping[str, Op]] = {
    "stream.delete": "origin.delete",
    "stream.create": "origin.create",
}


def draft_detach(verdict: ResourceDecision, what: str, recorded: str, detached: set[str]) -> Draft:
    """The call that takes sources out; `out` are out already. The executor takes them from the configuration as it is then."""
    address, live = verdict.address, verdict.live
    assert live is not None
    gone = verdict.sources_to_detach | detached
    staying = [
        source for source in live.compact.get("sources") or () if origin_key(source) not in gone
    ]
    rest = {"sources": [source for source in live.raw["sources"] if origin_key(source) not in gone]}
    return Draft(
        (address, "leave"),
        "sources.detach",
        f"detach {source_names(verdict.sources_to_detach)} from {what} while the origin is recreated",
        {"api": f"STREAM.UPDATE.{address.stream}", "payload": live.raw | rest},
        live.fingerprint,
        {"sources": staying or None},
        params={"sources": sorted(verdict.sources_to_detach), "state_address": recorded},
    )


def order_detaching(
    verdicts: Mapping[Address, ResourceDecision], inputs: PlanInputs, drafts: Drafts
) -> None:
    """Whatever is done to an origin waits until its sources are out."""
    for (copy, kind), _ in list(drafts.items()):
        if kind != "leave":
            continue
        origins = {edge.origin for edge in inputs.topology.edges if edge.downstream == copy}
        for (address, _), other in drafts.items():
            if address in origins and address in verdicts and verdicts[address].replaces:
                other.depends_on.add((copy, "leave"))
