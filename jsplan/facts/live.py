"""What was read from the servers, as plain data. Reading it is left to `survey`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import (
    BACKFILL_INCOMPLETE,
    BACKFILL_PREFIX,
    BACKFILL_SOURCE,
    INTERNAL_CONSUMER_PREFIXES,
    Address,
)
from jsplan.documents.base import digest
from jsplan.resources import TABLES
from jsplan.resources.fields import strip_metadata
from jsplan.resources.nested import origin_key


@dataclass(slots=True)
class LiveObject:
    """One stream or consumer as its INFO showed it.

    `raw` is the server's configuration untouched; `created` RFC 3339; `state` the stream's `state`, or for a
    consumer its positions and counts; `server` the `cluster` part of the answer; `flows` what INFO says of a copy's
    `mirror` and `sources`. `actual_fingerprint` is the fingerprint of what is really there, where this is the object as it was before. `answered_at` is
    the server's time of the answer.
    """

    address: Address
    raw: dict[str, Any]
    created: str
    state: dict[str, Any]
    server: dict[str, Any] = field(default_factory=dict)
    flows: list[dict[str, Any]] = field(default_factory=list)
    actual_fingerprint: str = ""
    answered_at: str = field(default="", compare=False)
    _config: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    _compact: dict[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration without the server's own `_nats.*` metadata: what documents and state show."""
        if self._config is None:
            self._config = _without_server_metadata(_without_backfill(self.raw))
        return self._config

    @property
    def compact(self) -> dict[str, Any]:
        """The compact form of the configuration (see `resources.fields`)."""
        if self._compact is None:
            self._compact = TABLES[
                "consumer" if self.address.kind == "consumer" else "stream"
            ].compact(_without_backfill(self.raw))
        return self._compact

    @property
    def messages_at_risk(self) -> int:
        """What goes with it: a stream's messages, or those that a consumer has not finished."""
        if self.address.kind == "consumer":
            return (self.state.get("num_pending") or 0) + (self.state.get("num_ack_pending") or 0)
        return int(self.state.get("messages") or 0)

    @property
    def is_clustered(self) -> bool:
        """Whether it is in a cluster. A single server has no cluster's name, or its own where it is a leaf."""
        return self.server.get("name") not in (None, self.server.get("leader"))

    @property
    def is_stable(self) -> bool:
        """Whether no cluster is busy moving or scaling the stream: it has a leader and as many copies as it should.

        A copy on a server that is down is waited for by nobody: moving away from it must be possible.
        """
        if not self.is_clustered:
            return True
        others = self.server.get("replicas") or []
        complete = len(others) + 1 == (self.raw.get("num_replicas") or 1)
        ready = all(peer.get("current") or peer.get("offline") for peer in others)
        return (
            "desired" not in self.server and bool(self.server.get("leader")) and complete and ready
        )

    @property
    def fingerprint(self) -> str:
        """`sha256:…` over the normalised configuration, `created` and the domain."""
        return self.actual_fingerprint or digest(
            {"config": self.compact, "created": self.created, "domain": self.address.domain}
        )


def _without_backfill(raw: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what a backfill adds while it runs: nobody's change, and gone afterwards."""
    sources, metadata = raw.get("sources"), raw.get("metadata") or {}
    own = metadata.get(BACKFILL_SOURCE)
    if not sources or (
        own is None and not any(source["name"].startswith(BACKFILL_PREFIX) for source in sources)
    ):
        return raw
    left = [
        source
        for source in sources
        if not source["name"].startswith(BACKFILL_PREFIX) and origin_key(source) != own
    ]
    said = {name: value for name, value in metadata.items() if not name.startswith(BACKFILL_SOURCE)}
    lasting = {name: value for name, value in raw.items() if name not in ("sources", "metadata")}
    return lasting | ({"sources": left} if left else {}) | ({"metadata": said} if said else {})


def is_backfill_incomplete(config: Mapping[str, Any]) -> bool:
    """Whether a backfill makes the stream and has not finished: until then it counts as not there."""
    return BACKFILL_INCOMPLETE in (config.get("metadata") or {})


def _without_server_metadata(raw: dict[str, Any]) -> dict[str, Any]:
    metadata = raw.get("metadata")
    if not metadata:
        return raw
    ours = strip_metadata(metadata)
    shown = {name: value for name, value in raw.items() if name != "metadata"}
    return shown | {"metadata": ours} if ours else shown


def get_retention(config: Mapping[str, Any]) -> str:
    """By what a stream (compact) keeps its messages."""
    return str(config.get("retention", "limits"))


def is_durable(name: str, config: Mapping[str, Any]) -> bool:
    """Check whether a consumer stays until it is deleted, which those of servers for copies and those of jsplan do not."""
    passing = name.startswith(INTERNAL_CONSUMER_PREFIXES) or config.get("inactive_threshold")
    return bool(config.get("durable_name")) and not passing


def tier_name(copies: int) -> str:
    """The tier of an account's limits that streams and consumers with so many copies count in."""
    return f"R{copies}"


def account_limits(info: Mapping[str, Any], copies: int) -> Mapping[str, Any]:
    """The account's limits for something with so many copies, from API.INFO; empty where it has none for so many."""
    tiers = info.get("tiers")
    of = (tiers.get(tier_name(copies)) or {}) if tiers else info
    return of.get("limits") or {}


@dataclass
class DomainFacts:
    """One domain: whether it answered, at which API level, and who it is.

    `reason` says why it did not. `server` is `{"name", "cluster"}` as far as anybody said; `version` is that of
    the connected server and only known when the domain is its own. `info` is the account's `API.INFO`.
    """

    key: str
    reachable: bool
    reason: str = ""
    level: int = 0
    version: str | None = None
    server: dict[str, str] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def short_reason(self) -> str:
        """`reason` without the words that it is this domain, and that it does not answer."""
        return self.reason.removeprefix(f"domain {self.key} does not answer: ")

    @property
    def offline_text(self) -> str:
        """That it is away, and why: what is said of everything in it."""
        return f"domain {self.key} is offline: {self.short_reason}"

    @property
    def streams(self) -> int:
        """How many streams the account has there; with limits per number of copies, in all of them."""
        tiers = (self.info.get("tiers") or {}).values()
        return (
            sum(int(tier.get("streams") or 0) for tier in tiers)
            if tiers
            else int(self.info.get("streams") or 0)
        )

    def to_json(self) -> dict[str, Any]:
        """The value of `domains[key]` in a plan."""
        return {
            "reachable": self.reachable,
            "reason": self.reason or None,
            "api_level": self.level,
            "version": self.version,
            "server": self.server,
        }


@dataclass
class Live:
    """Everything that was asked for. `unreadable` are objects that exist but cannot be read, with the server's reason.

    `unlisted` are domains that did not say what else they have although a plan had to know, with the reason. `visible_domains` are, by
    connection, the JetStream domains that its servers name, as far as that was asked. `requested` are the addresses that were read, whether
    something was there or not.
    """

    domains: dict[str, DomainFacts] = field(default_factory=dict)
    objects: dict[Address, LiveObject] = field(default_factory=dict)
    unreadable: dict[Address, str] = field(default_factory=dict)
    unlisted: dict[str, str] = field(default_factory=dict)
    visible_domains: dict[str, list[str]] = field(default_factory=dict)
    requested: set[Address] = field(default_factory=set)

    def get(self, address: Address) -> LiveObject | None:
        """The object, or None where the server said that there is none."""
        return self.objects.get(address)

    def is_absent(self, address: Address) -> bool:
        """Whether its domain was asked for it and said that there is none."""
        asked = address in self.requested and self.is_reachable(address.domain)
        return asked and address not in self.objects and address not in self.unreadable

    def is_reachable(self, domain: str) -> bool:
        """Whether the domain answered."""
        facts = self.domains.get(domain)
        return facts is not None and facts.reachable

    def streams(self, domain: str) -> Iterable[LiveObject]:
        """Every stream of the domain that was read."""
        return (o for a, o in self.objects.items() if a.domain == domain and a.kind != "consumer")
