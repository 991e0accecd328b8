"""Sources and mirrors that are removed from a stream before all of their origin is copied.

The rest is never copied. It is what the same source would copy if it stayed. Where the plan deletes
the messages of the origin too, as an exchange of roles does, it is all that only the origin has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.documents.deletions import UncopiedFlow
from jsplan.documents.plan import Step
from jsplan.facts.measurement import FlowCount, FlowRequest
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.model import Decisions, Hazards, PlanInputs, ResourceDecision
from jsplan.planning.replication.closed_streams import keeps_messages, list_refused
from jsplan.planning.replication.impact import origin_domain
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_api, origin_key
from jsplan.resources.source_header import source_name
from jsplan.subjects import intersect, is_covered
from jsplan.topology.replication_graph import subject_filters
from jsplan.units import count_text


def list_removed_sources(inputs: PlanInputs, decisions: Decisions) -> list[FlowRequest]:
    """Return a request for each source or mirror that goes from a stream and nothing continues.

    And for each one whose messages the stream may refuse from then on.
    """
    updated = (v for v in decisions.values() if keeps_messages(v) and v.address.is_stream)
    return [
        request for decision in updated for request in _list_for_stream(inputs, decisions, decision)
    ]


def _list_for_stream(
    inputs: PlanInputs, decisions: Decisions, decision: ResourceDecision
) -> Iterable[FlowRequest]:
    live, after = decision.before, decision.planned
    if (mirror := live.get("mirror")) and not after.get("mirror"):
        domain = origin_domain(inputs, decision.address, mirror)
        found = uncopied_measurement(decision.address, mirror, domain)
        origin_decision = decisions.get(found.origin)
        goes = origin_decision is not None and origin_decision.loses_content
        yield replace(found, mirror=True, origin_goes=goes)
    for origin in live.get("sources") or ():
        if origin in decision.relocated_sources.values():
            continue  # it continues at the new address of its origin
        domain = origin_domain(inputs, decision.address, origin)
        found = uncopied_measurement(decision.address, origin, domain)
        stored = _list_stored(inputs, found.origin)
        if not any(_continues(origin, other, stored) for other in after.get("sources") or ()):
            yield found
    for flow in list_refused(inputs, decision):
        domain = origin_domain(inputs, decision.address, flow)
        found = uncopied_measurement(decision.address, flow, domain)
        yield replace(found, mirror=flow == after.get("mirror"), stays=True)


def _list_stored(inputs: PlanInputs, stream: Address) -> list[str]:
    """Return the subjects that a stream stores, as far as that is known; else every subject."""
    live = inputs.live.get(stream)
    config = live.compact if live is not None else inputs.topology.bodies.get(stream)
    if config is None or config.get("mirror") or config.get("sources"):
        return [">"]
    return config.get("subjects") or [stream.stream]


def _continues(origin: Config, other: Config, stored: Iterable[str]) -> bool:
    """Check whether a source after the plan brings what one of now has not copied.

    It is the same one, or a new one that copies as much of the same stream, which has the subjects
    `stored`, from its beginning: to the server a source with another filter is another one. One
    with a consumer begins where that is.
    """
    if origin_key(origin) == origin_key(other):
        return True
    is_same = (origin["name"], origin_api(origin)) == (other["name"], origin_api(other))
    both = (intersect(one, another) for one in subject_filters(origin) for another in stored)
    wide = subject_filters(other)
    return (
        is_same
        and not other.get("consumer")
        and not other.get("opt_start_time")
        and int(other.get("opt_start_seq") or 1) == 1
        and all(is_covered(subject, wide) for subject in both if subject is not None)
    )


def uncopied_measurement(downstream: Address, origin: Config, domain: str | None) -> FlowRequest:
    """Return the request to count what is not copied yet.

    `domain` is None for one that is not in the files any more: the API prefix is used.
    """
    address = Address.of_stream(domain or str(origin_api(origin)), origin["name"])
    key, filters, name = origin_key(origin), subject_filters(origin), source_name(origin)
    return FlowRequest(downstream, key, address, filters, name, recreated=False)


def add_unknown_domains(
    domains: Mapping[str, Domain], asked: Iterable[FlowRequest]
) -> dict[str, Domain]:
    """Return the domains, and those known only by a prefix, over the downstream's connection."""
    found = dict(domains)
    for request in asked:
        prefix = request.origin.domain
        if prefix not in found:
            connection = domains[request.downstream.domain].connection
            found[prefix] = Domain(prefix, connection, None, prefix)
    return found


def assess_removed_sources(answers: Sequence[FlowCount]) -> Hazards:
    """Yield the hazard for one stream, for all sources together that it loses."""
    answers = [answer for answer in answers if not answer.request.stays]
    if not answers:
        return
    unknown, most = any(a.at_most is None for a in answers), sum(a.at_most or 0 for a in answers)
    least, causes = sum(a.at_least for a in answers), [a.request.name for a in answers]
    text = "; ".join(map(_describe_uncopied, answers))
    yield counted("BREAKS_REPLICATION", text, None if unknown else most, least, causes)


def _describe_uncopied(answer: FlowCount) -> str:
    request = answer.request
    name = f"{'mirror' if request.mirror else 'source'} {request.name}"
    if answer.at_most is None:
        return f"whether all of {name} is copied is not known: {answer.reason}"
    count = count_text(answer.at_most, "message")
    count = count if answer.at_least == answer.at_most else f"up to {count}"
    if request.origin_goes:
        return f"{count} are only in {request.origin}, whose messages this plan deletes"
    return f"{count} of {name} are not copied yet, and will not be"


def _prefix_of(config: Config, request: FlowRequest) -> str:
    """Return the API prefix of a mirror or source in a configuration; empty for its own domain."""
    listed = [config.get("mirror") or {}] if request.mirror else config.get("sources") or ()
    return next((origin_api(o) or "" for o in listed if origin_key(o) == request.name), "")


def bound_uncopied(inputs: PlanInputs, decisions: Decisions, steps: Iterable[Step]) -> None:
    """Let each step that removes mirrors or sources keep how much is not copied."""
    updates: dict[Address, list[Step]] = {}
    for step in steps:
        is_update = step.op == "stream.update" and step.expect is not None
        if is_update or step.op == "transfer.quiesce":
            updates.setdefault(Address.parse(step.address), []).append(step)
    for request in list_removed_sources(inputs, decisions):
        answers = inputs.measured.uncopied.get(request.downstream, ())
        most = next((a.at_most for a in answers if a.request.name == request.name), 0)
        flow = UncopiedFlow(
            request.name,
            str(request.origin),
            request.subjects,
            request.source,
            most,
            _prefix_of(decisions[request.downstream].before, request),
            request.mirror,
            request.origin_goes,
        )
        for step in updates.get(request.downstream, ()):
            step.uncopied.append(flow)
