"""Measures deletions again just before they are carried out: messages may have arrived since the plan (contract, section 4).

A plan says how many messages go; when it would be more than 10 % and more than `--safe-below` above that by now, nothing is
written. What goes with a whole stream or consumer is a plain count and is checked in `preconditions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.documents.plan import Hazard, Op, Plan, Step, config_of_payload
from jsplan.facts.duplicate_count import count_skipped
from jsplan.facts.interest import ConsumerChange, filters_of, parse_interest
from jsplan.facts.live import LiveObject
from jsplan.facts.measure import measure_deletion
from jsplan.facts.measurement import MEASURE_LIMIT, FinishedConsumer, MeasurementRequest
from jsplan.facts.reader import read_object
from jsplan.jetstream import DomainApi
from jsplan.planning.decide import table_of
from jsplan.planning.interest import parse_snapshot, triggers_interest_check
from jsplan.planning.measurements import new_origins, origin_measurement, update_measurement
from jsplan.planning.preserve.consumer_position import position_of
from jsplan.planning.preserve.methods import becomes_workqueue
from jsplan.planning.preserve.staged_measurements import resized_storage, staging_measurement
from jsplan.planning.replication.removed_sources import uncopied_measurement
from jsplan.resources.fields import Config

#: What each step does to the position of its consumer.
_POSITION_EFFECTS: Final[Mapping[Op, Literal["gone", "same", "floor", "start"]]] = {
    "consumer.delete": "gone", "consumer.update": "same", "consumer.replace": "floor", "consumer.create": "start",
    "consumer.delete_placeholder": "gone",
}  # fmt: skip
#: Steps with which a consumer gives up messages.
_LOSING_OPS: Final = ("consumer.update", "consumer.delete", "consumer.replace")
#: Causes that take more only when messages arrive; time and acknowledgements change the others.
ARRIVAL_CAUSES = frozenset({"max_msgs", "max_bytes", "max_msgs_per_subject"})


@dataclass
class DeletionCheck:
    """What the steps of one plan delete, against what the plan said. `apis` are the domains that answer.

    `replacements` are those that state knows by now.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    replacements: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _planned: dict[tuple[Address, bool], Hazard] = field(default_factory=dict)
    _changes: dict[Address, dict[str, ConsumerChange]] = field(default_factory=dict)
    _placeholders: set[Address] = field(default_factory=set)
    _streams_with_placeholder: set[Address | None] = field(default_factory=set)
    _streams_kept_by_limits: set[Address] = field(default_factory=set)

    def __post_init__(self) -> None:
        for change in self.plan.resource_changes:
            for hazard in change.hazards:
                if hazard.code == "DELETES_MESSAGES":
                    self._planned[_hazard_key(Address.parse(change.address))] = hazard
        for step in self.plan.steps:
            if _keeps_by_limits(step):
                self._streams_kept_by_limits.add(step.target_address)
            if step.op == "consumer.create_placeholder":
                self._placeholders.add(step.target_address)
                self._streams_with_placeholder.add(step.target_address.parent)
            if step.op in _POSITION_EFFECTS:
                address = step.target_address
                self._changes.setdefault(address.parent or address, {})[address.consumer] = (
                    _consumer_change(step)
                )

    def is_decided_earlier(self, consumer: Address) -> bool:
        """Check whether what the consumer's step deletes is decided by a step before it: a placeholder, or another retention."""
        return consumer.parent is not None and (
            consumer.parent in self._streams_kept_by_limits
            or (
                consumer.parent in self._streams_with_placeholder
                and consumer not in self._placeholders
            )
        )

    async def describe_excess(self, step: Step, live: LiveObject | None) -> str | None:
        """Why a step must not be done, in words: it would delete clearly more messages than the plan said. Raises ApiError.

        `live` is the object as it is now, whose configuration is still as planned.
        """
        if (behind := await self._describe_uncopied_excess(step)) is not None:
            return behind
        stream, consumer = _hazard_key(
            Address.parse(step.address) if step.op == "stream.compare" else step.target_address
        )
        hazard = self._planned.get((stream, consumer)) or self._planned.get((stream, False))
        questions = await self._list_measurements(step, live, expected=hazard is not None)
        by_limits = not any(
            question.interest for question in questions
        )  # which acknowledgements do not change
        if hazard is not None and live is not None and by_limits and _has_no_arrivals(hazard, live):
            return None
        planned, found, most = (hazard.messages or 0) if hazard is not None else 0, 0, 0
        limit = int(self.plan.options.get("measure_limit", MEASURE_LIMIT))
        for question in questions:
            domain = question.stream.domain
            answer = await measure_deletion(
                self.apis[domain], question, self._level(domain), limit, count_only=True
            )
            found, most = (
                found + (answer.at_most if answer is not None else 0),
                max(most, answer.total if answer is not None else 0),
            )
        if step.op == "stream.compare":  # the stand-in has the messages of the old stream
            found = min(found, most)
        if not exceeds_plan(found, planned, int(self.plan.options.get("safe_below", 0))):
            return None
        return f"would delete {found:,} messages by now; the plan said {planned:,}"

    async def _describe_uncopied_excess(self, step: Step) -> str | None:
        """Why a source must not be taken out: by now clearly more of it is not copied than the plan said. Raises ApiError."""
        address, safe_below = (
            Address.parse(step.address),
            int(self.plan.options.get("safe_below", 0)),
        )
        for one in step.precondition.get("removed_sources", ()):
            origin, planned = one["source"], one["max_uncopied"]
            api, copies = (origin.get("external") or {}).get("api"), self.apis[address.domain]
            origins = (
                DomainApi(replace(copies.domain, api_prefix=api), copies.connection, read_only=True)
                if api
                else copies
            )
            found = (
                planned
                if planned is None
                else await count_skipped(
                    origins, copies, uncopied_measurement(address, origin, api), MEASURE_LIMIT
                )
            )
            if planned is not None and (found is None or exceeds_plan(found, planned, safe_below)):
                many = "an unknown number of" if found is None else f"{found:,}"
                return f"would lose {many} messages of source {origin['name']} that are not copied yet; the plan said {planned:,}"
        return None

    async def _list_measurements(
        self, step: Step, live: LiveObject | None, *, expected: bool
    ) -> list[MeasurementRequest]:
        """What planning would ask about this step now. Origins are asked about where the plan expected a loss."""
        address, found = Address.parse(step.address), list[MeasurementRequest | None]()
        if step.op == "stream.update" and live is not None:
            changes = tuple(self._changes.get(address, {}).values())
            found.append(
                update_measurement(live, _target_config(step), self._level(address.domain), changes)
            )
        if (
            step.op == "stream.compare"
            and live is not None
            and not (step.params or {}).get("into_new")
        ):
            found += [self._staging_measurement(step, live), await self._replaced_measurement(step)]
        if step.op == "stream.quiesce" and live is not None:
            found.append(await self._replaced_measurement(step))
        if step.op in ("stream.create", "stream.update") and expected:
            found += self._origin_measurements(step, live)
        if step.op in _LOSING_OPS or step.op == "consumer.create_placeholder":
            found += await self._consumer_measurements(step, live)
        return [question for question in found if question is not None]

    async def _consumer_measurements(
        self, step: Step, live: LiveObject | None
    ) -> Iterable[MeasurementRequest]:
        """What an interest stream would delete at this step; with a placeholder, what it will delete when that leaves."""
        address, parent = step.target_address, step.target_address.parent
        if (
            step.op == "consumer.update"
            and live is not None
            and not triggers_interest_check(
                live.compact, _target_config(step), self._level(address.domain)
            )
        ):
            return []
        stream = (
            await read_object(self.apis[address.domain], parent) if parent is not None else None
        )
        if (
            stream is None
            or stream.compact.get("retention") != "interest"
            or not stream.state.get("messages")
        ):
            return []
        held = step.op == "consumer.create_placeholder"
        changes = (
            tuple(self._changes.get(stream.address, {}).values())
            if held
            else (_consumer_change(step),)
        )
        since = (step.params or {}).get("placeholder") if held else None
        return [
            MeasurementRequest(
                address,
                stream.address,
                interest="is",
                consumers=changes,
                placeholder=held,
                since=parse_snapshot(since) if since is not None else None,
            )
        ]

    def _staging_measurement(self, step: Step, copy: LiveObject) -> MeasurementRequest | None:
        """What the limits of the new stream will delete of the messages that the stand-in has: the last look before the old one goes."""
        last = next(
            s for s in self.plan.steps if s.op == "stream.activate" and s.address == step.address
        )
        after, level, record = (
            _target_config(last),
            self._level(last.domain),
            self.replacements[(step.params or {})["state_address"]],
        )
        found = update_measurement(
            copy, after, level, resized=resized_storage(copy, after, level, copy.address.stream)
        )
        return (
            staging_measurement(
                replace(found, address=Address.parse(step.address)), copy.address, record
            )
            if found is not None
            else None
        )

    async def _replaced_measurement(self, step: Step) -> MeasurementRequest | None:
        """What goes for the consumers of a stream that is replaced with its messages, as long as the old one is there."""
        address, steps = (
            Address.parse(step.address),
            {s.op: s for s in self.plan.steps if s.address == step.address},
        )
        old, after = (
            await read_object(self.apis[address.domain], address),
            _target_config(steps["stream.activate"]),
        )
        if old is None or not old.state.get("messages"):
            return None
        copies = (
            s.params or {}
            for s in self.plan.steps
            if s.address == step.address and s.op == "stream.copy"
        )
        made = any(carried["into_new"] and not carried["consumers"] for carried in copies)
        coming = {
            name: _restored_consumer_change(name, one, recreated=made)
            for name, one in (steps["stream.resume_consumers"].params or {})["consumers"].items()
        }
        finished: tuple[FinishedConsumer, ...] = ()
        if becomes_workqueue(old.compact, after):
            infos = await self.apis[address.domain].consumers(address.stream)
            own = [i for i in infos if not i["name"].startswith(INTERNAL_CONSUMER_PREFIXES)]
            stay = [i for i in own if coming.get(i["name"], _UNCHANGED_CONSUMER).position != "gone"]
            finished = tuple(
                FinishedConsumer(
                    filters_of(i["config"]),
                    parse_interest(i).delivered,
                    position_of(i["config"], i),
                )
                for i in stay
            )
        interest = after.get("retention") == "interest"
        if not interest and not finished:
            return None
        changes = tuple((coming | self._changes.get(old.address, {})).values())
        return MeasurementRequest(
            address,
            address,
            interest="becomes" if interest else "",
            recreates_consumers=made,
            consumers=changes,
            finished=finished,
        )

    def _level(self, domain: str) -> int:
        return int((self.plan.domains.get(domain) or {}).get("api_level") or 0)

    def _origin_measurements(
        self, step: Step, live: LiveObject | None
    ) -> Iterable[MeasurementRequest]:
        """Origins that the step begins to copy, in domains that the plan touches."""
        address = Address.parse(step.address)
        prefixes = {str(facts.get("api_prefix")): key for key, facts in self.plan.domains.items()}
        prefixes |= (self.plan.domains.get(address.domain) or {}).get("imports") or {}
        for origin in new_origins(live.compact if live is not None else {}, _target_config(step)):
            api = (origin.get("external") or {}).get("api")
            domain = address.domain if api is None else prefixes.get(api)
            if domain in self.apis:
                yield origin_measurement(
                    address, Address.of_stream(str(domain), origin["name"]), origin
                )


def _keeps_by_limits(step: Step) -> bool:
    """Check for a step after which a stream keeps by limits, or is another one: what its consumers want matters only then."""
    payload = (step.request or {}).get("payload") or {}
    return step.op == "stream.quiesce" or (
        step.op == "stream.update" and payload.get("retention", "limits") == "limits"
    )


def _hazard_key(address: Address) -> tuple[Address, bool]:
    """The stream whose messages are at stake, and whether consumers decide: one hazard states it for all that change."""
    return address.parent or address, address.kind == "consumer"


_UNCHANGED_CONSUMER: Final = ConsumerChange("", "same")


def _restored_consumer_change(
    name: str, restored: Mapping[str, Any] | None, *, recreated: bool
) -> ConsumerChange:
    """What becomes of a consumer that comes back with its stream, `made` again or out of an archive."""
    return (
        ConsumerChange(name, "floor" if recreated else "same", filters_of(restored["config"]))
        if restored
        else ConsumerChange(name, "gone")
    )


def _consumer_change(step: Step) -> ConsumerChange:
    """What becomes of a consumer by one step."""
    config = ((step.request or {}).get("payload") or {}).get("config") or {}
    policy, first = str(config.get("deliver_policy", "all")), int(config.get("opt_start_seq") or 0)
    position = (step.params or {}).get("position")
    if (
        position and step.precondition.get("fingerprint") == "absent"
    ):  # an interrupted apply deleted it; it continues where it was
        policy, first = "by_start_sequence", int(position)
    return ConsumerChange(
        step.target_address.consumer, _POSITION_EFFECTS[step.op], filters_of(config), policy, first
    )


def _has_no_arrivals(hazard: Hazard, live: LiveObject) -> bool:
    """Whether the plan measured limits that only new messages can exceed further, and there are none."""
    return ARRIVAL_CAUSES.issuperset(hazard.causes) and (hazard.as_of or {}).get(
        "last_seq"
    ) == live.state.get("last_seq")


def exceeds_plan(found: int, planned: int, safe_below: int) -> bool:
    """Whether that is more than 10 % and more than `safe_below` above what was planned."""
    return 10 * found > 11 * planned and found - planned > safe_below


def _target_config(step: Step) -> Config:
    payload = (step.request or {}).get("payload") or {}
    return table_of(Address.parse(step.address)).compact(config_of_payload(payload))
