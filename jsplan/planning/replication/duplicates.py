"""Sources by which a stream copies messages again that it has, or gets, from another source.

The server identifies a source by its origin, filters and transforms. If one of them changes, it is
a new source that copies from the start (server_semantics, section 4). Two sources that take the
same messages have the same effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jsplan.address import Address
from jsplan.documents.plan import Hazard
from jsplan.facts.duplicates import DuplicateCount, DuplicateRequest
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.resources.source_header import source_name
from jsplan.subjects import overlaps
from jsplan.units import bounds_text

OriginIdentity = tuple[str, str]


def list_duplicates(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[DuplicateRequest]:
    """Return a request to count for every source that takes messages a second time."""
    changing = (
        v
        for v in decisions.values()
        if v.address.kind != "consumer" and v.after is not None and v.actions[-1] in _WRITE_ACTIONS
    )
    return [request for decision in changing for request in _list_for_stream(inputs, decision)]


_WRITE_ACTIONS = ("create", "update")


def _list_for_stream(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[DuplicateRequest]:
    assert decision.after is not None
    before = decision.live.compact if decision.live is not None and not decision.deletes else {}
    existing = [
        *(before.get("sources") or ()),
        *([before["mirror"]] if before.get("mirror") else ()),
    ]
    known = {origin_key(origin) for origin in before.get("sources") or ()}
    new = [
        origin for origin in decision.after.get("sources") or () if origin_key(origin) not in known
    ]
    by_origin: dict[OriginIdentity, list[Config]] = {}
    for origin in existing:
        by_origin.setdefault(_origin_identity(inputs, decision, origin), []).append(origin)
    for origin in new:
        same = by_origin.setdefault(_origin_identity(inputs, decision, origin), [])
        others = [
            o
            for o in same
            if any(overlaps(a, b) for a in subject_filters(o) for b in subject_filters(origin))
        ]
        same.append(origin)
        if others:
            yield _duplicate_measurement(inputs, decision, origin, others, created=not before)


def _duplicate_measurement(
    inputs: PlanInputs,
    decision: ResourceDecision,
    origin: Config,
    others: Sequence[Config],
    *,
    created: bool,
) -> DuplicateRequest:
    domain, name = _origin_identity(inputs, decision, origin)
    known = domain in inputs.workspace.domains
    return DuplicateRequest(
        decision.address,
        origin_key(origin),
        Address.of_stream(domain, name) if known else None,
        subject_filters(origin),
        tuple(f for o in others for f in subject_filters(o)),
        source_name(origin),
        created,
        start_seq=origin.get("opt_start_seq") or 0,
        start_time=origin.get("opt_start_time") or "",
        starts_later=any(o.get("opt_start_seq") or o.get("opt_start_time") for o in others),
    )


def _origin_identity(
    inputs: PlanInputs, decision: ResourceDecision, origin: Config
) -> OriginIdentity:
    """Return the domain, or the API prefix of an unknown one, and the name of the stream."""
    api, home = (origin.get("external") or {}).get("api"), decision.address.domain
    return (
        home if api is None else inputs.topology.routes.resolve_prefix(home, api) or api
    ), origin["name"]


def subject_filters(origin: Config) -> tuple[str, ...]:
    """Return the subjects that a mirror or source takes."""
    transforms = origin.get("subject_transforms") or [{"src": origin.get("filter_subject")}]
    return tuple(t.get("src") or ">" for t in transforms)


def assess_duplicates(answers: Sequence[DuplicateCount]) -> Iterable[Hazard]:
    """Yield the hazard for one stream, for all its sources together."""
    if not answers:
        return
    least, most = sum(a.at_least for a in answers), sum(a.at_most or 0 for a in answers)
    unknown = [a for a in answers if a.at_most is None]
    exact = least == most and not unknown
    yield Hazard(
        "DUPLICATES_MESSAGES",
        _describe_duplicates(answers, least, most),
        messages=None if unknown else most,
        exact=exact,
        at_least=None if exact else least,
        at_most=None if exact or unknown else most,
        as_of=answers[0].as_of or None,
        causes=[a.request.name for a in answers],
    )


def _describe_duplicates(answers: Sequence[DuplicateCount], least: int, most: int) -> str:
    unknown = next((a for a in answers if a.at_most is None), None)
    many = (
        bounds_text(least, most, "message")
        if unknown is None
        else f"at least {least:,} (the number is not known: {unknown.reason}) messages"
    )
    origins = ", ".join(dict.fromkeys(str(a.request.origin or a.request.name) for a in answers))
    if all(a.request.recreated for a in answers):
        return f"stores {many} of {origins} twice: several of its sources take the same messages"
    return (
        f"copies {many} of {origins} again: "
        "the server treats a source with other filters or transforms as a new one"
    )
