"""The exports, imports and roles of accounts, by flows and applications of the files. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from jsplan.address import Address
from jsplan.config.model import Account, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.resources.account import (
    EXPORTS,
    IMPORTS,
    JETSTREAM,
    PUBLIC_KEY,
    ROLES,
    export_line,
    import_line,
    role_lines,
)
from jsplan.resources.fields import Config
from jsplan.topology.access import Grant, compute_grants
from jsplan.topology.app_permissions import AppPermissions, derive_permissions
from jsplan.topology.grant_text import collect_exports
from jsplan.topology.resolve import Topology

_HOW: Final = "Write its public key as `account:` of the connection, or its name in `accounts:`."


def resolve_account_bodies(workspace: Workspace, topology: Topology) -> None:
    """Add the bodies of the accounts in the files to the topology, and findings about them."""
    names = {account.key: account.name for account in workspace.accounts.values()}
    found = {
        key: names.get(each.account, each.account)
        for key, each in workspace.connections.items()
        if each.account is not None
    }
    grants, findings = compute_grants(workspace, topology, found)
    permissions, without_way = derive_permissions(workspace, topology, found)
    topology.diagnostics += [*findings, *without_way]
    for address, account in workspace.accounts.items():
        declared = workspace.resources.get(address)
        if declared is None or len(declared.body) > 1:  # as it was, in a revert
            continue
        topology.bodies[address] = _build_body(account, grants, permissions)
        topology.diagnostics += _check_owners(address, account, grants, names.values())


def _build_body(
    account: Account, grants: Iterable[Grant], permissions: Iterable[AppPermissions]
) -> Config:
    taken = [grant for grant in grants if grant.user == account.name]
    body: Config = {
        "name": account.name,
        EXPORTS: [
            export_line(each.kind, each.subject, many=each.streamed, token=each.token_position)
            for each in collect_exports(account.name, grants)
        ],
        IMPORTS: [
            import_line(each.kind, each.subject, each.owner, each.local_subject) for each in taken
        ],
        ROLES: [
            line
            for each in permissions
            if each.account == account.name and each.app.role is not None
            for line in role_lines(
                each.app.name,
                each.app.role,
                [one.text for one in each.allowed("publish")],
                [one.text for one in each.allowed("subscribe")],
            )
        ],
    }
    return body | ({JETSTREAM: dict(account.jetstream)} if account.jetstream is not None else {})


def _check_owners(
    address: Address, account: Account, grants: Iterable[Grant], names: Collection[str]
) -> Iterable[Diagnostic]:
    """Yield an error for each account that this one imports from without a known public key."""
    owners = {grant.owner for grant in grants if grant.user == account.name}
    for owner in sorted(owners.difference(names)):
        if not PUBLIC_KEY.fullmatch(owner):
            text = f"imports from account {owner}, whose public key is not known"
            yield Diagnostic("error", "JS451", text, _HOW, str(address), account.range)
