"""The input and output of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from jsplan.address import KINDS, Address, Kind
from jsplan.config.model import Domain
from jsplan.resources.buckets import client_defaults, lower
from jsplan.resources.fields import Config
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.topology.routes import DomainRoutes


class ResourceToWrite(Struct, frozen=True):
    """One resource to write.

    `config` is in API names and units; for a bucket it is that of its stream (see
    `bucket_resource`). It may omit what the server would add, unless it is `complete`, as a server
    shows it: then nothing is added to it. An origin has `external`, or a symbolic `domain` as in
    the files. `settings` are keys besides the fields, written unchanged (`lifecycle`, `lint`,
    `depends_on`, `environments`), `comment` are lines above the entry.
    """

    address: Address
    config: Mapping[str, Any]
    complete: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    comment: tuple[str, ...] = ()


class CodegenContext(Struct, frozen=True):
    """The workspace of the new file.

    `domains` are those of the workspace in its order (for labels and selectors), `reach` the routes
    between them (without it `$JS.<key>.API` is the domain of that key). `levels` are API levels by
    domain, by default the newest; `account_infos` the answers of API.INFO. `other_streams` are
    existing streams that are not written, by address, because consumers and mirrors inherit from
    them. `existing_defaults` are the fields of `defaults:` in the workspace, by kind, and
    `extractable_kinds` the kinds for which the file may have its own `defaults:`, because nothing
    else would use them. `default_domain` is that of the workspace; if it has none and
    `may_set_default_domain` is true, the file may set one.
    """

    domains: Mapping[str, Domain]
    reach: DomainRoutes | None = None
    levels: Mapping[str, int] = field(default_factory=dict)
    account_infos: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    other_streams: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)
    existing_defaults: Mapping[Kind, Mapping[str, Any]] = field(default_factory=dict)
    extractable_kinds: frozenset[Kind] = frozenset(KINDS)
    default_domain: str | None = None
    may_set_default_domain: bool = True
    now: str = ""

    def level(self, domain: str) -> int:
        """Return the API level of the domain's server."""
        return self.levels.get(domain, NEWEST_LEVEL)


class GeneratedFile(Struct, frozen=True):
    """The text of the file, and notes on what it does not express, with addresses.

    `resource_count` is the number of resources in it.
    """

    text: str
    resource_count: int
    notes: tuple[str, ...] = ()


def bucket_resource(address: Address, fields: Mapping[str, Any], **more: Any) -> ResourceToWrite:
    """Return a KV bucket or an object store from fields of the files (`history`, `ttl`).

    They are in API units.
    """
    lowered: Config = lower(address, fields)
    return ResourceToWrite(
        address, {"name": address.stream} | client_defaults(address.kind, lowered) | lowered, **more
    )
