"""What a restore would do, as a plan: creates only. What stands in its way is found here; reading and writing are left to others.

A backup is never restored over something. What is there already, just as it was saved, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from jsplan.address import Address
from jsplan.backup.manifest import SavedConsumer, SavedStream
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.plan import Change, Hazard, Plan, ResourceChange, Step
from jsplan.facts.live import LiveObject
from jsplan.facts.redelivery import build_redelivery, max_by_state
from jsplan.planning.build import build_plan
from jsplan.planning.decide import table_of
from jsplan.planning.guards import REFUSALS, RESTORE_OVER
from jsplan.planning.hazard_permissions import check_permissions
from jsplan.planning.hazards import is_permitted
from jsplan.planning.model import PlanInputs
from jsplan.resources.buckets import alias_of
from jsplan.resources.fields import Config
from jsplan.subjects import SubjectTree
from jsplan.units import format_duration

#: Servers of this API level write archives that can be restored under any name, and read them.
ANY_NAME_LEVEL = 5
NOT_RESTORABLE, WILL_EXPIRE, SUBJECT_TAKEN = "JS470", "JS471", "JS438"


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """One saved stream and where it goes: `address` and `config` are what it will be called and how it will be configured."""

    saved: SavedStream
    address: Address
    config: Config

    @classmethod
    def of(
        cls, saved: SavedStream, address: Address, subjects: tuple[str, ...] = ()
    ) -> RestoreTarget:
        """As it was saved, but for its name and, where given, its subjects."""
        return cls(
            saved,
            address,
            saved.config
            | {"name": address.stream}
            | ({"subjects": list(subjects)} if subjects else {}),
        )

    @property
    def request(self) -> dict[str, Any]:
        """What STREAM.RESTORE is asked with."""
        return {
            "api": f"STREAM.RESTORE.{self.address.stream}",
            "payload": {"config": self.config, "state": self.saved.before},
        }

    def consumer_address(self, one: SavedConsumer) -> Address:
        """Where one of its consumers goes."""
        return Address(self.address.domain, "consumer", f"{self.address.stream}/{one.name}")


def build_restore_plan(
    inputs: PlanInputs,
    targets: Iterable[RestoreTarget],
    domain_streams: Mapping[Address, LiveObject],
    offline: Mapping[str, str],
) -> Plan:
    """The plan. `holders` is every stream of the domains concerned, `away` why a domain cannot be reached, by key.

    `inputs.live` has the streams and consumers under their new addresses, as far as they are there.
    """
    listed = sorted(targets, key=lambda one: one.address)
    plan = build_plan(replace(inputs, selected=frozenset()), {})
    plan.mode, plan.backfills, plan.deferred = "restore", [], []
    there = {one.address for one in listed if _is_restored(inputs, one)}
    plan.diagnostics = [
        d for one in listed if one.address not in there for d in _check_target(inputs, one)
    ]
    plan.diagnostics += _check_overlaps(
        [one for one in listed if one.address not in there], domain_streams
    )
    plan.diagnostics += [
        Diagnostic("error", NOT_RESTORABLE, reason, "", f"{key}/**")
        for key, reason in sorted(offline.items())
    ]
    plan.errored = any(d.severity == "error" and d.code not in REFUSALS for d in plan.diagnostics)
    copies = _sources_by_origin(inputs, listed, domain_streams)
    for one in listed:
        stays = one.address in there
        plan.resource_changes += [
            _add_hazards(inputs, one, change, copies)
            for change in _changes(inputs, one, stays=stays)
        ]
        if inputs.live.get(one.address) is None and not plan.errored:
            plan.steps += _steps(inputs, one, len(plan.steps) + 1)
    flags = inputs.request.allow_hazards
    plan.diagnostics += check_permissions(
        flags, [change.address for change in plan.resource_changes]
    )
    plan.applyable = bool(plan.steps) and not any(d.code in REFUSALS for d in plan.diagnostics)
    plan.options["restore"] = [
        _restore_option(one, is_restored=one.address in there) for one in listed
    ]
    return plan


def _restore_option(one: RestoreTarget, *, is_restored: bool) -> dict[str, Any]:
    saved = one.saved
    return {
        "address": str(one.address),
        "from": str(saved.address),
        "messages": saved.messages,
        "bytes": int(saved.before["bytes"]),
        "consumers": len(saved.consumers),
        "taken_at": saved.taken_at,
        "exists": is_restored,
    }


def _is_restored(inputs: PlanInputs, one: RestoreTarget) -> bool:
    """Whether it exists just as it was saved: what an earlier restore of the same backup left."""
    live = inputs.live.get(one.address)
    if live is None or live.compact != table_of(one.address).compact(one.config):
        return False
    held, was = live.state, one.saved.before
    empty = (
        was["messages"] == 0
    )  # then the first sequence is one more than the last, or nothing at all
    return all(
        held.get(name) == was.get(name) or (empty and name == "first_seq")
        for name in ("messages", "first_seq", "last_seq")
    )


def _check_target(inputs: PlanInputs, one: RestoreTarget) -> Iterable[Diagnostic]:
    address, archive, level = str(one.address), one.saved.archive, inputs.level(one.address)
    if one.address in inputs.live.unreadable:
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            f"exists and is offline: {inputs.live.unreadable[one.address]}",
            "",
            address,
        )
    elif inputs.live.get(one.address) is not None:
        yield Diagnostic(
            "error",
            RESTORE_OVER,
            "exists already, and is not as it was saved",
            "Nothing is restored over something. Destroy it first, give another place with --as, or leave it out "
            "with --exclude",
            address,
        )
    if (
        archive.format != "tar"
        and level < ANY_NAME_LEVEL
        and inputs.live.is_reachable(one.address.domain)
    ):
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            "its archive was written by nats-server 2.15 or later, which older servers cannot read",
            f"Domain {one.address.domain} is older. Restore it into a domain with 2.15 or later.",
            address,
        )
    if one.address.stream != one.saved.address.stream:
        yield from _check_rename(one)
    yield from _check_expiry(one, inputs.request.now)


def _check_rename(one: RestoreTarget) -> Iterable[Diagnostic]:
    address, saved = str(one.address), one.saved
    if one.address.kind in ("kv", "object_store"):
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            "a bucket cannot be restored under another name",
            f"What is stored keeps its subjects, which contain the name {saved.address.name}.",
            address,
        )
    elif saved.archive.format == "tar":
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            "its archive was written before nats-server 2.15 and can only keep its name",
            f"Restore it as {saved.address.stream}, for instance into another domain.",
            address,
        )


def _check_expiry(one: RestoreTarget, now: datetime) -> Iterable[Diagnostic]:
    """What the stream would not keep: said where it is so by the times of the oldest and the newest message, or where nobody knows."""
    age, was = one.config.get("max_age") or 0, one.saved.before
    if not one.saved.messages:
        return
    which = ""
    if age:
        border = now - timedelta(microseconds=age / 1000)
        oldest, newest = (datetime.fromisoformat(was[name]) for name in ("first_ts", "last_ts"))
        limit = f"{alias_of(one.address.kind, 'max_age')} ({format_duration(age)}) by now"
        which = (
            f"all of its messages are older than {limit}"
            if newest < border
            else f"its oldest messages are older than {limit}"
        )
        which = which if oldest < border else ""
    if not which and one.config.get("allow_msg_ttl"):
        which = "messages may have outlived a ttl of their own"
    if which:
        text = f"{which}: those are deleted as soon as they are restored"
        yield Diagnostic(
            "warning",
            WILL_EXPIRE,
            text,
            f"They were saved on {one.saved.taken_at}.",
            str(one.address),
        )


def _check_overlaps(
    targets: list[RestoreTarget], domain_streams: Mapping[Address, LiveObject]
) -> Iterable[Diagnostic]:
    """Subjects that another stream of the domain has, or that two of the restored ones would have."""
    trees: dict[str, SubjectTree[Address]] = {}
    new = {one.address for one in targets}
    held = [
        (address, live.raw.get("subjects") or ())
        for address, live in domain_streams.items()
        if address not in new
    ]
    for address, subjects in [
        *held,
        *((one.address, one.config.get("subjects") or ()) for one in targets),
    ]:
        tree = trees.setdefault(address.domain, SubjectTree())
        for subject in subjects:
            owner = next(
                (other for other in tree.find_overlapping(subject) if other != address), None
            )
            if owner is not None and address in new:
                detail = "One subject has one stream in a domain. Give the restored one others: --subjects SUBJECT"
                yield Diagnostic(
                    "error",
                    SUBJECT_TAKEN,
                    f"subject {subject} is stored by {owner} already",
                    detail,
                    str(address),
                )
                break
        for subject in subjects:
            tree.add(subject, address)


def _changes(inputs: PlanInputs, one: RestoreTarget, *, stays: bool) -> Iterable[ResourceChange]:
    """Creates, but for what is there: as it was saved, or in the way."""
    live = inputs.live.get(one.address)
    if live is not None and not stays:
        yield _change(one.address, Change(["no-op"], live.config, live.config), "is_in_the_way")
        return
    for address, config in [
        (one.address, one.config),
        *((one.consumer_address(consumer), consumer.config) for consumer in one.saved.consumers),
    ]:
        change = Change(["no-op"], config, config) if stays else Change(["create"], None, config)
        yield _change(address, change, "is_as_it_was_saved" if stays else "restore_from_backup")


def _change(address: Address, change: Change, reason: str) -> ResourceChange:
    return ResourceChange(str(address), address.kind, address.domain, address.name, change, reason)


def _add_hazards(
    inputs: PlanInputs,
    one: RestoreTarget,
    change: ResourceChange,
    copies: Mapping[Address, set[Address]],
) -> ResourceChange:
    """What a restore costs although it only creates: messages that are delivered, or copied, once more."""
    if change.change.actions != ["create"]:
        return change
    found = list(_duplicate_hazards(one, copies)) if change.address == str(one.address) else []
    found += [
        hazard
        for consumer in one.saved.consumers
        if change.address == str(one.consumer_address(consumer))
        for hazard in _redelivery_hazards(one, consumer)
    ]
    for hazard in found:
        hazard.flag = "--allow-hazard " + quote_shell(f"{hazard.code}:{change.address}")
        hazard.allowed = is_permitted(inputs.request.allow_hazards, hazard.code, change.address)
    change.hazards = found
    return change


def _redelivery_hazards(one: RestoreTarget, consumer: SavedConsumer) -> Iterable[Hazard]:
    """What was acknowledged above the ack floor, where the archive has only that."""
    was, floor = consumer.before, int(consumer.before["ack_floor"]["stream_seq"])
    span = build_redelivery(consumer.name, consumer.config, was, consumer.config, floor + 1)
    above = max_by_state(span, one.saved.before) if span is not None else 0
    if one.saved.resets_to_ack_floor(consumer) and above:
        text = f"up to {above:,} messages that it had acknowledged are delivered again: a cluster saves a consumer at its ack floor"
        yield Hazard(
            "DUPLICATES_MESSAGES", text, messages=above, exact=False, at_least=0, at_most=above
        )


def _duplicate_hazards(
    one: RestoreTarget, copies: Mapping[Address, set[Address]]
) -> Iterable[Hazard]:
    """Sources since 2.15 know their origin by its `created`, which is new with archives of 2.15: they copy all of it again."""
    known = sorted(copies.get(one.address, ()))
    if not known or one.saved.archive.format == "tar" or not one.saved.messages:
        return
    count, names = (
        one.saved.messages,
        ", ".join(map(str, known[:3])) + (f" and {len(known) - 3} more" if len(known) > 3 else ""),
    )
    text = f"{names} may copy up to {count:,} messages a second time: to nats-server 2.15 a restored origin is a new one"
    yield Hazard(
        "DUPLICATES_MESSAGES", text, messages=count, exact=False, at_least=0, at_most=count
    )


def _sources_by_origin(
    inputs: PlanInputs, targets: list[RestoreTarget], domain_streams: Mapping[Address, LiveObject]
) -> dict[Address, set[Address]]:
    """The streams that source each stream, by the files, on the servers, or in the backup."""
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
        *((one.address, one.config) for one in targets),
    ]
    for address, config in configs:
        for source in config.get("sources") or ():
            api = (source.get("external") or {}).get("api")
            domain = address.domain if not api else prefixes.get(api)
            if domain is not None:
                found.setdefault(Address.of_stream(domain, source["name"]), set()).add(address)
    return found


def _steps(inputs: PlanInputs, one: RestoreTarget, number: int) -> Iterable[Step]:
    """The restore itself; then each consumer is looked at, since it came with the stream."""
    address, first = one.address, f"s{number}"
    expect = {
        name: value
        for name, value in table_of(address).compact(one.config).items()
        if name != "mirror_direct"
    }
    title = f"restore {address.kind} {address.name} in {address.domain}"
    yield Step(
        first,
        str(address),
        "stream.restore",
        title,
        one.request,
        {"fingerprint": "absent"},
        [],
        expect,
        _state_record(inputs, address),
    )
    for place, consumer in enumerate(one.saved.consumers, 1):
        theirs = one.consumer_address(consumer)
        looked = f"verify consumer {consumer.name} of {address.stream} in {address.domain}"
        yield Step(
            f"s{number + place}",
            str(theirs),
            "consumer.verify",
            looked,
            None,
            {},
            [first],
            None,
            _state_record(inputs, theirs),
        )


def _state_record(inputs: PlanInputs, address: Address) -> dict[str, Any] | None:
    """What is in the files is ours again; `declared` is filled in with what was restored, so that the next plan sees what differs."""
    declared = inputs.workspace.resources.get(address)
    if declared is None:
        return None
    after = sorted(str(other) for other in inputs.topology.dependencies.get(address, ()))
    return {
        "declared": dict.fromkeys(inputs.declared_fields(address)),
        "origin": "created",
        "depends_on": after,
        "prevent_destroy": bool(declared.lifecycle.prevent_destroy),
    }


def restore_differences(
    saved: SavedStream, state: Mapping[str, Any], *, expires: bool
) -> list[str]:
    """What a restored stream lacks of what was saved, in words. Messages that came since are no difference, nor expired ones.

    Where messages came or went during the snapshot, everything between both states is right.
    """
    found = []
    low, high = (_state_bound(saved, pick) for pick in (min, max))
    if state["last_seq"] < low["last_seq"]:
        found.append(f"last sequence {state['last_seq']:,} instead of {low['last_seq']:,}")
    if state["messages"] < low["messages"] and not expires:
        found.append(f"{state['messages']:,} messages instead of {low['messages']:,}")
    if state["messages"] and state["first_seq"] > max(high["first_seq"], 1) and not expires:
        found.append(f"first sequence {state['first_seq']:,} instead of {high['first_seq']:,}")
    return found


def _state_bound(saved: SavedStream, pick: Any) -> dict[str, int]:
    return {
        name: pick(int(saved.before[name]), int(saved.after[name]))
        for name in ("messages", "first_seq", "last_seq")
    }


def position_differences(
    saved: SavedStream, one: SavedConsumer, found: Mapping[str, Any]
) -> list[str]:
    """Where a restored consumer stands before the position that it had, in words; one that has gone on since is right.

    An archive that has it at its ack floor only cannot give more back.
    """
    told = []
    if saved.resets_to_ack_floor(one):
        was, now = one.before["ack_floor"]["stream_seq"], found["ack_floor"]["stream_seq"]
        return [f"acknowledged up to {now:,} instead of {was:,}"] if now < was else []
    for name, words in (("delivered", "delivered up to"), ("ack_floor", "acknowledged up to")):
        was, now = one.before[name]["stream_seq"], found[name]["stream_seq"]
        if now < was:
            told.append(f"{words} {now:,} instead of {was:,}")
    if _has_skipped(one.before, found):
        told.append(
            f"{found['num_pending']:,} pending instead of {one.before['num_pending']:,}, without having been given any"
        )
    still = one.before == one.after and all(
        one.before[name] == found[name] for name in ("delivered", "ack_floor")
    )
    for name, words in (
        ("num_ack_pending", "waiting for acknowledgement"),
        ("num_redelivered", "redelivered"),
    ):
        if still and found[name] != one.before[name]:
            told.append(f"{found[name]:,} {words} instead of {one.before[name]:,}")
    return told


def _has_skipped(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether it stands further on although it delivered nothing, and has less before it (measured in clusters of 2.10)."""
    same = was["delivered"]["consumer_seq"] == now["delivered"]["consumer_seq"]
    return bool(
        same
        and now["delivered"]["stream_seq"] > was["delivered"]["stream_seq"]
        and now["num_pending"] < was["num_pending"]
    )
