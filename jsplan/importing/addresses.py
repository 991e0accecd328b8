"""The addresses of an import: expands selectors of domains, and finds those not importable."""

from __future__ import annotations

from jsplan.address import Address, is_glob, matches
from jsplan.config.expand import DomainSelectors, has_range
from jsplan.config.findings import Findings
from jsplan.config.node import Source, from_plain
from jsplan.context import Context
from jsplan.diagnostics import Diagnostic, list_known
from jsplan.errors import UsageError


def expand_globs(context: Context, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Expand selectors of domains: `label:edge`, `store-{001..100}`, `!store-099`.

    Raises UsageError for one that matches no domain.
    """
    domains = context.workspace.domains
    out: dict[str, None] = {}
    for text in addresses:
        key, _, rest = text.partition("/")
        if key.startswith(("label:", "!")) or has_range(key):
            found = DomainSelectors(domains, Findings()).select(
                from_plain(key, (Source(context.workspace.root, text), 0, 0))
            )
            if not found:
                raise UsageError(
                    f"{key} matches no domain",
                    hint="Labels are given under `domains:` in jsplan.yaml.",
                )
            out |= dict.fromkeys(f"{name}/{rest}" for name in found)
        elif rest == "**" and key not in domains and not is_glob(key):
            raise UsageError(f'there is no domain "{key}". {list_known("domains", domains, key)}')
        else:
            out[text] = None
    return tuple(out)


def find_problems(text: str, declared: set[Address], managed: set[Address]) -> list[Diagnostic]:
    """Return why an address or glob cannot be imported: it is in no file, or managed."""
    try:
        named = {text} if is_glob(text) else {str(Address.parse(text))}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not any(matches(glob, address) for glob in named for address in declared):
        detail = (
            "Declare it first; the plan shows what differs from what is live."
            " Or have it written: --generate-config NAME.jsplan.yaml."
        )
        return [Diagnostic("error", "JS418", "is in no file", detail, text)]
    if not is_glob(text) and Address.parse(text) in managed:
        return [
            Diagnostic("error", "JS419", "is managed already", "There is nothing to import.", text)
        ]
    return []
