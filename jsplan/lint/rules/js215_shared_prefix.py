"""JS215: one delivery prefix for streams in two accounts."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import SubjectTree


def check(view: View) -> Iterator[Hit]:
    """Prefixes that are equal, or one within the other, over different connections."""
    tree: SubjectTree[tuple[str, str, str]] = SubjectTree()
    found = ((edge, view.topology.delivery_prefix(edge)) for edge in view.topology.edges)
    edges = [(edge, prefix) for edge, prefix in found if prefix]
    wanted = {item.address for item in view.streams()} if edges else set()
    for edge, prefix in edges:
        account = view.workspace.domains[
            view.topology.routes.canonicalize(edge.downstream.domain)
        ].connection
        other = next(
            (found for found in tree.find_overlapping(f"{prefix}.>") if found[0] != account), None
        )
        if other is not None and edge.downstream in wanted:
            yield Hit(
                edge.downstream,
                f"is delivered to on {prefix}, and {other[2]} in another account on {other[1]}",
                "mirror" if edge.kind == "mirror" else "sources",
            )
        tree.add(f"{prefix}.>", (account, prefix, str(edge.downstream)))


RULE = Rule(
    "JS215",
    "note",
    check,
    why=(
        "A delivery prefix is exported as a stream, and every account that imports it receives"
        " what is delivered on it. With one prefix for two accounts each of them can read the"
        " messages of the other, and access cannot be granted or revoked for one of them alone."
    ),
    fix="Give each importing account a prefix of its own: deliver.<owner>.<domain>.<importer>.",
)
