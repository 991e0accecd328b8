"""Measures deletions again just before they are carried out: messages may have arrived since the plan (contract, section 4).

A plan says how many messages go; when it would be more than 10 % and more than `--safe-below` above that by now, nothing is
written. What goes with a whole stream or consumer is a plain count and is checked in `preconditions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.documents.plan import Plan, Step
from jsplan.facts.live import LiveObject
from jsplan.facts.measure import measure
from jsplan.facts.question import MEASURE_LIMIT, Question
from jsplan.facts.survey import read_object
from jsplan.jetstream import DomainApi
from jsplan.planning.questions import about_consumer, about_origin, about_update, new_origins
from jsplan.planning.verdict import table_of
from jsplan.resources.fields import Config


async def deletes_more(plan: Plan, step: Step, live: LiveObject | None, apis: Mapping[str, DomainApi]) -> str | None:
    """Why a step must not be done, in words: it would delete clearly more messages than the plan said. Raises ApiError.

    `live` is the object as it is now, whose configuration is still as planned.
    """
    planned = planned_messages(plan, step.address)
    found = 0
    for question in await _questions(plan, step, live, apis, planned=planned):
        domain = question.stream.domain
        limit = int(plan.options.get("measure_limit", MEASURE_LIMIT))
        answer = await measure(apis[domain], question, _level(plan, domain), limit, count_only=True)
        found += answer.at_most if answer is not None else 0
    if not exceeds(found, planned, int(plan.options.get("safe_below", 0))):
        return None
    return f"would delete {found:,} messages by now; the plan said {planned:,}"


def exceeds(found: int, planned: int, safe_below: int) -> bool:
    """Whether that is more than 10 % and more than `safe_below` above what was planned."""
    return 10 * found > 11 * planned and found - planned > safe_below


def planned_messages(plan: Plan, address: str) -> int:
    """How many messages the plan said that a change may delete; 0 when it has no such hazard."""
    change = next((c for c in plan.resource_changes if c.address == address), None)
    hazards = change.hazards if change is not None else []
    return sum(h.messages or 0 for h in hazards if h.code == "DELETES_MESSAGES")


async def _questions(plan: Plan, step: Step, live: LiveObject | None, apis: Mapping[str, DomainApi], *, planned: int) -> Iterable[Question]:
    """What planning would ask about this step now. Consumers are asked about where the plan said that messages go."""
    address, found = Address.parse(step.address), list[Question | None]()
    if step.op == "stream.update" and live is not None:
        found.append(about_update(live, _after(step), _level(plan, address.domain), _going(plan, address)))
    if step.op in ("stream.create", "stream.update") and planned:
        found += _about_origins(plan, step, live, apis)
    if step.op in ("consumer.update", "consumer.delete") and planned and live is not None and address.parent is not None:
        stream = await read_object(apis[address.domain], address.parent)
        after = _after(step) if step.op == "consumer.update" else None
        found.append(about_consumer(live, after, stream, _level(plan, address.domain)) if stream is not None else None)
    return [question for question in found if question is not None]


def _after(step: Step) -> Config:
    payload = (step.request or {}).get("payload") or {}
    return table_of(Address.parse(step.address)).compact(payload.get("config") or payload)


def _level(plan: Plan, domain: str) -> int:
    return int((plan.domains.get(domain) or {}).get("api_level") or 0)


def _going(plan: Plan, stream: Address) -> frozenset[str]:
    steps = (Address.parse(s.address) for s in plan.steps if s.op == "consumer.delete")
    return frozenset(address.consumer for address in steps if address.parent == stream)


def _about_origins(plan: Plan, step: Step, live: LiveObject | None, apis: Mapping[str, DomainApi]) -> Iterable[Question]:
    """Origins that the step begins to copy, in domains that the plan touches."""
    address = Address.parse(step.address)
    prefixes = {str(facts.get("api_prefix")): key for key, facts in plan.domains.items()}
    for origin in new_origins(live.compact if live is not None else {}, _after(step)):
        api = (origin.get("external") or {}).get("api")
        domain = address.domain if api is None else prefixes.get(api)
        if domain in apis:
            yield about_origin(address, Address.of_stream(str(domain), origin["name"]), origin)
