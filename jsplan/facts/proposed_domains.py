"""Proposes keys for the domains that servers have, for jsplan.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from jsplan.config.connections import NAME_PATTERN
from jsplan.config.model import Domain
from jsplan.facts.discover import VisibleDomain


class ProposedDomain(Struct):
    """One domain with its key in the files, or a proposed one; `declared` if in the files."""

    key: str
    visible: VisibleDomain
    declared: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return an element of `domains`."""
        seen = self.visible
        return {
            "key": self.key,
            "connection": seen.connection,
            "js_domain": seen.name,
            "api_prefix": seen.prefix,
            "declared": self.declared,
            "reachable": not seen.failure,
            "reason": seen.failure or None,
            "streams": seen.streams,
            "api_level": seen.level,
            "servers": [
                {"name": name, "version": version} for name, version in sorted(seen.servers.items())
            ],
            "seen_by": seen.reported_by,
        }


class DiscoverResult(Struct):
    """The domains behind all connections; `failures` by key of connections that did not open."""

    domains: list[ProposedDomain] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    with_system: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the document, as `--json` prints it."""
        return {
            "format_version": "1.0",
            "kind": "domains",
            "with_system_account": self.with_system,
            "domains": [domain.to_json() for domain in self.domains],
            "failures": self.failures,
        }


def assign_keys(
    found: Iterable[VisibleDomain], declared: Mapping[str, Domain]
) -> list[ProposedDomain]:
    """Assign keys: that of the files, else the domain's name, else that with its connection."""
    known = {(d.connection, d.js_domain): key for key, d in declared.items() if d.is_own}
    taken, out = set(declared), []
    for seen in found:
        key = known.get((seen.connection, seen.name))
        if key is not None:
            out.append(ProposedDomain(key, seen, declared=True))
            continue
        plain = re.sub(r"[^A-Za-z0-9_-]", "-", seen.name or seen.connection)
        plain = plain if NAME_PATTERN.fullmatch(plain) else f"d{plain}"
        choices = (
            plain,
            f"{plain}-{seen.connection}",
            *(f"{plain}-{number}" for number in range(2, 1000)),
        )
        key = next(choice for choice in choices if choice not in taken)
        taken.add(key)
        out.append(ProposedDomain(key, seen))
    return out
