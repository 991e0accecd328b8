"""The state of a backfill: its pinned range and its progress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import to_builtins

from jsplan.address import Address
from jsplan.config.model import Backfill, BackfillSide
from jsplan.documents.reading import convert
from jsplan.documents.state_parts import PinnedOrigin, PinnedRangeShape
from jsplan.errors import StateError

#: A gap list has the bounds of this many ranges at most; further gaps are only counted.
MAX_LISTED_RANGES: Final = 1000


class SeqRange(NamedTuple):
    """Sequences `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """The number of sequences."""
        return self.last - self.first + 1


class OriginState(PinnedOrigin):
    """One origin of an entry, and its addresses."""

    @property
    def origin_address(self) -> Address:
        """The address of the origin."""
        return Address.parse(self.origin)

    @property
    def target_address(self) -> Address:
        """The address of the target. Raises StateError if it is no address."""
        try:
            return Address.parse(self.target)
        except ValueError as error:
            raise StateError(
                f"state has an invalid target of a backfill: {error}",
                hint="Pin its range again with --reset-range.",
            ) from None

    @property
    def seq_range(self) -> SeqRange:
        """The pinned range; it may be empty."""
        return SeqRange(self.first, self.last)


class BackfillState(PinnedRangeShape):
    """The state of one entry."""

    origins: list[OriginState]

    @property
    def is_new(self) -> bool:
        """True if a plan pinned it and no run has started."""
        return self.planned and not any(origin.status == "done" for origin in self.origins)

    def to_json(self) -> dict[str, Any]:
        """The value of `backfills[name]`."""
        found: dict[str, Any] = to_builtins(self)
        return found

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> BackfillState:
        """The reverse of `to_json`."""
        found: BackfillState = convert(raw, cls)
        return found


def hash_config(entry: Backfill) -> str:
    """Hash an entry, without the keys that only change the speed of a copy."""
    config: dict[str, Any] = to_builtins(entry)
    for name in ("range", "rate", "strategy"):
        config.pop(name)
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:32]


def find_stored_state(
    backfills: Mapping[str, dict[str, Any]], entry: Backfill
) -> BackfillState | None:
    """Load the state of an entry, if the entry has not changed since."""
    raw = backfills.get(entry.name)
    return (
        BackfillState.from_json(raw)
        if raw is not None and raw["entry_hash"] == hash_config(entry)
        else None
    )


def make_ad_hoc_entry(origin: Address, target: Address) -> Backfill:
    """Build an entry for two addresses: the whole origin into the target."""
    return Backfill(
        f"{origin}>{target}",
        (BackfillSide(origin.domain, origin.stream),),
        BackfillSide(target.domain, target.stream),
    )


def match_origin_states(
    record: BackfillState | None, sides: Iterable[BackfillSide]
) -> list[OriginState | None]:
    """Match each side with its origin state, or None.

    If a stream is named several times, its states are matched in order.
    """
    unmatched: dict[str, list[OriginState]] = {}
    for origin in record.origins if record is not None else ():
        unmatched.setdefault(origin.origin, []).append(origin)
    return [states.pop(0) if (states := unmatched.get(str(side))) else None for side in sides]
