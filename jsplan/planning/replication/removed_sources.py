"""Sources that are taken out of a stream before all of their origin is copied: what is not copied by then never will be. Pure.

How much that is, is counted in `facts.recopied`: it is what the same source would go on with, if it stayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.documents.plan import Hazard, Step
from jsplan.facts.duplicates import DuplicateCount, DuplicateRequest
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.model import PlanInputs
from jsplan.planning.replication.duplicates import subject_filters
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key, source_header


def list_removed_sources(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> list[DuplicateRequest]:
    """A question for each source that an update takes out and that nothing takes over."""
    updated = (
        v for v in verdicts.values() if v.actions == ["update"] and v.address.kind != "consumer"
    )
    return [question for verdict in updated for question in _list_for_stream(inputs, verdict)]


def _list_for_stream(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[DuplicateRequest]:
    before = (verdict.live.compact.get("sources") or ()) if verdict.live is not None else ()
    after = (verdict.after or {}).get("sources") or ()
    kept = {(origin["name"], _api_prefix(origin)) for origin in after}
    for origin in before:
        if (origin["name"], _api_prefix(origin)) not in kept:
            yield uncopied_measurement(
                verdict.address,
                origin,
                inputs.topology.routes.resolve_prefix(verdict.address.domain, _api_prefix(origin)),
            )


def _api_prefix(origin: Config) -> str | None:
    api: str | None = (origin.get("external") or {}).get("api")
    return api


def uncopied_measurement(
    downstream: Address, origin: Config, domain: str | None
) -> DuplicateRequest:
    """How much of the origin the copy does not have yet; `domain` None is one that the files no longer know: then by its prefix."""
    taken = subject_filters(origin)
    where = Address.of_stream(domain or str(_api_prefix(origin)), origin["name"])
    return DuplicateRequest(
        downstream, origin_key(origin), where, taken, taken, source_header(origin), recreated=False
    )


def add_unknown_domains(
    domains: Mapping[str, Domain], asked: Iterable[DuplicateRequest]
) -> dict[str, Domain]:
    """The domains, and those that only a prefix names: they are asked over the connection of the copy, as its server does."""
    found = dict(domains)
    for one in asked:
        prefix = one.origin.domain if one.origin is not None else ""
        if prefix not in found:
            found[prefix] = Domain(prefix, domains[one.downstream.domain].connection, None, prefix)
    return found


def assess_removed_sources(answers: Sequence[DuplicateCount]) -> Iterable[Hazard]:
    """The hazard for one stream, all the sources together that it loses."""
    if not answers:
        return
    unknown, most = [a for a in answers if a.at_most is None], sum(a.at_most or 0 for a in answers)
    least = sum(a.at_least for a in answers)
    exact = least == most and not unknown
    yield Hazard(
        "BREAKS_REPLICATION",
        "; ".join(map(_describe_uncopied, answers)),
        messages=None if unknown else most,
        exact=exact,
        at_least=None if exact else least,
        at_most=None if exact or unknown else most,
        causes=[a.request.name for a in answers],
    )


def _describe_uncopied(answer: DuplicateCount) -> str:
    if answer.at_most is None:
        return (
            f"whether all of source {answer.request.name} is copied is not known: {answer.reason}"
        )
    count = (
        f"{answer.at_most:,}" if answer.at_least == answer.at_most else f"up to {answer.at_most:,}"
    )
    return f"{count} messages of source {answer.request.name} are not copied yet, and will not be"


def bound_uncopied(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], steps: Iterable[Step]
) -> None:
    """Write into each step that takes sources out how much of them may be missing then; None: so much that nobody could tell."""
    by_copy: dict[Address, list[DuplicateRequest]] = {}
    for one in list_removed_sources(inputs, verdicts):
        by_copy.setdefault(one.downstream, []).append(one)
    for step in steps:
        address = Address.parse(step.address)
        if (
            step.op != "stream.update"
            or step.expect is None
            or "sources" not in step.expect
            or address not in by_copy
        ):
            continue
        missing = {a.request.name: a.at_most for a in inputs.uncopied_counts.get(address, ())}
        live = verdicts[address].live
        before = (
            {origin_key(o): o for o in (live.compact.get("sources") or ())}
            if live is not None
            else {}
        )
        step.precondition["removed_sources"] = [
            {"source": before[one.name], "max_uncopied": missing.get(one.name, 0)}
            for one in by_copy[address]
        ]
