"""access: the exports and imports that flows between accounts need, and their status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from jsplan import __version__
from jsplan.config import load
from jsplan.config.accounts import FILES_PLACE
from jsplan.config.model import AccountFiles, LoadOptions, Workspace
from jsplan.diagnostics import Diagnostic, did_you_mean, quote_shell
from jsplan.documents.access import Access, AccountGrants, AppAccess, AppPermission, Need, Proof
from jsplan.documents.reading import read_file
from jsplan.errors import ConfigError, UsageError
from jsplan.event_loop import run_until_complete
from jsplan.facts.access import check_grants
from jsplan.jetstream import Pool
from jsplan.jetstream.contexts import resolve_accounts
from jsplan.jetstream.jwt import ACCOUNT, read_signing_key, sign_user
from jsplan.options import Observer
from jsplan.resources.account import PUBLIC_KEY
from jsplan.topology import Topology, build_topology
from jsplan.topology.access import Grant, compute_grants, describe_reload, find_account_key
from jsplan.topology.app_permissions import VERBS, AppPermissions, derive_permissions
from jsplan.topology.grant_text import (
    collect_exports,
    list_accounts,
    render_account_config,
    render_nsc_command,
    render_nsc_commands,
    render_user_config,
)
from jsplan.topology.own_users import derive_own_users

#: Bytes of an earlier document that is compared with.
MAX_DOCUMENT_BYTES: Final = 64 << 20


def access(
    options: LoadOptions,
    observer: Observer,
    *,
    ask: bool = False,
    system: str | None = None,
    prove: bool = False,
    server_version: str | None = None,
    own: bool = False,
    against: Path | None = None,
) -> Access:
    """List what flows between accounts and applications need.

    `ask` checks exports and imports on the servers, read-only. `system` is the key of a connection
    to the system account, which shows which of two accounts lacks something. `own` lists the users
    of jsplan itself too. `prove` tries the permissions of applications on embedded servers, of
    `server_version`. `against` is the file of an earlier document, with which permissions are
    compared. Raises ConfigError, also for an unknown account, ConnectError, ApiError, SandboxError,
    DocumentError for a damaged file, and UsageError for an unknown `system` or a file that is not
    there.
    """
    before = _read_before(against) if against is not None else None
    derived = _derive(options)
    workspace, accounts, needed = derived.workspace, derived.accounts, derived.grants
    if system is not None and system not in workspace.connections:
        raise UsageError(
            f'there is no connection "{system}".{did_you_mean(system, workspace.connections)}'
        )
    out = Access(__version__, workspace.name, workspace.environment, checked=ask)
    out.diagnostics = derived.diagnostics
    own_users = derive_own_users(workspace, accounts) if own else ()
    out.apps = [_build_app_access(each) for each in (*derived.permissions, *own_users)]
    if before is not None:
        out.changes = out.changes_since(before)
    out.connections = {account: key for key, account in reversed(accounts.items())}
    out.needs = [_build_need(grant) for grant in needed]
    out.accounts = [_build_account_access(name, needed) for name in list_accounts(needed)]
    if prove:
        proofs = _prove(derived, observer, server_version)
        for each in out.apps:
            each.proof = proofs.get(each.app)
    if ask:
        run_until_complete(
            _check_on_servers(workspace, options.environ, needed, out, observer, system)
        )
    return out


class _Derived(Struct, frozen=True):
    """A workspace, and what its flows and applications need between these accounts."""

    workspace: Workspace
    topology: Topology
    accounts: dict[str, str]
    grants: list[Grant]
    permissions: list[AppPermissions]
    diagnostics: list[Diagnostic]


def _derive(options: LoadOptions) -> _Derived:
    """Load a workspace, and derive what it needs. Raises ConfigError for any error in it."""
    workspace = load(options)
    topology = build_topology(workspace)
    accounts = resolve_accounts(workspace.connections, options.environ)
    grants, findings = compute_grants(workspace, topology, accounts)
    permissions, without_way = derive_permissions(workspace, topology, accounts)
    # Of accounts in the files, those of the topology are the same.
    every = [*workspace.diagnostics, *topology.diagnostics, *findings, *without_way]
    found = [each for index, each in enumerate(every) if each not in every[:index]]
    if any(d.severity == "error" for d in found):
        raise ConfigError(found)
    return _Derived(workspace, topology, accounts, grants, permissions, found)


def _prove(
    derived: _Derived, observer: Observer, server_version: str | None
) -> Mapping[str, Proof]:
    """Try the permissions of the applications. Raises SandboxError.

    Servers of an operator know accounts by their public keys, which subjects may have.
    """
    from jsplan.rehearsal.prove_access import prove_access  # noqa: PLC0415 - loads the sandbox

    workspace, topology = derived.workspace, derived.topology
    keyed = {key: find_account_key(workspace, name) for key, name in derived.accounts.items()}
    grants, _ = compute_grants(workspace, topology, keyed)
    users, _ = derive_permissions(workspace, topology, keyed)
    return run_until_complete(
        prove_access(workspace, topology, keyed, grants, users, observer, server_version)
    )


def _read_before(path: Path) -> Access:
    found = read_file(Access, path, MAX_DOCUMENT_BYTES, "Write one with: jsplan access --json")
    if found is None:
        raise UsageError(f"there is no {path}", hint="Write one with: jsplan access --json")
    return found


def sign_jwt(options: LoadOptions, name: str, key_file: Path) -> str:
    """Return the JWT of the user of an application.

    Raises ConfigError, and UsageError for an unknown application, one without `nkey`, an account
    whose public key is not known, and an unusable key file.
    """
    derived = _derive(options)
    workspace = derived.workspace
    found = next((each for each in derived.permissions if each.app.name == name), None)
    if found is None:
        more = did_you_mean(name, workspace.apps)
        raise UsageError(f'there is no application "{name}".{more}')
    if found.app.nkey is None:
        hint = "Create one with nk -gen user -pubout, and write the key that begins with U."
        raise UsageError(f"application {name} has no `nkey`", hint=hint)
    account = find_account_key(workspace, found.account or "")
    if not PUBLIC_KEY.fullmatch(account):
        raise UsageError(
            f"the public key of the account of application {name} is not known",
            hint="Write it as `account:` of the connection. It begins with A.",
        )
    publish, subscribe = ([each.text for each in found.allowed(verb)] for verb in VERBS)
    key = read_signing_key(key_file, ACCOUNT)
    if (role := found.app.role) is not None and key.public != role:
        raise UsageError(
            f"{quote_shell(key_file)} is not the key of the `role` of application {name}",
            hint=f"The account gives the permissions to users that {role} signs.",
        )
    allowed = (publish, subscribe) if role is None else None
    return sign_user(key, found.app.user, found.app.nkey, account, allowed, int(time.time()))


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
        [AppPermission(each.text, list(each.uses), each.optional) for each in found.allowed(verb)]
        for verb in VERBS
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
        in_files = [a.name for a in workspace.accounts.values() if a.key is None]
        ends = [name for name in (grant.owner, grant.user) if name in in_files]
        if need.status == "missing" and ends:
            files = workspace.domains[FILES_PLACE].accounts
            assert isinstance(files, AccountFiles)
            need.detail = f"{need.detail}; {describe_reload(files, ends)}"
