"""The text of `jsplan domains discover`: YAML for `domains:`, with comments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jsplan.render.escape import safe
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.facts.discover import DiscoverResult, ProposedDomain


def render_text(found: DiscoverResult) -> str:
    """Return the whole text; facts that are not part of the YAML are comments."""
    new = [d for d in found.domains if not d.declared and not d.visible.failure]
    lines = (
        ["domains:", *_align([(_row(d), _describe(d)) for d in new])]
        if new
        else ["# No domain was found that the files do not have."]
    )
    lines += [
        f"# declared already: {d.key}: {_describe(d)}"
        for d in found.domains
        if d.declared and not d.visible.failure
    ]
    lines += [
        (
            f"# {_display_name(d)} does not answer over connection {d.visible.connection}, "
            f"{_named_by(d)}: {d.visible.failure}"
        )
        for d in found.domains
        if d.visible.failure
    ]
    lines += [
        f"# connection {key} could not be opened: {why}" for key, why in found.failures.items()
    ]
    lines += ["#", *_limitations(found)]
    return "\n".join(safe(line) for line in lines)


def _row(domain: ProposedDomain) -> str:
    seen = domain.visible
    name = "" if seen.name == domain.key else f", js_domain: {_scalar(seen.name)}"
    return f"  {domain.key}: {{connection: {seen.connection}{name}}}"


def _scalar(name: str | None) -> str:
    return "null" if name is None else json.dumps(name, ensure_ascii=False)


def _describe(domain: ProposedDomain) -> str:
    seen = domain.visible
    servers = (
        ", ".join(f"{name} {version}".strip() for name, version in sorted(seen.servers.items()))
        or "its servers do not say who they are"
    )
    return f"{count_text(seen.streams, 'stream')}; {servers}"


def _named_by(domain: ProposedDomain) -> str:
    return f"named by {' and '.join(domain.visible.reported_by)}"


def _display_name(domain: ProposedDomain) -> str:
    return (
        f"domain {domain.visible.name}" if domain.visible.name else "a JetStream without a domain"
    )


def _align(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(row) for row, _ in rows)
    return [f"{row:<{width}}   # {about}" for row, about in rows]


def _limitations(found: DiscoverResult) -> list[str]:
    """Describe what discovery cannot see."""
    lines = [
        (
            "# Not seen: servers and leaf nodes that are offline now, unless a mirror or "
            "source names their domain;"
        )
    ]
    if found.with_system:
        return [
            *lines,
            (
                "# servers whose system account is not joined with this one; other accounts' "
                "names for these domains (imports)."
            ),
        ]
    return [
        *lines,
        (
            "# domains where this account has no JetStream, or whose server is older than "
            "2.10. --system-connection sees more."
        ),
    ]
