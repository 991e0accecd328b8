"""The state of a backfill: its pinned range, its progress, and the time at which it stops."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct, to_builtins

from jsplan.address import Address
from jsplan.config.model import Backfill, BackfillSide
from jsplan.documents.reading import convert
from jsplan.documents.state_parts import PinnedOrigin, PinnedRangeShape
from jsplan.errors import ApiError, StateError
from jsplan.units import SECOND, format_instant, parse_instant

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

    def split(self, size: int) -> list[SeqRange]:
        """Split it into parts of at most `size` sequences; an empty one has none."""
        begins = range(self.first, self.last + 1, size)
        return [SeqRange(begin, min(self.last, begin + size - 1)) for begin in begins]


def merge_ranges(spans: Iterable[SeqRange]) -> list[SeqRange]:
    """Sort ranges, and merge those that overlap or touch."""
    found: list[SeqRange] = []
    for span in sorted(spans):
        if found and span.first <= found[-1].last + 1:
            found[-1] = SeqRange(found[-1].first, max(found[-1].last, span.last))
        else:
            found.append(span)
    return found


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
    is_same = raw is not None and raw["entry_hash"] == hash_config(entry)
    return convert(raw, BackfillState) if raw is not None and is_same else None


def make_ad_hoc_entry(origin: Address, target: Address) -> Backfill:
    """Build an entry for two addresses: the whole origin into the target."""
    return Backfill(
        f"{origin}>{target}",
        (BackfillSide(origin.domain, origin.stream),),
        BackfillSide(target.domain, target.stream),
    )


def match_origin_states(
    record: BackfillState | None, sides: Iterable[BackfillSide]
) -> list[list[OriginState]]:
    """Match each side with its origin states: at most one of a stream, all of an archive.

    If a stream is named several times, its states are matched in order.
    """
    unmatched: dict[str, list[OriginState]] = {}
    for origin in record.origins if record is not None else ():
        unmatched.setdefault(origin.archive or origin.origin, []).append(origin)
    matched = []
    for side in sides:
        states = unmatched.get(str(side), [])
        count = len(states) if side.parquet is not None else 1
        matched.append(states[:count])
        del states[:count]
    return matched


def list_bound_times(side: BackfillSide) -> list[str]:
    """List the times whose sequences `resolve_bounds` needs."""
    return [time for time in (side.start_time, _exclusive_end_time(side)) if time is not None]


def resolve_bounds(
    side: BackfillSide, state: Mapping[str, Any], seqs: Mapping[str, int]
) -> SeqRange | None:
    """Return the range of a side in a stream with this state. The default is the whole stream.

    `seqs` has the sequence of the first message at or after each time of `list_bound_times`;
    returns None where one is missing.
    """
    last_seq = int(state["last_seq"])
    first, last = side.start_seq or int(state["first_seq"]), min(side.end_seq or last_seq, last_seq)
    start, end = side.start_time, _exclusive_end_time(side)
    if any(time not in seqs for time in list_bound_times(side)):
        return None
    return SeqRange(
        max(1, first if start is None else seqs[start]),
        last if end is None else min(last, seqs[end] - 1),
    )


def _exclusive_end_time(side: BackfillSide) -> str | None:
    """Return the instant after the end of the range: `end_time` itself is included."""
    return format_instant(parse_instant(side.end_time) + 1) if side.end_time is not None else None


class DeadlinePassedError(ApiError):
    """The time came during a copy. Copied messages stay, and the next run resumes it."""


class Deadline(Struct, frozen=True):
    """The time at which tasks stop copying: seconds since 1970, by the clock of their machine."""

    at: float

    @classmethod
    def parse(cls, text: str, now: float) -> Deadline:
        """Parse `05:00`, the next such local time after `now`, or an RFC 3339 time.

        `now` is in seconds since 1970. Raises ValueError.
        """
        if len(text) != 5 or text[2] != ":":
            return cls(parse_instant(text) / SECOND)
        today = datetime.fromtimestamp(now)  # noqa: DTZ006 - a time without a zone is local
        hour, minute = (int(part) for part in text.split(":"))
        at = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return cls((at + timedelta(days=at <= today)).timestamp())

    @property
    def has_passed(self) -> bool:
        """True if nothing more may be copied."""
        return time.time() >= self.at

    def require_open(self) -> None:
        """Raise DeadlinePassedError if nothing more may be copied."""
        if self.has_passed:
            raise DeadlinePassedError("its time is over", hint="The next run resumes the copy.")
