"""`accounts:` as resources: of an operator, and in files of the servers' configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import (
    NO_CONNECTION,
    Account,
    AccountFiles,
    App,
    Connection,
    DeclaredResource,
    Domain,
    Operator,
)
from jsplan.config.node import Node, source_range
from jsplan.config.sections import FILE, Reading, Values
from jsplan.config.tables.accounts import ACCOUNT
from jsplan.disk import leads_out
from jsplan.resources.account import mark_of

#: The prefix of the requests about accounts.
CLAIMS_PREFIX: Final = "$SYS.REQ"
#: The place of the accounts in files.
FILES_PLACE: Final = "static"


def read_accounts(
    document: Node,
    workspace: str,
    connections: Mapping[str, Connection],
    domains: Mapping[str, Domain],
    root: Path,
    scope: Scope,
    findings: Findings,
) -> tuple[dict[str, Domain], dict[Address, Account]]:
    """Read the accounts by address, and the places with the keys of those of operators."""
    folder = _read_folder(document.get("account_files"), root, scope, findings)
    places = _list_places(workspace, connections, domains, root, folder, findings)
    found: dict[Address, Account] = {}
    for node, values in _read_entries(document.get("accounts"), scope, findings):
        place = _choose_place(node, values, places, findings)
        if place is None:
            continue
        address = Address(place, "account", values["name"])
        keys = {each.key for each in found.values()} - {None}
        if address in found or values["key"] in keys:
            text = f"account {values['name']} is declared twice"
            findings.error("JS110", node, text, "Keep one entry for each name and key.")
        found[address] = Account(
            values["name"], values["key"], source_range(node.place), values["jetstream"]
        )
    return {key: _with_keys(place, found) for key, place in places.items()}, found


def _read_folder(section: Node | None, root: Path, scope: Scope, findings: Findings) -> Path | None:
    """Read `account_files`, which must be in the workspace."""
    if section is None:
        return None
    node = interpolate(section, scope, findings)
    if (read := FILE.read(node, "`account_files`", Reading(findings))) is None:
        return None
    folder = Path(os.path.normpath(read))
    if folder.is_relative_to(os.path.normpath(root)) and not leads_out(folder, root):
        return folder
    text = "`account_files` leads out of the folder of the workspace"
    findings.error("JS100", node, text, "Name a folder below that of jsplan.yaml.")
    return None


def _list_places(
    workspace: str,
    connections: Mapping[str, Connection],
    domains: Mapping[str, Domain],
    root: Path,
    folder: Path | None,
    findings: Findings,
) -> dict[str, Domain]:
    """Return the places that accounts can be in, by key: operators, and the folder of files.

    A place has no need of accounts: those that left the files are deleted there.
    """
    found: dict[str, Domain] = {}
    for key, each in connections.items():
        if each.operator_key is not None:
            operator = Operator({}, mark_of(workspace))
            place = Domain(key, key, None, CLAIMS_PREFIX, range=each.range, accounts=operator)
            found[key] = place
            if key in domains:
                text = f"{key} is the name of a domain, and of a connection with `operator_key`"
                findings.error("JS110", each.range, text, "Rename the connection.")
    if folder is None:
        return found
    for key in {FILES_PLACE} & (domains.keys() | found.keys()):
        text = f"{key} is the name of a domain or operator, and with `account_files` of its place"
        findings.error("JS110", {**domains, **found}[key].range, text, "Rename the other one.")
    users: dict[str, tuple[str, ...]] = {}
    for domain in domains.values():
        if (name := connections[domain.connection].account) is not None:
            users[name] = (*users.get(name, ()), domain.key)
    files = AccountFiles(folder, root, workspace, users)
    return found | {FILES_PLACE: Domain(FILES_PLACE, NO_CONNECTION, None, "", accounts=files)}


def _read_entries(
    section: Node | None, scope: Scope, findings: Findings
) -> Iterator[tuple[Node, Values]]:
    for written in parsing.read_list(section, "`accounts`", findings):
        node = interpolate(written, scope, findings)
        values = ACCOUNT.read(node, Reading(findings))
        # What has a finding is None, as is what is left out.
        if values is None or not values["name"] or (node.get("key") and not values["key"]):
            continue
        yield node, values


def _with_keys(place: Domain, accounts: Mapping[Address, Account]) -> Domain:
    if not isinstance(place.accounts, Operator):
        return place
    keys = {a.name: each.key for a, each in accounts.items() if a.domain == place.key and each.key}
    return replace(place, accounts=replace(place.accounts, keys=keys))


def _choose_place(
    node: Node, values: Values, places: Mapping[str, Domain], findings: Findings
) -> str | None:
    """Return the place of an account, or report that there is none."""
    named, name = values["connection"], values["name"]
    if values["key"] is None:
        if FILES_PLACE not in places:
            text = f"account {name} has no `key`, and the workspace no `account_files`"
            detail = "Write the public key of an account of an operator, or a folder for files."
            findings.error("JS106", node, text, detail)
            return None
        for key in ("connection", "jetstream"):
            if values[key] is not None:
                text = f"account {name} is in a file, and has `{key}`"
                detail = "Write it into the configuration of the servers, or add `key`."
                findings.error("JS105", node.get(key), text, detail)
        return FILES_PLACE
    operators = [key for key, place in places.items() if isinstance(place.accounts, Operator)]
    if named is None and len(operators) == 1:
        return operators[0]
    if named in operators:
        return str(named)
    text = f"account {name} names no connection with `operator_key`"
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
