"""`backend:`: where the state is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from jsplan import units
from jsplan.address import Address
from jsplan.config import parsing
from jsplan.config.connections import resolve_file_path
from jsplan.config.findings import Findings
from jsplan.config.model import LOCK_TTL, Backend, DeclaredResource, Domain
from jsplan.config.node import Node, source_range, to_plain
from jsplan.diagnostics import did_you_mean

_LOCAL: Final = ("path",)
_KV: Final = ("domain", "bucket", "lock_ttl")
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
    if (
        section is None
        or section.value is None
        or not parsing.check_mapping(section, "`backend`", ("local", "kv"), findings)
    ):
        return default
    if len(section.value) != 1:
        findings.error(
            "JS128",
            section,
            "`backend` must name one place",
            "Write `local: {path: …}` or `kv: {domain: …, bucket: …}`.",
        )
        return default
    kind, node = next(iter(section.value.items()))
    if kind == "local":
        if node.value is None or not parsing.check_mapping(
            node, "`backend.local`", _LOCAL, findings
        ):
            return default
        path = resolve_file_path(node.get("path"), "`backend.local.path`", environ, findings, root)
        return Backend("local", path=path or default.path, range=source_range(section.place))
    if not parsing.check_mapping(node, "`backend.kv`", _KV, findings):
        return default
    _check_key(node, state_name, findings)
    bucket, domain = (
        _read_bucket(node, findings),
        _choose_domain(node, domains, default_domain, findings),
    )
    lock_ttl = parsing.read_parsed(
        node.get("lock_ttl"), "`backend.kv.lock_ttl`", _parse_lock_ttl, findings
    )
    if bucket is None or domain is None:
        return default
    return Backend(
        "kv",
        domain=domain,
        bucket=bucket,
        lock_ttl=lock_ttl or LOCK_TTL,
        range=source_range(section.place),
    )


def _parse_lock_ttl(value: object) -> int:
    duration = units.parse_duration(value)
    if duration < units.SECOND:
        raise ValueError("must be a second or longer")
    return duration


def _read_bucket(node: Node, findings: Findings) -> str | None:
    bucket = parsing.read_required_text(node, "bucket", "`backend.kv`", findings)
    if bucket is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", bucket):
        findings.error(
            "JS131",
            node.value["bucket"],
            f'"{bucket}" is not a name for a bucket',
            "Use letters, digits, - and _.",
        )
        return None
    return bucket


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
    """Choose the domain of the bucket: the named one, else `defaults.domain`, else the only one."""
    named = parsing.read_text(node.get("domain"), "`backend.kv.domain`", findings)
    if named is not None:
        if named in domains:
            return named
        hint = f"Declare it under `domains:`.{did_you_mean(named, domains)}"
        findings.error("JS122", node.value["domain"], f'there is no domain "{named}"', hint)
        return None
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
