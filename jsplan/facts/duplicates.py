"""What planning asks about messages that a stream copies once more, and the answer, as plain data. Counting is left to `recopied`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jsplan.address import Address

#: So many messages are searched for the last one of a source that comes back together with an origin that is made anew.
MAX_SEARCHED = 100_000


@dataclass(frozen=True, slots=True)
class DuplicateRequest:
    """A source that is new to the server although other sources of the copy take, or took, messages of the same origin.

    `origin` is None where the files do not say what is behind the source, called `name`. `subjects` are the subjects that it
    takes, `other_subjects` those of the others. `recreated`: the copy is made anew, with all of them; else it may hold messages of just
    this source from earlier, behind which the server goes on, and `header` is how those name it: stream, filters, and
    destinations (server_semantics, section 5). It begins at `start_seq` or `start_time`. `starts_later`: one of the others did
    not begin with the first message.
    """

    downstream: Address
    name: str
    origin: Address | None
    subjects: tuple[str, ...]
    other_subjects: tuple[str, ...]
    header: tuple[str, str, str]
    recreated: bool
    start_seq: int = 0
    start_time: str = ""
    starts_later: bool = False


@dataclass(frozen=True, slots=True)
class DuplicateCount:
    """How many messages of the origin both take, the source and another one. `at_most` is None where nobody can tell, for a `reason`."""

    request: DuplicateRequest
    at_least: int
    at_most: int | None
    as_of: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
