"""Names the servers that are missing where a cluster has no leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import ApiError
from jsplan.facts.domains import NO_LEADER
from jsplan.facts.live import Live
from jsplan.jetstream import Pool


async def name_silent_servers(
    pool: Pool, domains: Mapping[str, Domain], live: Live, wanted: Iterable[Address]
) -> None:
    """Add the servers that do not answer to the reason of each domain without a leader.

    A server answers STREAM.INFO without a leader too, and lists the replicas that it hears of
    (measured on 2.15). It says so of one of the `wanted` streams.
    """
    for key, facts in live.domains.items():
        stream = next((a for a in wanted if a.domain == key and a.kind != "consumer"), None)
        if facts.reachable or not facts.reason.endswith(NO_LEADER) or stream is None:
            continue
        try:
            info = await pool.api(domains[key]).request(f"STREAM.INFO.{stream.stream}")
        except ApiError:
            continue
        peers = (info.get("cluster") or {}).get("replicas") or ()
        answers = pool.connections[domains[key].connection].server.get("server_name")
        silent = sorted(
            str(peer["name"])
            for peer in peers
            if not peer.get("current") and peer.get("name") not in (None, answers)
        )
        if silent:
            reason = f"{facts.reason}; no answer from {', '.join(silent)}"
            live.domains[key] = replace(facts, reason=reason)
