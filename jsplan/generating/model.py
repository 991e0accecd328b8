"""What goes into this room and what comes out of it. How it is written down is left to the other modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import KINDS, Address, Kind
from jsplan.config.model import Domain
from jsplan.resources.buckets import lower, made
from jsplan.resources.fields import NEWEST, Config
from jsplan.topology.reach import Reach


@dataclass(frozen=True, slots=True)
class Found:
    """One resource that is to be written.

    `config` is in API names and units; for a bucket it is that of its stream (`bucket` makes it of words). It may leave out what
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
class Surroundings:
    """Where the file will stand.

    `domains` are those of the workspace in its order (labels and selectors are taken from them), `reach` the ways between them
    (without it `$JS.<key>.API` is the domain of that key). `levels` are API levels by domain, the newest where none is given;
    `infos` what API.INFO says of the account there. `others` are streams that are there and are not written, by address: what
    they decide about consumers and mirrors. `standing` are the fields of `defaults:` that the workspace has already, by kind, and
    `factor` the kinds for which the file may have `defaults:` of its own, because nothing else would take them. `default_domain`
    is that of the workspace; where it has none and `factor_domain` is true, the file may say one.
    """

    domains: Mapping[str, Domain]
    reach: Reach | None = None
    levels: Mapping[str, int] = field(default_factory=dict)
    infos: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    others: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)
    standing: Mapping[Kind, Mapping[str, Any]] = field(default_factory=dict)
    factor: frozenset[Kind] = frozenset(KINDS)
    default_domain: str | None = None
    factor_domain: bool = True
    now: str = ""

    def level(self, domain: str) -> int:
        """The API level of the domain's server."""
        return self.levels.get(domain, NEWEST)


@dataclass(frozen=True, slots=True)
class Written:
    """The text of the file, and what it does not say: sentences that name the address. `resources` are those that are in it."""

    text: str
    resources: int
    notes: tuple[str, ...] = ()


def bucket(address: Address, words: Mapping[str, Any], **more: Any) -> Found:
    """A KV bucket or an object store that is given in the words of the grammar (`history`, `ttl`), in API units."""
    lowered: Config = lower(address, words)
    return Found(address, {"name": address.stream} | made(address.kind, lowered) | lowered, **more)
