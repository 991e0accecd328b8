"""Reasons for a difference, as far as configurations and ends of streams show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from jsplan.comparing.relation import Relation
from jsplan.documents.comparison import ComparedPart, PartKind
from jsplan.facts.compare_streams import Comparison
from jsplan.facts.live import LiveObject
from jsplan.planning.backfill.model import SeqRange, merge_ranges

#: Ranges that a part lists.
MAX_RANGES: Final = 1000
#: Fields with which a server deletes messages, and how a reason names them.
_LIMITS: Final = ("max_age", "max_msgs", "max_bytes")
_INTERIOR: Final = ("max_msgs_per_subject", "allow_msg_ttl", "allow_rollup_hdrs")


def deletes_oldest(stream: LiveObject) -> str:
    """Return the fields by which a stream deletes its oldest messages; empty for none."""
    config = stream.compact
    found = [name for name in _LIMITS if int(config.get(name) or 0) > 0]
    return " and ".join(found) or _deletes_any(stream)


def _deletes_any(stream: LiveObject) -> str:
    """Return the fields by which a stream deletes messages in its middle; empty for none."""
    config = stream.compact
    retention = config.get("retention", "limits")
    found = [f"retention: {retention}"] if retention != "limits" else []
    found += [name for name in _INTERIOR if int(config.get(name) or 0) > 0]
    return " and ".join(found)


def explain(relation: Relation, found: Comparison, *, forked: bool) -> list[ComparedPart]:
    """Return the differences, those of one reason together.

    `forked`: the origin went back, and those that differ are newer than the copy.
    """
    origin = relation.origin.address
    newer = f"{origin} went back, and has received new messages at the lost sequences"
    rows: list[tuple[PartKind, bool, str, int]] = []
    rows += [("missing", *_why_missing(relation, seq), seq) for seq in found.missing]
    rows += [("extra", *_why_extra(relation, seq), seq) for seq in found.extra]
    rows += [("different", False, newer if forked else "", seq) for seq in found.different]
    rows += [("twice", False, "the copy has them more than once", seq) for seq in found.twice]
    parts = []
    for (kind, expected, reason), group in groupby(rows, key=lambda row: row[:3]):
        seqs = [row[3] for row in group]
        lost = not expected and (kind == "extra" or (kind == "different" and forked))
        in_copy = _ranges(found.places.get(seq, seq) for seq in seqs) if lost else []
        parts.append(ComparedPart(kind, len(seqs), _ranges(seqs), reason, expected, lost, in_copy))
    if found.omitted:
        reason = "more differences, which are not listed"
        parts.append(ComparedPart("different", found.omitted, [], reason))
    return parts


def _ranges(seqs: Iterable[int]) -> list[list[int]]:
    return [[*span] for span in merge_ranges(SeqRange(seq, seq) for seq in seqs)[:MAX_RANGES]]


def _why_missing(relation: Relation, seq: int) -> tuple[bool, str]:
    """Say why the copy lacks a message: whether that is expected, and the reason."""
    copy = relation.copy
    if relation.by == "sequence":
        first, last = (int(copy.state.get(name) or 0) for name in ("first_seq", "last_seq"))
        if seq > last and relation.role == "mirror":
            return False, f"{copy.address} has not copied them yet"
        if seq < first and (why := deletes_oldest(copy)):
            return True, f"{copy.address} has deleted them by {why}"
    elif seq < relation.start:
        return True, f"the source begins at sequence {relation.start:,}"
    elif why := deletes_oldest(copy):
        return True, f"{copy.address} may have deleted them by {why}"
    if why := _deletes_any(copy):
        return True, f"{copy.address} may have deleted them by {why}"
    return False, ""


def _why_extra(relation: Relation, seq: int) -> tuple[bool, str]:
    """Say why the origin lacks a message that the copy has."""
    origin = relation.origin
    first, last = (int(origin.state.get(name) or 0) for name in ("first_seq", "last_seq"))
    if seq > last:
        return False, f"{origin.address} ends at {last:,}: it went back"
    if seq < first and (why := deletes_oldest(origin)):
        return True, f"{origin.address} has deleted them by {why}"
    if why := _deletes_any(origin):
        return True, f"{origin.address} may have deleted them by {why}"
    return False, f"{origin.address} has lost them, or a client has deleted them there"
