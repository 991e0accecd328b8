"""Both sides of a copy: their APIs, the connections of tasks, and whether they are the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from jsplan.backfill.tasks.endpoints import Endpoint, export_connection
from jsplan.config.model import Backfill, Domain
from jsplan.context import Context
from jsplan.errors import JsplanError
from jsplan.identity import KnownObject, is_clustered, is_same_object
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.contexts import resolve_settings


class Endpoints(Struct):
    """The APIs of origin and target, and the connections of tasks to them."""

    origin: DomainApi
    target: DomainApi
    source_endpoint: Endpoint
    target_endpoint: Endpoint
    origin_domain_name: str

    @classmethod
    def of_domains(cls, world: Context, pool: Pool, origin: Domain, target: Domain) -> Endpoints:
        """Build endpoints; `origin_domain_name` is the name of the domain in `Jsplan-Origin`."""
        export_domains(world, (origin, target))
        return cls(
            pool.api(origin),
            pool.api(target),
            Endpoint(origin.connection, origin.api_prefix),
            Endpoint(target.connection, target.api_prefix),
            origin.js_domain or origin.key,
        )


def export_domains(world: Context, domains: Iterable[Domain]) -> None:
    """Export the connections of domains to tasks that start later."""
    for domain in domains:
        connection = world.workspace.connections[domain.connection]
        export_connection(resolve_settings(connection, world.environ), connection.declared)


def export_endpoints(world: Context, entry: Backfill) -> None:
    """Export the connections of all sides of an entry to tasks that start later."""
    sides = [side for side in (*entry.origins, entry.target) if side.parquet is None]
    export_domains(world, (world.workspace.domains[side.domain] for side in sides))


def require_same_stream(address: str, known: KnownObject, info: dict[str, Any]) -> KnownObject:
    """Return a stream as last seen. Raises JsplanError if it was recreated.

    `created` is empty before it is known.
    """
    now = str(info["created"])
    older = is_clustered(info.get("cluster") or {})
    if known.created and not is_same_object(known, now, may_be_older=older):
        raise JsplanError(
            f"{address} was recreated ({now}) after the range of this backfill was pinned. "
            "Its sequences no longer match",
            hint="Run it with --reset-range to pin the range of the new stream.",
        )
    return KnownObject(known.created or now, str(info.get("ts") or ""))
