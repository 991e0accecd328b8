"""Checks of a restore before its first request: its obstacles, and what it will lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import LiveObject
from jsplan.planning.bucket_aliases import nouns_of
from jsplan.planning.guards import RESTORE_OVER
from jsplan.planning.model import PlanInputs
from jsplan.planning.restore_target import RestoreTarget, decide_creations
from jsplan.planning.server_rules import (
    ServerContext,
    find_consumer_problems,
    find_stream_problems,
    is_standalone,
)
from jsplan.resources.buckets import alias_of
from jsplan.resources.server_features import RESTORE_ANY_NAME_LEVEL
from jsplan.subjects import SubjectTree
from jsplan.units import format_duration, instant_of, parse_instant

NOT_RESTORABLE, WILL_EXPIRE, SUBJECT_TAKEN = "JS470", "JS471", "JS438"


def check_target(inputs: PlanInputs, target: RestoreTarget) -> Iterable[Diagnostic]:
    """Yield what prevents the restore of one stream, and what it will lack."""
    address, archive, level = (
        str(target.address),
        target.saved.archive,
        inputs.level(target.address),
    )
    if target.address in inputs.live.unreadable:
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            f"exists and is offline: {inputs.live.unreadable[target.address]}",
            "",
            address,
        )
    elif inputs.live.get(target.address) is not None:
        yield Diagnostic(
            "error",
            RESTORE_OVER,
            "exists already and differs from the saved one",
            "A restore never overwrites. Delete it first, restore elsewhere with --as, or leave it "
            "out with --exclude",
            address,
        )
    if (
        archive.format != "tar"
        and level < RESTORE_ANY_NAME_LEVEL
        and inputs.live.is_reachable(target.address.domain)
    ):
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            "its archive was written by nats-server 2.15 or later, which older servers cannot read",
            f"Domain {target.address.domain} is older. "
            "Restore it into a domain with 2.15 or later.",
            address,
        )
    yield from _check_replicas(inputs, target)
    if target.address.stream != Address.parse(target.saved.address).stream:
        yield from _check_rename(target)
    yield from _check_expiry(target, inputs.now)


def _check_replicas(inputs: PlanInputs, target: RestoreTarget) -> Iterable[Diagnostic]:
    """Check the replicas as a plan does. A consumer comes from the archive as it was saved."""
    level, standalone = inputs.level(target.address), is_standalone(inputs, target.address.domain)
    context = ServerContext(level, standalone)
    decided = {
        address: decision.after or {} for address, decision in decide_creations([target]).items()
    }
    stream = decided.pop(target.address)
    for problem in find_stream_problems(None, stream, context):
        if problem.code == "JS430":
            hint = "Restore it with other replicas: --replicas 1"
            yield Diagnostic("error", problem.code, problem.summary, hint, str(target.address))
    for address, consumer in decided.items():
        for problem in find_consumer_problems(None, consumer, replace(context, stream=stream)):
            if problem.code == "JS430":
                hint = "It can be restored where the stream keeps its replicas."
                yield Diagnostic("error", problem.code, problem.summary, hint, str(address))


def _check_rename(target: RestoreTarget) -> Iterable[Diagnostic]:
    address, saved = str(target.address), Address.parse(target.saved.address)
    if target.address.kind in ("kv", "object_store"):
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            "a bucket cannot be restored under another name",
            f"Stored messages keep their subjects, which contain the name {saved.name}.",
            address,
        )
    elif target.saved.archive.format == "tar":
        yield Diagnostic(
            "error",
            NOT_RESTORABLE,
            "its archive was written before nats-server 2.15 and can only keep its name",
            f"Restore it as {saved.stream}, for instance into another domain.",
            address,
        )


def _check_expiry(target: RestoreTarget, now: datetime) -> Iterable[Diagnostic]:
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
        which = (
            f"all of its {content} are older than {limit}"
            if newest < border
            else f"its oldest {content} are older than {limit}"
        )
        which = which if oldest < border else ""
    if not which and target.config.get("allow_msg_ttl"):
        which = f"{content} may have outlived a ttl of their own"
    if which:
        text = f"{which}: those are deleted as soon as they are restored"
        yield Diagnostic(
            "warning",
            WILL_EXPIRE,
            text,
            f"They were saved on {target.saved.taken_at}.",
            str(target.address),
        )


def check_overlaps(
    targets: list[RestoreTarget], domain_streams: Mapping[Address, LiveObject]
) -> Iterable[Diagnostic]:
    """Refuse subjects that another stream of the domain has, or two of the restored streams."""
    trees: dict[str, SubjectTree[Address]] = {}
    new = {target.address for target in targets}
    existing = [
        (address, live.raw.get("subjects") or ())
        for address, live in domain_streams.items()
        if address not in new
    ]
    for address, subjects in [
        *existing,
        *((target.address, target.config.get("subjects") or ()) for target in targets),
    ]:
        tree = trees.setdefault(address.domain, SubjectTree())
        for subject in subjects:
            owner = next(
                (other for other in tree.find_overlapping(subject) if other != address), None
            )
            if owner is not None and address in new:
                detail = (
                    "A subject has one stream in a domain. "
                    "Give the restored stream other subjects: --subjects SUBJECT"
                )
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
