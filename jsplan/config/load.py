"""Loads a workspace, step by step. Nothing here touches the network."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.config import (
    accounts,
    apps,
    backfills,
    environments,
    moves,
    parsing,
    settings,
    variables,
)
from jsplan.config.connections import IMPLIED_CONNECTION, read_connections
from jsplan.config.contents import check_linked_parents
from jsplan.config.domains import DomainBuilder, read_imports
from jsplan.config.expand import DomainSelectors
from jsplan.config.files import MAIN_FILE, WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import (
    Backend,
    Connection,
    Domain,
    DriftSettings,
    ImportRow,
    LoadOptions,
    Workspace,
)
from jsplan.config.node import Node, to_plain
from jsplan.config.overrides import read_defaults, read_overrides
from jsplan.config.resource_resolver import (
    ResolveContext,
    ResourceResolver,
)
from jsplan.config.secret_fields import refuse_variables
from jsplan.config.settings import read_backend, refuse_declared_bucket
from jsplan.disk import exists

FORMAT: Final = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def load(options: LoadOptions) -> Workspace:
    """Read, check and expand the workspace in `options.directory`.

    Raises ConfigError with every finding at once; the warnings of a valid workspace are in its
    `diagnostics`.
    """
    with _gc_paused():
        return _load(options)


def _load(options: LoadOptions) -> Workspace:
    findings = Findings()
    files = WorkspaceFiles(options.directory.absolute(), findings)
    document, environment = _read_document(files, options, findings)
    name = _read_name(document, findings)
    known = tuple(
        name
        for name, _ in parsing.read_mapping(
            document.get("environments"), "`environments`", findings
        )
    )
    document = environments.apply_environment(document, environment, findings)
    scope = Scope(variables.resolve_variables(document.get("vars"), options, files))
    reach = _read_connectivity(
        document, options, scope, files, f"{name}.{environment}" if environment else name
    )
    # Only a plan needs the values of entries. What is not set is unknown until then.
    secrets = replace(_with_environ(scope, options), allow_unset=True)
    resolver = _resolve_resources(document, reach, scope, files, environment, known, secrets)
    refuse_declared_bucket(reach.backend, resolver.declared, findings)
    sinks = settings.read_drift(
        document.get("drift"), reach.domains, _with_environ(scope, options), findings
    )
    workspace = _build_workspace(name, environment, document, reach, resolver, sinks, scope, files)
    findings.raise_if_failed()
    return workspace


def load_connectivity(
    options: LoadOptions,
) -> tuple[Mapping[str, Connection], Mapping[str, Domain]]:
    """Return the connections and domains of a workspace that need not be complete.

    Without a jsplan.yaml there is one connection, filled from the environment. Raises ConfigError
    for errors in connections; wrong domains are omitted.
    """
    findings = Findings()
    files = WorkspaceFiles(options.directory.absolute(), findings)
    if not exists(files.root / MAIN_FILE):
        return {IMPLIED_CONNECTION: Connection(IMPLIED_CONNECTION)}, {}
    document, environment = _read_document(files, options, findings)
    document = environments.apply_environment(document, environment, findings)
    scope = Scope(variables.resolve_variables(document.get("vars"), options, files))
    refuse_variables(document.get("connections"), scope.variables, findings)
    secret = _with_environ(scope, options)
    declared = read_connections(
        _interpolate_section(document, "connections", secret, findings), options.environ, findings
    )
    findings.raise_if_failed()
    declared = declared or {IMPLIED_CONNECTION: Connection(IMPLIED_CONNECTION)}
    return declared, DomainBuilder(dict(declared), scope, Findings()).build(
        document.get("domains"), None, document
    )


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pause the garbage collector: it would search half a million small objects that all stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_document(
    files: WorkspaceFiles, options: LoadOptions, findings: Findings
) -> tuple[Node, str | None]:
    """Return the main file and the environment; raises ConfigError if either is missing."""
    document = files.load_document()
    if document is None:
        findings.raise_if_failed()
        raise AssertionError("a workspace that cannot be read has a finding")
    environment = environments.choose_environment(
        document, options.environment, options.environ.get("JSPLAN_ENV"), findings
    )
    _stop_without_environment(findings)
    return document, environment


def _stop_without_environment(findings: Findings) -> None:
    """Raise only this finding: without the environment each of its names would be one more."""
    if any(found.code == "JS117" for found in findings.sorted()):
        findings.raise_if_failed()


def _read_name(document: Node, findings: Findings) -> str:
    version = document.get("jsplan")
    if version is None:
        text = "the format version is missing"
        findings.error("JS107", document, text, f"Begin jsplan.yaml with `jsplan: {FORMAT}`.")
    elif version.value != FORMAT or isinstance(version.value, bool):
        text = f"this release reads format {FORMAT}, not {version.raw or 'this'}"
        findings.error("JS107", version, text, f"Write `jsplan: {FORMAT}`, or use a newer jsplan.")
    name = parsing.read_required_text(document, "workspace", "the workspace", findings)
    if name is not None and not _NAME.fullmatch(name):
        text = f'"{name}" is not a name for a workspace'
        hint = "Use a-z, 0-9, - and _; it begins with a letter or digit."
        findings.error("JS108", document.value["workspace"], text, hint)
    return name or "workspace"


class _Connectivity(Struct, frozen=True):
    """Connections, domains and the backend."""

    connections: Mapping[str, Connection]
    domains: Mapping[str, Domain]
    domain_vars: Mapping[str, Mapping[str, Node]]
    imports: tuple[ImportRow, ...]
    backend: Backend
    default_domain: Node | None


def _with_environ(scope: Scope, options: LoadOptions) -> Scope:
    return Scope(scope.variables, options.environ, allow_unset=options.files_only)


def _interpolate_section(
    document: Node, section: str, scope: Scope, findings: Findings
) -> Node | None:
    node = document.get(section)
    return interpolate(node, scope, findings) if node is not None else None


def _read_connectivity(
    document: Node, options: LoadOptions, scope: Scope, files: WorkspaceFiles, state_name: str
) -> _Connectivity:
    findings, environ = files.findings, options.environ
    secret = _with_environ(scope, options)
    refuse_variables(document.get("connections"), scope.variables, findings)
    declared = read_connections(
        _interpolate_section(document, "connections", secret, findings), environ, findings
    )
    default = (document.get("defaults") or document).get("domain")
    default = interpolate(default, scope, findings) if default is not None else None
    domains = DomainBuilder(declared, scope, findings)
    built = domains.build(document.get("domains"), default, document)
    return _Connectivity(
        domains.connections,
        built,
        domains.vars,
        read_imports(document.get("imports"), built, scope, findings),
        read_backend(
            _interpolate_section(document, "backend", secret, findings),
            files.root,
            state_name,
            built,
            default,
            environ,
            findings,
        ),
        default,
    )


def _resolve_resources(
    document: Node,
    reach: _Connectivity,
    scope: Scope,
    files: WorkspaceFiles,
    environment: str | None,
    known: tuple[str, ...],
    secrets: Scope,
) -> ResourceResolver:
    findings = files.findings
    defaults = read_defaults(document.get("defaults"), findings)
    context = ResolveContext(
        files=files,
        scope=scope,
        selectors=DomainSelectors(reach.domains, findings),
        domain_vars=reach.domain_vars,
        environment=environment,
        environments=known,
        default_domain=reach.default_domain,
        defaults=defaults,
        overrides=read_overrides(document.get("overrides"), scope, findings),
        own_domains=tuple(key for key, domain in reach.domains.items() if domain.is_own),
        secrets=secrets,
    )
    resolver = ResourceResolver(context)
    resolver.resolve_section("stream", document.get("streams"), "streams")
    resolver.resolve_section("consumer", document.get("consumers"), "consumers")
    resolver.resolve_section("kv", document.get("kv"), "kv")
    resolver.resolve_section("object_store", document.get("object_stores"), "object_stores")
    resolver.finish()
    return resolver


def _build_workspace(
    name: str,
    environment: str | None,
    document: Node,
    reach: _Connectivity,
    resolver: ResourceResolver,
    drift: DriftSettings,
    scope: Scope,
    files: WorkspaceFiles,
) -> Workspace:
    findings, declared = files.findings, resolver.declared
    places, own_accounts = accounts.read_accounts(
        document, name, reach.connections, reach.domains, files.root, scope, findings
    )
    known = {
        **declared,
        **resolver.contents.declared,
        **accounts.declare_accounts(own_accounts),
    }
    applications = apps.read_apps(
        document.get("apps"),
        resolver.context.selectors,
        reach.domain_vars,
        declared,
        scope,
        findings,
    )
    accounts.check_roles(applications, findings)
    check_linked_parents(declared, resolver.contents.declared, reach.domains, findings)
    entries = backfills.read_backfills(document.get("backfills"), resolver.context)
    values = {key: to_plain(node) for key, node in scope.variables.items()}
    return Workspace(
        name=name,
        root=files.root,
        environment=environment,
        variables=values,
        connections=reach.connections,
        domains={**reach.domains, **places},
        imports=reach.imports,
        backend=reach.backend,
        resources=known,
        moved=moves.read_moved(document.get("moved"), reach.domains, known, scope, findings),
        relocate=moves.read_relocate(
            document.get("relocate"), reach.domains, declared, scope, findings
        ),
        removed=moves.read_removed(document.get("removed"), known, scope, findings),
        drift=drift,
        lint=settings.read_lint(_interpolate_section(document, "lint", scope, findings), findings),
        ownership_marker=settings.read_ownership(
            _interpolate_section(document, "ownership", scope, findings), findings
        ),
        config_hash=_config_hash(files.read, [values, environment, *_content_digests(resolver)]),
        diagnostics=findings.sorted(),
        backfills=entries,
        apps=applications,
        accounts=own_accounts,
        pruned=tuple(resolver.contents.pruned),
    )


def _content_digests(resolver: ResourceResolver) -> list[Any]:
    """Return the digests of all entries, which may be in files; nothing if there are none."""
    found = resolver.contents.declared
    return [{str(a): found[a].body for a in sorted(found)}] if found else []


def _config_hash(read: Mapping[str, bytes], values: list[Any]) -> str:
    """Hash every file that was read, the variables and the environment; none holds a secret."""
    digest = hashlib.sha256()
    for shown in sorted(read):
        digest.update(f"{shown}\0{len(read[shown])}\0".encode())
        digest.update(read[shown])
    digest.update(json.dumps(values, sort_keys=True).encode())
    return f"sha256:{digest.hexdigest()}"
