"""The strategy of an entry (`snapshot` or `spark`), its reason, and the time it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, field

from jsplan.config.model import Backfill
from jsplan.documents.types import Estimate
from jsplan.planning.backfill.model import BackfillState, OriginState
from jsplan.resources.server_features import RESTORE_ANY_NAME_LEVEL
from jsplan.units import format_bytes, format_duration, instant_of, parse_instant

Strategy = Literal["snapshot", "spark"]
#: The reason for Spark with `mode: tagged`.
TAGGED_REASON: Final = "copied by Spark, so that each message says where it comes from"
SNAPSHOT_REASON: Final = (
    "the whole stream into a target that does not exist yet: a snapshot keeps sequences and times"
)

Config = Mapping[str, Any]


class StreamTraits(Struct, frozen=True):
    """The configuration and state of a stream, and the API level of its domain.

    `exists` False: the configuration is that of the files, or empty. `imported`: the domain is an
    import from another account.
    """

    config: Config = field(default_factory=dict)
    state: Config = field(default_factory=dict)
    api_level: int = 0
    exists: bool = True
    imported: bool = False


class StrategyFacts(Struct, frozen=True):
    """The traits of origins that are streams, in order, and of the target; `now` is UTC."""

    origins: tuple[StreamTraits, ...]
    target: StreamTraits
    now: datetime


class StrategyChoice(Struct, frozen=True):
    """A strategy and its reason; with an `obstacle` the entry must not run."""

    strategy: Strategy
    reason: str
    obstacle: str = ""


class Method(NamedTuple):
    """One strategy, with its assumed speed between servers on a small machine.

    It copies so many messages and bytes in a second, and takes some seconds to start.
    """

    messages_per_second: int
    bytes_per_second: int
    start_seconds: int


METHODS: Final[Mapping[Strategy, Method]] = {
    "snapshot": Method(150_000, 100 << 20, 0),
    "spark": Method(60_000, 60 << 20, 10),
}


def choose_strategy(
    entry: Backfill, facts: StrategyFacts | None = None, record: BackfillState | None = None
) -> StrategyChoice:
    """Choose the strategy. With `auto`, only `mode: exact` selects another one than Spark.

    Without `facts` the target exists, and the origins are not known. A copy that was begun, of
    which state has a `record`, resumes with the same strategy.
    """
    if record is not None and not record.planned:
        if any(origin.strategy == "snapshot" for origin in record.origins[:1]):
            return StrategyChoice("snapshot", f"{SNAPSHOT_REASON}; begun so")
        return StrategyChoice("spark", TAGGED_REASON)
    against_snapshot = _find_snapshot_obstacle(entry, facts)
    if entry.strategy == "snapshot":
        return StrategyChoice("snapshot", SNAPSHOT_REASON, against_snapshot)
    if entry.strategy == "auto" and not against_snapshot:
        return StrategyChoice("snapshot", SNAPSHOT_REASON)
    origins = facts.origins if facts is not None else ()
    against = next(filter(None, (find_read_obstacle(one.config) for one in origins)), "")
    if entry.strategy == "spark":
        return StrategyChoice("spark", "copied by Spark, as the entry says", against)
    if entry.mode != "exact":
        return StrategyChoice("spark", TAGGED_REASON, against)
    return StrategyChoice("spark", f"copied by Spark (no snapshot: {against_snapshot})", against)


def may_need_no_spark(entry: Backfill) -> bool:
    """Check whether a snapshot may copy the entry, which depends on the servers."""
    return entry.strategy == "snapshot" or (entry.strategy == "auto" and entry.mode == "exact")


def explain_obstacle(entry: Backfill, choice: StrategyChoice) -> tuple[str, str]:
    """Return the error and the hint for an entry that must not run."""
    if choice.strategy == "spark":
        return (
            f"backfill {entry.name} is not possible: {choice.obstacle}",
            "Remove the entry; a source can copy new messages.",
        )
    text = f"backfill {entry.name}: `strategy: {entry.strategy}` is not possible: {choice.obstacle}"
    return text, "Leave it to `strategy: auto`."


def find_read_obstacle(config: Config) -> str:
    """Return the reason why the history of a stream cannot be read; empty if it can."""
    if config.get("retention") != "workqueue":
        return ""
    return (
        f"{config.get('name', 'the origin')} is a work queue, and only a consumer that takes "
        "messages out of it can read it (10098)"
    )


#: Settings that a target must not have, with the reason, as observed on servers.
_TARGET_PROBLEMS: Final = {
    "subject_transform": "changes the subjects of what it stores (`subject_transform`), "
    "also of what is copied into it",
    "allow_msg_counter": "counts (`allow_msg_counter`), and takes no messages that are not "
    "for its counters",
    "allow_msg_schedules": "schedules messages (`allow_msg_schedules`), and such a stream takes "
    "no source, not even for a while",
}


def find_target_problem(config: Config) -> tuple[str, str]:
    """Return why a stream cannot be filled exactly once, and a hint; both empty if it can."""
    if config.get("mirror"):
        return (
            "is a mirror, which takes nothing but what its origin has",
            "Name a stream of its own as the target.",
        )
    if config.get("sealed"):
        return "is sealed and takes nothing any more", ""
    for name, why in _TARGET_PROBLEMS.items():
        if config.get(name):
            return why, "Name a stream without that as the target."
    if config.get("retention", "limits") != "limits":
        why = (
            f"has retention {config['retention']}: acknowledged messages are deleted from it, "
            "so a copy cannot be verified"
        )
        return why, "Copy into a stream with retention limits, and add that as a source here."
    return "", ""


def _find_snapshot_obstacle(entry: Backfill, facts: StrategyFacts | None) -> str:
    """Return the reason why no snapshot is possible; empty if one is."""
    if alone := _find_entry_obstacle(entry):
        return alone
    if facts is None or facts.target.exists:
        return "the target exists already"
    target = facts.target
    if not target.config:
        return "the target is in no file, so nothing says how it is to be configured"
    if any(target.config.get(name) for name in ("mirror", "sources")):
        return "the target has a mirror or sources of its own, which would bring messages again"
    origin = facts.origins[0]
    if not origin.exists:
        return "the origin does not exist"
    return _find_server_obstacle(entry, origin, target) or _find_limit_obstacle(
        origin, target.config, facts.now
    )


def _find_entry_obstacle(entry: Backfill) -> str:
    """Return the reason why no snapshot is possible, from the entry alone."""
    if entry.mode != "exact":
        return "it keeps no Jsplan-Origin; say `mode: exact` to do without"
    if any(side.parquet is not None for side in (*entry.origins, entry.target)):
        return "an archive is read and written by Spark"
    for name in ("where", "transform", "subject_transform", "rate"):
        if getattr(entry, name) is not None:
            return f"only Spark knows `{name}`"
    if entry.order != "stream":
        return f"it keeps the order of the stream, and `order: {entry.order}` is Spark's"
    if any(side.end_seq is not None or side.end_time is not None for side in entry.origins):
        return "the range has an end"
    if len(entry.origins) > 1:
        return "a snapshot is of one stream, and the entry has several origins"
    side = entry.origins[0]
    if side.start_seq is not None or side.start_time is not None or side.filters:
        return "a snapshot is of the whole stream, and the entry has a start or filters"
    return ""


def _find_server_obstacle(entry: Backfill, origin: StreamTraits, target: StreamTraits) -> str:
    if origin.imported or target.imported:
        return "snapshots do not come over another account's import"
    if origin.api_level >= RESTORE_ANY_NAME_LEVEL > target.api_level:
        return (
            "the target's server is older than nats-server 2.15 "
            "and cannot read the origin's snapshot"
        )
    if origin.api_level < RESTORE_ANY_NAME_LEVEL:
        if origin.config.get("name") != entry.target.stream:
            return "servers before 2.15 restore a stream under its own name only"
        if {origin.config.get("storage", "file"), target.config.get("storage", "file")} != {"file"}:
            return "servers before 2.15 make and restore snapshots of file storage only"
    return ""


def _find_limit_obstacle(origin: StreamTraits, config: Config, now: datetime) -> str:
    """Return the limit of the target that would delete restored messages at once."""
    state = origin.state
    for name, key in (("max_msgs", "messages"), ("max_bytes", "bytes")):
        limit = int(config.get(name) or -1)
        if 0 < limit < int(state[key]):
            return f"the target would not keep all of it (`{name}`)"
    if int(config.get("max_msgs_per_subject") or -1) > 0 and state["messages"]:
        return "the target would not keep all of it (`max_msgs_per_subject`)"
    age = int(config.get("max_age") or 0)
    if age and state["messages"] and parse_instant(state["first_ts"]) < instant_of(now) - age:
        return (
            "a snapshot keeps the times, and the target would expire what is older than "
            f"{format_duration(age)}"
        )
    return ""


# --- the estimated time of a copy -----------------------------------------------------------------

#: Copies of fewer messages are not used as samples.
MIN_SAMPLE_MESSAGES: Final = 10_000


def estimate_backfill(
    entry: Backfill, strategy: Strategy, messages: int, size: int, past: Iterable[OriginState]
) -> Estimate:
    """Estimate the time of an entry for these messages and bytes; `past` are earlier copies."""
    pairs = {(side.domain, entry.target.domain) for side in entry.origins}
    samples = [
        origin
        for origin in past
        if origin.strategy == strategy
        and (origin.origin.partition("/")[0], origin.target.partition("/")[0]) in pairs
        and origin.copied >= MIN_SAMPLE_MESSAGES
        and origin.seconds > 0
    ]
    per_second, bytes_per_second, start = METHODS[strategy]
    if samples:
        last = samples[-1]
        per_second = max(1, round(last.copied / last.seconds))
        seconds = messages / per_second
        basis = f"at {per_second:,} messages/s, as {last.origin} was copied to {last.target}"
    else:
        seconds = max(messages / per_second, size / bytes_per_second)
        basis = f"assuming {per_second:,} messages/s and {format_bytes(bytes_per_second)}/s"
    rate = entry.rate
    if rate is not None and size / rate > seconds:
        seconds, basis = size / rate, f"at `rate: {format_bytes(rate)}/s`"
    basis += f", and {start}s for Spark to start" if start else ""
    return Estimate(round(seconds + start, 1), basis)
