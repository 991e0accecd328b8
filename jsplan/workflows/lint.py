"""lint: check the files, and with `ask` the servers, by the lint rules. Writes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsplan import __version__
from jsplan.address import Address
from jsplan.config import load
from jsplan.documents.lint import Lint
from jsplan.event_loop import run_until_complete
from jsplan.facts.live import Live
from jsplan.facts.measurement import UnmanagedRequest
from jsplan.facts.refresh import read_live
from jsplan.facts.unmanaged import read_unmanaged
from jsplan.jetstream import Pool
from jsplan.lint.engine import run_rules
from jsplan.lint.rules import RULES
from jsplan.lint.view import View
from jsplan.server_reader import with_parent_streams
from jsplan.topology import build_topology
from jsplan.units import count_text
from jsplan.workflows.explain import list_lint_rules
from jsplan.workflows.validate import require_valid

if TYPE_CHECKING:
    from jsplan.config.model import LoadOptions, Workspace
    from jsplan.options import Observer


def lint(options: LoadOptions, observer: Observer, *, ask: bool = False) -> Lint:
    """Run the lint rules. `ask` reads the servers, for rules that need live objects.

    Without `ask` it needs no variable of the environment that `${env.X}` names. Raises ConfigError
    for wrong files, and with `ask` ConnectError if no domain can be reached.
    """
    workspace = load(dataclasses.replace(options, files_only=not ask))
    topology = build_topology(workspace)
    known = require_valid(workspace, topology)
    live = run_until_complete(_read_live(workspace, options.environ, observer)) if ask else Live()
    report = run_rules(
        View(workspace, topology, live.objects, live.domains),
        [r for r in RULES if ask or not r.needs_live],
    )
    return Lint(
        __version__,
        workspace.name,
        workspace.environment,
        ask,
        str(workspace.root),
        sum(not address.is_content for address in workspace.resources),
        list_lint_rules(),
        [*known, *report.findings],
        report.ignored,
    )


async def _read_live(workspace: Workspace, environ: Mapping[str, str], observer: Observer) -> Live:
    """Read the declared resources, and the other streams and consumers of their domains."""
    own = [key for key, domain in workspace.domains.items() if domain.is_own]
    wanted = sorted(with_parent_streams(workspace.resources))
    observer.phase(f"Reading {count_text(len(own), 'domain')}")
    async with Pool(workspace.connections, environ, read_only=True, guarded=True) as pool:
        domains = frozenset(workspace.domains)
        live = await read_live(pool, workspace.domains, wanted, domains, own, may_refuse=domains)
        streams: dict[str, list[Address]] = {key: [] for key in own if live.is_reachable(key)}
        for address in wanted:
            if address in workspace.resources and address.is_stream and address.domain in streams:
                streams[address.domain].append(address)
        live = await read_unmanaged(
            pool,
            workspace.domains,
            [
                UnmanagedRequest(k, streams=tuple(found), all_streams=True)
                for k, found in streams.items()
            ],
            live,
        )
    for facts in live.domains.values():
        if not facts.reachable:
            observer.warn(f"{facts.offline_text}; only the files are checked for it")
    for key, reason in sorted(live.unlisted.items()):
        observer.warn(f"what else is in domain {key} cannot be listed: {reason}")
    return live
