"""A domain that answers and has nothing of ours any more: a server that came back empty, or another one in its place. Pure.

Making everything anew would be right for the streams and wrong for their mirrors: a mirror holds on to its last sequence and
waits, without a word, until the new origin passes it (server_semantics, section 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import Live
from jsplan.planning.guards import REINSTALLED, same_server
from jsplan.planning.inputs import Inputs
from jsplan.planning.verdict import Verdict
from jsplan.state.document import Entry

#: One stream that is missing was deleted, as far as anybody can tell; so many are not missing by chance.
ENOUGH = 2
#: From this level (2.15) on a source notices that its origin is another one, and starts with it again.
SOURCES_NOTICE = 5


def reinstalled(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterable[Diagnostic]:
    """What stops an apply until somebody says that it is so (`--reinstalled`)."""
    for key in sorted(emptied(inputs)):
        made = [v for v in verdicts.values() if v.address.domain == key and v.actions == ["create"] and v.entry is not None]
        if not made or confirmed(inputs, key):
            continue
        streams = len({v.address for v in made if v.address.kind != "consumer"})
        text = (
            f"DOMAIN_REINSTALLED: {key} answers and has none of the {streams} streams that jsplan made or adopted there: "
            "its server came back empty, or is another one"
        )
        detail = [f"To make all of it anew, empty: --reinstalled {key}", *_stuck(inputs, key)]
        yield Diagnostic("error", REINSTALLED, text, "\n".join(detail), f"{key}/**", inputs.workspace.domains[key].range)


def confirmed(inputs: Inputs, key: str) -> bool:
    """Whether the request says that this domain was reinstalled."""
    return any(matches(glob, key) for glob in inputs.request.reinstalled)


def emptied(inputs: Inputs) -> set[str]:
    """Domains that answer and have none of the streams that state has of them.

    Another server's name counts only where a neighbour on the same connection is as it was: else the whole connection leads
    elsewhere, which is the wrong environment (JS410) and not this.
    """
    managed = _managed(inputs)
    missing = {key for key, entries in managed.items() if not _there(inputs.live, entries)}
    sound = {inputs.workspace.domains[key].connection for key in managed.keys() - missing}
    found = set()
    for key in missing:
        domain, facts = inputs.workspace.domains[key], inputs.live.domains[key]
        another = not same_server(inputs.state.domains.get(key, {}), facts.server)
        if domain.connection in sound if another else len(managed[key]) >= ENOUGH:
            found.add(key)
    return found


def _managed(inputs: Inputs) -> dict[str, dict[Address, Entry]]:
    """The streams and buckets in state that were asked for, by reachable domain; those that a `removed` block gives up left out."""
    given_up = [block.address for block in inputs.workspace.removed if not block.destroy]
    found: dict[str, dict[Address, Entry]] = {}
    for address, entry in inputs.entries.items():
        if address.kind == "consumer" or address not in inputs.selected or not inputs.live.reachable(address.domain):
            continue
        if not any(matches(glob, address) for glob in given_up):
            found.setdefault(address.domain, {})[address] = entry
    return found


def _there(live: Live, entries: Mapping[Address, Entry]) -> bool:
    return any(a in live.broken or ((o := live.get(a)) is not None and o.created == entry.created) for a, entry in entries.items())


def _stuck(inputs: Inputs, key: str) -> Iterable[str]:
    """The copies that wait for sequences that the new origin has not reached, each with what lets it go on at once."""
    for edge in sorted(inputs.topology.edges, key=lambda e: (e.origin, e.copy)):
        copy = inputs.live.get(edge.copy)
        if edge.origin.domain != key or copy is None:
            continue
        last = int(copy.state.get("last_seq") or 0)
        if edge.kind == "mirror" and last:
            yield (
                f"{edge.copy} mirrors {edge.origin} up to sequence {last:,} and gets nothing more until the new one has passed that. "
                f"It goes on at once if the new one begins behind it: first_seq: {last + 1}"
            )
        elif edge.kind == "source" and inputs.level(edge.copy) < SOURCES_NOTICE and last:
            yield f"{edge.copy} sources {edge.origin}; before 2.15 it waits until the new one has passed the sequences of the old one"
