"""`backend:`, `drift:`, `lint:` and `ownership:` of the workspace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jsplan.address import Address
from jsplan.codes import LINT
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Backend, DeclaredResource, Domain, DriftSettings, Mute
from jsplan.config.node import Node, source_range, to_plain
from jsplan.config.secret_fields import mark_secret, refuse_variables_in_sink, url_problem
from jsplan.config.sections import Reading
from jsplan.config.tables.connectivity import BACKEND
from jsplan.config.tables.settings import DRIFT, LEVEL, MUTE, OWNERSHIP, SINKS
from jsplan.diagnostics import did_you_mean

_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: The characters of a key of a bucket.
_KEY_PATTERN: Final = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")


def read_drift(
    section: Node | None, domains: Mapping[str, Domain], scope: Scope, findings: Findings
) -> DriftSettings:
    """Read `drift:`. Only sinks may use `${env.X}`, so `scope` has the environment.

    The rest is read without it.
    """
    reading, plain_scope = Reading(findings, domains=domains), Scope(scope.variables)
    if section is None or section.value is None:
        return DriftSettings()
    if (values := DRIFT.read(section, reading)) is None:
        return DriftSettings()
    ignore = [
        parsing.read_address(interpolate(item, plain_scope, findings), "`drift.ignore`", findings)
        for item in parsing.read_list(values["ignore"], "`drift.ignore`", findings)
    ]
    mutes = [
        Mute(**found | {"fields": tuple(found["fields"])}, range=source_range(node.place))
        for node, found in MUTE.read_all(values["mute"], "`drift.mute`", reading, plain_scope)
        if found["address"] and found["reason"] and found["owner"]
    ]
    sinks = [
        _read_sink(item, scope, reading)
        for item in parsing.read_list(values["sinks"], "`drift.sinks`", findings)
    ]
    return DriftSettings(
        tuple(glob for glob in ignore if glob is not None),
        tuple(mutes),
        tuple(sink for sink in sinks if sink is not None),
        values["watermarks"],
    )


def _read_sink(written: Node, scope: Scope, reading: Reading) -> Mapping[str, Any] | None:
    findings = reading.findings
    refuse_variables_in_sink(written, findings)
    node = interpolate(written, scope, findings)
    if not isinstance(node.value, dict):
        findings.wrong_type(node, "a sink", "a mapping")
        return None
    kinds = [kind for kind in SINKS if kind in node.value]
    if len(kinds) != 1:
        hint = "Write {webhook: {url: …}}, {subject: …, domain: …} or {file: …}."
        findings.error("JS104", node, f"a sink must name one target: {', '.join(SINKS)}", hint)
        return None
    (kind,) = kinds
    if kind == "webhook":
        _mark_webhook(node.value["webhook"])
    values = SINKS[kind].read(node, reading)
    if values is None or (kind != "subject" and values[kind] is None):
        return None
    if kind == "webhook" and (
        values[kind]["url"] is None or not _is_valid_webhook(node.value[kind], findings)
    ):
        return None
    sink: Mapping[str, Any] = to_plain(node)
    return sink


def _mark_webhook(target: Node) -> None:
    headers = target.get("headers")
    values = headers.value.values() if headers and isinstance(headers.value, dict) else ()
    mark_secret(target.get("url"), headers, *values)


def _is_valid_webhook(node: Node, findings: Findings) -> bool:
    """Check whether a webhook can be called. URL and headers are secrets: no finding shows them."""
    url, headers = node.value["url"], node.get("headers")
    if problem := url_problem(url, url.value, ("http", "https")):
        findings.error("JS130", url, f"`url` of a webhook: {problem}", "Write https://HOST/PATH.")
    wrong = bool(problem)
    for name, item in parsing.read_mapping(headers, "`headers`", findings):
        value = parsing.read_text(item, f"header {name}", findings)
        if not _HEADER.fullmatch(name):
            text = f'"{name}" is not a name for a header'
            hint = "Write X-Key."
            findings.error("JS130", headers.key_place(name) if headers else node, text, hint)
        elif value is not None and not (value.isprintable() and _is_latin1(value)):
            text = f"the value of header {name} cannot be sent"
            findings.error("JS130", item, text, "Use Latin letters, without line breaks.")
        else:
            wrong |= value is None
            continue
        wrong = True
    return not wrong and (
        headers is None or headers.value is None or isinstance(headers.value, dict)
    )


def _is_latin1(value: str) -> bool:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def read_lint(section: Node | None, findings: Findings) -> dict[str, str]:
    """Read `lint:` as level by code."""
    out = {}
    for key, node in parsing.read_mapping(section, "`lint`", findings):
        assert section is not None
        key_node = Node(section.key_place(key), key, key)
        level = LEVEL.read(node, f"`{key}`", Reading(findings))
        if parsing.read_code(key_node, "a lint code", findings) and level:
            out[key] = level
            if key not in LINT:
                guess = did_you_mean(key, LINT) or " jsplan lint --explain all lists them."
                text = f"there is no lint rule {key}, so this sets nothing"
                findings.warning("JS140", key_node, text, guess.strip())
    return out


def read_ownership(section: Node | None, findings: Findings) -> bool:
    """Read whether an owner is written into metadata."""
    if section is None or section.value is None:
        return False
    values = OWNERSHIP.read(section, Reading(findings))
    return values is not None and values["marker"] is True


def read_backend(
    section: Node | None,
    root: Path,
    state_name: str,
    domains: Mapping[str, Domain],
    default_domain: Node | None,
    environ: Mapping[str, str],
    findings: Findings,
) -> Backend:
    """Read where state is kept; by default in a local file below the workspace."""
    default = Backend("local", path=root / "state" / f"{state_name}.json")
    if section is None or section.value is None:
        return default
    values = BACKEND.read(section, Reading(findings, environ, root, domains))
    if values is None:
        return default
    if len(section.value) != 1:
        hint = "Write `local: {path: …}` or `kv: {domain: …, bucket: …}`."
        findings.error("JS128", section, "`backend` must name one place", hint)
        return default
    place = source_range(section.place)
    if (local := values["local"]) is not None:
        return Backend("local", path=local["path"] or default.path, range=place)
    if (kv := values["kv"]) is None:
        return default
    node = section.value["kv"]
    _check_key(node, state_name, findings)
    domain = kv["domain"] or _choose_domain(node, domains, default_domain, findings)
    if kv["bucket"] is None or domain is None:
        return default
    return Backend("kv", **kv | {"domain": domain}, range=place)


def _check_key(node: Node, state_name: str, findings: Findings) -> None:
    if not _KEY_PATTERN.fullmatch(state_name):
        text = f'"{state_name}" is not a name for a key in a bucket'
        findings.error("JS131", node, text, "Name the environment with letters, digits, - and _.")


def _choose_domain(
    node: Node, domains: Mapping[str, Domain], default: Node | None, findings: Findings
) -> str | None:
    """Choose the domain of a bucket without one: `defaults.domain`, else the only one."""
    usual = to_plain(default) if default is not None else None
    if isinstance(usual, str) and usual in domains:
        return usual
    if len(domains) == 1:
        return next(iter(domains))
    if domains and node.get("domain") is None and not findings.is_misspelt(node, "domain"):
        text = "`backend.kv` does not say which domain has the bucket"
        findings.error("JS128", node, text, "Write `kv: {domain: …, bucket: …}`.")
    return None


def refuse_declared_bucket(
    backend: Backend, declared: Mapping[Address, DeclaredResource], findings: Findings
) -> None:
    """Report the bucket of the state as a resource: a plan would change its own input."""
    if backend.domain is None or backend.bucket is None:
        return
    found = declared.get(Address(backend.domain, "kv", backend.bucket))
    if found is not None:
        what = f"{found.address} is where this workspace keeps its state"
        hint = "Take it out of `kv`: jsplan makes it, and it is never planned."
        findings.error("JS128", found.range, what, hint, str(found.address))
