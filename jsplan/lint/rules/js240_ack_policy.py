"""JS240: a consumer whose files do not set the acknowledgement policy."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers without `ack_policy`."""
    for item in view.consumers():
        if item.declared_fields.get("ack_policy") is None:
            yield Hit(
                item.address,
                "ack_policy is left out, so it is none: what a client loses is not delivered again",
            )


RULE = Rule(
    "JS240",
    "warning",
    check,
    why=(
        "The server's default is none, although most clients and tools create consumers with"
        " explicit. With none a message counts as done when it is sent, and ack_wait and"
        " max_deliver have no effect. The policy of an existing consumer cannot be changed."
    ),
    fix="Write ack_policy: explicit, or ack_policy: none if it is intended.",
)
