"""Lost and missed messages, and paused consumers: findings without a threshold. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from msgspec import Struct

from jsplan.documents.drift import LOST_KEY
from jsplan.facts.live import LiveObject
from jsplan.health.thresholds import Breach, is_enabled, list_keys
from jsplan.resources.fields import Config
from jsplan.subjects import is_covered
from jsplan.units import SECOND, count_text, format_bytes, format_instant, parse_instant

#: The keys of the findings in documents.
MISSED, PAUSED = "jsplan.missed", "jsplan.paused"
UNREADABLE, RETURNED = f"{LOST_KEY}-messages", f"{LOST_KEY}-sequences"
_PAUSE: Final = "pause_until"
REMOVED: Final = f"{LOST_KEY}-interior"
DISAGREEING: Final = f"{LOST_KEY}-replicas"
#: Losses of a stream since a watermark.
SINCE_CHECK: Final = (RETURNED, REMOVED, MISSED)
#: Fields with which a server deletes or leaves out messages by itself, or for a publisher.
_LIMITS: Final = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
_BY_SUBJECT: Final = ("max_msgs_per_subject", "allow_rollup_hdrs")
_DELETES: Final = ("allow_rollup_hdrs", "allow_msg_ttl", "allow_msg_schedules", "mirror")


class LastApplied(Struct, frozen=True):
    """The knowledge of an object: its last sequence (0: none), and the pause that the files say.

    `seen_at` is the time of the last check that remembered it (empty: the last apply), with its
    first sequence then and the number of deleted messages after that.
    """

    last_seq: int = 0
    pause: str | None = None
    seen_at: str = ""
    first_seq: int = 0
    deleted: int = 0


#: Of an object that state does not have.
NOTHING_KNOWN: Final = LastApplied()


def find_losses(
    live: LiveObject, now: int, stream: LiveObject | None, last: LastApplied
) -> list[Breach]:
    """Return lost or missed messages, and the pause of a consumer.

    `stream` is that of a consumer, or the only origin of a stream; `now` ns since 1970. Rests on
    these rules of servers: the last sequence of a stream never falls, `state.lost` is what its
    server could not read when it started, a consumer that another client moves, or a purge, is
    delivered from there, a mirror has the sequences of its origin, and a source writes them into
    the headers.
    """
    if not is_enabled(list_keys(live.raw.get("metadata") or {})):
        return []
    if live.address.kind == "consumer":
        found = [_find_missed(live, stream) if stream is not None else None]
        found.append(_find_pause(live, now, last.pause))
    else:
        found = [
            _find_unreadable(live),
            _find_return(live, last),
            _find_removed(live, last),
            _find_disagreeing(live),
            _find_uncopied(live, stream, last) if stream is not None else None,
        ]
    return [breach for breach in found if breach is not None]


def _critical(key: str, text: str) -> Breach:
    return Breach(key, "critical", "", text)


def _find_unreadable(live: LiveObject) -> Breach | None:
    """Return a finding for what the server says that it lost.

    A server that was killed lists messages too that had expired or were purged, or that workers had
    finished (measured on 2.15.1). Those are before the first one: no finding where the stream
    deletes by itself, and a warning where a client may have purged it.
    """
    lost: dict[str, Any] = live.state.get("lost") or {}
    if not lost:
        return None
    config, first = live.compact, int(live.state.get("first_seq") or 0)
    sequences: Collection[int] = lost.get("msgs") or ()
    kept = [seq for seq in sequences if seq >= first]
    size = format_bytes(int(lost.get("bytes") or 0))
    if sequences and (deletes_oldest(config) or config.get("allow_msg_ttl")):
        if not kept:
            return None
        sequences = kept
    what = f"{count_text(len(sequences), 'message')}, {size}" if sequences else size
    text = f"its server lost messages that it could not read when it started ({what})"
    if sequences and not kept and not config.get("deny_purge"):
        text += "; or a client purged them before it was killed, since all are before the first one"
        return Breach(UNREADABLE, "warning", "", text)
    return _critical(UNREADABLE, text)


def _find_disagreeing(live: LiveObject) -> Breach | None:
    """Return a finding for replicas that have other messages (`facts.replicas`)."""
    replicas: dict[str, dict[str, int]] = live.state.get("replicas") or {}
    if not replicas:
        return None
    servers: dict[str, list[str]] = {}
    for server, counts in sorted(replicas.items()):
        span = f"sequences {counts['first_seq']:,} to {counts['last_seq']:,}"
        text = f"{count_text(counts['messages'], 'message')}, {span}"
        servers.setdefault(text, []).append(server)
    listed = "; ".join(f"{' and '.join(names)}: {text}" for text, names in servers.items())
    fewest = min(replicas, key=lambda server: replicas[server]["messages"])
    return _critical(
        DISAGREEING,
        f"its replicas disagree ({listed}). If {fewest} becomes the leader, messages are lost. To "
        "let it copy them again, apply num_replicas: 1 while another server leads, then "
        f"num_replicas: {len(replicas)}",
    )


def _find_return(live: LiveObject, last: LastApplied) -> Breach | None:
    now = int(live.state.get("last_seq") or 0)
    if (seq := live.state.get("replaced_seq")) is not None:
        text = (
            f"its server lost messages: message {seq:,} is another one than at {last.seen_at}. The "
            "stream went back, and has received new messages at the lost sequences"
        )
        return _critical(RETURNED, text)
    if now >= last.last_seq:
        return None
    when = f"at {last.seen_at}" if last.seen_at else "when it was last applied"
    text = (
        f"its server lost {count_text(last.last_seq - now, 'message')}: it ended at sequence "
        f"{last.last_seq:,} {when}, and ends at {now:,} now. New messages get the sequences "
        f"{now + 1:,} to {last.last_seq:,} again"
    )
    return _critical(RETURNED, text)


def _find_removed(live: LiveObject, last: LastApplied) -> Breach | None:
    """Return a finding for messages that are gone although no client may delete any.

    That is a stream without limits that denies purges and deletions. A mirror has gaps of its own.
    """
    config, state = live.compact, live.state
    if not last.seen_at or not (config.get("deny_purge") and config.get("deny_delete")):
        return None
    if deletes_oldest(config) or any(map(config.get, _DELETES)):
        return None
    first, deleted = (int(state.get(name) or 0) for name in ("first_seq", "num_deleted"))
    gone = max(0, first - max(last.first_seq, 1)) + max(0, deleted - last.deleted)
    if not gone:
        return None
    return _critical(
        REMOVED,
        f"its server lost {count_text(gone, 'message')} since {last.seen_at}: it has no limits and "
        "denies purges and deletions",
    )


def _find_uncopied(live: LiveObject, origin: LiveObject, last: LastApplied) -> Breach | None:
    """Return a finding for a copy whose origin deleted messages before it had copied them.

    A mirror has new gaps then, a source left out some (`state.left_out`), and the origin begins
    behind the place where the copy was at the last check. What clients deleted there is counted
    too. A flow that copies only some subjects, or whose stream keeps the last message of each, has
    gaps of its own.
    """
    mirror = live.compact.get("mirror")
    flow: Config = mirror or next(iter(live.compact.get("sources") or ()), {})
    if not last.seen_at or flow.get("filter_subject") or flow.get("subject_transforms"):
        return None
    alike = (live.compact, origin.compact) if mirror else (origin.compact,)
    if any(one.get(name) for one in alike for name in _BY_SUBJECT):
        return None
    if mirror:
        position = last.last_seq
        gaps = int(live.state.get("num_deleted") or 0) - last.deleted
    else:
        position, gaps = live.state.get("left_out") or (0, 0)
    missed = min(gaps, int(origin.state.get("first_seq") or 0) - 1 - position)
    if missed <= 0:
        return None
    count = count_text(missed, "message")
    text = f"it missed at most {count}, which its origin deleted before they were copied"
    return _critical(MISSED, f"{text}, since {last.seen_at}")


def deletes_oldest(config: Config) -> bool:
    """Return True for a stream whose server deletes messages: a queue, or one with a limit."""
    return config.get("retention", "limits") != "limits" or any(
        int(config.get(name) or 0) > 0 for name in _LIMITS
    )


def _find_missed(live: LiveObject, stream: LiveObject) -> Breach | None:
    """Return a finding for a consumer whose next message was deleted before it was delivered.

    Its position is before the first message of the stream then. Where its filters leave subjects
    out, others may have been deleted as well, so that only an upper bound is known; in a queue or
    an interest stream it is not known at all, since other consumers remove messages there.
    """
    position = int((live.state.get("delivered") or {}).get("stream_seq") or 0)
    missed = int(stream.state.get("first_seq") or 0) - 1 - position
    if missed <= 0 or _supersedes(stream.compact) or _reads_last_values(live.compact):
        return None
    count = count_text(missed, "message")
    if _reads_everything(live.raw, stream.raw):
        return _critical(
            MISSED, f"it missed at most {count}, which were deleted before it read them"
        )
    if stream.compact.get("retention", "limits") != "limits" or not live.state.get("num_pending"):
        return None
    text = (
        f"it may have missed messages: at most {missed:,}, of all subjects, were deleted before it "
        "read on"
    )
    return Breach(MISSED, "warning", "", text)


def _supersedes(stream: Config) -> bool:
    """Return True if a newer message of a subject replaces the older one, as in a bucket."""
    return stream.get("max_msgs_per_subject") == 1 or bool(stream.get("allow_rollup_hdrs"))


def _reads_last_values(consumer: Config) -> bool:
    return bool(consumer.get("deliver_policy") == "last_per_subject")


def _reads_everything(consumer: Config, stream: Config) -> bool:
    single = consumer.get("filter_subject")
    filters = consumer.get("filter_subjects") or ([single] if single else [])
    subjects = stream.get("subjects") or ()
    return not filters or (bool(subjects) and all(is_covered(s, filters) for s in subjects))


def _find_pause(live: LiveObject, now: int, declared: str | None) -> Breach | None:
    """Return a finding for a consumer that delivers nothing; a warning where the files say so."""
    until = live.raw.get(_PAUSE)
    at = parse_instant(live.answered_at) if live.answered_at else now
    if not until or parse_instant(until) <= at:
        return None
    until = format_instant(parse_instant(until) // SECOND * SECOND)
    text = f"it is paused until {until}, and its clients get nothing"
    if declared and parse_instant(declared) // SECOND == parse_instant(until) // SECOND:
        return Breach(PAUSED, "warning", "", f"{text}, as the files say")
    return _critical(PAUSED, text)
