"""Warnings about `--allow-hazard` flags that match nothing, probably typing errors. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic, did_you_mean

PERMITS_NOTHING = "JS429"
_FLAGS_HINT = "The plan shows each flag that is needed."


def check_permissions(
    flags: Iterable[str], addresses: Collection[Address | str]
) -> Iterable[Diagnostic]:
    """Yield a warning for each `CODE:ADDR` whose address or glob matches no known address."""
    for flag in dict.fromkeys(flags):
        _, colon, glob = flag.partition(":")
        if colon and not any(matches(glob, address) for address in addresses):
            text = f"--allow-hazard {flag} names nothing and permits nothing"
            detail = did_you_mean(glob, map(str, addresses)).strip() or _FLAGS_HINT
            yield Diagnostic("warning", PERMITS_NOTHING, text, detail)
