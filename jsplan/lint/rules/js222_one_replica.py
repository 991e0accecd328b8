"""JS222: a stream that is gone with one server of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams of one copy where there are several servers."""
    for item in view.streams():
        if item.replicas == 1 and view.is_clustered(item.address.domain):
            yield Hit(
                item.address,
                f"has one copy, and {item.address.domain} is a cluster",
                "num_replicas",
            )


RULE = Rule(
    "JS222", "note", check,
    why="A stream of one copy lives on one server of the cluster. While that is away, publishes are not answered; when its disk "
        "is lost, so are the messages. That a domain is a cluster is known from the servers (`plan`, `lint --live`), or because "
        "another stream of it has several copies.",
    fix="Write num_replicas: 3, or ignore this with the reason why the stream may be lost.",
)  # fmt: skip
