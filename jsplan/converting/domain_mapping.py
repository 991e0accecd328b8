"""Maps the connections and domains of another tool to those of the workspace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from jsplan.config.model import Domain, Workspace
from jsplan.converting.model import DEFAULT_CONNECTION, Conversion, ConvertTarget, Owner
from jsplan.diagnostics import list_known
from jsplan.errors import UsageError

_DOMAIN_API: Final = re.compile(r"\$JS\.([^.]+)\.API")


class DomainMapping(Struct):
    """The domain key for each owner. `sections` are those of a new workspace, else empty."""

    keys: dict[Owner, str]
    domains: Mapping[str, Domain]
    sections: dict[str, Any] = field(default_factory=dict)
    workspace: Workspace | None = None


def map_to_new_workspace(target: ConvertTarget, conversion: Conversion) -> DomainMapping:
    """Map to a new workspace with all connections and named domains of the other tool."""
    keys: dict[Owner, str] = {}
    domains: dict[str, Domain] = {}
    declared: dict[str, Any] = {}
    for owner in _list_owners(conversion):
        key, name = _choose_key(owner, target.domain, domains)
        keys[owner] = key
        connection = _to_identifier(owner.connection)
        domains[key] = Domain(key, connection, name, f"$JS.{name}.API" if name else "$JS.API")
        declared[key] = {"connection": connection} | ({} if name == key else {"js_domain": name})
    used = {owner.connection: conversion.connections.get(owner.connection, {}) for owner in keys}
    connections = {_to_identifier(name): settings for name, settings in used.items()}
    return DomainMapping(keys, domains, {"connections": connections, "domains": declared})


def _choose_key(
    owner: Owner, wanted: str | None, taken: Mapping[str, Domain]
) -> tuple[str, str | None]:
    """Return our key and the server's name for it; None if the other tool names no domain."""
    name = owner.js_domain or (wanted if owner.connection == DEFAULT_CONNECTION else None)
    plain = _to_identifier(name or owner.connection)
    key = plain if plain not in taken else f"{_to_identifier(owner.connection)}-{plain}"
    return key, name


def _to_identifier(name: str) -> str:
    key = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    return key if re.match(r"[A-Za-z]", key) else f"d{key}"


def map_to_workspace(
    workspace: Workspace, target: ConvertTarget, conversion: Conversion
) -> DomainMapping:
    """Map to the domains of an existing workspace."""
    keys = {owner: _choose_domain(workspace, target, owner) for owner in _list_owners(conversion)}
    return DomainMapping(keys, workspace.domains, workspace=workspace)


def _choose_domain(workspace: Workspace, target: ConvertTarget, owner: Owner) -> str:
    own = {key: domain for key, domain in workspace.domains.items() if domain.is_own}
    if owner.js_domain is not None:
        named = [key for key, domain in own.items() if domain.js_domain == owner.js_domain]
        if not named:
            what = f"the workspace has no domain whose server calls itself {owner.js_domain}"
            raise UsageError(what, hint="Declare it under `domains:`.")
        preferred = [key for key in named if own[key].connection == owner.connection]
        return (preferred or named)[0]
    if target.domain is not None and target.domain not in own:
        raise UsageError(f"there is no domain {target.domain}. {list_known('domains', own)}")
    matching = [key for key, domain in own.items() if owner.connection in (key, domain.connection)]
    found = [target.domain] if target.domain else matching if len(matching) == 1 else list(own)
    if len(found) != 1:
        what = f"the workspace has {len(own)} domains: {', '.join(own)}"
        raise UsageError(what, hint="Choose one with --domain NAME.")
    return str(found[0])


def _list_owners(conversion: Conversion) -> list[Owner]:
    return list(dict.fromkeys(resource.owner for resource in conversion.resources))


def check_clusters(conversion: Conversion, domain: str | None) -> None:
    """Warn once where a stream is read from another domain, and declared beside its reader.

    `domain` is the one that the user named for all of them.
    """
    declared = {(each.owner, each.name) for each in conversion.resources if each.kind == "stream"}
    for resource in conversion.resources:
        config, owner = resource.config, resource.owner
        for origin in filter(None, (config.get("mirror"), *(config.get("sources") or ()))):
            name = origin.get("name")
            api = str((origin.get("external") or {}).get("api"))
            found = _DOMAIN_API.fullmatch(api)
            is_beside = name != resource.name and (owner, name) in declared
            if is_beside and found and found[1] not in (domain, owner.js_domain):
                what = f"{resource.name} reads {name} through {api}, and {name} is declared"
                what += " beside it: these look like several clusters"
                advice = "Convert the files of each cluster alone, with --domain."
                conversion.general_notes.warning(resource.place, what, advice)
                return
