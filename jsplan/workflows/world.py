"""Loading the three sides of a comparison: files, state, servers. The first steps of nearly every workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from jsplan.address import Address, matches
from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.diagnostics import Diagnostic, did_you_mean
from jsplan.errors import ConnectError, PlanError
from jsplan.facts.live import Live
from jsplan.facts.measure import measure_all
from jsplan.facts.survey import survey
from jsplan.jetstream import Pool
from jsplan.planning.build import candidates
from jsplan.planning.inputs import Inputs, Request, rename, rename_pending, select
from jsplan.planning.questions import questions
from jsplan.planning.recovered import recover
from jsplan.planning.verdict import Verdict
from jsplan.state import LocalBackend, State, backend_of
from jsplan.topology import Topology, resolve
from jsplan.workflows.options import Observer, PlanOptions


@dataclass(slots=True)
class World:
    """What is known before anything was asked of a server."""

    workspace: Workspace
    topology: Topology
    backend: LocalBackend
    state: State
    environ: Mapping[str, str]


def load_world(options: LoadOptions) -> World:
    """Read files and state. Raises ConfigError and StateError."""
    workspace = load(options)
    backend = backend_of(workspace)
    return World(workspace, resolve(workspace), backend, backend.read(), options.environ)


def known_domains(world: World) -> frozenset[str]:
    """Domains that answered an apply under the JetStream name they still have in the files: such a one may be away.

    One whose name was changed since is new: if it does not answer, the name may simply be wrong.
    """
    declared = world.workspace.domains
    return frozenset(k for k, server in world.state.domains.items() if k in declared and server.get("js_domain") == declared[k].js_domain)


def request_of(options: PlanOptions) -> Request:
    """The planning options as planning takes them."""
    return Request(
        now=datetime.now(UTC), targets=options.targets, excludes=options.excludes, replace=options.replace, imports=options.imports,
        refresh_only=options.refresh_only, destroy=options.destroy, allow_hazards=options.allow_hazards,
        safe_below=options.safe_below, measure_limit=options.measure_limit, adopt=options.adopt, offline=options.offline,
    )  # fmt: skip


def inputs_of(world: World, request: Request) -> Inputs:
    """The desired and last applied sides, and what is to be planned; the live side is still empty."""
    entries, moved = rename(world.workspace, world.state.resources)
    pending, pending_moved = rename_pending(world.workspace, world.state.pending)
    inputs = Inputs(world.workspace, world.topology, world.state, Live(), request, entries, pending_moved | moved, pending=pending)
    inputs.selected = select(inputs, candidates(inputs))
    return inputs


def open_pool(world: World, *, read_only: bool) -> Pool:
    """The connections of the workspace; nothing is connected yet."""
    return Pool(world.workspace.connections, world.environ, read_only=read_only)


async def refresh(world: World, inputs: Inputs, pool: Pool, options: PlanOptions, observer: Observer) -> None:
    """Fill in the live side of everything selected. Raises ConnectError when a domain is away and must not be."""
    wanted = with_streams(inputs.selected | _consumers_of(inputs) | _origins_of(inputs))
    count = len({address.domain for address in wanted})
    observer.phase(f"Reading {len(wanted):,} objects in {count} domain{'' if count == 1 else 's'}")
    inputs.live = await survey(pool, world.workspace.domains, wanted, known_domains(world))
    recover(inputs)
    away = [facts for facts in inputs.live.domains.values() if not facts.reachable]
    if away and options.offline == "fail":
        raise ConnectError(
            f"domain {away[0].key} is away: {away[0].reason}", hint="Without --offline fail its resources would be deferred."
        )


async def measure(world: World, inputs: Inputs, verdicts: dict[Address, Verdict], pool: Pool, observer: Observer) -> None:
    """Count what the changes would make the servers delete. Reads only what planning asks about, and so much as it may."""
    asked = questions(inputs, verdicts)
    if asked:
        observer.phase(f"Measuring what {len(asked):,} change{'' if len(asked) == 1 else 's'} may delete")
        levels = {key: facts.level for key, facts in inputs.live.domains.items()}
        inputs.measured = await measure_all(pool, world.workspace.domains, asked, levels, inputs.request.measure_limit)


def _consumers_of(inputs: Inputs) -> set[Address]:
    """Consumers that were left out while their stream was not: they go with it when it goes."""
    return {address for address in candidates(inputs) - inputs.selected if address.parent in inputs.selected}


def _origins_of(inputs: Inputs) -> set[Address]:
    """Streams that are copied inside their own domain: what they are decides something about the copy."""
    edges = inputs.topology.edges
    return {edge.origin for edge in edges if edge.copy in inputs.selected and edge.origin.domain == edge.copy.domain}


def with_streams(addresses: Iterable[Address]) -> list[Address]:
    """The addresses and the streams of their consumers, in order."""
    found = set(addresses)
    return sorted(found | {a.parent for a in found if a.parent is not None})


def require_known(inputs: Inputs, globs: Iterable[str], option: str) -> None:
    """Raise PlanError for a glob that names nothing, since a typing error must not pass for "nothing to do"."""
    known = candidates(inputs)
    found = [
        Diagnostic(
            "error", "JS417", f"{option} {glob} names nothing in the files or in state", f"{did_you_mean(glob, map(str, known))}".strip()
        )
        for glob in globs
        if not any(matches(glob, address) for address in known)
    ]
    if found:
        raise PlanError(found, found[0].summary)
