"""domains discover: list the JetStream domains behind the connections for jsplan.yaml."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.config.load import load_connectivity
from jsplan.config.model import Domain, LoadOptions
from jsplan.diagnostics import list_known
from jsplan.errors import UsageError
from jsplan.event_loop import runs_to_end
from jsplan.facts.discover import DiscoverResult, VisibleDomain, assign_keys, find_domains
from jsplan.jetstream import Pool
from jsplan.options import Observer


@runs_to_end
async def discover_domains(
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
    out = DiscoverResult(with_system=system is not None)
    seen: list[VisibleDomain] = []
    async with Pool(connections, options.environ, read_only=True) as pool:
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
    out.domains = assign_keys(_without_other_accounts(seen, declared), declared)
    return out


def _without_other_accounts(
    seen: list[VisibleDomain], declared: Mapping[str, Domain]
) -> list[VisibleDomain]:
    """Leave out what does not answer over a connection and belongs to another one.

    Servers report their domains to each account, also to the system account and to those that have
    no JetStream there.
    """
    answering = {visible.name for visible in seen if not visible.failure}
    rows = {(domain.connection, domain.js_domain) for domain in declared.values()}
    elsewhere = answering | {name for _, name in rows}
    return [
        visible
        for visible in seen
        if not visible.failure
        or (visible.connection, visible.name) in rows
        or visible.name not in elsewhere
    ]
