"""A drift document as situations with stable ids, and the register of those that are open. Pure: who is told is left to `sinks`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.documents.base import digest
from jsplan.documents.drift import Drift, Unmanaged
from jsplan.documents.notice import Notice, Occasion, Situation
from jsplan.documents.plan import ResourceChange
from jsplan.drift.advisories import Who

#: Lines about a changed resource, in words; views have better ones.
Describe = Callable[[ResourceChange], tuple[str, ...]]
#: The address of what concerns the workspace as a whole.
WORKSPACE = "workspace"


def plainly(resource: ResourceChange) -> tuple[str, ...]:
    """Each field as `path: before -> after`, in API values."""
    return tuple(f"{change.path}: {change.before!r} -> {change.after!r}" for change in resource.change.fields)


def identity(workspace: str, *parts: str) -> str:
    """Twelve hexadecimal digits: the same for the same thing in the same workspace and environment."""
    return hashlib.sha256("\n".join([workspace, *parts]).encode()).hexdigest()[:12]


def situations_of(drift: Drift, kinds: Collection[str], describe: Describe = plainly) -> list[Situation]:
    """Every finding of these kinds, and each interrupted replacement.

    Consumers that their server removes by itself are none: they come and go with their readers.
    """
    name = f"{drift.workspace}.{drift.environment or ''}"
    found = [_of_interruption(name, item) for item in drift.interrupted]
    found += [_of_resource(name, resource, describe) for resource in drift.resource_drift]
    found += [_of_flow(name, flow) for flow in drift.replication if flow["healthy"] is False]
    found += [_of_stranger(name, item) for item in drift.unmanaged if not item.ephemeral]
    found += [away(name, str(domain["domain"]), str(domain["reason"])) for domain in drift.offline if not domain["excused"]]
    return [situation for situation in found if situation.kind in kinds or situation.kind == "interrupted"]


def _of_interruption(name: str, item: Mapping[str, Any]) -> Situation:
    address, says, detail = str(item["address"]), str(item["summary"]), (str(item["detail"]),)
    return Situation(identity(name, "interrupted", address), "interrupted", "destructive", address, says, detail, content=says)


def _of_resource(name: str, resource: ResourceChange, describe: Describe) -> Situation:
    gone = resource.change.after is None
    fields = tuple(change.to_json() for change in resource.change.fields)
    return Situation(
        identity(name, "resource", resource.address),
        "missing" if gone else "changed",
        resource.severity or "functional",
        resource.address,
        "is gone" if gone else "was changed",
        () if gone else describe(resource),
        fields,
        digest([gone, fields]),
    )


def _of_flow(name: str, flow: Mapping[str, Any]) -> Situation:
    cause, severity = str(flow.get("cause") or "no cause known"), flow.get("severity", "functional")
    address = str(flow["to"])
    says = f"does not follow {flow['from']} ({flow['kind']}): {cause}"
    named = identity(name, "replication", str(flow["from"]), address, str(flow["kind"]))
    return Situation(named, "replication", severity, address, says, content=digest([cause, severity]))


def _of_stranger(name: str, item: Unmanaged) -> Situation:
    says = "is in no file and not in state"
    named = identity(name, "unmanaged", item.address)
    return Situation(named, "unmanaged", item.severity, item.address, says, content=item.severity)


def away(name: str, domain: str, reason: str) -> Situation:
    """A domain that does not answer and should. Why it does not may vary from look to look, and is no news."""
    return Situation(identity(name, "offline", domain), "offline", "functional", domain, f"does not answer: {reason}")


def failing(name: str, reason: str) -> Situation:
    """That there is no look at all, so that nobody takes silence for health."""
    return Situation(identity(name, "check"), "check", "functional", WORKSPACE, f"cannot be checked: {reason}")


@dataclass(slots=True)
class Open:
    """A situation that is open: since when, and who brought it about as far as anybody told."""

    situation: Situation
    since: str
    by: Who | None = None


@dataclass(slots=True)
class Register:
    """The situations that are open. Tells what is news: nothing twice, and nothing that was not looked at."""

    workspace: str
    environment: str | None
    open: dict[str, Open] = field(default_factory=dict)
    count: int = 0

    def news(self, found: Iterable[Situation]) -> list[Situation]:
        """Those that are not open yet, or with other contents or another kind."""
        return [situation for situation in found if self._occasion(situation) is not None]

    def _occasion(self, situation: Situation) -> Occasion | None:
        known = self.open.get(situation.id)
        if known is None:
            return "opened"
        same = (known.situation.kind, known.situation.content, known.situation.severity)
        return None if same == (situation.kind, situation.content, situation.severity) else "changed"

    def settle(
        self, found: Iterable[Situation], covered: Callable[[Situation], bool], stamp: str, who: Mapping[str, Who] | None = None
    ) -> list[Notice]:
        """Take in a look: what was found, and which open situations it would have found too (`covered`). `who` is by address."""
        who = who or {}
        found = list(found)
        ids = {situation.id for situation in found}
        over = [o for o in self.open.values() if o.situation.id not in ids and covered(o.situation)]
        notices = [self._notice("resolved", o.situation, stamp, o.since, who.get(o.situation.address)) for o in over]
        for item in over:
            del self.open[item.situation.id]
        for situation in found:
            if (occasion := self._occasion(situation)) is None:
                continue
            known = self.open.get(situation.id)
            by = who.get(situation.address)
            since = known.since if known else stamp
            self.open[situation.id] = Open(situation, since, by)
            notices.append(self._notice(occasion, situation, stamp, since, by))
        return notices

    def _notice(self, occasion: Occasion, situation: Situation, stamp: str, since: str, by: Who | None) -> Notice:
        self.count += 1
        return Notice(
            f"{situation.id}.{stamp}.{self.count}", occasion, situation, self.workspace, self.environment, stamp, since,
            by.to_json() if by else None, str(by) if by else "",
        )  # fmt: skip
