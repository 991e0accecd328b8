"""Domains that answer without any managed stream: empty or replaced servers.

Recreating everything would be right for the streams and wrong for their mirrors. A mirror keeps its
last sequence and waits silently until the new origin passes it (server_semantics, section 5).
"""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.address import Address, matches_any
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import Live
from jsplan.planning.guards import REINSTALLED, is_same_server
from jsplan.planning.model import Decisions, Findings, PlanInputs
from jsplan.state.document import Entry

#: One missing stream may have been deleted. From this number on they are not missing by chance.
MIN_MISSING_STREAMS = 2


def check_reinstalled(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Refuse to apply to a reinstalled domain until `--reinstalled` confirms it."""
    for key in sorted(find_emptied_domains(inputs)):
        recreated = [
            v
            for v in decisions.values()
            if v.address.domain == key and v.actions == ["create"] and v.entry is not None
        ]
        if not recreated or is_confirmed(inputs, key):
            continue
        streams = len({v.address for v in recreated if v.address.is_stream})
        text = (
            f"DOMAIN_REINSTALLED: {key} answers and has none of the {streams} streams that jsplan "
            "created or adopted there. Its server came back empty, or is another one"
        )
        hint = f"To create all of them again, empty: --reinstalled {key}"
        place = inputs.workspace.domains[key].range
        yield Diagnostic("error", REINSTALLED, text, hint, f"{key}/**", place)


def is_confirmed(inputs: PlanInputs, key: str) -> bool:
    """Check whether the request confirms that this domain was reinstalled."""
    return matches_any(inputs.options.reinstalled, key)


def find_emptied_domains(inputs: PlanInputs) -> set[str]:
    """Return the domains that answer and have none of the streams that state has of them.

    Another server name counts only if another domain of the same connection is unchanged. Otherwise
    the whole connection leads elsewhere: that is the wrong environment (JS410).
    """
    managed = _managed_streams(inputs)
    missing = {
        key for key, entries in managed.items() if not _has_known_stream(inputs.live, entries)
    }
    sound = {inputs.workspace.domains[key].connection for key in managed.keys() - missing}
    found = set()
    for key in missing:
        domain, facts = inputs.workspace.domains[key], inputs.live.domains[key]
        another = not is_same_server(inputs.state.domains.get(key, {}), facts.server)
        if domain.connection in sound if another else len(managed[key]) >= MIN_MISSING_STREAMS:
            found.add(key)
    return found


def _managed_streams(inputs: PlanInputs) -> dict[str, dict[Address, Entry]]:
    """Return the selected streams and buckets in state, by reachable domain.

    Those that a `removed` block releases are omitted.
    """
    found: dict[str, dict[Address, Entry]] = {
        key: {} for key, facts in inputs.live.domains.items() if facts.reachable
    }
    for address, entry in inputs.entries.items():
        if not address.is_stream or address not in inputs.selected:
            continue
        if address.domain in found and not inputs.workspace.forgets(address):
            found[address.domain][address] = entry
    return {key: entries for key, entries in found.items() if entries}


def _has_known_stream(live: Live, entries: Mapping[Address, Entry]) -> bool:
    return any(
        a in live.unreadable or ((o := live.get(a)) is not None and o.created == entry.created)
        for a, entry in entries.items()
    )
