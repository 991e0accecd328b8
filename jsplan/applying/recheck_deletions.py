"""Repeated measurement of deletions just before they are applied: messages may have arrived.

A plan says how many messages it deletes. If the count is now more than 10 % and more than
`--safe-below` above that, nothing is written. The deletion of a whole stream
or consumer is a plain count, which `preconditions` checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Address
from jsplan.documents.plan import Hazard, Plan, Step, config_of_payload
from jsplan.facts.consumer_position import position_of
from jsplan.facts.flow_count import count_skipped
from jsplan.facts.interest import ConsumerChange, build_change, parse_interest
from jsplan.facts.live import LiveObject
from jsplan.facts.measure import measure_deletion
from jsplan.facts.measurement import MEASURE_LIMIT, FinishedConsumer, MeasurementRequest
from jsplan.facts.reader import read_object
from jsplan.jetstream import DomainApi
from jsplan.planning.decide import table_of
from jsplan.planning.interest import parse_snapshot, triggers_interest_check
from jsplan.planning.measurements import (
    new_origins,
    origin_measurement,
    relocated_measurement,
    update_measurement,
)
from jsplan.planning.preserve.methods import becomes_workqueue
from jsplan.planning.preserve.staged_measurements import resized_storage, staging_measurement
from jsplan.planning.replication.removed_sources import uncopied_measurement
from jsplan.resources.consumer import filters_of
from jsplan.resources.fields import Config
from jsplan.resources.server_features import NEWEST_LEVEL

#: What this step deletes is measured when its placeholder is created.
_RELEASE: Final = "consumer.delete_placeholder"
#: Causes that delete more only when messages arrive; time and acknowledgements change the others.
ARRIVAL_CAUSES = frozenset({"max_msgs", "max_bytes", "max_msgs_per_subject"})


@dataclass
class DeletionCheck:
    """Compare what the steps of one plan delete with what the plan said.

    `apis` are the domains that answer. `replacements` are those in state now.
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
            if step.kind.position:
                address = step.target_address
                self._changes.setdefault(address.parent or address, {})[address.consumer] = (
                    _consumer_change(step)
                )

    def is_decided_earlier(self, consumer: Address) -> bool:
        """Return True if an earlier step decides what the consumer's step deletes.

        That is a placeholder, or a change of the retention.
        """
        return consumer.parent is not None and (
            consumer.parent in self._streams_kept_by_limits
            or (
                consumer.parent in self._streams_with_placeholder
                and consumer not in self._placeholders
            )
        )

    def is_expected(self, step: Step) -> bool:
        """Return True if the plan said that this step deletes messages."""
        return self._planned_hazard(step) is not None

    def _planned_hazard(self, step: Step) -> Hazard | None:
        stream, consumer = _hazard_key(
            Address.parse(step.address)
            if step.op in ("stream.compare", "relocate.quiesce")
            else step.target_address
        )
        return self._planned.get((stream, consumer)) or self._planned.get((stream, False))

    async def describe_excess(self, step: Step, live: LiveObject | None) -> str | None:
        """Describe a step that would delete clearly more messages than planned. Raises ApiError.

        `live` is the object now, whose configuration is still as planned.
        """
        if (uncopied := await self._describe_uncopied_excess(step)) is not None:
            return uncopied
        if (arriving := await self._describe_arriving_excess(step)) is not None:
            return arriving
        hazard = self._planned_hazard(step)
        measurements = await self._list_measurements(step, live, expected=hazard is not None)
        if not measurements:
            return None
        # Acknowledgements do not change what limits delete.
        by_limits = not any(measurement.interest for measurement in measurements)
        if hazard is not None and live is not None and by_limits and _has_no_arrivals(hazard, live):
            return None
        planned = (hazard.messages or 0) if hazard is not None else 0
        deleted, most = 0, 0
        limit = int(self.plan.options.get("measure_limit", MEASURE_LIMIT))
        for measurement in measurements:
            domain = measurement.stream.domain
            result = await measure_deletion(
                self.apis[domain], measurement, self._level(domain), limit, count_only=True
            )
            deleted += result.at_most if result is not None else 0
            most = max(most, result.total if result is not None else 0)
        if step.op == "stream.compare":  # the staging stream has the messages of the old stream
            record = self.replacements.get((step.params or {})["state_address"]) or {}
            deleted = min(deleted, most - bool(record.get("end_marker")))
        if not exceeds_plan(deleted, planned, int(self.plan.options.get("safe_below", 0))):
            return None
        return f"would delete {deleted:,} messages now; the plan said {planned:,}"

    async def _describe_arriving_excess(self, step: Step) -> str | None:
        """Describe a flow that would bring clearly more messages than planned. Raises ApiError."""
        safe_below = int(self.plan.options.get("safe_below", 0))
        for flow in step.precondition.get("new_flows", ()):
            origin, planned = Address.parse(flow["origin"]), flow["max_messages"]
            if origin.domain not in self.apis:
                continue
            info = await self.apis[origin.domain].stream_info(origin.stream)
            count = int(info["state"]["messages"]) if info is not None else 0
            if exceeds_plan(count, planned, safe_below):
                return f"would copy {count:,} messages of {origin}; the plan said {planned:,}"
        return None

    async def _describe_uncopied_excess(self, step: Step) -> str | None:
        """Describe a source whose removal would lose clearly more uncopied messages than planned.

        Raises ApiError.
        """
        address = Address.parse(step.address)
        safe_below = int(self.plan.options.get("safe_below", 0))
        for removed in step.precondition.get("removed_sources", ()):
            origin, planned = removed["source"], removed["max_uncopied"]
            api, downstream = (origin.get("external") or {}).get("api"), self.apis[address.domain]
            origins = self.apis.get(removed["domain"], downstream)
            if origins is downstream:
                origins = downstream.behind(api)
            request = replace(
                uncopied_measurement(address, origin, api),
                mirror="origin_goes" in removed,
                origin_goes=removed.get("origin_goes", False),
            )
            uncopied = (
                planned
                if planned is None
                else await count_skipped(origins, downstream, request, MEASURE_LIMIT)
            )
            if planned is not None and (
                uncopied is None or exceeds_plan(uncopied, planned, safe_below)
            ):
                count = "an unknown number of" if uncopied is None else f"{uncopied:,}"
                kind = "mirror" if request.mirror else "source"
                return (
                    f"would lose {count} messages of {kind} {origin['name']} "
                    f"that are not copied yet; the plan said {planned:,}"
                )
        return None

    async def _list_measurements(
        self, step: Step, live: LiveObject | None, *, expected: bool
    ) -> list[MeasurementRequest]:
        """List the measurements of planning for this step; of origins where a loss was planned."""
        address, measurements = Address.parse(step.address), list[MeasurementRequest | None]()
        if step.op == "stream.update" and live is not None:
            changes = tuple(self._changes.get(address, {}).values())
            measurements.append(
                update_measurement(live, _target_config(step), self._level(address.domain), changes)
            )
        if (
            step.op == "stream.compare"
            and live is not None
            and not (step.params or {}).get("into_new")
        ):
            measurements += [
                self._staging_measurement(step, live),
                await self._replaced_measurement(step),
            ]
        if step.op == "stream.quiesce" and live is not None:
            measurements.append(await self._replaced_measurement(step))
        if step.op == "relocate.quiesce" and live is not None:
            measurements.append(await self._relocated_measurement(step, live))
        if step.op in ("stream.create", "stream.update") and expected:
            measurements += self._origin_measurements(step, live)
        if step.kind.loses and step.kind.on == "consumer" and step.op != _RELEASE:
            measurements += await self._consumer_measurements(step, live)
        return [measurement for measurement in measurements if measurement is not None]

    async def _consumer_measurements(
        self, step: Step, live: LiveObject | None
    ) -> Iterable[MeasurementRequest]:
        """Measure what an interest stream deletes at this step, or when its placeholder leaves."""
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
        has_placeholder = step.op == "consumer.create_placeholder"
        changes = (
            tuple(self._changes.get(stream.address, {}).values())
            if has_placeholder
            else (_consumer_change(step),)
        )
        since = (step.params or {}).get("placeholder") if has_placeholder else None
        return [
            MeasurementRequest(
                address,
                stream.address,
                interest="is",
                consumers=changes,
                placeholder=has_placeholder,
                since=parse_snapshot(since) if since is not None else None,
            )
        ]

    def _staging_measurement(self, step: Step, staged: LiveObject) -> MeasurementRequest | None:
        """Measure what the limits of the new stream will delete of the staged messages."""
        last = next(
            s for s in self.plan.steps if s.op == "stream.activate" and s.address == step.address
        )
        after, level = _target_config(last), self._level(last.domain)
        record = self.replacements[(step.params or {})["state_address"]]
        resized = resized_storage(staged, after)
        measurement = update_measurement(staged, after, level, resized=resized)
        if measurement is None:
            return None
        measurement = replace(measurement, address=Address.parse(step.address))
        return staging_measurement(measurement, staged.address, record)

    async def _relocated_measurement(
        self, step: Step, origin: LiveObject
    ) -> MeasurementRequest | None:
        """Measure what the limits of the target delete, of the messages of the origin now."""
        last = next(
            s for s in self.plan.steps if s.op == "relocate.activate" and s.address == step.address
        )
        record = self.replacements.get((step.params or {})["state_address"])
        config = record["old"]["config"] if record else origin.raw
        before = origin.with_raw(config)
        target, after = Address.parse(step.address), _target_config(last)
        coming = {
            _name_at_origin(s): config_of_payload(s.request["payload"])
            for s in self.plan.steps
            if s.request is not None
            and s.op in ("relocate.consumer", "consumer.create")
            and s.target_address.parent == target
        }
        present = list[str]()
        if after.get("retention") == "interest":
            infos = await self.apis[origin.address.domain].all_consumers(origin.address.stream)
            names = [str(info["name"]) for info in infos]
            present = [n for n in names if not n.startswith(INTERNAL_CONSUMER_PREFIXES)]
        level = self._level(last.domain)
        return relocated_measurement(target, before, after, level, coming, present)

    async def _replaced_measurement(self, step: Step) -> MeasurementRequest | None:
        """Measure what the consumers of a replaced stream delete, while the old one exists."""
        address = Address.parse(step.address)
        steps = {s.op: s for s in self.plan.steps if s.address == step.address}
        old = await read_object(self.apis[address.domain], address)
        after = _target_config(steps["stream.activate"])
        if old is None or not old.state.get("messages"):
            return None
        copies = (
            s.params or {}
            for s in self.plan.steps
            if s.address == step.address and s.op == "stream.copy"
        )
        recreated = any(copy["into_new"] and not copy["consumers"] for copy in copies)
        changed = self._changed_consumers(address)
        restored = {
            name: _restored_consumer_change(name, consumer, recreated=recreated)
            for name, consumer in (
                (steps["stream.resume_consumers"].params or {})["consumers"].items()
            )
            # The others are measured as they are, as for the plan.
            if consumer is None or name in changed
        }
        finished: tuple[FinishedConsumer, ...] = ()
        if becomes_workqueue(old.compact, after):
            infos = await self.apis[address.domain].all_consumers(address.stream)
            own = [i for i in infos if not i["name"].startswith(INTERNAL_CONSUMER_PREFIXES)]
            stay = [
                i for i in own if restored.get(i["name"], _UNCHANGED_CONSUMER).position != "gone"
            ]
            finished = tuple(
                FinishedConsumer(
                    filters_of(i["config"]),
                    parse_interest(i).delivered,
                    position_of(i["config"], i, self._level(address.domain)),
                )
                for i in stay
            )
        interest = after.get("retention") == "interest"
        if not interest and not finished:
            return None
        changes = tuple((restored | self._changes.get(old.address, {})).values())
        return MeasurementRequest(
            address,
            address,
            interest="becomes" if interest else "",
            recreates_consumers=recreated,
            consumers=changes,
            finished=finished,
            acknowledged_gone=not changes and self._was_interest(step, old),
        )

    def _was_interest(self, step: Step, old: LiveObject) -> bool:
        """Check the retention before the replacement, which a quiesced stream has no longer."""
        record = self.replacements.get((step.params or {}).get("state_address", "")) or {}
        before = (record.get("old") or {}).get("config") or old.compact
        return bool(before.get("retention") == "interest")

    def _changed_consumers(self, stream: Address) -> set[str]:
        """Return the names of the consumers of a stream that the plan changes.

        Files may declare them under another name of the domain.
        """
        changed = (
            Address.parse(change.address)
            for change in self.plan.resource_changes
            if change.change.actions != ["no-op"]
        )
        return {
            address.consumer
            for address in changed
            if address.kind == "consumer" and address.stream == stream.stream
        }

    def _level(self, domain: str) -> int:
        return int((self.plan.domains.get(domain) or {}).get("api_level") or 0)

    def _origin_measurements(
        self, step: Step, live: LiveObject | None
    ) -> Iterable[MeasurementRequest]:
        """Measure the origins that the step begins to copy, in domains that the plan touches."""
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
    """Return True for a step that decides by limits, or by another stream, what is deleted."""
    payload = (step.request or {}).get("payload") or {}
    return step.op == "stream.quiesce" or (
        step.op == "stream.update" and payload.get("retention", "limits") == "limits"
    )


def _hazard_key(address: Address) -> tuple[Address, bool]:
    """Return the stream, and whether consumers decide: one hazard covers all their changes."""
    consumer = address.kind == "consumer"
    return (address.parent or address) if consumer else address, consumer


_UNCHANGED_CONSUMER: Final = ConsumerChange("", "same")


def _restored_consumer_change(
    name: str, restored: Mapping[str, Any] | None, *, recreated: bool
) -> ConsumerChange:
    """Return the change of a consumer that is restored with its stream, `recreated` or copied."""
    return (
        build_change(name, "floor" if recreated else "same", restored["config"])
        if restored
        else ConsumerChange(name, "gone")
    )


def _consumer_change(step: Step) -> ConsumerChange:
    """Return the change of a consumer by one step."""
    config = ((step.request or {}).get("payload") or {}).get("config") or {}
    name, effect = step.target_address.consumer, step.kind.position
    if effect == "gone":
        return ConsumerChange(name, "gone")
    # An interrupted apply deleted the consumer; it continues at its position.
    deleted = step.precondition.get("fingerprint") == "absent"
    return build_change(
        name, effect, config, (step.params or {}).get("position") if deleted else None
    )


def _has_no_arrivals(hazard: Hazard, live: LiveObject) -> bool:
    """Return True if only new messages can raise the planned count, and none arrived."""
    return ARRIVAL_CAUSES.issuperset(hazard.causes) and (hazard.as_of or {}).get(
        "last_seq"
    ) == live.state.get("last_seq")


def exceeds_plan(count: int, planned: int, safe_below: int) -> bool:
    """Return True if that is more than 10 % and more than `safe_below` above the plan."""
    return 10 * count > 11 * planned and count - planned > safe_below


def _target_config(step: Step) -> Config:
    payload = (step.request or {}).get("payload") or {}
    table = table_of(Address.parse(step.address))
    config = table.compact(config_of_payload(payload))
    if config.get("sealed"):  # the server sets discard: new then
        table.fill_derived(config, NEWEST_LEVEL)
    return config


def _name_at_origin(step: Step) -> str:
    """Return the name by which a consumer is measured at the origin; of a new one its address."""
    continued = (step.params or {}).get("continues")
    return Address.parse(continued).consumer if continued else str(step.target_address)
