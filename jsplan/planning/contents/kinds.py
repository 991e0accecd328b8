"""The kinds of contents in a plan: the words for each, and the ops of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from jsplan.documents.step_kinds import Op


class ContentKind(Struct, frozen=True):
    """The words for one content, for its value and for what holds it, and its ops."""

    noun: str
    value: str
    parent: str
    create: Op
    update: Op
    delete: Op


CONTENT_KINDS: Final[Mapping[str, ContentKind]] = {
    "kv_entry": ContentKind(
        "key",
        "the value of the key",
        "bucket",
        "kv_entry.create",
        "kv_entry.update",
        "kv_entry.delete",
    ),
    "object": ContentKind(
        "object", "the object", "bucket", "object.create", "object.update", "object.delete"
    ),
    "schedule": ContentKind(
        "schedule",
        "the schedule",
        "stream",
        "schedule.create",
        "schedule.update",
        "schedule.delete",
    ),
    "account": ContentKind(
        "account", "the account", "place", "account.create", "account.update", "account.delete"
    ),
}
