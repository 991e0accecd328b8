"""Messages that a changed filter leaves undelivered: to one consumer, or in a work queue to all of them. Pure arithmetic.

Measured on 2.10 to 2.15: a changed filter never rewinds a consumer, and the place up to which it has searched for messages may lie
behind the last one that it delivered, up to the next one that its old filter matches. What is out when a filter changes is
delivered again, whatever the new filter is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jsplan.facts.stored import Stored
from jsplan.facts.trims import Tally
from jsplan.subjects import passes

Filters = tuple[str, ...]
Gets = Literal["yes", "maybe", "no"]
#: `narrowed`: what a consumer still had before it; `passed`: what its new filter matches and it has passed; `stranded`: what no
#: consumer of a work queue will be given.
Aspect = Literal["narrowed", "passed", "stranded"]


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer that is there when the plan is done. `before` are its filters until now, None for one that is created.

    `given` is the last sequence that it delivered, `out` whether any of that is not acknowledged. `resumes`: it is replaced and
    begins there, or (0) with the first message. `parks`: its filter may match nothing for a moment; a client that waits then lets it
    search to the end of the stream.
    """

    name: str
    before: Filters | None
    after: Filters
    given: int = 0
    out: bool = False
    resumes: int | None = None
    parks: bool = False

    @property
    def changes(self) -> bool:
        """Whether another filter is given to the consumer that is there."""
        return self.before is not None and self.resumes is None and sorted(self.before) != sorted(self.after)


@dataclass(frozen=True, slots=True)
class Strands:
    """What is asked about the consumer `name`; `readers` are all that a work queue will have, else that one alone."""

    name: str
    aspect: Aspect
    readers: tuple[Reader, ...]

    @property
    def reader(self) -> Reader:
        """The consumer that changes."""
        return next(one for one in self.readers if one.name == self.name)

    def concerns(self, subject: str) -> bool:
        """Whether messages of a subject can be counted."""
        one = self.reader
        before, after = one.before is not None and passes(subject, one.before), passes(subject, one.after)
        if self.aspect == "stranded":
            return before or after
        return before and not after if self.aspect == "narrowed" else after and not before

    @property
    def start(self) -> int:
        """The first sequence that can be counted."""
        one = self.reader
        return (one.given + 1 if one.resumes is None else one.resumes) if self.aspect == "narrowed" else 1


@dataclass
class Walk:
    """Counts from the first message on: `sure` are left, `doubtful` may be."""

    asked: Strands
    sure: Tally = field(default_factory=Tally)
    doubtful: Tally = field(default_factory=Tally)
    _waits: set[str] = field(default_factory=set)

    def take(self, message: Stored) -> None:
        """Look at the next message."""
        if self.asked.concerns(message.subject):
            found = self._left(message)
            if found != "no":
                (self.sure if found == "yes" else self.doubtful).add(message)
        self._waits |= {
            r.name for r in self.asked.readers if r.changes and message.seq > r.given and passes(message.subject, r.before or ())
        }

    def _left(self, message: Stored) -> Gets:
        """Whether nobody who is asked about gets it."""
        one = self.asked.reader
        if self.asked.aspect == "narrowed":
            finished = message.seq < self.asked.start or (message.seq <= one.given and not one.out)
            return "no" if finished else "maybe" if message.seq <= one.given else "yes"
        if self.asked.aspect == "stranded" and not self._own(message):
            return "no"
        gets = {self._gets(reader, message) for reader in self.asked.readers}
        return "no" if "yes" in gets else "maybe" if "maybe" in gets else "yes"

    def _own(self, message: Stored) -> bool:
        """Whether it is counted for this consumer: the one that a replacement would let deliver it, else the one that had it."""
        had = [r.name for r in self.asked.readers if r.before is not None and passes(message.subject, r.before) and _differs(r)]
        new = [r.name for r in self.asked.readers if _differs(r) and passes(message.subject, r.after)]
        return (new or had)[:1] == [self.asked.name]

    def _gets(self, reader: Reader, message: Stored) -> Gets:
        after = passes(message.subject, reader.after)
        if reader.resumes is not None:
            return "yes" if after and message.seq >= reader.resumes else "no"
        if not reader.changes:
            return "yes" if after else "no"
        before = passes(message.subject, reader.before or ())
        if message.seq <= reader.given:
            return "yes" if before else "no"  # in a work queue it is still there because it is out
        if not after:
            return "no"
        return "yes" if (before or reader.name in self._waits) and not reader.parks else "maybe"


def _differs(reader: Reader) -> bool:
    return reader.before is not None and sorted(reader.before) != sorted(reader.after)
