"""The causes in words. Each sentence begins with the few words by which people and scripts know the cause.

No number is in them that the next look would change: a situation that stays as it is reads the same, so that nobody is told twice.
"""

from __future__ import annotations

from typing import Final

from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample

LINK_DOWN: Final = "link down"
ORIGIN_MISSING: Final = "origin missing"
DOMAIN_UNKNOWN: Final = "domain unknown"
EXPORT_MISSING: Final = "export missing"
FLOW_CONTROL_STALLED: Final = "flow control stalled"
ORIGIN_RECREATED: Final = "origin re-created"
DRAINING_WORKQUEUE: Final = "draining a workqueue"
STOPPED: Final = "stopped"
UNKNOWN: Final = "not known"


def link_down(flow: Flow) -> str:
    """Nothing gets from the origin's server to the copy's."""
    where = flow.origin.domain if flow.origin is not None else flow.api
    return f"{LINK_DOWN}: nothing comes from {where} to {flow.downstream.domain}, where the copy is"


def origin_missing(flow: Flow) -> str:
    """Its server knows no such stream."""
    where = flow.origin.domain if flow.origin is not None else flow.api
    return f"{ORIGIN_MISSING}: there is no stream {flow.name} in {where}"


def domain_unknown(flow: Flow) -> str:
    """Nobody has the prefix, and nobody ever had."""
    return f"{DOMAIN_UNKNOWN}: nobody answers {flow.api} where {flow.downstream} is, and nothing ever came from there"


def export_missing(flow: Flow, look: ReplicationSample) -> str:
    """What it takes between two accounts is not all there."""
    api, deliver = flow.api or "", (flow.config.get("external") or {}).get("deliver")
    if look.active < 0:
        verb = f"{api}.CONSUMER.CREATE.{flow.name}" + (
            ""
            if flow.is_unfiltered and len(flow.filters) == 1 and not _has_filter_in_subject(flow)
            else ".>"
        )
        return f"{EXPORT_MISSING}: nobody answers {verb}: it is not exported, or not imported; jsplan access --check tells"
    if not deliver:
        return f"{EXPORT_MISSING}: no delivery prefix is set, so nothing of {flow.name} is delivered to this account; set `deliver`"
    return f"{EXPORT_MISSING}: nothing arrives on {deliver}.>: it is not exported, or not imported; jsplan access --check tells"


def _has_filter_in_subject(flow: Flow) -> bool:
    """Whether the filter is in the subject of the request, be it `>`."""
    transforms = flow.config.get("subject_transforms") or ()
    return bool(flow.config.get("filter_subject")) or len(transforms) == 1


def flow_control_stalled(flow: Flow) -> str:
    """The origin is heard of, and sends no more until it gets an answer that does not reach it."""
    fix = (
        f": $JS.FC.{flow.name}.> is not exported, or not imported; jsplan access --check tells"
        if flow.imported
        else ""
    )
    return f"{FLOW_CONTROL_STALLED}: the origin waits for an answer before it sends more, and none reaches it{fix}"


def origin_recreated(flow: Flow) -> str:
    """The origin is another stream than the one that was copied."""
    was = f"{ORIGIN_RECREATED}: the copy holds messages of a stream {flow.name} that is no more"
    return f"{was}, and takes of the new one only what comes behind their numbers"


def draining_workqueue(flow: Flow) -> str:
    """Every message goes to the copy and is deleted in the origin."""
    return f"{DRAINING_WORKQUEUE}: what is copied is deleted in {flow.source}, and its own consumers never see it"


def stopped(look: ReplicationSample) -> str:
    """It does not move, and nothing says why."""
    said = look.error.get("description")
    why = (
        f"the server says: {said}"
        if said
        else "it never heard of its origin"
        if look.active < 0
        else "nothing is heard of the origin"
    )
    return f"{STOPPED}: messages wait in the origin and none comes; {why}. After an interruption servers try again for up to two minutes"


def domain_offline(side: str, domain: str) -> str:
    """Nothing can be said: `what` is `origin` or `copy`."""
    return f"{UNKNOWN}: the {side}'s domain {domain} is away"


def origin_unreadable(why: str) -> str:
    """Nothing can be said, since the origin cannot be read."""
    return f"{UNKNOWN}: the origin cannot be read: {why}"


def downstream_unreadable() -> str:
    """Nothing can be said, since the copy went away meanwhile."""
    return f"{UNKNOWN}: the copy could not be read any more"
