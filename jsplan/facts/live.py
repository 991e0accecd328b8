"""Data that was read from the servers, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import (
    BACKFILL_INCOMPLETE,
    BACKFILL_PREFIX,
    INTERNAL_CONSUMER_PREFIXES,
    Address,
)
from jsplan.documents.base import digest
from jsplan.identity import is_clustered
from jsplan.resources import TABLES
from jsplan.resources.fields import strip_metadata
from jsplan.resources.kv_entry import VALUE

#: Fields that change nothing of which messages a stream or its readers have.
_WITHOUT_EFFECT = ("description", "metadata", "num_replicas", "placement", "storage", "compression")


@dataclass(slots=True)
class LiveObject:
    """One stream or consumer as its INFO showed it.

    `raw` is the unchanged configuration of the server; `created` RFC 3339; `state` the stream's
    `state`, or a consumer's positions and counts; `server` the `cluster` part of the answer;
    `flows` the `mirror` and `sources` of INFO. `actual_fingerprint` is the fingerprint of the real
    object, where this is an earlier version of it. `answered_at` is the server's time of the
    answer.

    An entry of a bucket has the digest of its value in `raw`, the value in `content`, the
    `created` of its bucket, and its revision and size (bytes) in `state`. An account has its JWT or
    file in `content`, its public key or name as `created`, and as revision a digest of `content`.
    """

    address: Address
    raw: dict[str, Any]
    created: str
    state: dict[str, Any]
    server: dict[str, Any] = field(default_factory=dict)
    flows: list[dict[str, Any]] = field(default_factory=list)
    actual_fingerprint: str = ""
    answered_at: str = field(default="", compare=False)
    content: bytes | None = field(default=None, repr=False, compare=False)
    _config: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    _compact: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    def with_raw(self, raw: dict[str, Any]) -> LiveObject:
        """Return the object with another configuration."""
        return dataclasses.replace(self, raw=raw, _config=None, _compact=None)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration without `_nats.*` metadata, as documents and state show it."""
        if self._config is None:
            self._config = _without_server_metadata(_without_backfill(self.raw))
        return self._config

    @property
    def compact(self) -> dict[str, Any]:
        """The compact form of the configuration (see `resources.fields`)."""
        if self._compact is None:
            if self.address.is_content:
                self._compact = self.raw
                return self._compact
            self._compact = TABLES[
                "consumer" if self.address.kind == "consumer" else "stream"
            ].compact(_without_backfill(self.raw))
        return self._compact

    @property
    def as_of(self) -> dict[str, Any]:
        """Return when the counts of a stream are true: its last sequence, and the time of that."""
        return {"last_seq": self.state.get("last_seq", 0), "time": self.state.get("last_ts")}

    @property
    def messages_at_risk(self) -> int:
        """Messages deleted with it: a stream's, or those that a consumer has not processed yet."""
        if self.address.kind == "consumer":
            return (self.state.get("num_pending") or 0) + (self.state.get("num_ack_pending") or 0)
        return int(self.state.get("messages") or 0)

    @property
    def is_ephemeral(self) -> bool:
        """True for a consumer that the server removes when it is not used any more."""
        return self.address.kind == "consumer" and not self.raw.get("durable_name")

    @property
    def is_clustered(self) -> bool:
        """True in a cluster."""
        return is_clustered(self.server)

    @property
    def peers(self) -> list[dict[str, Any]]:
        """The replicas beside the leader, or all of them while there is none; empty without one."""
        return self.server.get("replicas") or []

    @property
    def offline_peers(self) -> list[str]:
        """The names of the peers whose server is down."""
        return sorted(str(peer.get("name")) for peer in self.peers if peer.get("offline"))

    @property
    def is_stable(self) -> bool:
        """True if no cluster is moving or scaling the stream: it has a leader and all replicas.

        A replica on a server that is down does not count: the stream must be movable from there.
        """
        if not self.is_clustered:
            return True
        complete = len(self.peers) + 1 == (self.raw.get("num_replicas") or 1)
        ready = all(peer.get("current") or peer.get("offline") for peer in self.peers)
        return (
            "desired" not in self.server and bool(self.server.get("leader")) and complete and ready
        )

    @property
    def value(self) -> str:
        """The digest of the value of a content; of an account, that of its claims."""
        return str(self.raw.get(VALUE) or self.state["revision"])

    @property
    def fingerprint(self) -> str:
        """`sha256:…` of the normalised configuration, `created` and the domain.

        Of an entry it includes the revision, so that each write makes another one.
        """
        if self.address.is_content:
            config = self.raw | {name: self.state[name] for name in ("revision", "bucket")}
            return digest({"config": config, "domain": self.address.domain})
        return self.actual_fingerprint or digest(
            {"config": self.compact, "created": self.created, "domain": self.address.domain}
        )

    @property
    def flows_fingerprint(self) -> str:
        """`sha256:…` of what a stream reads, stores, deletes and republishes."""
        kept = {name: v for name, v in self.compact.items() if name not in _WITHOUT_EFFECT}
        return digest(kept)


def _without_backfill(raw: dict[str, Any]) -> dict[str, Any]:
    """Remove what a running backfill adds to a configuration. It is temporary and no drift."""
    sources = raw.get("sources")
    if not sources:
        return raw
    remaining = [source for source in sources if not source["name"].startswith(BACKFILL_PREFIX)]
    if len(remaining) == len(sources):
        return raw
    lasting = {name: value for name, value in raw.items() if name != "sources"}
    return lasting | ({"sources": remaining} if remaining else {})


def is_backfill_incomplete(config: Mapping[str, Any]) -> bool:
    """Return True for a stream of an unfinished backfill: until then it counts as absent."""
    return BACKFILL_INCOMPLETE in (config.get("metadata") or {})


def _without_server_metadata(raw: dict[str, Any]) -> dict[str, Any]:
    metadata = raw.get("metadata")
    if not metadata:
        return raw
    shown = raw.copy()
    del shown["metadata"]
    if ours := strip_metadata(metadata):
        shown["metadata"] = ours
    return shown


def get_retention(config: Mapping[str, Any]) -> str:
    """Return the retention of a stream (compact)."""
    return str(config.get("retention", "limits"))


def is_durable(name: str, config: Mapping[str, Any]) -> bool:
    """Return True for a consumer that stays until it is deleted, and is not internal."""
    passing = name.startswith(INTERNAL_CONSUMER_PREFIXES) or config.get("inactive_threshold")
    return bool(config.get("durable_name")) and not passing


def lacks_server(reason: str) -> bool:
    """Return True if an object cannot be read because no server that has it answers.

    Otherwise its server does not know a setting of it, and says `unsupported`.
    """
    return "unsupported" not in reason


def unreadable_hint(reason: str) -> str:
    """Return what to do about an object that cannot be read, by the reason of its server."""
    if not lacks_server(reason):
        return "It uses a feature that this server does not know. Upgrade the server again."
    return "No server that has it answers. Start one of them, or leave it out with --exclude."


def tier_name(replicas: int) -> str:
    """Return the tier of an account's limits for this number of replicas."""
    return f"R{replicas}"


def account_limits(info: Mapping[str, Any], replicas: int) -> Mapping[str, Any]:
    """Return the account's limits for this number of replicas, from API.INFO; empty for none."""
    tiers = info.get("tiers")
    of = (tiers.get(tier_name(replicas)) or {}) if tiers else info
    return of.get("limits") or {}


class DomainFacts(Struct):
    """One domain: whether it answered, its API level, and its server.

    `reason` says why it did not answer. `server` is `{"name", "cluster"}` as far as known;
    `version` is that of the connected server and only known when the domain is its own. `info` is
    the account's `API.INFO`. `max_payload` is the largest message that the connected server takes,
    in bytes; 0 if that is not known. `is_refused`: its account may be one that the files add.
    `has_error`: it answers with an error, such as a refused login, which no time offline excuses.
    """

    key: str
    reachable: bool
    reason: str = ""
    level: int = 0
    version: str | None = None
    server: dict[str, str] = msgspec.field(default_factory=dict)
    info: dict[str, Any] = msgspec.field(default_factory=dict)
    max_payload: int = 0
    is_refused: bool = False
    has_error: bool = False

    @property
    def short_reason(self) -> str:
        """`reason` without "domain … does not answer"."""
        reason = self.reason.removeprefix(f"domain {self.key} does not answer: ")
        return reason.removeprefix(f"domain {self.key}: ")

    @property
    def offline_text(self) -> str:
        """Text for everything in an offline domain, with the reason."""
        state = "cannot be read" if self.has_error else "is offline"
        return f"domain {self.key} {state}: {self.short_reason}"

    @property
    def streams(self) -> int:
        """Number of streams of the account; with tiers, in all of them."""
        tiers = (self.info.get("tiers") or {}).values()
        if tiers:
            return sum(int(tier.get("streams") or 0) for tier in tiers)
        return int(self.info.get("streams") or 0)

    def to_json(self) -> dict[str, Any]:
        """Return the value of `domains[key]` in a plan."""
        return {
            "reachable": self.reachable,
            "reason": self.reason or None,
            "api_level": self.level,
            "version": self.version,
            "server": self.server,
        }


class Live(Struct):
    """Everything that was requested.

    `unreadable` are objects that exist but cannot be read, with the server's reason. `unlisted` are
    domains that could not be listed although a plan needed it, with the reason. `visible_domains`
    are, by connection, the JetStream domains that its servers report, as far as they were asked.
    `requested` are the addresses that were read, whether they exist or not. `unread_replicas` are
    domains whose replicas could not be compared, with the reason.
    """

    domains: dict[str, DomainFacts] = msgspec.field(default_factory=dict)
    objects: dict[Address, LiveObject] = msgspec.field(default_factory=dict)
    unreadable: dict[Address, str] = msgspec.field(default_factory=dict)
    unlisted: dict[str, str] = msgspec.field(default_factory=dict)
    visible_domains: dict[str, list[str]] = msgspec.field(default_factory=dict)
    requested: set[Address] = msgspec.field(default_factory=set)
    unread_replicas: dict[str, str] = msgspec.field(default_factory=dict)

    def get(self, address: Address) -> LiveObject | None:
        """Return the object, or None where the server reported that there is none."""
        return self.objects.get(address)

    def with_objects(self, objects: Iterable[LiveObject]) -> Live:
        """Return the same with these objects in addition, or in place of others."""
        return replace(self, objects=self.objects | {found.address: found for found in objects})

    def merge(self, other: Live) -> Live:
        """Return both together. A domain that is in both is that of the first."""
        return replace(
            self,
            domains=other.domains | self.domains,
            objects=self.objects | other.objects,
            unreadable=self.unreadable | other.unreadable,
            unlisted=self.unlisted | other.unlisted,
            requested=self.requested | other.requested,
            unread_replicas=self.unread_replicas | other.unread_replicas,
        )

    def copy(self) -> Live:
        """Return the same in containers of its own, to read more into."""
        return self.merge(Live())

    def is_absent(self, address: Address) -> bool:
        """Return True if its domain reported that it does not exist."""
        asked = address in self.requested and self.is_reachable(address.domain)
        return asked and address not in self.objects and address not in self.unreadable

    @property
    def reachable(self) -> set[str]:
        """The domains that answered."""
        return {key for key, facts in self.domains.items() if facts.reachable}

    def is_reachable(self, domain: str) -> bool:
        """Return True if the domain answered."""
        facts = self.domains.get(domain)
        return facts is not None and facts.reachable

    def streams(self, domain: str) -> Iterable[LiveObject]:
        """Return every stream of the domain that was read."""
        return (o for a, o in self.objects.items() if a.domain == domain and a.is_stream)


def server_names(stream: LiveObject) -> dict[str, str]:
    """Return the server of a stream, and its cluster, as `DomainFacts.server` has them."""
    names = {
        "name": stream.server.get("leader"),
        "cluster": stream.server.get("name") if stream.is_clustered else None,
    }
    return {key: value for key, value in names.items() if value}
