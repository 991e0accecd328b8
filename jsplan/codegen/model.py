"""What goes into this room and what comes out of it. How it is written down is left to the other modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import KINDS, Address, Kind
from jsplan.config.model import Domain
from jsplan.resources.buckets import client_defaults, lower
from jsplan.resources.fields import NEWEST_LEVEL, Config
from jsplan.topology.routes import DomainRoutes


@dataclass(frozen=True, slots=True)
class ResourceToWrite:
    """One resource that is to be written.

    `config` is in API names and units; for a bucket it is that of its stream (`bucket_resource` makes it of words). It may leave out what
    the server would add, unless it is `complete`, as a server shows it: then nothing is added to it. An origin has `external`, or
    a symbolic `domain` as in the files. `settings` are keys beside the fields that are written as they are (`lifecycle`, `lint`,
    `depends_on`, `environments`), `comment` are lines above the entry.
    """

    address: Address
    config: Mapping[str, Any]
    complete: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    comment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CodegenContext:
    """Where the file will stand.

    `domains` are those of the workspace in its order (labels and selectors are taken from them), `reach` the ways between them
    (without it `$JS.<key>.API` is the domain of that key). `levels` are API levels by domain, the newest where none is given;
    `account_infos` what API.INFO says of the account there. `other_streams` are streams that are there and are not written, by address: what
    they decide about consumers and mirrors. `existing_defaults` are the fields of `defaults:` that the workspace has already, by kind, and
    `extractable_kinds` the kinds for which the file may have `defaults:` of its own, because nothing else would take them. `default_domain`
    is that of the workspace; where it has none and `may_set_default_domain` is true, the file may say one.
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
        """The API level of the domain's server."""
        return self.levels.get(domain, NEWEST_LEVEL)


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """The text of the file, and what it does not say: sentences that name the address. `resource_count` are those that are in it."""

    text: str
    resource_count: int
    notes: tuple[str, ...] = ()


def bucket_resource(address: Address, fields: Mapping[str, Any], **more: Any) -> ResourceToWrite:
    """A KV bucket or an object store that is given in the words of the grammar (`history`, `ttl`), in API units."""
    lowered: Config = lower(address, fields)
    return ResourceToWrite(
        address, {"name": address.stream} | client_defaults(address.kind, lowered) | lowered, **more
    )
