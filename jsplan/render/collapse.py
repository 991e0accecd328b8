"""Two hundred domains with the same change are one paragraph and a list of the others. What it says is `resource_text`'s."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.documents.plan import ResourceChange
    from jsplan.render.lines import Lines

#: Fewer than this are written out.
ENOUGH = 4
_NUMBERED = re.compile(r"(.*?)(\d+)")


def groups(resources: list[tuple[ResourceChange, Lines]]) -> Iterator[tuple[Lines, list[ResourceChange]]]:
    """Each paragraph with the further resources that it speaks for.

    Resources are alike when their texts differ in nothing but the name of their own domain. One with a hazard
    is always written out: its numbers and its flag are its own.
    """
    alike: dict[str, list[tuple[ResourceChange, Lines]]] = {}
    for number, (resource, lines) in enumerate(resources):
        key = str(number) if resource.hazards else lines.plain().replace(resource.domain, "\0")
        alike.setdefault(key, []).append((resource, lines))
    for members in alike.values():
        if len(members) < ENOUGH:
            yield from ((lines, []) for _, lines in members)
        else:
            yield members[0][1], [resource for resource, _ in members[1:]]


def compressed(names: list[str]) -> str:
    """`store-002, store-{004..200}`: sorted names, runs of equal width as ranges."""
    runs: list[list[str]] = []
    for name in sorted(names):
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(_run(run) for run in runs)


def _follows(before: str, name: str) -> bool:
    a, b = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    return a is not None and b is not None and a[1] == b[1] and len(a[2]) == len(b[2]) and int(b[2]) == int(a[2]) + 1


def _run(run: list[str]) -> str:
    if len(run) < 3:
        return ", ".join(run)
    first, last = _NUMBERED.fullmatch(run[0]), _NUMBERED.fullmatch(run[-1])
    assert first is not None
    assert last is not None
    return f"{first[1]}{{{first[2]}..{last[2]}}}"
