"""`backend:`: where the state is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from jsplan.address import Address
from jsplan.config.findings import Findings
from jsplan.config.model import Backend, DeclaredResource, Domain
from jsplan.config.node import Node, source_range, to_plain
from jsplan.config.sections import Reading
from jsplan.config.tables.connectivity import BACKEND

#: The characters of a key of a bucket.
_KEY_PATTERN: Final = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")


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
        findings.error(
            "JS128",
            section,
            "`backend` must name one place",
            "Write `local: {path: …}` or `kv: {domain: …, bucket: …}`.",
        )
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
        findings.error(
            "JS131",
            node,
            f'"{state_name}" is not a name for a key in a bucket',
            "Name the environment with letters, digits, - and _.",
        )


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
        findings.error(
            "JS128",
            node,
            "`backend.kv` does not say which domain has the bucket",
            "Write `kv: {domain: …, bucket: …}`.",
        )
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
        findings.error(
            "JS128",
            found.range,
            what,
            "Take it out of `kv`: jsplan makes it, and it is never planned.",
            str(found.address),
        )
