"""A domain that answers and has nothing of ours any more: a server that came back empty, or another one in its place. Pure.

Making everything anew would be right for the streams and wrong for their mirrors: a mirror holds on to its last sequence and
waits, without a word, until the new origin passes it (server_semantics, section 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import Live
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.guards import REINSTALLED, is_same_server
from jsplan.planning.model import PlanInputs
from jsplan.state.document import Entry

#: One stream that is missing was deleted, as far as anybody can tell; so many are not missing by chance.
MIN_MISSING_STREAMS = 2
#: From this level (2.15) on a source notices that its origin is another one, and starts with it again.
ORIGIN_IDENTITY_LEVEL = 5


def check_reinstalled(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[Diagnostic]:
    """What stops an apply until somebody says that it is so (`--reinstalled`)."""
    for key in sorted(find_emptied_domains(inputs)):
        made = [
            v
            for v in verdicts.values()
            if v.address.domain == key and v.actions == ["create"] and v.entry is not None
        ]
        if not made or is_confirmed(inputs, key):
            continue
        streams = len({v.address for v in made if v.address.kind != "consumer"})
        text = (
            f"DOMAIN_REINSTALLED: {key} answers and has none of the {streams} streams that jsplan made or adopted there: "
            "its server came back empty, or is another one"
        )
        detail = [
            f"To make all of it anew, empty: --reinstalled {key}",
            *_describe_stuck_downstream(inputs, key),
        ]
        yield Diagnostic(
            "error",
            REINSTALLED,
            text,
            "\n".join(detail),
            f"{key}/**",
            inputs.workspace.domains[key].range,
        )


def is_confirmed(inputs: PlanInputs, key: str) -> bool:
    """Whether the request says that this domain was reinstalled."""
    return any(matches(glob, key) for glob in inputs.request.reinstalled)


def find_emptied_domains(inputs: PlanInputs) -> set[str]:
    """Domains that answer and have none of the streams that state has of them.

    Another server's name counts only where a neighbour on the same connection is as it was: else the whole connection leads
    elsewhere, which is the wrong environment (JS410) and not this.
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
    """The streams and buckets in state that were asked for, by reachable domain; those that a `removed` block gives up left out."""
    given_up = [block.address for block in inputs.workspace.removed if not block.destroy]
    found: dict[str, dict[Address, Entry]] = {}
    for address, entry in inputs.entries.items():
        if (
            address.kind == "consumer"
            or address not in inputs.selected
            or not inputs.live.is_reachable(address.domain)
        ):
            continue
        if not any(matches(glob, address) for glob in given_up):
            found.setdefault(address.domain, {})[address] = entry
    return found


def _has_known_stream(live: Live, entries: Mapping[Address, Entry]) -> bool:
    return any(
        a in live.unreadable or ((o := live.get(a)) is not None and o.created == entry.created)
        for a, entry in entries.items()
    )


def _describe_stuck_downstream(inputs: PlanInputs, key: str) -> Iterable[str]:
    """The copies that wait for sequences that the new origin has not reached, each with what lets it go on at once."""
    for edge in sorted(inputs.topology.edges, key=lambda e: (e.origin, e.downstream)):
        copy = inputs.live.get(edge.downstream)
        if edge.origin.domain != key or copy is None:
            continue
        last = int(copy.state.get("last_seq") or 0)
        if edge.kind == "mirror" and last:
            yield (
                f"{edge.downstream} mirrors {edge.origin} up to sequence {last:,} and gets nothing more until the new one has passed that. "
                f"It goes on at once if the new one begins behind it: first_seq: {last + 1}"
            )
        elif (
            edge.kind == "source" and inputs.level(edge.downstream) < ORIGIN_IDENTITY_LEVEL and last
        ):
            yield f"{edge.downstream} sources {edge.origin}; before 2.15 it waits until the new one has passed the sequences of the old one"
