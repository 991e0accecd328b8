"""Loads a workspace: a visible sequence over the modules of this room. Nothing here touches the network."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from jsplan.config import backfills, environments, grammar, moves, settings, variables
from jsplan.config.backend import backend, check_declared
from jsplan.config.connections import IMPLIED, connections
from jsplan.config.declare import Context, Declarer, read_defaults, read_overrides
from jsplan.config.domains import Domains, imports
from jsplan.config.expand import Selectors
from jsplan.config.files import MAIN, Files
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Backend, Backfill, Connection, Domain, DriftSettings, ImportRow, LoadOptions, Workspace
from jsplan.config.node import Node, plain
from jsplan.config.secret_fields import refuse_variables
from jsplan.disk import exists

FORMAT: Final = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def load(options: LoadOptions) -> Workspace:
    """Read, check and expand the workspace in `options.directory`.

    Raises ConfigError with every finding at once; warnings of a sound workspace are in its `diagnostics`.
    """
    with _collector_paused():
        return _load(options)


def _load(options: LoadOptions) -> Workspace:
    findings = Findings()
    files = Files(options.directory.absolute(), findings)
    document, environment = _document(files, options, findings)
    name = _name(document, findings)
    known = tuple(name for name, _ in grammar.pairs(document.get("environments"), "`environments`", findings))
    document = environments.apply(document, environment, findings)
    scope = Scope(variables.resolved(document.get("vars"), options, files))
    reach = _reach(document, options.environ, scope, files, f"{name}.{environment}" if environment else name)
    declarer = _declare(document, reach, scope, files, environment, known)
    check_declared(reach.backend, declarer.declared, findings)
    sinks = settings.drift(document.get("drift"), reach.domains, _with_environ(scope, options.environ), findings)
    workspace = _workspace(name, environment, document, reach, declarer, sinks, scope, files)
    findings.raise_if_failed()
    return workspace


def load_reach(options: LoadOptions) -> tuple[Mapping[str, Connection], Mapping[str, Domain]]:
    """The connections of a workspace that need not be complete, and the domains it has already.

    Without a jsplan.yaml there is one connection, which the environment fills. Raises ConfigError for what is wrong with
    the connections; what is wrong with domains is left out.
    """
    findings = Findings()
    files = Files(options.directory.absolute(), findings)
    if not exists(files.root / MAIN):
        return {IMPLIED: Connection(IMPLIED)}, {}
    document, environment = _document(files, options, findings)
    document = environments.apply(document, environment, findings)
    scope = Scope(variables.resolved(document.get("vars"), options, files))
    refuse_variables(document.get("connections"), scope.variables, findings)
    secret = _with_environ(scope, options.environ)
    declared = connections(_resolved(document, "connections", secret, findings), options.environ, findings)
    findings.raise_if_failed()
    declared = declared or {IMPLIED: Connection(IMPLIED)}
    return declared, Domains(dict(declared), scope, Findings()).build(document.get("domains"), None, document)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Half a million small objects that all stay: looking for garbage among them costs more than making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _document(files: Files, options: LoadOptions, findings: Findings) -> tuple[Node, str | None]:
    """The main file, and which environment of it is meant. Raises ConfigError where either is not to be had."""
    document = files.workspace()
    if document is None:
        findings.raise_if_failed()
        raise AssertionError("a workspace that cannot be read has a finding")
    environment = environments.choose(document, options.environment or options.environ.get("JSPLAN_ENV") or None, findings)
    _stop_without_environment(findings)
    return document, environment


def _stop_without_environment(findings: Findings) -> None:
    """Without the right environment every name that it would have defined is one more finding; say only what counts."""
    if any(found.code == "JS117" for found in findings.sorted()):
        findings.raise_if_failed()


def _name(document: Node, findings: Findings) -> str:
    version = document.get("jsplan")
    if version is None:
        findings.error("JS107", document, "the format version is missing", f"Begin jsplan.yaml with `jsplan: {FORMAT}`.")
    elif version.value != FORMAT or isinstance(version.value, bool):
        findings.error(
            "JS107",
            version,
            f"this release reads format {FORMAT}, not {version.raw or 'this'}",
            f"Write `jsplan: {FORMAT}`, or use a newer jsplan.",
        )
    name = grammar.required(document, "workspace", "the workspace", findings)
    if name is not None and not _NAME.fullmatch(name):
        findings.error(
            "JS108",
            document.value["workspace"],
            f'"{name}" is not a name for a workspace',
            "Use a-z, 0-9, - and _; it begins with a letter or digit.",
        )
    return name or "workspace"


@dataclass(frozen=True, slots=True)
class _Reach:
    """How the servers and the state are reached."""

    connections: Mapping[str, Connection]
    domains: Mapping[str, Domain]
    domain_vars: Mapping[str, Mapping[str, Node]]
    imports: tuple[ImportRow, ...]
    backend: Backend
    default_domain: Node | None


def _with_environ(scope: Scope, environ: Mapping[str, str]) -> Scope:
    return Scope(scope.variables, environ)


def _resolved(document: Node, section: str, scope: Scope, findings: Findings) -> Node | None:
    node = document.get(section)
    return interpolate(node, scope, findings) if node is not None else None


def _reach(document: Node, environ: Mapping[str, str], scope: Scope, files: Files, state_name: str) -> _Reach:
    findings = files.findings
    secret = _with_environ(scope, environ)
    refuse_variables(document.get("connections"), scope.variables, findings)
    declared = connections(_resolved(document, "connections", secret, findings), environ, findings)
    default = (document.get("defaults") or document).get("domain")
    default = interpolate(default, scope, findings) if default is not None else None
    domains = Domains(declared, scope, findings)
    built = domains.build(document.get("domains"), default, document)
    return _Reach(
        domains.connections,
        built,
        domains.vars,
        imports(document.get("imports"), built, scope, findings),
        backend(_resolved(document, "backend", secret, findings), files.root, state_name, built, default, environ, findings),
        default,
    )


def _declare(document: Node, reach: _Reach, scope: Scope, files: Files, environment: str | None, known: tuple[str, ...]) -> Declarer:
    findings = files.findings
    _, defaults = read_defaults(document.get("defaults"), findings)
    context = Context(
        files=files,
        scope=scope,
        selectors=Selectors(reach.domains, findings),
        domain_vars=reach.domain_vars,
        environment=environment,
        environments=known,
        default_domain=reach.default_domain,
        defaults=defaults,
        overrides=read_overrides(document.get("overrides"), scope, findings),
        own_domains=tuple(key for key, domain in reach.domains.items() if domain.same_as is None),
    )
    declarer = Declarer(context)
    declarer.section("stream", document.get("streams"), "streams")
    declarer.section("consumer", document.get("consumers"), "consumers")
    declarer.section("kv", document.get("kv"), "kv")
    declarer.section("object_store", document.get("object_stores"), "object_stores")
    declarer.finish()
    return declarer


def _workspace(
    name: str, environment: str | None, document: Node, reach: _Reach, declarer: Declarer, drift: DriftSettings, scope: Scope, files: Files
) -> Workspace:
    findings, declared = files.findings, declarer.declared
    copies = _backfills(document, reach, declarer.context, findings)
    values = {key: plain(node) for key, node in scope.variables.items()}
    return Workspace(
        name=name,
        root=files.root,
        environment=environment,
        variables=values,
        connections=reach.connections,
        domains=reach.domains,
        imports=reach.imports,
        backend=reach.backend,
        resources=declared,
        moved=moves.moved(document.get("moved"), reach.domains, declared, scope, findings),
        removed=moves.removed(document.get("removed"), declared, scope, findings),
        drift=drift,
        lint=settings.lint(_resolved(document, "lint", scope, findings), findings),
        ownership_marker=settings.ownership(_resolved(document, "ownership", scope, findings), findings),
        config_hash=_hash(files.read, values, environment),
        diagnostics=findings.sorted(),
        backfills=copies,
    )


def _backfills(document: Node, reach: _Reach, context: Context, findings: Findings) -> dict[str, Backfill]:
    reading = backfills.Reading(
        context.selectors, reach.default_domain, context.environment, context.environments, context.own_domains, context.scope, findings
    )
    return backfills.read(document.get("backfills"), reading)


def _hash(read: Mapping[str, bytes], values: Mapping[str, Any], environment: str | None) -> str:
    """Over every file that was read, the variables and the environment; secrets come from outside of all three."""
    whole = hashlib.sha256()
    for shown in sorted(read):
        whole.update(f"{shown}\0{len(read[shown])}\0".encode())
        whole.update(read[shown])
    whole.update(json.dumps([values, environment], sort_keys=True).encode())
    return f"sha256:{whole.hexdigest()}"
