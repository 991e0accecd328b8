"""Since when a domain is away, against how long the files say that it may be. Pure; what was heard of it is read in `facts`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from jsplan.diagnostics import Diagnostic
from jsplan.facts.last_seen import find_last_heard
from jsplan.planning.model import PlanInputs
from jsplan.units import TIMESTAMP_FORMAT, format_duration, format_timestamp

OVERDUE = "JS480"


def last_seen(inputs: PlanInputs) -> dict[str, datetime]:
    """By domain key, the latest moment at which it is known to have been there (UTC); a domain that never was is missing.

    Three witnesses: the applies that recorded it, what they recorded in it, and those that copy from it.
    """
    found = find_last_heard(inputs.live, inputs.topology.edges, inputs.request.now)
    told = [(key, str(server.get("seen", ""))) for key, server in inputs.state.domains.items()]
    told += [(address.domain, entry.applied_at) for address, entry in inputs.entries.items()]
    for key, text in told:
        moment = _parse_stamp(text)
        if moment is not None:
            found[key] = max(moment, found.get(key, moment))
    return found


def _parse_stamp(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, TIMESTAMP_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def is_within_offline_limit(inputs: PlanInputs, key: str, seen: datetime | None) -> bool:
    """Whether a domain that is away may be: it has a `may_be_offline`, and was last seen within it.

    One that was never seen has nothing of ours that could have been lost, so nothing is late yet.
    """
    allowed = inputs.workspace.domains[key].may_be_offline
    return allowed is not None and (
        seen is None or inputs.request.now - seen <= timedelta(microseconds=allowed / 1000)
    )


def check_overdue_domains(inputs: PlanInputs) -> Iterable[Diagnostic]:
    """A warning for each domain that is away for longer than it may be."""
    seen = last_seen(inputs)
    for key, facts in inputs.live.domains.items():
        domain = inputs.workspace.domains[key]
        if (
            facts.reachable
            or domain.may_be_offline is None
            or is_within_offline_limit(inputs, key, seen.get(key))
        ):
            continue
        text = f"{key} was last seen {format_timestamp(seen[key])}; its may_be_offline is {format_duration(domain.may_be_offline)}"
        detail = "What its streams drop by their limits from now on is missed by those that copy from it. Look after its link."
        yield Diagnostic("warning", OVERDUE, text, detail, f"{key}/**", domain.range)
