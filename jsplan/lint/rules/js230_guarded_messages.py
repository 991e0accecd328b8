"""JS230: `deny_delete` or `deny_purge` without a guard for the stream itself."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams whose files protect the messages, and not the stream."""
    for item in view.streams():
        name = next(
            (name for name in ("deny_purge", "deny_delete") if item.declared_fields.get(name)), None
        )
        guarded = item.declared is not None and item.declared.lifecycle.prevent_destroy is not None
        if name is not None and item.address.kind == "stream" and not guarded:
            yield Hit(item.address, f"{name} protects messages, not the stream itself", name)


RULE = Rule(
    "JS230",
    "note",
    check,
    why=(
        "deny_delete and deny_purge refuse to delete single messages and to purge. A lower limit"
        " still removes messages immediately, and any user with the permission can delete the"
        " whole stream."
    ),
    fix="Add lifecycle: {prevent_destroy: true}.",
)
