"""Opens the domains of a plan, and checks that they and their objects are as planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.applying.preconditions import find_changes
from jsplan.config.model import Domain
from jsplan.documents.plan import Plan
from jsplan.errors import ApiError, ConnectError, StalePlanError, UsageError
from jsplan.facts.domains import DuplicateServerCheck, identify_domains
from jsplan.facts.live import DomainFacts, LiveObject
from jsplan.jetstream import DomainApi, Pool
from jsplan.planning.guards import is_same_server, server_label


async def open_domains(
    pool: Pool, plan: Plan, declared: Mapping[str, Domain], known: frozenset[str]
) -> tuple[dict[str, DomainApi], dict[str, str]]:
    """Open the APIs of the plan's domains; return them, and the reasons of offline domains.

    `declared` are the domains of the files, `known` those that answered an apply before.
    """
    touched = {
        key for step in plan.steps if step.op != "state.forget" for key in step.required_domains
    }
    domains = {key: d for key, d in declared.items() if key in touched}
    if missing := sorted(touched - domains.keys()):
        raise UsageError(
            f"the plan touches domain {missing[0]}, which the files no longer declare",
            hint="Plan again.",
        )
    await pool.open(domain.connection for domain in domains.values())
    async with DuplicateServerCheck() as witnesses:
        found = await identify_domains(pool, domains.values(), declared, known, witnesses)
        await witnesses.require_single_servers()
    _require_same_servers(plan, found)
    apis = {facts.key: pool.api(domains[facts.key]) for facts in found if facts.reachable}
    if touched and not apis:
        raise _no_domain_error(found[0].reason)
    return apis, {facts.key: facts.reason for facts in found if not facts.reachable}


async def require_as_planned(
    plan: Plan, apis: dict[str, DomainApi], lost: dict[str, str]
) -> dict[Address, LiveObject]:
    """Raise StalePlanError for changed objects. Domains that are lost move to `lost`.

    Returns the objects that the plan only takes into state.
    """
    try:
        found = await find_changes(plan, apis)
    except ApiError as error:
        raise ConnectError(f"{error}. Nothing was changed", hint=error.hint) from None
    if stale := found.stale:
        names = ", ".join(stale[:10]) + (f" and {len(stale) - 10} more" if len(stale) > 10 else "")
        raise StalePlanError(
            f"no longer as planned: {names}. Nothing was changed",
            hint="Another process changed them. Plan again and look.",
        )
    for key, reason in found.lost.items():
        del apis[key]
        lost[key] = reason
    if found.lost and not apis:
        raise _no_domain_error(next(iter(found.lost.values())))
    return found.imports


def _require_same_servers(plan: Plan, found: Iterable[DomainFacts]) -> None:
    """Raise StalePlanError if a domain is on another server than when it was planned."""
    for facts in found:
        planned = (plan.domains.get(facts.key) or {}).get("server") or {}
        if not is_same_server(planned, facts.server):
            raise StalePlanError(
                f"domain {facts.key} was {server_label(planned)} when planned"
                f" and is {server_label(facts.server)} now. Nothing was changed",
                hint="Check the connection, then plan again.",
            )


def _no_domain_error(reason: str) -> ConnectError:
    return ConnectError(
        f"no domain of the plan can be reached: {reason}",
        hint="Nothing was changed. Apply it again when they are back.",
    )
