"""Sources that are taken out of a stream before all of their origin is copied: what is not copied by then never will be. Pure.

How much that is, is counted in `facts.recopied`: it is what the same source would go on with, if it stayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.documents.plan import Hazard, Step
from jsplan.facts.recopy import CopiedAgain, Recopy
from jsplan.planning.inputs import Inputs
from jsplan.planning.recopies import filters
from jsplan.planning.verdict import Verdict
from jsplan.resources.fields import Config
from jsplan.resources.nested import header_of, origin_key


def leaving(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[Recopy]:
    """A question for each source that an update takes out and that nothing takes over."""
    updated = (v for v in verdicts.values() if v.actions == ["update"] and v.address.kind != "consumer")
    return [question for verdict in updated for question in _of_stream(inputs, verdict)]


def _of_stream(inputs: Inputs, verdict: Verdict) -> Iterable[Recopy]:
    before = (verdict.live.compact.get("sources") or ()) if verdict.live is not None else ()
    after = (verdict.after or {}).get("sources") or ()
    kept = {(origin["name"], _api(origin)) for origin in after}
    for origin in before:
        if (origin["name"], _api(origin)) not in kept:
            yield question_of(verdict.address, origin, inputs.topology.reach.leads_to(verdict.address.domain, _api(origin)))


def _api(origin: Config) -> str | None:
    api: str | None = (origin.get("external") or {}).get("api")
    return api


def question_of(copy: Address, origin: Config, domain: str | None) -> Recopy:
    """How much of the origin the copy does not have yet; `domain` None is one that the files no longer know: then by its prefix."""
    taken = filters(origin)
    where = Address.of_stream(domain or str(_api(origin)), origin["name"])
    return Recopy(copy, origin_key(origin), where, taken, taken, header_of(origin), fresh=False)


def with_unknown(domains: Mapping[str, Domain], asked: Iterable[Recopy]) -> dict[str, Domain]:
    """The domains, and those that only a prefix names: they are asked over the connection of the copy, as its server does."""
    found = dict(domains)
    for one in asked:
        prefix = one.origin.domain if one.origin is not None else ""
        if prefix not in found:
            found[prefix] = Domain(prefix, domains[one.copy.domain].connection, None, prefix)
    return found


def left_behind(answers: Sequence[CopiedAgain]) -> Iterable[Hazard]:
    """The hazard for one stream, all the sources together that it loses."""
    if not answers:
        return
    unknown, most = [a for a in answers if a.at_most is None], sum(a.at_most or 0 for a in answers)
    least = sum(a.at_least for a in answers)
    exact = least == most and not unknown
    yield Hazard(
        "BREAKS_REPLICATION", "; ".join(map(_in_words, answers)), messages=None if unknown else most, exact=exact,
        at_least=None if exact else least, at_most=None if exact or unknown else most, causes=[a.asked.name for a in answers],
    )  # fmt: skip


def _in_words(answer: CopiedAgain) -> str:
    if answer.at_most is None:
        return f"whether all of source {answer.asked.name} is copied is not known: {answer.reason}"
    count = f"{answer.at_most:,}" if answer.at_least == answer.at_most else f"up to {answer.at_most:,}"
    return f"{count} messages of source {answer.asked.name} are not copied yet, and will not be"


def bound_copies(inputs: Inputs, verdicts: Mapping[Address, Verdict], steps: Iterable[Step]) -> None:
    """Write into each step that takes sources out how much of them may be missing then; None: so much that nobody could tell."""
    by_copy: dict[Address, list[Recopy]] = {}
    for one in leaving(inputs, verdicts):
        by_copy.setdefault(one.copy, []).append(one)
    for step in steps:
        address = Address.parse(step.address)
        if step.op != "stream.update" or step.expect is None or "sources" not in step.expect or address not in by_copy:
            continue
        missing = {a.asked.name: a.at_most for a in inputs.left_behind.get(address, ())}
        live = verdicts[address].live
        before = {origin_key(o): o for o in (live.compact.get("sources") or ())} if live is not None else {}
        step.precondition["removed_sources"] = [
            {"source": before[one.name], "max_uncopied": missing.get(one.name, 0)} for one in by_copy[address]
        ]
