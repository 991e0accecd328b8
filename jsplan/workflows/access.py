"""access: the exports and imports that flows between accounts need, and their status."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan import __version__
from jsplan.config import load
from jsplan.config.model import LoadOptions, Workspace
from jsplan.diagnostics import did_you_mean
from jsplan.documents.access import Access, AccountGrants, AppAccess, AppPermission, Need
from jsplan.errors import ConfigError, UsageError
from jsplan.event_loop import run_until_complete
from jsplan.facts.access import check_grants
from jsplan.jetstream import Pool
from jsplan.jetstream.accounts import resolve_accounts
from jsplan.options import Observer
from jsplan.topology import build_topology
from jsplan.topology.access import Grant, compute_grants
from jsplan.topology.app_permissions import AppPermissions, derive_permissions
from jsplan.topology.grant_text import (
    collect_exports,
    list_accounts,
    render_account_config,
    render_nsc_commands,
)
from jsplan.topology.permission_text import render_nsc_command, render_user_config


def access(
    options: LoadOptions,
    observer: Observer,
    *,
    ask: bool = False,
    system: str | None = None,
    prove: bool = False,
    server_version: str | None = None,
) -> Access:
    """List what flows between accounts and applications need.

    `ask` checks exports and imports on the servers, read-only. `system` is the key of a connection
    to the system account, which shows which of two accounts lacks something. `prove` tries the
    permissions of applications on embedded servers, of `server_version`. Raises ConfigError, also
    for an unknown account, ConnectError, ApiError, SandboxError, and UsageError for an unknown
    `system`.
    """
    workspace = load(options)
    if system is not None and system not in workspace.connections:
        raise UsageError(
            f'there is no connection "{system}".{did_you_mean(system, workspace.connections)}'
        )
    topology = build_topology(workspace)
    accounts = resolve_accounts(workspace.connections, options.environ)
    needed, found = compute_grants(workspace, topology, accounts)
    found = [*workspace.diagnostics, *topology.diagnostics, *found]
    if any(d.severity == "error" for d in found):
        raise ConfigError(found)
    out = Access(__version__, workspace.name, workspace.environment, checked=ask, diagnostics=found)
    permissions, without_way = derive_permissions(workspace, topology, accounts)
    if without_way:
        raise ConfigError([*found, *without_way])
    out.apps = [_build_app_access(each) for each in permissions]
    out.connections = {account: key for key, account in reversed(accounts.items())}
    out.needs = [_build_need(grant) for grant in needed]
    out.accounts = [_build_account_access(name, needed) for name in list_accounts(needed)]
    if prove:
        from jsplan.rehearsal.prove_access import prove_access  # noqa: PLC0415 - loads the sandbox

        proofs = run_until_complete(
            prove_access(
                workspace, topology, accounts, needed, permissions, observer, server_version
            )
        )
        for each in out.apps:
            each.proof = proofs[each.app]
    if ask:
        run_until_complete(
            _check_on_servers(workspace, options.environ, needed, out, observer, system)
        )
    return out


def _build_need(grant: Grant) -> Need:
    response = "stream" if grant.streams_responses else None
    return Need(
        grant.owner,
        grant.user,
        grant.kind,
        grant.subject,
        grant.local_subject,
        response,
        list(grant.flows),
        optional=grant.optional,
    )


def _build_app_access(found: AppPermissions) -> AppAccess:
    app = found.app
    publish, subscribe = (
        [
            AppPermission(each.text, list(each.uses), each.optional)
            for each in found.permissions
            if each.verb == verb
        ]
        for verb in ("publish", "subscribe")
    )
    return AppAccess(
        app.name,
        app.domain,
        found.account,
        app.user,
        app.client,
        found.inbox,
        publish,
        subscribe,
        found.escapes,
        render_user_config(found),
        render_nsc_command(found),
    )


def _build_account_access(name: str, needed: list[Grant]) -> AccountGrants:
    taken = [
        {"type": g.kind, "account": g.owner, "subject": g.subject, "local_subject": g.local_subject}
        | ({"optional": True} if g.optional else {})
        for g in needed
        if g.user == name
    ]
    return AccountGrants(
        name,
        [e.to_json() for e in collect_exports(name, needed)],
        taken,
        render_account_config(name, needed),
        render_nsc_commands(name, needed),
    )


async def _check_on_servers(
    workspace: Workspace,
    environ: Mapping[str, str],
    needed: list[Grant],
    out: Access,
    observer: Observer,
    system: str | None,
) -> None:
    wanted = {
        workspace.domains[key].connection
        for grant in needed
        for key in (grant.owner_domain, grant.user_domain)
    }
    observer.phase(f"Trying {len(needed)} subjects between {len(out.accounts)} accounts")
    async with Pool(workspace.connections, environ, read_only=True) as pool:
        await pool.open([*sorted(wanted), *([system] if system else [])])
        found = await check_grants(pool, workspace.domains, needed, system)
    for need, grant in zip(out.needs, needed, strict=True):
        need.status, need.detail = found[grant].status, found[grant].detail
