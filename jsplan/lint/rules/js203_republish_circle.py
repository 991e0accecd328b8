"""JS203: streams that store what the other republishes, in a circle."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.address import Address
from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import LintItem, View
from jsplan.subjects import SubjectTree, overlaps
from jsplan.topology.replication_graph import subject_mappings


def check(view: View) -> Iterator[Hit]:
    """Every circle once, at the first of its streams."""
    onward = _republish_targets(view)
    wanted = {item.address for item in view.streams()}
    reported: set[frozenset[Address]] = set()
    for start in sorted(onward.keys() & wanted):
        ring = _find_cycle(start, onward)
        if ring and frozenset(ring) not in reported:
            reported.add(frozenset(ring))
            chain = " republishes to ".join(map(str, [*ring, start]))
            yield Hit(start, f"{chain}: each message circulates", "republish", also=tuple(ring))


def _republish_targets(view: View) -> dict[Address, list[Address]]:
    """Return the streams that each stream republishes to and that republish themselves."""
    loud = [item for item in view.all_streams.values() if item.config.get("republish")]
    trees: dict[str, SubjectTree[LintItem]] = {}
    for item in loud:
        tree = trees.setdefault(view.connected_domains.group_of(item.address.domain), SubjectTree())
        for subject in item.config.get("subjects", ()):
            tree.add(subject, item)
    found: dict[Address, list[Address]] = {}
    for item in loud:
        dest = _destination(item)
        tree = trees[view.connected_domains.group_of(item.address.domain)]
        heard = {
            other.address
            for other in tree.find_overlapping(dest)
            if other is not item and overlaps(dest, _src(other))
        }
        found[item.address] = sorted(heard)
    return found


def _src(item: LintItem) -> str:
    return str(item.config["republish"].get("src", ">"))


def _destination(item: LintItem) -> str:
    (_, dest), *_ = subject_mappings(
        {
            "subject_transforms": [
                {"src": _src(item), "dest": item.config["republish"].get("dest", "")}
            ]
        }
    )
    return dest


def _find_cycle(start: Address, onward: dict[Address, list[Address]]) -> list[Address]:
    """Return a path from the stream back to itself."""
    pending, seen = [[start]], {start}
    while pending:
        path = pending.pop()
        for other in onward.get(path[-1], ()):
            if other == start:
                return path
            if other not in seen:
                seen.add(other)
                pending.append([*path, other])
    return []


RULE = Rule(
    "JS203",
    "warning",
    check,
    why=(
        "The server refuses a stream that stores what it republishes itself. It does not check"
        " two streams: one message became hundreds in a second, until the server stopped them."
    ),
    fix="Let one of the streams republish under a subject that no stream stores.",
)
