"""Sentences about causes of replication problems. Each begins with fixed words.

They have no numbers that the next sample would change, so that an unchanged problem keeps its text
and is reported once.
"""

from __future__ import annotations

from typing import Final

from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample
from jsplan.flows.refusals import is_full, limit_of
from jsplan.units import count_text

LINK_DOWN: Final = "link down"
ORIGIN_MISSING: Final = "origin missing"
DOMAIN_UNKNOWN: Final = "domain unknown"
EXPORT_MISSING: Final = "export missing"
FLOW_CONTROL_STALLED: Final = "flow control stalled"
ORIGIN_RECREATED: Final = "origin re-created"
ORIGIN_WENT_BACK: Final = "origin went back"
DRAINING_WORKQUEUE: Final = "draining a workqueue"
REFUSED: Final = "refused"
_HISTORY: Final = "max_msgs_per_subject"
STOPPED: Final = "stopped"
UNKNOWN: Final = "not known"


def link_down(flow: Flow) -> str:
    """Return the sentence: the origin's server does not reach the downstream's server."""
    where = flow.origin.domain if flow.origin is not None else flow.api
    return f"{LINK_DOWN}: nothing comes from {where} to {flow.downstream.domain}"


def origin_missing(flow: Flow) -> str:
    """Return the sentence: the origin's server has no such stream."""
    where = flow.origin.domain if flow.origin is not None else flow.api
    return f"{ORIGIN_MISSING}: there is no stream {flow.name} in {where}"


def domain_unknown(flow: Flow) -> str:
    """Return the sentence: no server has the API prefix, and nothing ever came from it."""
    return (
        f"{DOMAIN_UNKNOWN}: no responders on {flow.api} where {flow.downstream} is,"
        " and nothing ever came from there"
    )


def export_missing(flow: Flow, sample: ReplicationSample) -> str:
    """Return the sentence: an export or import between two accounts is missing."""
    api, deliver = flow.api or "", (flow.config.get("external") or {}).get("deliver")
    if sample.active < 0:
        verb = f"{api}.CONSUMER.CREATE.{flow.name}" + (
            ""
            if flow.is_unfiltered and len(flow.filters) == 1 and not _has_filter_in_subject(flow)
            else ".>"
        )
        return (
            f"{EXPORT_MISSING}: no responders on {verb}:"
            " it is not exported, or not imported; run jsplan access --check"
        )
    if not deliver:
        return (
            f"{EXPORT_MISSING}: no delivery prefix is set,"
            f" so nothing of {flow.name} is delivered to this account; set `deliver`"
        )
    return (
        f"{EXPORT_MISSING}: nothing arrives on {deliver}.>:"
        " it is not exported, or not imported; run jsplan access --check"
    )


def _has_filter_in_subject(flow: Flow) -> bool:
    """Return True if the subject of the request contains the filter, even `>`."""
    transforms = flow.config.get("subject_transforms") or ()
    return bool(flow.config.get("filter_subject")) or len(transforms) == 1


def flow_control_stalled(flow: Flow) -> str:
    """Return the sentence: the origin waits for a flow control answer that does not reach it."""
    fix = ""
    if flow.imported:
        fix = f": $JS.FC.{flow.name}.> is not exported, or not imported; run jsplan access --check"
    return (
        f"{FLOW_CONTROL_STALLED}: the origin waits for an answer before it sends more,"
        f" and none reaches it{fix}"
    )


def origin_recreated(flow: Flow, *, copies_again: bool) -> str:
    """Return the sentence: the origin is another stream than the one that was copied.

    `copies_again`: a source since 2.15 notices it by itself, and copies all of the new one.
    """
    if copies_again:
        return (
            f"{ORIGIN_RECREATED}: the downstream has messages of a deleted stream {flow.name},"
            " and copies all of the new one within a minute"
        )
    fix = (
        f"to fill it again: jsplan apply --replace {flow.downstream}"
        if flow.kind == "mirror"
        else f"to copy the others: jsplan backfill run --from {flow.source} --to {flow.downstream}"
    )
    return (
        f"{ORIGIN_RECREATED}: the downstream has messages of a deleted stream {flow.name},"
        f" and receives only higher sequences of the new one; {fix}"
    )


def origin_went_back(flow: Flow) -> str:
    """Return the sentence: the origin lost messages, and the mirror may be their only copy."""
    return (
        f"{ORIGIN_WENT_BACK}: its server lost messages that {flow.downstream} has, maybe as their"
        f" only copy; to see them: jsplan compare {flow.source} {flow.downstream}"
    )


def draining_workqueue(flow: Flow) -> str:
    """Return the sentence: each message goes to the downstream and is deleted in the origin."""
    return (
        f"{DRAINING_WORKQUEUE}: copied messages are deleted in {flow.source},"
        " and its own consumers never see them"
    )


def refused(flow: Flow, sample: ReplicationSample) -> str:
    """Return the sentence: the downstream stream takes no more; empty where it would."""
    config, size = sample.config, limit_of(sample.config, "max_msg_size")
    if 0 < size < sample.next_size:
        return (
            f"{REFUSED}: message {sample.next_seq:,} of {flow.source} has"
            f" {count_text(sample.next_size, 'byte')} with its headers, and {flow.downstream} takes"
            f" none of more than {size:,} (max_msg_size), so that the flow stops there; raise it"
        )
    names = [_HISTORY]
    if not 0 < limit_of(config, _HISTORY) <= sample.next_alike:
        names = ["max_msgs", "max_bytes"]
        state = {"messages": sample.messages, "bytes": sample.size}
        if not is_full(config, state, sample.next_stored):
            return ""
    limits = ", ".join(f"{n}: {limit_of(config, n):,}" for n in names if limit_of(config, n))
    return (
        f"{REFUSED}: {flow.downstream} is full ({limits}) and takes no new messages (discard: new);"
        " raise the limit, or delete messages"
    )


def stopped(sample: ReplicationSample) -> str:
    """Return the sentence: there is no progress, and no known cause."""
    description = sample.error.get("description")
    why = (
        f"the server says: {description}"
        if description
        else "it never heard of its origin"
        if sample.active < 0
        else "nothing is heard of the origin"
    )
    return (
        f"{STOPPED}: messages wait in the origin and none comes; {why}."
        " After an interruption servers try again for up to two minutes"
    )


def domain_offline(side: str, domain: str) -> str:
    """Return the sentence for an offline domain. `side` is `origin` or `downstream`."""
    return f"{UNKNOWN}: the {side}'s domain {domain} is offline"


def origin_unreadable(why: str) -> str:
    """Return the sentence for an origin that cannot be read."""
    return f"{UNKNOWN}: the origin cannot be read: {why}"


def downstream_unreadable() -> str:
    """Return the sentence for a downstream stream that became unreadable meanwhile."""
    return f"{UNKNOWN}: the downstream stream could not be read any more"
