"""The text of `jsplan domains discover`: YAML to paste below the connections, with what is known as comments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jsplan.render.safe import safe
from jsplan.render.summary import count

if TYPE_CHECKING:
    from jsplan.workflows.discover import Discovered, Proposed


def text_of(found: Discovered) -> str:
    """The whole text. What is in a comment is no part of the answer for a program."""
    new = [d for d in found.domains if not d.declared and not d.seen.why]
    lines = ["domains:", *_aligned([(_row(d), _about(d)) for d in new])] if new else ["# No domain was found that the files do not have."]
    lines += [f"# declared already: {d.key}: {_about(d)}" for d in found.domains if d.declared and not d.seen.why]
    lines += [
        f"# {_called(d)} does not answer over connection {d.seen.connection}, {_told(d)}: {d.seen.why}" for d in found.domains if d.seen.why
    ]
    lines += [f"# connection {key} could not be opened: {why}" for key, why in found.failures.items()]
    lines += ["#", *_unseen(found)]
    return "\n".join(safe(line) for line in lines)


def _row(domain: Proposed) -> str:
    seen = domain.seen
    name = "" if seen.name == domain.key else f", js_domain: {_scalar(seen.name)}"
    return f"  {domain.key}: {{connection: {seen.connection}{name}}}"


def _scalar(name: str | None) -> str:
    return "null" if name is None else json.dumps(name, ensure_ascii=False)


def _about(domain: Proposed) -> str:
    seen = domain.seen
    servers = (
        ", ".join(f"{name} {version}".strip() for name, version in sorted(seen.servers.items())) or "its servers do not say who they are"
    )
    return f"{count(seen.streams, 'stream')}; {servers}"


def _told(domain: Proposed) -> str:
    return f"named by {' and '.join(domain.seen.told)}"


def _called(domain: Proposed) -> str:
    return f"domain {domain.seen.name}" if domain.seen.name else "a JetStream without a domain"


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(row) for row, _ in rows)
    return [f"{row:<{width}}   # {about}" for row, about in rows]


def _unseen(found: Discovered) -> list[str]:
    """What this way of asking cannot show."""
    lines = ["# Not seen: servers and leaf nodes that are offline now, unless a mirror or source names their domain;"]
    if found.with_system:
        return [*lines, "# servers whose system account is not joined with this one; other accounts' names for these domains (imports)."]
    return [*lines, "# domains where this account has no JetStream, or whose server is older than 2.10. --system-connection sees more."]
