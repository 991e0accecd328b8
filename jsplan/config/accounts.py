"""`accounts:` as resources: the accounts of an operator."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.address import Address
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Account, App, Connection, DeclaredResource, Domain, Operator
from jsplan.config.node import Node, source_range
from jsplan.config.sections import Reading, Values
from jsplan.config.tables.accounts import ACCOUNT
from jsplan.resources.account import mark_of

#: The prefix of the requests about accounts.
CLAIMS_PREFIX = "$SYS.REQ"


def read_accounts(
    section: Node | None,
    workspace: str,
    connections: Mapping[str, Connection],
    domains: Mapping[str, Domain],
    scope: Scope,
    findings: Findings,
) -> tuple[dict[str, Domain], dict[Address, Account]]:
    """Read the accounts by address, and the place of the accounts of each operator by its key.

    An operator has a place without accounts too: those that left the files are deleted there.
    """
    keys: dict[str, dict[str, str]] = {
        key: {} for key, each in connections.items() if each.operator_key is not None
    }
    for key in keys.keys() & domains.keys():
        text = f"{key} is the name of a domain, and of a connection with `operator_key`"
        findings.error("JS110", section, text, "Rename the connection.")
    found: dict[Address, Account] = {}
    for written in parsing.read_list(section, "`accounts`", findings):
        node = interpolate(written, scope, findings)
        values = ACCOUNT.read(node, Reading(findings))
        if values is None or not values["name"] or not values["key"]:
            continue
        operator = _choose_operator(node, values, keys, findings)
        if operator is None:
            continue
        address = Address(operator, "account", values["name"])
        if address in found or values["key"] in keys[operator].values():
            text = f"account {values['name']} is declared twice"
            findings.error("JS110", node, text, "Keep one entry for each name and key.")
        account = Account(
            values["name"], values["key"], source_range(node.place), values["jetstream"]
        )
        found[address] = account
        keys[operator][account.name] = account.key
    mark = mark_of(workspace)
    return {
        key: Domain(
            key,
            key,
            None,
            CLAIMS_PREFIX,
            range=connections[key].range,
            operator=Operator(accounts, mark),
        )
        for key, accounts in keys.items()
    }, found


def _choose_operator(
    node: Node, values: Values, operators: Mapping[str, Mapping[str, str]], findings: Findings
) -> str | None:
    """Return the connection of the operator of an account, or report that there is none."""
    named = values["connection"]
    if named is None and len(operators) == 1:
        return next(iter(operators))
    if named in operators:
        return str(named)
    text = f"account {values['name']} names no connection with `operator_key`"
    detail = "Give `operator_key` to a connection to the system account, and name it here."
    findings.error("JS106", node, text, detail)
    return None


def declare_accounts(accounts: Mapping[Address, Account]) -> dict[Address, DeclaredResource]:
    """Return the accounts as resources. Their bodies follow from flows and applications."""
    return {
        address: DeclaredResource(address, {"name": account.name}, account.range)
        for address, account in accounts.items()
    }


def check_roles(apps: Mapping[str, App], findings: Findings) -> None:
    """Report signing keys that several applications name: a key has one role."""
    taken: dict[str, str] = {}
    for name, app in apps.items():
        if app.role is not None and taken.setdefault(app.role, name) != name:
            text = f"applications {taken[app.role]} and {name} have the same `role`"
            findings.error("JS110", app.range, text, "Give each a scoped signing key of its own.")
