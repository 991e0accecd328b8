"""JS204: a stream that stores the deliveries to another stream."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import SubjectTree
from jsplan.topology import Edge


def check(view: View) -> Iterator[Hit]:
    """Streams whose subjects overlap with a delivery prefix of a domain that shares messages."""
    trees: dict[str, SubjectTree[tuple[str, Edge]]] = {}
    for edge in view.topology.edges:
        if prefix := view.topology.delivery_prefix(edge):
            trees.setdefault(
                view.connected_domains.group_of(edge.downstream.domain), SubjectTree()
            ).add(f"{prefix}.>", (prefix, edge))
    if not trees:
        return
    for item in view.streams():
        tree = trees.get(view.connected_domains.group_of(item.address.domain))
        for subject in item.config.get("subjects", ()) if tree is not None else ():
            assert tree is not None
            caught = next((found for found in tree.find_overlapping(subject)), None)
            if caught is not None:
                text = (
                    f'"{subject}" stores what is delivered to {caught[1].downstream} on {caught[0]}'
                )
                yield Hit(item.address, text, "subjects", also=(caught[1].downstream,))


RULE = Rule(
    "JS204",
    "warning",
    check,
    why=(
        "The server delivers messages to a mirror or source in another account on ordinary"
        " subjects below its delivery prefix. A stream that stores these subjects has every"
        " copied message once more, with the server's own headers, and heartbeats."
    ),
    fix="Narrow the stream's subjects, or use a delivery prefix that no stream stores.",
)
