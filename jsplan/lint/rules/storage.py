"""Rules about what streams keep, and for how long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jsplan.diagnostics import did_you_mean
from jsplan.health.thresholds import (
    ENABLED,
    PREFIX,
    Kind,
    find_row,
    kind_of,
    known_keys,
    list_keys,
    parse_value,
)
from jsplan.lint.rule import rule
from jsplan.lint.rules.copies import LIMITS, limit_of
from jsplan.lint.view import Hit, LintItem, View
from jsplan.resources import STREAM
from jsplan.subjects import overlaps
from jsplan.units import SECOND, format_duration

# --- JS220: a stream on disk that grows until the disk is full ---


def is_unlimited(item: LintItem) -> bool:
    """Check whether nothing removes messages.

    Consumers do in a queue and clients in a bucket; JS206 is for mirrors.
    """
    return (
        item.address.kind == "stream"
        and item.retention == "limits"
        and not any(limit_of(item, name) for name in LIMITS)
    )


@rule(
    "JS220",
    "note",
    why=(
        "When the storage of a JetStream account or its disk is full, the server refuses"
        " publishes to all its streams, not only to the one that filled it."
    ),
    fix="Limit how long messages are kept (max_age) or how much space they take (max_bytes).",
)
def no_limits(view: View) -> Iterator[Hit]:
    """Streams on disk, without mirrors of a known origin."""
    for item in view.streams():
        if (
            is_unlimited(item)
            and item.config.get("storage") != "memory"
            and not item.config.get("sealed")
        ):
            if item.config.get("mirror") and view.origins.get(item.address):
                continue
            yield item.hit(
                "has no max_age, max_bytes, max_msgs or max_msgs_per_subject:"
                " it grows until the disk is full"
            )


# --- JS221: a stream in memory that grows until the memory is full ---


@rule(
    "JS221",
    "warning",
    why="Memory is the scarcest resource of a server, and streams share it with everything else.",
    fix="Add max_bytes, or keep the stream on disk.",
)
def memory_no_limits(view: View) -> Iterator[Hit]:
    """Streams in memory without a limit."""
    for item in view.streams():
        if is_unlimited(item) and item.config.get("storage") == "memory":
            yield item.hit(
                "is in memory and has no max_age, max_bytes, max_msgs or max_msgs_per_subject",
                "storage",
            )


# --- JS222: a stream that is lost with one server of a cluster ---


@rule(
    "JS222",
    "warning",
    why=(
        "A stream of one replica is on one server of the cluster. While that server is offline,"
        " publishes are not answered. If its disk is lost, the messages are lost. A domain is"
        " known to be a cluster from its servers (`plan`, `lint --live`), or because another"
        " stream of it has several replicas."
    ),
    fix="Write num_replicas: 3, or ignore this with the reason why the stream may be lost.",
)
def one_replica(view: View) -> Iterator[Hit]:
    """Streams of one replica on the disks of a cluster."""
    for item in view.streams():
        on_disk = item.config.get("storage", "file") == "file"
        if on_disk and item.replicas == 1 and view.is_clustered(item.address.domain):
            yield item.hit(
                f"has one replica, and {item.address.domain} is a cluster", "num_replicas"
            )


# --- JS223: two or four replicas ---


@rule(
    "JS223",
    "warning",
    why=(
        "The replicas of a stream decide by majority. Of two replicas both must be online, so the"
        " stream fails with either server: it is less available than one replica. Four are no"
        " more available than three, and slower."
    ),
    fix="Write num_replicas: 3 (or 5, or 1).",
)
def even_replicas(view: View) -> Iterator[Hit]:
    """Streams with an even number of replicas."""
    for item in view.streams():
        if item.replicas in (2, 4):
            needed = item.replicas // 2 + 1
            text = (
                f"{item.replicas} replicas need {needed} for every write,"
                f" so only {item.replicas - needed} may be offline, as with {item.replicas - 1}"
            )
            yield item.hit(text, "num_replicas")


# --- JS224: a work queue with a size limit that removes the oldest work ---

_SIZES = ("max_msgs", "max_bytes", "max_msgs_per_subject")


@rule(
    "JS224",
    "warning",
    why=(
        "By default a full stream removes its oldest messages. In a work queue these are the"
        " messages that have waited longest, and the server reports nothing."
    ),
    fix="Write discard: new, so that publishers get an error when the queue is full.",
)
def queue_gives_up(view: View) -> Iterator[Hit]:
    """Work queues that discard old messages at a size."""
    for item in view.streams():
        full = [name for name in _SIZES if limit_of(item, name)]
        if item.retention == "workqueue" and full and item.config.get("discard", "old") == "old":
            yield item.hit(
                f"when {' or '.join(full)} is reached, the oldest work is removed unprocessed",
                full[0],
            )


# --- JS225: `discard: new` in a stream that is never full ---


@rule(
    "JS225",
    "note",
    why=(
        "`discard` applies at max_msgs and max_bytes. max_age removes messages in any case, and"
        " max_msgs_per_subject removes old ones unless discard_new_per_subject is set."
    ),
    fix="Add the limit at which publishes are to be refused, or remove discard.",
)
def discard_new(view: View) -> Iterator[Hit]:
    """Streams whose files set it; buckets always have it."""
    for item in view.streams():
        limited = limit_of(item, "max_msgs") or limit_of(item, "max_bytes")
        per_subject = item.config.get("discard_new_per_subject") and limit_of(
            item, "max_msgs_per_subject"
        )
        if (
            item.declared_fields.get("discard") == "new"
            and item.address.kind == "stream"
            and not (limited or per_subject)
        ):
            yield item.hit(
                "discard: new has no effect: there is no max_msgs or max_bytes to be reached",
                "discard",
            )


# --- JS226: nanoseconds or bytes that are probably a missing unit ---

_TIMES = (
    "max_age",
    "duplicate_window",
    "ack_wait",
    "inactive_threshold",
    "priority_timeout",
    "idle_heartbeat",
)
_MILLISECOND = 1_000_000
_SMALL = 1024


@rule(
    "JS226",
    "warning",
    why=(
        "The API counts in nanoseconds and bytes, and so does an integer in the files. An"
        " ack_wait of 30 redelivers each message immediately, again and again. A stream with"
        " max_bytes of 10 removes each message when it acknowledges it."
    ),
    fix="Write the unit: 30s, 10GiB.",
)
def missing_unit(view: View) -> Iterator[Hit]:
    """Times below a millisecond, sizes below a kibibyte."""
    for item in (*view.streams(), *view.consumers()):
        yield from _times(item)
        if item.address.is_stream:
            yield from _sizes(item)


def _times(item: LintItem) -> Iterator[Hit]:
    found = [(name, item.declared_fields.get(name) or 0) for name in _TIMES] + [
        ("backoff", wait) for wait in item.declared_fields.get("backoff") or ()
    ]
    for name, value in found:
        if isinstance(value, int) and 0 < value < _MILLISECOND:
            yield item.hit(
                f"{name} is {format_duration(value)}: an integer is nanoseconds",
                name,
                f"Was {name}: {value}s meant?",
            )


def _sizes(item: LintItem) -> Iterator[Hit]:
    value = item.declared_fields.get("max_bytes") or 0
    if isinstance(value, int) and 0 < value < _SMALL:
        text = (
            f"max_bytes is {value} bytes: a message with its headers hardly fits,"
            " and is acknowledged nevertheless"
        )
        yield item.hit(text, "max_bytes", f"Was max_bytes: {value}GiB meant?")


# --- JS227: `*` or `>` beside other letters, which the server reads as a letter ---

_GLUED = re.compile(r"[^.][*>]|[*>][^.]")


@rule(
    "JS227",
    "warning",
    why=(
        "A wildcard is a whole part of a subject: orders.* or orders.>. The server accepts"
        " orders* as the name of one subject that ends with a star, and stores nothing that is"
        " published to orders1."
    ),
    fix="Put a dot before the wildcard, or after it.",
)
def no_wildcard(view: View) -> Iterator[Hit]:
    """Subjects of streams, filters of consumers, filters of mirrors and sources."""
    for item in (*view.streams(), *view.consumers()):
        for name, subject in _subjects(item):
            if _GLUED.search(subject):
                part = next(
                    part
                    for part in subject.split(".")
                    if len(part) > 1 and ("*" in part or ">" in part)
                )
                yield item.hit(
                    f'"{subject}": in "{part}" there is no wildcard, only the letter', name
                )


def _subjects(item: LintItem) -> Iterator[tuple[str, str]]:
    declared = item.declared_fields
    yield from (("subjects", subject) for subject in declared.get("subjects") or ())
    yield from (("filter_subjects", subject) for subject in declared.get("filter_subjects") or ())
    if declared.get("filter_subject"):
        yield "filter_subject", declared["filter_subject"]
    origins: Iterable[tuple[str, dict[str, str]]] = [
        ("sources", source) for source in declared.get("sources") or ()
    ]
    for name, origin in [
        *origins,
        *([("mirror", declared["mirror"])] if declared.get("mirror") else []),
    ]:
        if origin.get("filter_subject"):
            yield name, origin["filter_subject"]


# --- JS228: a stream that stores `_INBOX.>` ---


@rule(
    "JS228",
    "warning",
    why=(
        "Clients receive replies on subjects below _INBOX. A stream that stores them has every"
        " reply of the account with its content, including those of JetStream itself."
    ),
    fix="Name the subjects that the stream needs.",
)
def stores_answers(view: View) -> Iterator[Hit]:
    """Streams whose subjects overlap with the subjects of replies to clients."""
    for item in view.streams():
        caught = next(
            (
                subject
                for subject in item.config.get("subjects", ())
                if overlaps(subject, "_INBOX.>")
            ),
            None,
        )
        if caught is not None:
            yield item.hit(
                f'"{caught}" catches _INBOX.>, where all requests are answered', "subjects"
            )


# --- JS229: `no_ack: true` in a stream that could acknowledge ---

#: Subjects that a stream may only store without acknowledging (10052).
_NEEDED = ("$JS.>", "$JSC.>", "$NRG.>", "$SYS.>")


@rule(
    "JS229",
    "note",
    why=(
        "Without acknowledgements a publisher cannot tell a stored message from a lost one: when"
        " a limit refuses it, when the stream has no leader, or when the stream was deleted."
    ),
    fix=(
        "Remove no_ack. Keep it if a subject needs it ($JS.>, >), or if clients that publish with"
        " a reply subject of their own must not be answered."
    ),
)
def no_ack(view: View) -> Iterator[Hit]:
    """Streams that do not acknowledge although their subjects allow it."""
    for item in view.streams():
        subjects = item.config.get("subjects", ())
        if item.config.get("no_ack") and not any(
            overlaps(subject, needed) for subject in subjects for needed in _NEEDED
        ):
            yield item.hit(
                "publishers get no answer, whether a message was stored or not", "no_ack"
            )


# --- JS230: `deny_delete` or `deny_purge` without a guard for the stream itself ---


@rule(
    "JS230",
    "note",
    why=(
        "deny_delete and deny_purge refuse to delete single messages and to purge. A lower limit"
        " still removes messages immediately, and any user with the permission can delete the"
        " whole stream."
    ),
    fix="Add lifecycle: {prevent_destroy: true}.",
)
def guarded_messages(view: View) -> Iterator[Hit]:
    """Streams whose files protect the messages, and not the stream."""
    for item in view.streams():
        name = next(
            (name for name in ("deny_purge", "deny_delete") if item.declared_fields.get(name)), None
        )
        guarded = item.declared is not None and item.declared.lifecycle.prevent_destroy is not None
        if name is not None and item.address.kind == "stream" and not guarded:
            yield item.hit(f"{name} protects messages, not the stream itself", name)


# --- JS231: a duplicate window of hours ---

_LONG = 3600 * SECOND


@rule(
    "JS231",
    "note",
    why=(
        "The server keeps each Nats-Msg-Id of the window in memory, and reads all of them when it"
        " starts. At a thousand messages a second that is 86 million ids a day."
    ),
    fix="Use a window as long as publishers retry, which is minutes.",
)
def long_window(view: View) -> Iterator[Hit]:
    """Streams that remember ids for longer than an hour."""
    for item in view.streams():
        window = item.declared_fields.get("duplicate_window") or 0
        if window > _LONG:
            yield item.hit(
                f"the id of every message is kept in memory for {format_duration(window)}",
                "duplicate_window",
            )


# --- JS232: compression of a stream in memory ---


@rule(
    "JS232",
    "note",
    why="The server accepts compression for a stream in memory, shows it, and does not compress.",
    fix="Remove it, or keep the stream on disk.",
)
def memory_compression(view: View) -> Iterator[Hit]:
    """Streams in memory with compression."""
    for item in view.streams():
        if item.config.get("storage") == "memory" and item.config.get("compression") == "s2":
            yield item.hit("compression has no effect in memory", "compression")


# --- JS233: a bucket whose keys expire without a message ---

_MARKERS = STREAM.by_name["subject_delete_marker_ttl"]


@rule(
    "JS233",
    "note",
    why=(
        "The server removes a key after its ttl without a message: clients that watch the bucket"
        " continue with the old value. With limit_marker_ttl (since 2.11) the server leaves a"
        " marker, which watchers receive as a deletion. The marker occupies the key while it"
        " lives: a lock that is taken by creating its key waits for that too."
    ),
    fix="Add limit_marker_ttl if clients watch the bucket.",
)
def silent_expiry(view: View) -> Iterator[Hit]:
    """Buckets with a `ttl` and no marker, in domains that support markers."""
    for item in view.streams():
        age = item.config.get("max_age") or 0
        own = item.address.kind == "kv" and not item.config.get("mirror")
        if (
            own
            and age
            and not item.config.get(_MARKERS.name)
            and view.level(item.address.domain) >= _MARKERS.level
        ):
            yield item.hit(
                f"when a key expires after {format_duration(age)}, watchers are not notified",
                "max_age",
            )


# --- JS234: thresholds in metadata that cannot be read, or say the same at all times ---


@rule(
    "JS234",
    "warning",
    why=(
        "Metadata with the prefix io.nats.monitor. holds thresholds, which `nats server check`,"
        " `jsplan status` and `jsplan drift` evaluate. An unknown key is not evaluated. A value"
        " that cannot be read counts as exceeded. Some thresholds are never exceeded, or always:"
        " `peer-expect: 3` for a stream of one replica."
    ),
    fix="Correct the key or the value: see Thresholds in the reference of streams, or remove it.",
)
def thresholds(view: View) -> Iterator[Hit]:
    """Each key of `io.nats.monitor.` in the metadata of a stream, bucket or consumer."""
    for item in (*view.streams(), *view.consumers()):
        for key, text in list_keys(item.config.get("metadata") or {}).items():
            if problem := _find_problem(item, key, text):
                yield item.hit(problem, "metadata")


def _find_problem(item: LintItem, key: str, text: str) -> str:
    kind = kind_of(item.address.kind)
    row = find_row(kind, key)
    if row is None and key != ENABLED:
        return _describe_unknown(kind, key)
    try:
        value = parse_value(row.value if row is not None else "flag", text)
    except ValueError as error:
        return f'{PREFIX}{key}: "{text}" is {error}'
    if row is None:
        return ""
    if value <= 0 and row.value != "flag":
        return f"{PREFIX}{key}: {text} is no threshold: it is off"
    reason = row.check_config(item.config, value) if value > 0 else ""
    return f"{PREFIX}{key}: {text} has no use: {reason}" if reason else ""


def _describe_unknown(kind: Kind, key: str) -> str:
    other: Kind = "consumer" if kind == "stream" else "stream"
    if find_row(other, key) is not None:
        return f"{PREFIX}{key} is a threshold of {other}s"
    guess = did_you_mean(key, known_keys(kind))
    return f"{PREFIX}{key} is no known threshold of {kind}s.{guess}".removesuffix(".")
