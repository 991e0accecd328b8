"""--wait: wait for servers that are still starting, before a command connects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from jsplan.config.load import load_connectivity
from jsplan.config.model import Connection, Domain, LoadOptions
from jsplan.errors import ConnectError, JsplanError
from jsplan.event_loop import runs_to_end
from jsplan.facts.domains import identify_domain
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.units import SECOND

#: Seconds between two attempts.
INTERVAL: Final = 0.5


@runs_to_end
async def wait_for_servers(load: LoadOptions, duration: int, observer: Observer) -> None:
    """Wait until the domains answer, at most `duration` (ns). Raises ConfigError.

    Domains with `may_be_offline` are not waited for, unless there are no others. An error that time
    does not cure, such as a refused password, ends the wait: the command reports it.
    """
    connections, domains = load_connectivity(load)
    shown = ""
    try:
        async with asyncio.timeout(duration / SECOND):
            while reason := await _find_missing(connections, domains, load.environ):
                if reason != shown:
                    observer.phase(f"Waiting: {reason}")
                shown = reason
                await asyncio.sleep(INTERVAL)
    except TimeoutError:
        return


async def _find_missing(
    connections: Mapping[str, Connection],
    domains: Mapping[str, Domain],
    environ: Mapping[str, str],
) -> str:
    """Return why the servers are not ready; an empty text if they are, or if time cures nothing."""
    own = [domain for domain in domains.values() if domain.is_own]
    wanted = [domain for domain in own if domain.may_be_offline is None] or own
    keys = dict.fromkeys(domain.connection for domain in wanted) or connections
    reasons: list[str] = []
    try:
        async with Pool(connections, environ, read_only=True, guarded=True) as pool:
            await pool.open(keys)
            for error in pool.failures.values():
                if not error.is_offline:
                    return ""
                reasons.append(str(error))
            for domain in wanted if not reasons else ():
                facts = await identify_domain(pool, domain, domains, frozenset())
                if not facts.reachable:
                    reasons.append(f"domain {domain.key}: {facts.reason}")
    except ConnectError as error:
        return str(error) if error.is_offline else ""
    except JsplanError:
        return ""
    return "; ".join(reasons)
