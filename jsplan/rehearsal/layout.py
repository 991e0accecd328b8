"""Which embedded servers stand for the real ones: domains, clusters, tags, accounts and their limits, versions. Pure.

What a client cannot see of a real server is taken from what is on it: a stream with placement tags proves that the servers
it is on have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from jsplan.documents.plan import Step
from jsplan.rehearsal.live_snapshot import Jetstream, list_configurations, sent_config
from jsplan.resources.fields import Config
from jsplan.sandbox.sites import Account, Site
from jsplan.sandbox.versions import nearest_version, parse_version

#: More servers than that never run at once: what a fleet of leaves does is tried in turns.
MAX_SERVERS: Final = 24
#: A cluster is as large as the real one, up to this.
MAX_CLUSTER_SIZE: Final = 9
#: Minor releases by API level, for servers that do not tell their version.
RELEASES: Final = {0: "2.10", 1: "2.11", 2: "2.12", 3: "2.12", 4: "2.14", 5: "2.15"}
STRICT_SINCE = (2, 11)
#: Limits as `$JS.API.INFO` names them, and as a server's configuration does. A limit below the second number is none.
_LIMITS: Final = {
    "max_memory": ("max_mem", 0), "max_storage": ("max_file", 0), "max_streams": ("max_streams", 1), "max_consumers": ("max_consumers", 1),
    "max_ack_pending": ("max_ack_pending", 1), "memory_max_stream_bytes": ("mem_max_stream_bytes", 1),
    "storage_max_stream_bytes": ("disk_max_stream_bytes", 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RehearsalTarget:
    """Where one JetStream is rehearsed: a site, an account there, and on which version instead of which (None: nobody knows)."""

    jetstream: Jetstream
    site: str
    account: str
    version: str
    real_version: str | None

    @property
    def is_same_release(self) -> bool:
        """Whether both are of one minor release, whose rules are the same."""
        return (
            self.real_version is not None
            and parse_version(self.version)[:2] == parse_version(self.real_version)[:2]
        )

    @property
    def is_older(self) -> bool:
        """Whether the embedded server is of an older release, which does not know what the real one knows."""
        return (
            self.real_version is not None
            and parse_version(self.version)[:2] < parse_version(self.real_version)[:2]
        )


@dataclass(slots=True)
class RehearsalLayout:
    """The sites, in turns that run one after the other, and the place of each JetStream. `unproven` are tags that no client can see.

    `clusters` are names by domain key, None for a single server; `guessed` are domains that may be one after all.
    """

    rounds: list[list[Site]] = field(default_factory=list)
    targets: list[RehearsalTarget] = field(default_factory=list)
    clusters: dict[str, str | None] = field(default_factory=dict)
    unproven: dict[str, set[str]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)

    def targets_on(self, sites: Iterable[Site]) -> list[RehearsalTarget]:
        """The places on these sites."""
        names = {site.name for site in sites}
        return [place for place in self.targets if place.site in names]


def build_rehearsal_layout(
    ones: Iterable[Jetstream], steps: Iterable[Step], programs: Mapping[str, Path]
) -> RehearsalLayout:
    """The servers on which these steps can be rehearsed. `programs` are the versions at hand."""
    shape, systems, steps = (
        RehearsalLayout(),
        dict[tuple[str, str | None], list[Jetstream]](),
        list(steps),
    )
    for one in ones:
        systems.setdefault((one.root, one.domain.js_domain), []).append(one)
    hubs = {
        one.root: found[0].key
        for (_, _), found in systems.items()
        for one in found
        if one.is_own_domain
    }
    accounts: dict[object, str] = {}
    sites = [
        _build_site(
            shape,
            found,
            [s for s in steps if any(s.domain in one.keys for one in found)],
            programs,
            accounts,
            hubs.get(root),
        )
        for (root, _), found in systems.items()
    ]
    shape.rounds = list(
        _split_into_rounds(sorted(sites, key=lambda site: (site.hub is not None, site.name)))
    )
    return shape


def _build_site(
    shape: RehearsalLayout,
    ones: list[Jetstream],
    steps: list[Step],
    programs: Mapping[str, Path],
    accounts: dict[object, str],
    hub: str | None,
) -> Site:
    """One server or cluster for the accounts that share it."""
    name, real = ones[0].key, next((one.version for one in ones if one.version), None)
    version = nearest_version(
        real or RELEASES.get(ones[0].facts.level, max(RELEASES.values(), key=parse_version)),
        programs,
    )
    cluster, strict = (
        _cluster_name(ones, steps),
        ones[0].strict if parse_version(version) >= STRICT_SINCE else None,
    )
    size = _cluster_size(ones, steps) if cluster else 1
    shape.guessed |= {name} if cluster and not _is_cluster_known(ones) else set()
    shape.clusters |= {key: cluster for one in ones for key in one.keys | {one.key}}
    for one in ones:
        account = accounts.setdefault(one.account, f"A{len(accounts) + 1}")
        shape.targets.append(
            RehearsalTarget(one, name, account, version, real or RELEASES.get(one.facts.level))
        )
    return Site(
        name,
        tuple(Account(accounts[one.account], _account_limits(one.facts.info)) for one in ones),
        ones[0].domain.js_domain,
        cluster,
        size,
        _assign_tags(shape, ones, steps, size) if cluster else (),
        hub if hub != name else None,
        strict,
        programs[version],
    )


def _account_limits(info: Mapping[str, Any]) -> dict[str, int | bool]:
    """What the account may have. Limits per number of copies cannot be written into a server's configuration."""
    limits = info.get("limits") or {}
    if info.get("tiers"):
        return {}
    found: dict[str, int | bool] = {
        ours: limits[theirs]
        for theirs, (ours, least) in _LIMITS.items()
        if limits.get(theirs, -1) >= least
    }
    return found | ({"max_bytes_required": True} if limits.get("max_bytes_required") else {})


# --- clusters ------------------------------------------------------------------------------------------------


def _cluster_name(ones: list[Jetstream], steps: list[Step]) -> str | None:
    """The cluster's name; None for a single server. Where nobody knows, more copies than one make it a cluster."""
    for one in ones:
        if one.facts.server:
            return one.facts.server.get("cluster")
        if one.streams:
            return next((o.server["name"] for o in one.streams if o.is_clustered), None)
    return "sandbox" if _max_replicas(ones, steps) > 1 else None


def _is_cluster_known(ones: list[Jetstream]) -> bool:
    """Whether the server, or a stream on it, says if it is a cluster."""
    return any(one.facts.server or one.streams for one in ones)


def _max_replicas(ones: list[Jetstream], steps: list[Step]) -> int:
    return max(
        (c.get("num_replicas") or 1 for c in list_configurations(ones, steps, lambda _: True)),
        default=1,
    )


def _cluster_size(ones: list[Jetstream], steps: list[Step]) -> int:
    """As many servers as the real cluster shows; where it does not tell, as many as the plan needs, at least three."""
    seen, advertised = len(_peer_tags(ones)), max(one.advertised for one in ones)
    return min(
        MAX_CLUSTER_SIZE,
        max(seen, advertised) if advertised > 1 else max(3, seen, _max_replicas(ones, steps)),
    )


def _peer_tags(ones: list[Jetstream]) -> dict[str, set[str]]:
    """The real servers that streams are on, with the tags that these streams prove them to have."""
    found: dict[str, set[str]] = {}
    for one in ones:
        for stream in one.streams:
            names = [
                stream.server.get("leader"),
                *(peer["name"] for peer in stream.server.get("replicas") or ()),
            ]
            for name in (str(name) for name in names if name):
                found.setdefault(name, set()).update(
                    _placement_tags(stream.raw) if stream.is_stable else ()
                )
    return found


def _placement_tags(config: Config) -> list[str]:
    return list((config.get("placement") or {}).get("tags") or ())


def _assign_tags(
    shape: RehearsalLayout, ones: list[Jetstream], steps: list[Step], size: int
) -> tuple[tuple[str, ...], ...]:
    """Tags per embedded server. Those that a step wants and no stream proves are given to all of them, and said."""
    servers = [tags for _, tags in sorted(_peer_tags(ones).items())][:size]
    servers += [set() for _ in range(size - len(servers))]
    unproven: set[str] = set()
    for step in steps:
        config = sent_config(step) or {}
        wanted = set(_placement_tags(config))
        if wanted and sum(wanted <= tags for tags in servers) < (config.get("num_replicas") or 1):
            shape.unproven.setdefault(step.address, set()).update(wanted)
            unproven |= wanted
    return tuple(tuple(sorted(tags | unproven)) for tags in servers)


# --- turns ---------------------------------------------------------------------------------------------------


def _split_into_rounds(sites: list[Site]) -> Iterator[list[Site]]:
    """The sites in groups of at most `MAX_SERVERS` servers. A leaf whose hub runs in another turn runs without a link."""
    turn: list[Site] = []
    for site in sites:
        if turn and sum(len(s.nodes) for s in turn) + len(site.nodes) > MAX_SERVERS:
            yield _unlink_absent_hubs(turn)
            turn = []
        turn.append(site)
    if turn:
        yield _unlink_absent_hubs(turn)


def _unlink_absent_hubs(turn: list[Site]) -> list[Site]:
    names = {site.name for site in turn}
    return [site if site.hub in names else replace(site, hub=None) for site in turn]
