"""Drafts: the steps of a plan before they are ordered and numbered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.documents.step_kinds import Op

#: The parts of the change of one object. A key of a draft is the address and one of them.
Part = Literal[
    # an object: before, while and after it is written
    "first", "park", "leave", "create", "update", "last", "pause", "reset", "delete", "forget",
    "state", "settle", "tidy", "verify",
    # a stream of a backup
    "restore",
    # a placeholder around the consumers of a stream
    "hold", "release",
    # a transfer
    "probe", "mirror", "precompare", "stop", "rest", "compare", "retire", "refill", "match",
    "resume", "recompare", "clear", "ended", "checked", "cleared",
]  # fmt: skip
Key = tuple[Address, Part]
#: The parts of the same object that come before each part. They order a change that has several.
EARLIER_PARTS: Final[Mapping[Part, tuple[Part, ...]]] = {
    "probe": ("cleared",), "first": ("state",), "park": ("state", "first"), "retire": ("stop",),
    "leave": ("state", "first", "park"), "update": ("state", "first", "park", "leave", "refill"),
    "pause": ("first", "park", "update"), "last": ("state", "first", "park", "leave", "update"),
    "reset": ("park", "update", "pause"),
}  # fmt: skip


class Draft(Struct):
    """A step without a number.

    `freed_subjects` and `taken_subjects` are subjects. Streams of one domain take subjects
    from each other, consumers of one work queue take filters; see `scope`.

    `depends_on` are keys of other drafts. `soft_dependencies` are those of `depends_on` that the
    server does not require: they are dropped first when steps wait for each other. `stable_stream`
    is a stream that the cluster must have finished moving or scaling. `object_address` and `params`
    are the step's `object` and `params`. `before_apply` is the fingerprint before the apply of what
    an earlier step changes, in place of `precondition`.
    """

    key: Key
    op: Op
    title: str
    request: dict[str, Any] | None
    precondition: str
    expect: dict[str, Any] | None = None
    record: dict[str, Any] | None = None
    freed_subjects: list[str] = field(default_factory=list)
    taken_subjects: list[str] = field(default_factory=list)
    depends_on: set[Key] = field(default_factory=set)
    soft_dependencies: set[Key] = field(default_factory=set)
    stable_stream: Address | None = None
    object_address: Address | None = None
    params: dict[str, Any] | None = None
    before_apply: str = ""

    @property
    def scope(self) -> str:
        """The scope in which a subject has one owner: a domain, or the stream of a work queue."""
        address = self.key[0]
        return address.domain if address.parent is None else str(address.parent)


Drafts = dict[Key, Draft]
