"""Measures deletions again just before they are carried out: messages may have arrived since the plan (contract, section 4).

A plan says how many messages go; when it would be more than 10 % and more than `--safe-below` above that by now, nothing is
written. What goes with a whole stream or consumer is a plain count and is checked in `preconditions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from jsplan.address import OWN_CONSUMERS, Address
from jsplan.documents.plan import Hazard, Op, Plan, Step, configuration_in
from jsplan.facts.interest import ConsumerChange, filters_of, wants_of
from jsplan.facts.live import LiveObject
from jsplan.facts.measure import measure
from jsplan.facts.question import MEASURE_LIMIT, Finished, Question
from jsplan.facts.recopied import not_copied
from jsplan.facts.survey import read_object
from jsplan.jetstream import DomainApi
from jsplan.planning.interest import looks, snapshot
from jsplan.planning.leaving import question_of
from jsplan.planning.preserve.positions import position_of
from jsplan.planning.preserve.sizes import about_copy, moves_to
from jsplan.planning.preserve.ways import becomes_queue
from jsplan.planning.questions import about_origin, about_update, new_origins
from jsplan.planning.verdict import table_of
from jsplan.resources.fields import Config

#: What each step does to the position of its consumer.
_POSITIONS: Final[Mapping[Op, Literal["gone", "same", "floor", "start"]]] = {
    "consumer.delete": "gone", "consumer.update": "same", "consumer.replace": "floor", "consumer.create": "start",
    "consumer.delete_placeholder": "gone",
}  # fmt: skip
#: Steps with which a consumer gives up messages.
_LOSING: Final = ("consumer.update", "consumer.delete", "consumer.replace")
#: Causes that take more only when messages arrive; time and acknowledgements change the others.
STEADY = frozenset({"max_msgs", "max_bytes", "max_msgs_per_subject"})


@dataclass
class Deletions:
    """What the steps of one plan delete, against what the plan said. `apis` are the domains that answer.

    `replacements` are those that state knows by now.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    replacements: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _planned: dict[tuple[Address, bool], Hazard] = field(default_factory=dict)
    _changes: dict[Address, dict[str, ConsumerChange]] = field(default_factory=dict)
    _placeholders: set[Address] = field(default_factory=set)
    _held: set[Address | None] = field(default_factory=set)
    _kept: set[Address] = field(default_factory=set)

    def __post_init__(self) -> None:
        for change in self.plan.resource_changes:
            for hazard in change.hazards:
                if hazard.code == "DELETES_MESSAGES":
                    self._planned[_key(Address.parse(change.address))] = hazard
        for step in self.plan.steps:
            if _keeps(step):
                self._kept.add(step.touches)
            if step.op == "consumer.create_placeholder":
                self._placeholders.add(step.touches)
                self._held.add(step.touches.parent)
            if step.op in _POSITIONS:
                address = step.touches
                self._changes.setdefault(address.parent or address, {})[address.consumer] = _change(step)

    def is_held(self, consumer: Address) -> bool:
        """Check whether what the consumer's step deletes is decided by a step before it: a placeholder, or another retention."""
        return consumer.parent is not None and (
            consumer.parent in self._kept or (consumer.parent in self._held and consumer not in self._placeholders)
        )

    async def more_than_planned(self, step: Step, live: LiveObject | None) -> str | None:
        """Why a step must not be done, in words: it would delete clearly more messages than the plan said. Raises ApiError.

        `live` is the object as it is now, whose configuration is still as planned.
        """
        if (behind := await self._left_behind(step)) is not None:
            return behind
        stream, consumer = _key(Address.parse(step.address) if step.op == "stream.compare" else step.touches)
        hazard = self._planned.get((stream, consumer)) or self._planned.get((stream, False))
        questions = await self._questions(step, live, expected=hazard is not None)
        by_limits = not any(question.interest for question in questions)  # which acknowledgements do not change
        if hazard is not None and live is not None and by_limits and _nothing_arrived(hazard, live):
            return None
        planned, found, most = (hazard.messages or 0) if hazard is not None else 0, 0, 0
        limit = int(self.plan.options.get("measure_limit", MEASURE_LIMIT))
        for question in questions:
            domain = question.stream.domain
            answer = await measure(self.apis[domain], question, self._level(domain), limit, count_only=True)
            found, most = found + (answer.at_most if answer is not None else 0), max(most, answer.total if answer is not None else 0)
        if step.op == "stream.compare":  # the stand-in has the messages of the old stream
            found = min(found, most)
        if not exceeds(found, planned, int(self.plan.options.get("safe_below", 0))):
            return None
        return f"would delete {found:,} messages by now; the plan said {planned:,}"

    async def _left_behind(self, step: Step) -> str | None:
        """Why a source must not be taken out: by now clearly more of it is not copied than the plan said. Raises ApiError."""
        address, safe_below = Address.parse(step.address), int(self.plan.options.get("safe_below", 0))
        for one in step.precondition.get("removed_sources", ()):
            origin, planned = one["source"], one["max_uncopied"]
            api, copies = (origin.get("external") or {}).get("api"), self.apis[address.domain]
            origins = DomainApi(replace(copies.domain, api_prefix=api), copies.link, read_only=True) if api else copies
            found = planned if planned is None else await not_copied(origins, copies, question_of(address, origin, api), MEASURE_LIMIT)
            if planned is not None and (found is None or exceeds(found, planned, safe_below)):
                many = "an unknown number of" if found is None else f"{found:,}"
                return f"would lose {many} messages of source {origin['name']} that are not copied yet; the plan said {planned:,}"
        return None

    async def _questions(self, step: Step, live: LiveObject | None, *, expected: bool) -> list[Question]:
        """What planning would ask about this step now. Origins are asked about where the plan expected a loss."""
        address, found = Address.parse(step.address), list[Question | None]()
        if step.op == "stream.update" and live is not None:
            changes = tuple(self._changes.get(address, {}).values())
            found.append(about_update(live, _after(step), self._level(address.domain), changes))
        if step.op == "stream.compare" and live is not None and not (step.params or {}).get("into_new"):
            found += [self._about_copy(step, live), await self._about_replaced(step)]
        if step.op == "stream.quiesce" and live is not None:
            found.append(await self._about_replaced(step))
        if step.op in ("stream.create", "stream.update") and expected:
            found += self._about_origins(step, live)
        if step.op in _LOSING or step.op == "consumer.create_placeholder":
            found += await self._about_consumers(step, live)
        return [question for question in found if question is not None]

    async def _about_consumers(self, step: Step, live: LiveObject | None) -> Iterable[Question]:
        """What an interest stream would delete at this step; with a placeholder, what it will delete when that leaves."""
        address, parent = step.touches, step.touches.parent
        if step.op == "consumer.update" and live is not None and not looks(live.compact, _after(step), self._level(address.domain)):
            return []
        stream = await read_object(self.apis[address.domain], parent) if parent is not None else None
        if stream is None or stream.compact.get("retention") != "interest" or not stream.state.get("messages"):
            return []
        held = step.op == "consumer.create_placeholder"
        changes = tuple(self._changes.get(stream.address, {}).values()) if held else (_change(step),)
        since = (step.params or {}).get("placeholder") if held else None
        return [
            Question(
                address, stream.address, interest="is", consumers=changes, placeholder=held,
                since=snapshot(since) if since is not None else None,
            )
        ]  # fmt: skip

    def _about_copy(self, step: Step, copy: LiveObject) -> Question | None:
        """What the limits of the new stream will delete of the messages that the stand-in has: the last look before the old one goes."""
        last = next(s for s in self.plan.steps if s.op == "stream.activate" and s.address == step.address)
        after, level, record = _after(last), self._level(last.domain), self.replacements[(step.params or {})["state_address"]]
        found = about_update(copy, after, level, moved=moves_to(copy, after, level, copy.address.stream))
        return about_copy(replace(found, address=Address.parse(step.address)), copy.address, record) if found is not None else None

    async def _about_replaced(self, step: Step) -> Question | None:
        """What goes for the consumers of a stream that is replaced with its messages, as long as the old one is there."""
        address, steps = Address.parse(step.address), {s.op: s for s in self.plan.steps if s.address == step.address}
        old, after = await read_object(self.apis[address.domain], address), _after(steps["stream.activate"])
        if old is None or not old.state.get("messages"):
            return None
        copies = (s.params or {} for s in self.plan.steps if s.address == step.address and s.op == "stream.copy")
        made = any(carried["into_new"] and not carried["consumers"] for carried in copies)
        coming = {name: _coming(name, one, made=made) for name, one in (steps["stream.resume_consumers"].params or {})["consumers"].items()}
        finished: tuple[Finished, ...] = ()
        if becomes_queue(old.compact, after):
            infos = await self.apis[address.domain].consumers(address.stream)
            own = [i for i in infos if not i["name"].startswith(OWN_CONSUMERS)]
            stay = [i for i in own if coming.get(i["name"], _STAYS).position != "gone"]
            finished = tuple(Finished(filters_of(i["config"]), wants_of(i).delivered, position_of(i["config"], i)) for i in stay)
        interest = after.get("retention") == "interest"
        if not interest and not finished:
            return None
        changes = tuple((coming | self._changes.get(old.address, {})).values())
        return Question(address, address, interest="becomes" if interest else "", renewed=made, consumers=changes, finished=finished)

    def _level(self, domain: str) -> int:
        return int((self.plan.domains.get(domain) or {}).get("api_level") or 0)

    def _about_origins(self, step: Step, live: LiveObject | None) -> Iterable[Question]:
        """Origins that the step begins to copy, in domains that the plan touches."""
        address = Address.parse(step.address)
        prefixes = {str(facts.get("api_prefix")): key for key, facts in self.plan.domains.items()}
        prefixes |= (self.plan.domains.get(address.domain) or {}).get("imports") or {}
        for origin in new_origins(live.compact if live is not None else {}, _after(step)):
            api = (origin.get("external") or {}).get("api")
            domain = address.domain if api is None else prefixes.get(api)
            if domain in self.apis:
                yield about_origin(address, Address.of_stream(str(domain), origin["name"]), origin)


def _keeps(step: Step) -> bool:
    """Check for a step after which a stream keeps by limits, or is another one: what its consumers want matters only then."""
    payload = (step.request or {}).get("payload") or {}
    return step.op == "stream.quiesce" or (step.op == "stream.update" and payload.get("retention", "limits") == "limits")


def _key(address: Address) -> tuple[Address, bool]:
    """The stream whose messages are at stake, and whether consumers decide: one hazard states it for all that change."""
    return address.parent or address, address.kind == "consumer"


_STAYS: Final = ConsumerChange("", "same")


def _coming(name: str, said: Mapping[str, Any] | None, *, made: bool) -> ConsumerChange:
    """What becomes of a consumer that comes back with its stream, `made` again or out of an archive."""
    return ConsumerChange(name, "floor" if made else "same", filters_of(said["config"])) if said else ConsumerChange(name, "gone")


def _change(step: Step) -> ConsumerChange:
    """What becomes of a consumer by one step."""
    config = ((step.request or {}).get("payload") or {}).get("config") or {}
    policy, first = str(config.get("deliver_policy", "all")), int(config.get("opt_start_seq") or 0)
    position = (step.params or {}).get("position")
    if position and step.precondition.get("fingerprint") == "absent":  # an interrupted apply deleted it; it continues where it was
        policy, first = "by_start_sequence", int(position)
    return ConsumerChange(step.touches.consumer, _POSITIONS[step.op], filters_of(config), policy, first)


def _nothing_arrived(hazard: Hazard, live: LiveObject) -> bool:
    """Whether the plan measured limits that only new messages can exceed further, and there are none."""
    return STEADY.issuperset(hazard.causes) and (hazard.as_of or {}).get("last_seq") == live.state.get("last_seq")


def exceeds(found: int, planned: int, safe_below: int) -> bool:
    """Whether that is more than 10 % and more than `safe_below` above what was planned."""
    return 10 * found > 11 * planned and found - planned > safe_below


def _after(step: Step) -> Config:
    payload = (step.request or {}).get("payload") or {}
    return table_of(Address.parse(step.address)).compact(configuration_in(payload))
