"""The plan of a restore: its obstacles, decisions, steps and hints. Pure.

A backup is never restored over an existing object. An object that is equal to the saved one stays.
State decides nothing: it may know objects that are lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Plan
from jsplan.documents.step_kinds import RESTORED
from jsplan.planning.decide import table_of
from jsplan.planning.drafts import Draft
from jsplan.planning.guards import RESTORE_OVER
from jsplan.planning.interruptions import INTERRUPTED
from jsplan.planning.model import Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.planning.replication.checks import find_readers
from jsplan.planning.replication.impact import copies_again
from jsplan.planning.restore.interrupted import is_part_of
from jsplan.planning.restore.selection import Backup, RestoreTarget
from jsplan.planning.state_records import build_state_record
from jsplan.resources.buckets import alias_of, nouns_of
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import RESTORE_ANY_NAME_LEVEL
from jsplan.units import count_text, format_duration, instant_of, parse_instant

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.resources.fields import Config
    from jsplan.state.document import Entry


#: The reasons of objects that exist: equal to the saved one, or not.
AS_SAVED: Final = "is_as_it_was_saved"
IN_THE_WAY: Final = "is_in_the_way"
NOT_RESTORABLE, WILL_EXPIRE, STUCK_MIRROR = "JS470", "JS471", "JS483"
ALL_SAVED = "All of them are in the backup, and are restored again."
_OWN_CODES: Final = (NOT_RESTORABLE, RESTORE_OVER, WILL_EXPIRE)
#: What to do about findings of every plan, by code and kind of address: no file can be changed.
_HINTS: Final[Mapping[tuple[str, bool], str]] = {
    ("JS430", False): "Restore it with other replicas: --replicas 1",
    ("JS430", True): "It can be restored where the stream keeps its replicas.",
    ("JS439", True): "No server restores more consumers than that. Leave the stream out: --exclude",
    ("JS409", False): "There it keeps what it has and gets nothing more.",
    ("JS452", False): "If it is restored later, what is missing is copied then.",
    ("JS438", False): "A subject has one stream in a domain. "
    "Give the restored stream other subjects: --subjects SUBJECT",
}


def check_restore(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield what prevents the restore of each stream, and what it will lack."""
    for key, facts in sorted(inputs.live.domains.items()):
        if not facts.reachable and any(a.domain == key for a in inputs.backup):
            yield Diagnostic("error", NOT_RESTORABLE, facts.offline_text, "", f"{key}/**")
    for address, target in sorted(inputs.backup.items()):
        decision = decisions.get(address)
        reason = decision.reason if decision is not None else ""
        if reason == IN_THE_WAY:
            text = "exists already and differs from the saved one"
            if target.was_begun:
                text += "; its restore was interrupted, and it has messages or settings of others"
            detail = (
                "A restore never overwrites. Delete it first, restore elsewhere with --as, or "
                "leave it out with --exclude"
            )
            yield Diagnostic("error", RESTORE_OVER, text, detail, str(address))
        if reason != AS_SAVED:
            yield from _check_target(inputs, target)
        if reason == RESTORED and (part := find_part(inputs, target)) is not None:
            many = count_text(int(part.state.get("messages") or 0), "message")
            text = f"its restore was interrupted: the {many} that it left are deleted first"
            yield Diagnostic("warning", INTERRUPTED, text, ALL_SAVED, str(address))
        if reason == RESTORED:
            yield from _check_readers(inputs, target, decisions)


def warn_of_flows(found: Iterable[Diagnostic], restored: Collection[Address]) -> list[Diagnostic]:
    """Return the findings about references of what is restored, as warnings.

    The server takes a stream whose mirror or source cannot work, and the content counts more.
    """
    names = {str(address) for address in restored}
    return [replace(one, severity="warning") for one in found if one.address in names]


def with_restore_hints(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings with what to do about them in a restore, its own obstacles first."""
    hinted = []
    for one in found:
        is_of_consumer = "/consumer/" in (one.address or "")
        hinted.append(replace(one, detail=_HINTS.get((one.code, is_of_consumer), one.detail)))
    return sorted(hinted, key=lambda one: one.code not in _OWN_CODES)


def _check_target(inputs: PlanInputs, target: RestoreTarget) -> Findings:
    domain = target.address.domain
    if (
        target.saved.archive.format != "tar"
        and inputs.level(target.address) < RESTORE_ANY_NAME_LEVEL
        and inputs.live.is_reachable(domain)
    ):
        text = (
            "its archive was written by nats-server 2.15 or later, which older servers cannot read"
        )
        detail = f"Domain {domain} is older. Restore it into a domain with 2.15 or later."
        yield Diagnostic("error", NOT_RESTORABLE, text, detail, str(target.address))
    if target.address.stream != Address.parse(target.saved.address).stream:
        yield from _check_rename(target)
    yield from _check_expiry(target, inputs.now)


def _check_readers(inputs: PlanInputs, target: RestoreTarget, decisions: Decisions) -> Findings:
    """Warn about mirrors and sources that have more than the backup, and wait until then.

    A source copies all of it again instead, where nats-server 2.15 takes it for another stream.
    """
    last = int(target.saved.before["last_seq"])
    for downstream, kind, flow in find_readers(inputs, decisions, target.address):
        live = inputs.live.get(downstream)
        if live is None:
            if kind == "mirror" or not target.is_renewed:
                yield _warn_of_silent(target, downstream, kind, last)
            continue
        has = int(live.state.get("last_seq") or 0)
        if kind == "source":
            renews = target.is_renewed and copies_again(inputs, live, target.address, decisions)
            copied = inputs.measured.sourced.get((downstream, origin_key(flow)), 0)
            has = 0 if renews else copied
        if has > last:
            verb = "mirrors" if kind == "mirror" else "sources"
            text = (
                f"{downstream} {verb} it up to sequence {has:,}, and the backup ends at {last:,}: "
                f"the {kind} will not get what is stored from {last + 1:,} to {has:,}"
            )
            what = "it" if kind == "mirror" else "the source"
            detail = (
                f"To have all of it there: save what only the {kind} has, delete {what}, and "
                "create it again."
            )
            yield Diagnostic("warning", STUCK_MIRROR, text, detail, str(target.address))


def _warn_of_silent(target: RestoreTarget, downstream: Address, kind: str, last: int) -> Diagnostic:
    text = (
        f"{downstream} {kind}s it and does not answer: what it has had of it beyond sequence "
        f"{last:,}, where the backup ends, it leaves out of what is stored from there on"
    )
    detail = "Restore it when that domain answers, to learn how much that is."
    return Diagnostic("warning", STUCK_MIRROR, text, detail, str(target.address))


def _check_rename(target: RestoreTarget) -> Findings:
    address, saved = str(target.address), Address.parse(target.saved.address)
    if target.address.kind in ("kv", "object_store"):
        text = "a bucket cannot be restored under another name"
        detail = f"Stored messages keep their subjects, which contain the name {saved.name}."
        yield Diagnostic("error", NOT_RESTORABLE, text, detail, address)
    elif target.saved.archive.format == "tar":
        text = "its archive was written before nats-server 2.15 and can only keep its name"
        detail = f"Restore it as {saved.stream}, for instance into another domain."
        yield Diagnostic("error", NOT_RESTORABLE, text, detail, address)


def _check_expiry(target: RestoreTarget, now: datetime) -> Findings:
    """Warn about messages that the limits of the stream will delete.

    The times of the oldest and the newest message prove it. A ttl of a message is unknown here.
    """
    age, was = target.config.get("max_age") or 0, target.saved.before
    if not target.saved.messages:
        return
    which, content = "", nouns_of(target.address).content
    if age:
        border = instant_of(now) - age
        oldest, newest = (parse_instant(was[name]) for name in ("first_ts", "last_ts"))
        limit = f"{alias_of(target.address.kind, 'max_age')} ({format_duration(age)}) by now"
        some = f"all of its {content}" if newest < border else f"its oldest {content}"
        which = f"{some} are older than {limit}" if oldest < border else ""
    if not which and target.config.get("allow_msg_ttl"):
        which = f"{content} may have outlived a ttl of their own"
    if which:
        text = f"{which}: those are deleted as soon as they are restored"
        detail = f"They were saved on {target.saved.taken_at}."
        yield Diagnostic("warning", WILL_EXPIRE, text, detail, str(target.address))


def decide_restored(inputs: PlanInputs) -> dict[Address, ResourceDecision]:
    """Decide each stream of `inputs.backup` in a reachable domain, with its consumers."""
    found: dict[Address, ResourceDecision] = {}
    for target in inputs.backup.values():
        stream, live = target.address, inputs.live.get(target.address)
        if not inputs.live.is_reachable(stream.domain):
            continue
        reason = AS_SAVED if live is not None and _is_as_saved(live, target) else IN_THE_WAY
        is_absent = live is None and stream not in inputs.live.unreadable
        is_absent |= reason == IN_THE_WAY and find_part(inputs, target) is not None
        for address, config in target.configs.items():
            if is_absent:
                after = table_of(address).compact(config)
                found[address] = ResourceDecision(address, ["create"], RESTORED, after=after)
            elif (known := inputs.live.get(address)) is not None:
                # State does not know yet what a killed restore had restored.
                is_new = target.noted.get(address, known.created) != known.created
                adopts = reason == AS_SAVED and is_new
                found[address] = ResourceDecision(
                    address, ["no-op"], reason, known, after=known.compact, adopts=adopts
                )
    return {address: found[address] for address in sorted(found)}


def find_part(inputs: PlanInputs, target: RestoreTarget) -> LiveObject | None:
    """Return the part of a stream that its interrupted restore left: the next one deletes it."""
    live = inputs.live.get(target.address)
    if not target.was_begun or live is None or not is_part_of(live, target):
        return None
    is_first = live.compact == table_of(target.address).compact(target.first_config)
    return live if is_first or _is_configured_as_saved(live, target) else None


def _is_configured_as_saved(live: LiveObject, target: RestoreTarget) -> bool:
    return live.compact == table_of(target.address).compact(target.config)


def _is_as_saved(live: LiveObject, target: RestoreTarget) -> bool:
    """Check whether it exists as it was saved: an earlier restore of the same backup made it."""
    if not _is_configured_as_saved(live, target):
        return False
    now, was = live.state, target.saved.before
    # The first sequence is then one more than the last, or missing.
    empty = was["messages"] == 0
    return all(
        now.get(name) == was.get(name) or (empty and name == "first_seq")
        for name in ("messages", "first_seq", "last_seq")
    )


def draft_restored(inputs: PlanInputs, decision: ResourceDecision) -> Draft:
    """Draft the restore of a stream, or the check of a consumer, which comes with its stream.

    Streams do not wait for each other: each has what it needs of its origin.
    """
    address, parent = decision.address, decision.address.parent
    record = build_state_record(inputs, decision, "created")
    if parent is not None:
        title = f"verify consumer {address.consumer} of {address.stream} in {address.domain}"
        draft = Draft((address, "verify"), "consumer.verify", title, None, "", record=record)
        draft.depends_on.add((parent, "restore"))
        return draft
    target, after = inputs.backup[address], decision.after or {}
    part = find_part(inputs, target)
    return Draft(
        (address, "restore"),
        "stream.restore",
        f"restore {address.kind} {address.name} in {address.domain}",
        {
            "api": f"STREAM.RESTORE.{address.stream}",
            "payload": {"config": target.config, "state": target.saved.before},
        },
        "absent" if part is None else part.fingerprint,
        {name: value for name, value in after.items() if name != "mirror_direct"},
        record,
    )


def complete_plan(plan: Plan, backup: Backup, folder: Path, files: PlanInputs) -> None:
    """Let state record what the files declare, and show what the backup in `folder` holds.

    `files` are the inputs of the workspace itself. What no file declares comes back unmanaged; of
    the rest state has the declared fields with their restored values, so that the next plan shows
    the differences.
    """
    plan.mode, plan.deferred = "restore", []
    plan.diagnostics = with_restore_hints(plan.diagnostics)
    for step in plan.steps:
        step.record = _record(files, Address.parse(step.address), step.record or {})
    there = {c.address for c in plan.resource_changes if c.action_reason == AS_SAVED}
    plan.options["folder"] = str(folder)
    plan.options["restore"] = [
        {
            "address": str(address),
            "from": target.saved.address,
            "messages": target.saved.messages,
            "bytes": int(target.saved.before["bytes"]),
            "consumers": len(target.saved.consumers),
            "taken_at": target.saved.taken_at,
            "exists": str(address) in there,
        }
        for address, target in sorted(backup.items())
    ]


def _record(files: PlanInputs, address: Address, restored: dict[str, Any]) -> dict[str, Any] | None:
    declared, entry = files.workspace.resources.get(address), files.entries.get(address)
    if declared is None:
        return None
    values, named = dict(restored["declared"]), files.declared_fields(address)
    starts = _find_starts(values, named, entry)
    if starts:
        own = {origin_key(source): source for source in named["sources"]}
        saved = values["sources"]
        values["sources"] = [own[k] if (k := origin_key(s)) in starts else s for s in saved]
    # It stands where it stood: no `position` that was set before is set again.
    word = declared.position.once if declared.position is not None else ""
    word = word if entry is None else entry.position_once
    return restored | {
        "declared": {name: values.get(name) for name in named},
        "depends_on": files.topology.dependency_names(address),
        **({"position_once": word} if word else {}),
        **({"starts": starts} if starts else {}),
    }


def _find_starts(saved: Config, named: Config, entry: Entry | None) -> dict[str, int]:
    """Return the starts of saved sources that an apply set in place of those in the files."""
    known = entry.starts if entry is not None else {}
    own = {origin_key(source): source for source in named.get("sources") or ()}
    return {
        key: start
        for source in saved.get("sources") or ()
        if (start := source.get("opt_start_seq"))
        and (key := origin_key(source)) in own
        and start != own[key].get("opt_start_seq")
        and start in (1, known.get(key))
    }
