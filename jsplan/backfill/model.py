"""What state keeps of a backfill: the range that was pinned when it was first planned or run, and what became of it. Needs nothing but
Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from jsplan.address import Address
from jsplan.config.model import Backfill, BackfillSide
from jsplan.documents.base import known_fields
from jsplan.errors import StateError

#: Of how many ranges a gap list has the bounds; of the rest only the numbers.
MAX_LISTED_RANGES: Final = 1000
#: The status of what a source leaves out and somebody did not want (`--no-backfill`): it is not planned again, and a run brings it.
SKIPPED: Final = "skipped"


class SeqRange(NamedTuple):
    """Sequences `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many sequences it has."""
        return self.last - self.first + 1


@dataclass(slots=True)
class OriginState:
    """One origin of an entry, as it was when the range was pinned.

    `origin` and `target` are addresses; `created` tells the origin from another one of its name; `first` to `last` are its
    sequences. `target_created` and `target_next` say which stream it goes to, and the sequence that came next there; empty until a run
    begins what a plan has pinned. `status` is `planned`, `skipped` or `done`; `copied` counts messages, `gaps` are ranges that were
    gone before they could be copied (the first of them; `gap_messages` is how many messages all of them have), `skipped` are sequences
    too large to be copied. `strategy` is what copies; who takes over goes on with it. `seconds` is what copying took.
    `archive` is the folder that is read in the place of the origin, as written; a `target` that is no address is one that is written to.
    `source` is the key of the target's source that leaves this range out; empty where somebody asked for the range.
    """

    origin: str
    target: str
    created: str
    first: int
    last: int
    filters: list[str]
    target_created: str
    target_next: int
    status: str = "planned"
    copied: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    target_last: int = 0
    gap_messages: int = 0
    strategy: str = "spark"
    seconds: float = 0.0
    archive: str = ""
    source: str = ""

    @property
    def origin_address(self) -> Address:
        """Where it is copied from."""
        return Address.parse(self.origin)

    @property
    def target_address(self) -> Address:
        """Where it is copied to. Raises StateError where that is no address."""
        try:
            return Address.parse(self.target)
        except ValueError as error:
            raise StateError(
                f"state names the target of a backfill wrongly: {error}",
                hint="Pin its range again with --reset-range.",
            ) from None

    @property
    def seq_range(self) -> SeqRange:
        """The pinned range; it may be empty."""
        return SeqRange(self.first, self.last)


@dataclass(slots=True)
class BackfillState:
    """What state keeps of an entry: `entry_hash` is the hash of what the files said when its range was pinned; `done_at` is RFC 3339.

    `planned`: a plan pinned it, and no run has started it since. `unmeasured` are sources that leave something out of an origin that could
    not be asked how much: `{source, filters, status}` with `end_seq`, or with `before`, a time.
    """

    name: str
    entry_hash: str
    origins: list[OriginState]
    pinned_at: str
    done_at: str = ""
    planned: bool = False
    unmeasured: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        """Whether a plan has pinned it, and nothing of it was run yet."""
        return self.planned and not any(leg.status == "done" for leg in self.origins)

    def to_json(self) -> dict[str, Any]:
        """The value of `backfills[name]`."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> BackfillState:
        """The reverse of `to_json`."""
        return cls(
            raw["name"],
            raw["entry_hash"],
            [OriginState(**known_fields(OriginState, leg)) for leg in raw["origins"]],
            raw["pinned_at"],
            raw.get("done_at", ""),
            raw.get("planned", False),
            [dict(one) for one in raw.get("unmeasured", ())],
        )


def hash_config(entry: Backfill) -> str:
    """A hash over what an entry says. What only changes how fast it goes is left out."""
    said = asdict(entry)
    for name in ("range", "rate", "window", "strategy"):
        said.pop(name)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def find_stored_state(
    backfills: Mapping[str, dict[str, Any]], entry: Backfill
) -> BackfillState | None:
    """What state keeps of an entry, if the files still say the same of it."""
    raw = backfills.get(entry.name)
    return (
        BackfillState.from_json(raw)
        if raw is not None and raw["entry_hash"] == hash_config(entry)
        else None
    )


def make_ad_hoc_entry(origin: Address, target: Address) -> Backfill:
    """What is meant by two addresses without an entry: the whole of a stream into another one."""
    return Backfill(
        f"{origin}>{target}",
        (BackfillSide(origin.domain, origin.stream),),
        BackfillSide(target.domain, target.stream),
    )


def match_origin_states(
    record: BackfillState | None, sides: Iterable[BackfillSide]
) -> list[OriginState | None]:
    """The leg of each side, as far as there is one: of a stream that is named several times the first one has the first of its legs."""
    left: dict[str, list[OriginState]] = {}
    for leg in record.origins if record is not None else ():
        left.setdefault(leg.origin, []).append(leg)
    return [legs.pop(0) if (legs := left.get(str(side))) else None for side in sides]
