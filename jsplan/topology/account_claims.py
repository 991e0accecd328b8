"""The exports, imports and roles of accounts, by flows and applications of the files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
)
from jsplan.resources.fields import Config
from jsplan.topology.access import Grant, compute_grants
from jsplan.topology.app_permissions import AppPermissions, derive_permissions
from jsplan.topology.grant_text import (
    list_exports,
    list_imports,
    list_permissions,
)
from jsplan.topology.resolve import Topology

_HOW: Final = "Write its public key as `account:` of the connection, or its name in `accounts:`."


def resolve_account_bodies(workspace: Workspace, topology: Topology) -> None:
    """Add the bodies of the accounts in the files to the topology, and findings about them."""
    names = {each.key: each.name for each in workspace.accounts.values() if each.key is not None}
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
        topology.diagnostics += _check_owners(address, account, grants, workspace.accounts.values())


def _build_body(
    account: Account, grants: Sequence[Grant], permissions: Iterable[AppPermissions]
) -> Config:
    in_file = account.key is None
    # Those of an operator are public: any of its accounts may import them.
    exports = (
        each if in_file else each._replace(importer=None)
        for each in list_exports(account.name, grants)
    )
    body: Config = {
        "name": account.name,
        EXPORTS: list(dict.fromkeys(each.line for each in exports)),
        IMPORTS: [each.line for each in list_imports(account.name, grants)],
        ROLES: [
            line
            for each in permissions
            if each.account == account.name and (in_file or each.app.role is not None)
            for line in list_permissions(each, None if in_file else each.app.role)
        ],
    }
    return body | ({JETSTREAM: dict(account.jetstream)} if account.jetstream is not None else {})


def _check_owners(
    address: Address, account: Account, grants: Iterable[Grant], accounts: Iterable[Account]
) -> Iterable[Diagnostic]:
    """Yield an error for each account beside this one that its servers do not know."""
    keys = {each.name: each.key for each in accounts}
    owners = {grant.owner for grant in grants if grant.user == account.name}
    for owner in sorted(owners):
        key = keys.get(owner, owner if PUBLIC_KEY.fullmatch(owner) else None)
        if (key is None) == (account.key is None):
            continue
        text, how = f"imports from account {owner}, whose public key is not known", _HOW
        if account.key is None:
            text = f"is in a file, and imports from account {owner} of an operator"
            how = "Servers have accounts of an operator or in their configuration, not both."
        yield Diagnostic("error", "JS455", text, how, str(address), account.range)
    users = {grant.user for grant in grants if grant.owner == account.name}
    for name in sorted(each for each in owners | users if " " in each):
        text = f'shares subjects with account "{name}", whose name has a blank'
        how = "Rename it, or leave this account out and print its block with: jsplan access"
        yield Diagnostic("error", "JS131", text, how, str(address), account.range)
