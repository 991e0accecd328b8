"""The time since a domain is offline, compared with `may_be_offline` of the files."""

from __future__ import annotations

from datetime import datetime, timedelta

from jsplan.diagnostics import Diagnostic
from jsplan.facts.last_seen import find_last_heard
from jsplan.planning.model import Findings, PlanInputs
from jsplan.units import format_duration, format_timestamp, parse_moment

OVERDUE = "JS480"


def last_seen(inputs: PlanInputs) -> dict[str, datetime]:
    """Return by domain key the latest time (UTC) at which the domain is known to have answered.

    A domain that has never answered has no key. There are three sources: the applies that recorded
    the domain, the resources that they recorded in it, and the streams that copy from it.
    """
    found = find_last_heard(inputs.live, inputs.topology.edges, inputs.now)
    records = [(key, str(server.get("seen", ""))) for key, server in inputs.state.domains.items()]
    records += {
        (address.domain, entry.applied_at)
        for address, entry in inputs.entries.items()
        if not address.is_content
    }
    for key, text in records:
        moment = _parse_stamp(text)
        if moment is not None:
            found[key] = max(moment, found.get(key, moment))
    return found


def _parse_stamp(text: str) -> datetime | None:
    try:
        return parse_moment(text)
    except ValueError:
        return None


def is_within_offline_limit(inputs: PlanInputs, key: str, seen: datetime | None) -> bool:
    """Check whether an offline domain was last seen within its `may_be_offline`.

    False without `may_be_offline`. True for a domain that was never seen: it has nothing of ours
    that could be lost.
    """
    allowed = inputs.workspace.domains[key].may_be_offline
    return allowed is not None and (
        seen is None or inputs.now - seen <= timedelta(microseconds=allowed / 1000)
    )


def check_overdue_domains(inputs: PlanInputs) -> Findings:
    """Warn about each domain that is offline for longer than its `may_be_offline`."""
    seen = last_seen(inputs)
    for key, facts in inputs.live.domains.items():
        domain = inputs.workspace.domains[key]
        if facts.reachable or domain.may_be_offline is None:
            continue
        if is_within_offline_limit(inputs, key, seen.get(key)):
            continue
        since, limit = format_timestamp(seen[key]), format_duration(domain.may_be_offline)
        text = f"{key} was last seen {since}; its may_be_offline is {limit}"
        detail = (
            "Downstream streams miss messages that its streams delete by their limits "
            "before they are copied. Check its connection."
        )
        yield Diagnostic("warning", OVERDUE, text, detail, f"{key}/**", domain.range)
