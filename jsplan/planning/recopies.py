"""Sources by which a stream copies messages once more that it has, or gets, by another source. Pure: counting is left to `facts`.

To the server a source is what its origin, filters and transforms say: change one of them and it is a new source that copies
from the start (server_semantics, section 4). The same comes of two sources that take the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jsplan.address import Address
from jsplan.documents.plan import Hazard
from jsplan.facts.recopy import CopiedAgain, Recopy
from jsplan.planning.inputs import Inputs
from jsplan.planning.verdict import Verdict
from jsplan.resources.fields import Config
from jsplan.resources.nested import header_of, origin_key
from jsplan.subjects import overlap

Way = tuple[str, str]


def recopies(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[Recopy]:
    """Every source of the plan that takes messages a second time, as a question of how many."""
    changing = (v for v in verdicts.values() if v.address.kind != "consumer" and v.after is not None and v.actions[-1] in _WRITES)
    return [question for verdict in changing for question in _of_stream(inputs, verdict)]


_WRITES = ("create", "update")


def _of_stream(inputs: Inputs, verdict: Verdict) -> Iterable[Recopy]:
    assert verdict.after is not None
    before = verdict.live.compact if verdict.live is not None and not verdict.deletes else {}
    held = [*(before.get("sources") or ()), *([before["mirror"]] if before.get("mirror") else ())]
    known = {origin_key(origin) for origin in before.get("sources") or ()}
    new = [origin for origin in verdict.after.get("sources") or () if origin_key(origin) not in known]
    by_way: dict[Way, list[Config]] = {}
    for origin in held:
        by_way.setdefault(_way(inputs, verdict, origin), []).append(origin)
    for origin in new:
        same = by_way.setdefault(_way(inputs, verdict, origin), [])
        others = [o for o in same if any(overlap(a, b) for a in filters(o) for b in filters(origin))]
        same.append(origin)
        if others:
            yield _question(inputs, verdict, origin, others, fresh=not before)


def _question(inputs: Inputs, verdict: Verdict, origin: Config, others: Sequence[Config], *, fresh: bool) -> Recopy:
    domain, name = _way(inputs, verdict, origin)
    known = domain in inputs.workspace.domains
    return Recopy(
        verdict.address, origin_key(origin), Address.of_stream(domain, name) if known else None, filters(origin),
        tuple(f for o in others for f in filters(o)), header_of(origin), fresh, start_seq=origin.get("opt_start_seq") or 0,
        start_time=origin.get("opt_start_time") or "", late=any(o.get("opt_start_seq") or o.get("opt_start_time") for o in others),
    )  # fmt: skip


def _way(inputs: Inputs, verdict: Verdict, origin: Config) -> Way:
    """The domain, or the API prefix that leads to an unknown one, and the name of the stream there."""
    api, home = (origin.get("external") or {}).get("api"), verdict.address.domain
    return (home if api is None else inputs.topology.reach.leads_to(home, api) or api), origin["name"]


def filters(origin: Config) -> tuple[str, ...]:
    """The subjects that a mirror or source takes."""
    transforms = origin.get("subject_transforms") or [{"src": origin.get("filter_subject")}]
    return tuple(t.get("src") or ">" for t in transforms)


def copies_again(answers: Sequence[CopiedAgain]) -> Iterable[Hazard]:
    """The hazard for one stream, all its sources together."""
    if not answers:
        return
    least, most = sum(a.at_least for a in answers), sum(a.at_most or 0 for a in answers)
    unknown = [a for a in answers if a.at_most is None]
    exact = least == most and not unknown
    yield Hazard(
        "DUPLICATES_MESSAGES", _in_words(answers, least, most), messages=None if unknown else most, exact=exact,
        at_least=None if exact else least, at_most=None if exact or unknown else most, as_of=answers[0].as_of or None,
        causes=[a.asked.name for a in answers],
    )  # fmt: skip


def _in_words(answers: Sequence[CopiedAgain], least: int, most: int) -> str:
    unknown = next((a for a in answers if a.at_most is None), None)
    count = f"{most:,}" if least == most else f"between {least:,} and {most:,}" if least else f"up to {most:,}"
    if unknown is not None:
        count = f"at least {least:,}, how many is not known ({unknown.reason}),"
    origins = ", ".join(dict.fromkeys(str(a.asked.origin or a.asked.name) for a in answers))
    plural = "" if most == 1 and unknown is None else "s"
    if all(a.asked.fresh for a in answers):
        return f"stores {count} message{plural} of {origins} twice: several of its sources take the same"
    return f"copies {count} message{plural} of {origins} again: to the server a source with other filters or transforms is a new one"
