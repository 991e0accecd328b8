"""JS222: a stream that is lost with one server of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams of one replica on the disks of a cluster."""
    for item in view.streams():
        on_disk = item.config.get("storage", "file") == "file"
        if on_disk and item.replicas == 1 and view.is_clustered(item.address.domain):
            yield Hit(
                item.address,
                f"has one replica, and {item.address.domain} is a cluster",
                "num_replicas",
            )


RULE = Rule(
    "JS222",
    "warning",
    check,
    why=(
        "A stream of one replica is on one server of the cluster. While that server is offline,"
        " publishes are not answered. If its disk is lost, the messages are lost. A domain is"
        " known to be a cluster from its servers (`plan`, `lint --live`), or because another"
        " stream of it has several replicas."
    ),
    fix="Write num_replicas: 3, or ignore this with the reason why the stream may be lost.",
)
