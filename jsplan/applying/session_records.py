"""Writes to state what an apply says of itself: the owner, the servers, the deferred steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jsplan.applying.saved_plan import deferred_steps
from jsplan.config.model import Domain
from jsplan.documents.apply import StepResult
from jsplan.documents.plan import Plan
from jsplan.state import Backend, State
from jsplan.state.document import former_names


def record_owner(backend: Backend, state: State, plan: Plan) -> None:
    """Store the id that the steps write into metadata, before the first step."""
    owner = str(plan.options.get("owner") or "").rpartition("/")[2]
    if owner and state.ownership.get("id") != owner:
        backend.append(state, {"ownership": {"id": owner}})


def record_servers(
    backend: Backend, state: State, plan: Plan, domains: Mapping[str, Domain]
) -> None:
    """Store which server answered, and when (`seen`), for the limits of offline domains.

    Store the last sequences of its managed streams too, which show what a server loses.
    """
    for key, facts in plan.domains.items():
        domain = domains.get(key)
        if domain is None:  # no step touches it, and the files no longer declare it
            continue
        known = state.domains.get(key, {})
        server = (facts["server"] or known) | {"js_domain": domain.js_domain}
        former = [n for n in former_names(known) if n != domain.js_domain]
        server |= {"former": former} if former else {}
        server["seen"] = max(plan.timestamp if facts["reachable"] else "", known.get("seen", ""))
        if server != known and server["seen"]:
            backend.append(state, {"domain": {"key": key, "server": server}})
        if facts.get("last_seqs"):
            backend.append(state, {"last_seqs": facts["last_seqs"]})


def record_deferred(
    backend: Backend,
    state: State,
    plan: Plan,
    results: list[StepResult],
    offline: Collection[str],
) -> None:
    """Store the steps that `apply --deferred` will run, also if there are none any more."""
    deferred = deferred_steps(plan, results, offline)
    if deferred or any(entry["plan"] == plan.id for entry in state.deferred):
        backend.append(state, {"deferred": {"plan": plan.id, "steps": deferred}})
