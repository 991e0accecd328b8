"""domains discover: list the JetStream domains behind the connections for jsplan.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.config.connections import NAME_PATTERN
from jsplan.config.load import load_connectivity
from jsplan.config.model import Connection, Domain, LoadOptions
from jsplan.diagnostics import list_known
from jsplan.errors import UsageError
from jsplan.event_loop import run_until_complete
from jsplan.facts.discover import VisibleDomain, find_domains
from jsplan.jetstream import Pool
from jsplan.options import Observer


@dataclass(slots=True)
class ProposedDomain:
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


@dataclass(slots=True)
class DiscoverResult:
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


def discover_domains(
    options: LoadOptions,
    observer: Observer,
    *,
    connection: str | None = None,
    system: str | None = None,
) -> DiscoverResult:
    """Ask the servers behind one or each connection. `system` is one to the system account.

    Raises ConfigError, UsageError for an unknown connection, ConnectError when none can be opened,
    and ApiError.
    """
    connections, declared = load_connectivity(options)
    for key in (connection, system):
        if key is not None and key not in connections:
            raise UsageError(
                f'there is no connection "{key}". {list_known("connections", connections, key)}'
            )
    selected = [connection] if connection else [key for key in connections if key != system]
    return run_until_complete(
        _discover(connections, declared, options.environ, selected, system, observer)
    )


async def _discover(
    connections: Mapping[str, Connection],
    declared: Mapping[str, Domain],
    environ: Mapping[str, str],
    selected: list[str],
    system: str | None,
    observer: Observer,
) -> DiscoverResult:
    out = DiscoverResult(with_system=system is not None)
    seen: list[VisibleDomain] = []
    async with Pool(connections, environ, read_only=True) as pool:
        observer.phase(f"Asking the servers behind {', '.join(selected)}")
        await pool.open([*selected, *([system] if system else [])])
        if system is not None and system in pool.failures:
            raise pool.failures[system]
        for key in selected:
            if key in pool.failures:
                out.failures[key] = str(pool.failures[key])
            else:
                seen += await find_domains(
                    pool.connections[key], pool.connections[system] if system else None
                )
        if out.failures and not seen:
            raise pool.failures[next(iter(out.failures))]
    out.domains = _assign_keys(seen, declared)
    return out


def _assign_keys(
    found: Iterable[VisibleDomain], declared: Mapping[str, Domain]
) -> list[ProposedDomain]:
    """Assign keys: that of the files, else the domain's name, else that with its connection."""
    known = {(d.connection, d.js_domain): key for key, d in declared.items() if d.same_as is None}
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
