"""Loads a workspace, step by step. Nothing here touches the network."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

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
from jsplan.config.files import MAIN_FILE, SECTIONS, WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import (
    Connection,
    Domain,
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
        return _Loader(options).load()


def load_connectivity(
    options: LoadOptions,
) -> tuple[Mapping[str, Connection], Mapping[str, Domain]]:
    """Return the connections and domains of a workspace that need not be complete.

    Without a jsplan.yaml there is one connection, filled from the environment. Raises ConfigError
    for errors in connections; wrong domains are omitted.
    """
    implied = {IMPLIED_CONNECTION: Connection(IMPLIED_CONNECTION)}
    if not exists(options.directory.absolute() / MAIN_FILE):
        return implied, {}
    loader = _Loader(options)
    loader.read_document()
    loader.choose_environment()
    declared = loader.read_connections()
    loader.findings.raise_if_failed()
    declared = declared or implied
    return declared, DomainBuilder(dict(declared), loader.scope, Findings()).build(
        loader.document.get("domains"), None, loader.document
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


class _Loader:
    """Reads one workspace. `reach` are its domains, once they are read."""

    document: Node
    environment: str | None
    #: The scope of the files, and that of what may come from the environment.
    scope: Scope
    secret: Scope
    reach: DomainBuilder
    domains: Mapping[str, Domain]

    def __init__(self, options: LoadOptions) -> None:
        self.options, self.findings = options, Findings()
        self.files = WorkspaceFiles(options.directory.absolute(), self.findings)

    def load(self) -> Workspace:
        """Read everything."""
        self.read_document()
        name = _read_name(self.document, self.findings)
        section = self.document.get("environments")
        listed = parsing.read_mapping(section, "`environments`", self.findings)
        known = tuple(key for key, _ in listed)
        self.choose_environment()
        default = (self.document.get("defaults") or self.document).get("domain")
        if default is not None:
            default = interpolate(default, self.scope, self.findings)
        self.reach = DomainBuilder(self.read_connections(), self.scope, self.findings)
        self.domains = self.reach.build(self._get("domains"), default, self.document)
        workspace = self._build(name, default, self._resolve_resources(default, known))
        self.findings.raise_if_failed()
        return workspace

    def read_document(self) -> None:
        """Read the main file; raises ConfigError if it or the environment is missing."""
        document = self.files.load_document()
        if document is None:
            self.findings.raise_if_failed()
            raise AssertionError("a workspace that cannot be read has a finding")
        environ = self.options.environ.get("JSPLAN_ENV")
        self.document = document
        self.environment = environments.choose_environment(
            document, self.options.environment, environ, self.findings
        )
        # Without the environment each of its names would be one more finding.
        if any(found.code == "JS117" for found in self.findings.sorted()):
            self.findings.raise_if_failed()

    def choose_environment(self) -> None:
        """Apply what the environment changes, and resolve the variables."""
        self.document = environments.apply_environment(
            self.document, self.environment, self.findings
        )
        found = variables.resolve_variables(self._get("vars"), self.options, self.files)
        self.scope = Scope(found)
        self.secret = Scope(found, self.options.environ, allow_unset=self.options.files_only)

    def read_connections(self) -> dict[str, Connection]:
        """Read the declared connections."""
        refuse_variables(self._get("connections"), self.scope.variables, self.findings)
        section = self._interpolated("connections", self.secret)
        return read_connections(section, self.options.environ, self.findings)

    def _get(self, section: str) -> Node | None:
        return self.document.get(section)

    def _interpolated(self, section: str, scope: Scope) -> Node | None:
        node = self.document.get(section)
        return interpolate(node, scope, self.findings) if node is not None else None

    def _resolve_resources(self, default: Node | None, known: tuple[str, ...]) -> ResourceResolver:
        context = ResolveContext(
            files=self.files,
            scope=self.scope,
            selectors=DomainSelectors(self.domains, self.findings),
            domain_vars=self.reach.vars,
            environment=self.environment,
            environments=known,
            default_domain=default,
            defaults=read_defaults(self._get("defaults"), self.findings),
            overrides=read_overrides(self._get("overrides"), self.scope, self.findings),
            own_domains=tuple(key for key, domain in self.domains.items() if domain.is_own),
            # Only a plan needs the values of entries. What is not set is unknown until then.
            secrets=replace(self.secret, allow_unset=True),
        )
        resolver = ResourceResolver(context)
        for kind, section in SECTIONS.items():
            resolver.resolve_section(kind, self._get(section), section)
        resolver.finish()
        return resolver

    def _build(self, name: str, default: Node | None, resolver: ResourceResolver) -> Workspace:
        findings, scope, domains, root = self.findings, self.scope, self.domains, self.files.root
        declared, environ = resolver.declared, self.options.environ
        state_name = f"{name}.{self.environment}" if self.environment else name
        section = self._interpolated("backend", self.secret)
        backend = read_backend(section, root, state_name, domains, default, environ, findings)
        refuse_declared_bucket(backend, declared, findings)
        connections = self.reach.connections
        places, own_accounts = accounts.read_accounts(
            self.document, name, connections, domains, root, scope, findings
        )
        known = {
            **declared,
            **resolver.contents.declared,
            **accounts.declare_accounts(own_accounts),
        }
        selectors = resolver.context.selectors
        applications = apps.read_apps(
            self._get("apps"), selectors, self.reach.vars, declared, scope, findings
        )
        accounts.check_roles(applications, findings)
        check_linked_parents(declared, resolver.contents.declared, domains, findings)
        values = {key: to_plain(node) for key, node in scope.variables.items()}
        hashed = [values, self.environment, *_content_digests(resolver)]
        changes = moves.ChangeReader(domains, known, scope, findings)
        of_resources = moves.ChangeReader(domains, declared, scope, findings)
        return Workspace(
            name=name,
            root=root,
            environment=self.environment,
            variables=values,
            connections=connections,
            domains={**domains, **places},
            imports=read_imports(self._get("imports"), domains, scope, findings),
            backend=backend,
            resources=known,
            moved=changes.read_moved(self._get("moved")),
            relocate=of_resources.read_relocate(self._get("relocate")),
            removed=changes.read_removed(self._get("removed")),
            drift=settings.read_drift(self._get("drift"), domains, self.secret, findings),
            lint=settings.read_lint(self._interpolated("lint", scope), findings),
            ownership_marker=settings.read_ownership(
                self._interpolated("ownership", scope), findings
            ),
            backfills=backfills.read_backfills(self._get("backfills"), resolver.context),
            apps=applications,
            accounts=own_accounts,
            pruned=tuple(resolver.contents.pruned),
            # Last, when all has been read.
            config_hash=_config_hash(self.files.read, hashed),
            diagnostics=findings.sorted(),
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
