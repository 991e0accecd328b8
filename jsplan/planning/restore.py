"""The plan of a restore: creates only, and what prevents it.

A backup is never restored over an existing object. An object that is equal to the saved one stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.backup.manifest import SavedConsumer
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.plan import Change, Hazard, Plan, ResourceChange, Step
from jsplan.facts.live import LiveObject
from jsplan.facts.redelivery import build_redelivery, max_by_state
from jsplan.planning.account_limits import check_account_limits
from jsplan.planning.build import build_plan
from jsplan.planning.decide import table_of
from jsplan.planning.guards import REFUSALS
from jsplan.planning.hazard_permissions import check_plan_permissions, is_permitted
from jsplan.planning.model import PlanInputs
from jsplan.planning.restore_checks import NOT_RESTORABLE, check_overlaps, check_target
from jsplan.planning.restore_target import RestoreTarget, decide_creations


def build_restore_plan(
    inputs: PlanInputs,
    targets: Iterable[RestoreTarget],
    domain_streams: Mapping[Address, LiveObject],
    offline: Mapping[str, str],
) -> Plan:
    """Build the plan of a restore.

    `domain_streams` are all streams of the domains involved. `offline` has by key why a domain does
    not answer. `inputs.live` has the existing streams and consumers under their new addresses.
    """
    listed = sorted(targets, key=lambda target: target.address)
    plan = build_plan(replace(inputs, selected=frozenset()), {})
    plan.mode, plan.backfills, plan.deferred = "restore", [], []
    restored = {target.address for target in listed if _is_restored(inputs, target)}
    plan.diagnostics = [
        d
        for target in listed
        if target.address not in restored
        for d in check_target(inputs, target)
    ]
    plan.diagnostics += check_account_limits(
        inputs, decide_creations([target for target in listed if target.address not in restored])
    )
    plan.diagnostics += check_overlaps(
        [target for target in listed if target.address not in restored], domain_streams
    )
    plan.diagnostics += [
        Diagnostic("error", NOT_RESTORABLE, reason, "", f"{key}/**")
        for key, reason in sorted(offline.items())
    ]
    sources = _sources_by_origin(inputs, listed, domain_streams)
    for target in listed:
        stays = target.address in restored
        plan.resource_changes += [
            _add_hazards(inputs, target, change, sources)
            for change in _changes(inputs, target, stays=stays)
        ]
    plan.diagnostics += check_plan_permissions(inputs, plan.resource_changes)
    plan.errored = any(d.severity == "error" and d.code not in REFUSALS for d in plan.diagnostics)
    for target in listed:
        if inputs.live.get(target.address) is None and not plan.errored:
            plan.steps += _steps(inputs, target, len(plan.steps) + 1)
    plan.applyable = bool(plan.steps) and not any(d.code in REFUSALS for d in plan.diagnostics)
    plan.options["restore"] = [
        _restore_option(target, is_restored=target.address in restored) for target in listed
    ]
    return plan


def _restore_option(target: RestoreTarget, *, is_restored: bool) -> dict[str, Any]:
    saved = target.saved
    return {
        "address": str(target.address),
        "from": saved.address,
        "messages": saved.messages,
        "bytes": int(saved.before["bytes"]),
        "consumers": len(saved.consumers),
        "taken_at": saved.taken_at,
        "exists": is_restored,
    }


def _is_restored(inputs: PlanInputs, target: RestoreTarget) -> bool:
    """Check whether it exists as it was saved: an earlier restore of the same backup made it."""
    live = inputs.live.get(target.address)
    if live is None or live.compact != table_of(target.address).compact(target.config):
        return False
    now, was = live.state, target.saved.before
    # The first sequence is then one more than the last, or missing.
    empty = was["messages"] == 0
    return all(
        now.get(name) == was.get(name) or (empty and name == "first_seq")
        for name in ("messages", "first_seq", "last_seq")
    )


def _changes(inputs: PlanInputs, target: RestoreTarget, *, stays: bool) -> Iterable[ResourceChange]:
    """Yield creates, except for existing objects: equal to the saved ones, or in the way."""
    live = inputs.live.get(target.address)
    if live is not None and not stays:
        yield _change(target.address, Change(["no-op"], live.config, live.config), "is_in_the_way")
        return
    for address, config in [
        (target.address, target.config),
        *(
            (target.consumer_address(consumer), consumer.config)
            for consumer in target.saved.consumers
        ),
    ]:
        change = Change(["no-op"], config, config) if stays else Change(["create"], None, config)
        yield _change(address, change, "is_as_it_was_saved" if stays else "restore_from_backup")


def _change(address: Address, change: Change, reason: str) -> ResourceChange:
    return ResourceChange(str(address), address.kind, address.domain, address.name, change, reason)


def _add_hazards(
    inputs: PlanInputs,
    target: RestoreTarget,
    change: ResourceChange,
    sources: Mapping[Address, set[Address]],
) -> ResourceChange:
    """Add the hazards of a restore: messages that are delivered or copied a second time."""
    if change.change.actions != ["create"]:
        return change
    found = (
        list(_duplicate_hazards(target, sources)) if change.address == str(target.address) else []
    )
    found += [
        hazard
        for consumer in target.saved.consumers
        if change.address == str(target.consumer_address(consumer))
        for hazard in _redelivery_hazards(target, consumer)
    ]
    for hazard in found:
        hazard.flag = "--allow-hazard " + quote_shell(f"{hazard.code}:{change.address}")
        hazard.allowed = is_permitted(inputs.options.allow_hazards, hazard.code, change.address)
    change.hazards = found
    return change


def _redelivery_hazards(target: RestoreTarget, consumer: SavedConsumer) -> Iterable[Hazard]:
    """Count what was acknowledged above the ack floor, where the archive has only the floor."""
    was, floor = consumer.before, int(consumer.before["ack_floor"]["stream_seq"])
    span = build_redelivery(consumer.name, consumer.config, was, consumer.config, floor + 1)
    above = max_by_state(span, target.saved.before) if span is not None else 0
    if target.saved.resets_to_ack_floor(consumer) and above:
        text = (
            f"up to {above:,} messages that it had acknowledged are delivered again: "
            "it may have been saved at its ack floor"
        )
        yield Hazard(
            "DUPLICATES_MESSAGES", text, messages=above, exact=False, at_least=0, at_most=above
        )


def _duplicate_hazards(
    target: RestoreTarget, sources: Mapping[Address, set[Address]]
) -> Iterable[Hazard]:
    """Assess the sources that copy the restored stream again.

    Sources since 2.15 identify their origin by its `created`, which archives of 2.15 renew.
    """
    known = sorted(sources.get(target.address, ()))
    if not known or target.saved.archive.format == "tar" or not target.saved.messages:
        return
    count, names = (
        target.saved.messages,
        ", ".join(map(str, known[:3])) + (f" and {len(known) - 3} more" if len(known) > 3 else ""),
    )
    text = (
        f"{names} may copy up to {count:,} messages a second time: "
        "nats-server 2.15 treats a restored origin as a new one"
    )
    yield Hazard(
        "DUPLICATES_MESSAGES", text, messages=count, exact=False, at_least=0, at_most=count
    )


def _sources_by_origin(
    inputs: PlanInputs, targets: list[RestoreTarget], domain_streams: Mapping[Address, LiveObject]
) -> dict[Address, set[Address]]:
    """Return the streams that source each stream, by files, servers and backup."""
    prefixes = {
        domain.api_prefix: key
        for key, domain in inputs.workspace.domains.items()
        if domain.same_as is None
    }
    found: dict[Address, set[Address]] = {}
    for edge in inputs.topology.edges:
        if edge.kind == "source":
            found.setdefault(edge.origin, set()).add(edge.downstream)
    configs = [
        *((address, live.raw) for address, live in domain_streams.items()),
        *((target.address, target.config) for target in targets),
    ]
    for address, config in configs:
        for source in config.get("sources") or ():
            api = (source.get("external") or {}).get("api")
            domain = address.domain if not api else prefixes.get(api)
            if domain is not None:
                found.setdefault(Address.of_stream(domain, source["name"]), set()).add(address)
    return found


def _steps(inputs: PlanInputs, target: RestoreTarget, number: int) -> Iterable[Step]:
    """Yield the restore, then a check of each consumer, which comes with the stream."""
    address, first = target.address, f"s{number}"
    expect = {
        name: value
        for name, value in table_of(address).compact(target.config).items()
        if name != "mirror_direct"
    }
    title = f"restore {address.kind} {address.name} in {address.domain}"
    yield Step(
        first,
        str(address),
        "stream.restore",
        title,
        target.request,
        {"fingerprint": "absent"},
        [],
        expect,
        _state_record(inputs, address),
    )
    for offset, consumer in enumerate(target.saved.consumers, 1):
        consumer_address = target.consumer_address(consumer)
        title = f"verify consumer {consumer.name} of {address.stream} in {address.domain}"
        yield Step(
            f"s{number + offset}",
            str(consumer_address),
            "consumer.verify",
            title,
            None,
            {},
            [first],
            None,
            _state_record(inputs, consumer_address),
        )


def _state_record(inputs: PlanInputs, address: Address) -> dict[str, Any] | None:
    """Return the state record of a stream in the files, or None.

    Apply fills in `declared` with what was restored, so the next plan sees the differences.
    """
    declared = inputs.workspace.resources.get(address)
    if declared is None:
        return None
    after = inputs.topology.dependency_names(address)
    return {
        "declared": dict.fromkeys(inputs.declared_fields(address)),
        "origin": "created",
        "depends_on": after,
        "prevent_destroy": bool(declared.lifecycle.prevent_destroy),
    }
