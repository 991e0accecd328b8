"""The layout of the embedded servers: domains, clusters, tags, accounts, versions. Pure.

Properties that a client cannot see are derived from the streams of a server: a stream with
placement tags proves that its servers have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.documents.plan import Step
from jsplan.rehearsal.live_snapshot import Jetstream, list_configurations, sent_config
from jsplan.resources.fields import Config
from jsplan.resources.server_features import NEWEST_LEVEL, SERVER_VERSIONS
from jsplan.sandbox.sites import Account, Site
from jsplan.sandbox.versions import nearest_version, parse_version

#: Servers that run at once at most: a larger fleet of leaves is rehearsed in rounds.
MAX_SERVERS: Final = 24
#: Servers of an embedded cluster at most; else it is as large as the real one.
MAX_CLUSTER_SIZE: Final = 9
STRICT_SINCE = (2, 11)
#: Limits by their names in `$JS.API.INFO` and in a server's configuration, with the least value.
_LIMITS: Final = {
    "max_memory": ("max_mem", 0),
    "max_storage": ("max_file", 0),
    "max_streams": ("max_streams", 1),
    "max_consumers": ("max_consumers", 1),
    "max_ack_pending": ("max_ack_pending", 1),
    "memory_max_stream_bytes": ("mem_max_stream_bytes", 1),
    "storage_max_stream_bytes": ("disk_max_stream_bytes", 1),
}


class RehearsalTarget(Struct, frozen=True):
    """The site, account and version for one JetStream; `real_version` is None if unknown."""

    jetstream: Jetstream
    site: str
    account: str
    version: str
    real_version: str | None

    @property
    def is_same_release(self) -> bool:
        """True if both versions have the same minor release, and so the same rules."""
        return (
            self.real_version is not None
            and parse_version(self.version)[:2] == parse_version(self.real_version)[:2]
        )

    @property
    def is_older(self) -> bool:
        """True if the embedded server has an older minor release than the real one."""
        return (
            self.real_version is not None
            and parse_version(self.version)[:2] < parse_version(self.real_version)[:2]
        )


class RehearsalLayout(Struct):
    """The sites in rounds that run one after the other, and the target of each JetStream.

    `unproven` are tags that no client can see, by address. `clusters` are names by domain key, None
    for a single server. `guessed` are domains that may or may not be clusters.
    """

    rounds: list[list[Site]] = field(default_factory=list)
    targets: list[RehearsalTarget] = field(default_factory=list)
    clusters: dict[str, str | None] = field(default_factory=dict)
    unproven: dict[str, set[str]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)

    def targets_on(self, sites: Iterable[Site]) -> list[RehearsalTarget]:
        """Return the targets on these sites."""
        names = {site.name for site in sites}
        return [target for target in self.targets if target.site in names]


def build_rehearsal_layout(
    jetstreams: Iterable[Jetstream], steps: Iterable[Step], programs: Mapping[str, Path]
) -> RehearsalLayout:
    """Lay out the servers for these steps. `programs` are the installed versions."""
    layout, systems, steps = (
        RehearsalLayout(),
        dict[tuple[str, str | None], list[Jetstream]](),
        list(steps),
    )
    for each in jetstreams:
        systems.setdefault((each.root, each.domain.js_domain), []).append(each)
    hubs = {
        each.root: members[0].key
        for (_, _), members in systems.items()
        for each in members
        if each.is_own_domain
    }
    accounts: dict[object, str] = {}
    sites = [
        _build_site(
            layout,
            members,
            [s for s in steps if any(s.domain in each.keys for each in members)],
            programs,
            accounts,
            hubs.get(root),
        )
        for (root, _), members in systems.items()
    ]
    layout.rounds = list(
        _split_into_rounds(sorted(sites, key=lambda site: (site.hub is not None, site.name)))
    )
    return layout


def _build_site(
    layout: RehearsalLayout,
    jetstreams: list[Jetstream],
    steps: list[Step],
    programs: Mapping[str, Path],
    accounts: dict[object, str],
    hub: str | None,
) -> Site:
    """Build one server or cluster for the accounts that share it."""
    first = jetstreams[0]
    name, real = first.key, next((each.version for each in jetstreams if each.version), None)
    version = nearest_version(
        real or SERVER_VERSIONS.get(first.facts.level, SERVER_VERSIONS[NEWEST_LEVEL]),
        programs,
    )
    cluster, strict = (
        _cluster_name(jetstreams, steps),
        first.strict if parse_version(version) >= STRICT_SINCE else None,
    )
    size = _cluster_size(jetstreams, steps) if cluster else 1
    layout.guessed |= {name} if cluster and not _is_cluster_known(jetstreams) else set()
    layout.clusters |= {key: cluster for each in jetstreams for key in each.keys | {each.key}}
    for each in jetstreams:
        account = accounts.setdefault(each.account, f"A{len(accounts) + 1}")
        layout.targets.append(
            RehearsalTarget(
                each, name, account, version, real or SERVER_VERSIONS.get(each.facts.level)
            )
        )
    return Site(
        name,
        tuple(
            Account(accounts[each.account], _account_limits(each.facts.info)) for each in jetstreams
        ),
        first.domain.js_domain,
        cluster,
        size,
        _assign_tags(layout, jetstreams, steps, size) if cluster else (),
        hub if hub != name else None,
        strict,
        programs[version],
    )


def _account_limits(info: Mapping[str, Any]) -> dict[str, int | bool]:
    """Return the account's limits. A configuration cannot have limits per number of replicas."""
    limits = info.get("limits") or {}
    if info.get("tiers"):
        return {}
    found: dict[str, int | bool] = {
        ours: limits[theirs]
        for theirs, (ours, least) in _LIMITS.items()
        if limits.get(theirs, -1) >= least
    }
    return found | ({"max_bytes_required": True} if limits.get("max_bytes_required") else {})


# --- clusters ---


def _cluster_name(jetstreams: list[Jetstream], steps: list[Step]) -> str | None:
    """Return the cluster's name, None for a single server. Guess by the replicas if unknown."""
    for each in jetstreams:
        if each.facts.server:
            return each.facts.server.get("cluster")
        if each.streams:
            return next((o.server["name"] for o in each.streams if o.is_clustered), None)
    return "sandbox" if _max_replicas(jetstreams, steps) > 1 else None


def _is_cluster_known(jetstreams: list[Jetstream]) -> bool:
    """Return True if the server, or a stream on it, reports whether it is a cluster."""
    return any(each.facts.server or each.streams for each in jetstreams)


def _max_replicas(jetstreams: list[Jetstream], steps: list[Step]) -> int:
    configs = list_configurations(jetstreams, steps, lambda _: True)
    return max((config.get("num_replicas") or 1 for config in configs), default=1)


def _cluster_size(jetstreams: list[Jetstream], steps: list[Step]) -> int:
    """Return the size of the real cluster; if unknown, what the plan needs, at least three."""
    seen, advertised = len(_peer_tags(jetstreams)), max(each.advertised for each in jetstreams)
    required = max(3, seen, _max_replicas(jetstreams, steps))
    return min(
        MAX_CLUSTER_SIZE,
        max(seen, advertised) if advertised > 1 else required,
    )


def _peer_tags(jetstreams: list[Jetstream]) -> dict[str, set[str]]:
    """Return the real servers that have streams, with the tags that these streams prove."""
    found: dict[str, set[str]] = {}
    for each in jetstreams:
        for stream in each.streams:
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
    layout: RehearsalLayout, jetstreams: list[Jetstream], steps: list[Step], size: int
) -> tuple[tuple[str, ...], ...]:
    """Return the tags per embedded server. All of them get unproven tags, with a warning."""
    servers = [tags for _, tags in sorted(_peer_tags(jetstreams).items())][:size]
    servers += [set() for _ in range(size - len(servers))]
    unproven: set[str] = set()
    for step in steps:
        config = sent_config(step) or {}
        wanted = set(_placement_tags(config))
        if wanted and sum(wanted <= tags for tags in servers) < (config.get("num_replicas") or 1):
            layout.unproven.setdefault(step.address, set()).update(wanted)
            unproven |= wanted
    return tuple(tuple(sorted(tags | unproven)) for tags in servers)


# --- rounds ---


def _split_into_rounds(sites: list[Site]) -> Iterator[list[Site]]:
    """Split into groups of at most `MAX_SERVERS` servers. Unlink leaves of a hub elsewhere."""
    group: list[Site] = []
    for site in sites:
        if group and sum(len(s.nodes) for s in group) + len(site.nodes) > MAX_SERVERS:
            yield _unlink_absent_hubs(group)
            group = []
        group.append(site)
    if group:
        yield _unlink_absent_hubs(group)


def _unlink_absent_hubs(sites: list[Site]) -> list[Site]:
    names = {site.name for site in sites}
    return [site if site.hub in names else replace(site, hub=None) for site in sites]
