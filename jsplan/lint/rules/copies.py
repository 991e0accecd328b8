"""Rules about mirrors and sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsplan.lint.rule import rule
from jsplan.lint.view import Hit, LintItem, View
from jsplan.resources.server_features import SNAPSHOT_SOURCES_LEVEL
from jsplan.resources.source_header import measure_headers, source_name
from jsplan.subjects import SubjectTree, intersect
from jsplan.topology.replication_graph import is_unfiltered, subject_mappings
from jsplan.units import SECOND, format_duration, format_size

# --- JS205: a mirror with lower limits than its origin ---

#: Limits that remove messages; 0 and -1 are none.
LIMITS = ("max_age", "max_bytes", "max_msgs", "max_msgs_per_subject")


def full_mirrors(view: View) -> Iterator[tuple[LintItem, LintItem]]:
    """Yield mirrors without a filter, each with its origin, if known."""
    for item in view.streams():
        if item.config.get("mirror"):
            for edge in view.origins.get(item.address, ()):
                origin = view.all_streams.get(edge.origin)
                if origin is not None and is_unfiltered(edge.config):
                    yield item, origin


def limit_of(item: LintItem, name: str) -> int:
    """Return the limit, or 0 for none."""
    return max(0, int(item.config.get(name) or 0))


def format_limit(name: str, value: Any) -> str:
    """Format a limit as the files have it."""
    if name == "max_age":
        return format_duration(value)
    size = format_size(value) if name == "max_bytes" else "."
    return str(value) if "." in size else size


@rule(
    "JS205",
    "note",
    why=(
        "A mirror takes no limit from its origin: its own limits decide what it keeps. With lower"
        " limits it has fewer messages than its origin."
    ),
    fix=(
        "Give the mirror the limits of its origin, or ignore this with the reason why less is"
        " enough."
    ),
)
def mirror_keeps_less(view: View) -> Iterator[Hit]:
    """Each limit that is lower in the mirror."""
    for item, origin in full_mirrors(view):
        for name in LIMITS:
            ours, theirs = limit_of(item, name), limit_of(origin, name)
            if ours and (not theirs or ours < theirs):
                limit = format_limit(name, theirs) if theirs else "no limit"
                yield item.hit(
                    f"{name} is {format_limit(name, ours)};"
                    f" its origin {origin.address} has {limit}",
                    name,
                )


# --- JS206: a mirror without limits of an origin that has limits ---


@rule(
    "JS206",
    "note",
    why=(
        "A mirror takes no limit from its origin, so it keeps what the origin has removed, until"
        " its disk is full. That is right for an archive, and wrong for a fallback."
    ),
    fix=(
        "Give the mirror the limits of its origin, or ignore this with the reason that it is an"
        " archive."
    ),
)
def mirror_keeps_more(view: View) -> Iterator[Hit]:
    """Mirrors without limits."""
    for item, origin in full_mirrors(view):
        theirs = [name for name in LIMITS if limit_of(origin, name)]
        if theirs and not any(limit_of(item, name) for name in LIMITS):
            limits = ", ".join(
                f"{name} {format_limit(name, limit_of(origin, name))}" for name in theirs
            )
            yield item.hit(
                f"keeps everything for ever; its origin {origin.address} has {limits}", "mirror"
            )


# --- JS207: a mirror or source that drains its origin ---


@rule(
    "JS207",
    "warning",
    why=(
        "On every server a mirror or source of a stream with workqueue or interest retention is"
        " one of its consumers: the origin removes each message after it was copied. Workers of"
        " the queue and the copying stream take messages from each other. Up to 2.12 a second"
        " consumer without a filter is even refused (10099)."
    ),
    fix=(
        "Copy a stream with limits retention: let the queue source that stream. If the copying"
        " stream is meant to take the work, ignore this with that reason."
    ),
    in_plan=False,
)
def drains(view: View) -> Iterator[Hit]:
    """Mirrors and sources of a stream with workqueue or interest retention."""
    for item in view.streams():
        for edge in view.origins.get(item.address, ()):
            origin = view.all_streams.get(edge.origin)
            if origin is None or origin.retention == "limits":
                continue
            what = (
                "a work queue: copied messages are deleted there"
                if origin.retention == "workqueue"
                else (
                    "kept by interest: messages that this stream and every consumer have read"
                    " are deleted there"
                )
            )
            yield item.hit(
                f"{origin.address} is {what}",
                "mirror" if edge.kind == "mirror" else "sources",
                also=(origin.address,),
            )


# --- JS208: an existing source with a new filter or transform ---


@rule(
    "JS208",
    "warning",
    why=(
        "The server finds where to continue with a source by its origin, filter and destination,"
        " which it writes into each copied message. With another filter or transform it finds"
        " nothing, and begins with the first message of the origin. Messages that pass both"
        " filters are stored twice. `jsplan plan` counts them (DUPLICATES_MESSAGES)."
    ),
    fix=(
        "Give the new source an opt_start_seq or opt_start_time after the copied messages, or"
        " keep the old source and add another."
    ),
    in_plan=False,
    needs_live=True,
)
def sources_again(view: View) -> Iterator[Hit]:
    """Sources whose filter or transform differs from live."""
    for item in view.streams():
        live = view.live.get(item.address)
        theirs = live.compact.get("sources", ()) if live is not None else ()
        if not theirs:
            continue
        live_headers = {source_name(source) for source in theirs}
        for source in item.config.get("sources", ()):
            if source_name(source) not in live_headers and _name(source) in {
                _name(other) for other in theirs
            }:
                text = (
                    f"the source {source['name']} gets another filter or transform:"
                    " all of it is copied again"
                )
                yield item.hit(text, "sources")


def _name(source: Mapping[str, Any]) -> str:
    return source_name(
        {name: source[name] for name in ("name", "external") if name in source}
    ).stream


# --- JS209: a duplicate window in a stream with several origins ---


@rule(
    "JS209",
    "warning",
    why=(
        "A stream with a duplicate window checks the Nats-Msg-Id of copied messages too. If each"
        " origin numbers its own messages, the stream drops the second of two equal ids without"
        " an error."
    ),
    fix=(
        "Remove duplicate_window (since 2.14 a stream with sources then has none), or make the"
        " ids unique across the origins."
    ),
)
def ids_of_origins(view: View) -> Iterator[Hit]:
    """Streams of two or more sources with a window in the files."""
    for item in view.streams():
        origins = len(item.config.get("sources", ()))
        if origins > 1 and item.declared_fields.get("duplicate_window"):
            window = format_duration(item.declared_fields["duplicate_window"])
            yield item.hit(
                f"of messages with one Nats-Msg-Id from {origins} sources only the first is stored,"
                f" for {window}",
                "duplicate_window",
            )


# --- JS210: a stream with publishes and sources, and without a duplicate window ---


@rule(
    "JS210",
    "note",
    why=(
        "Up to 2.12 every stream had a duplicate window of two minutes by default. Since 2.14 a"
        " stream with sources has none, so a message that is published again with the same"
        " Nats-Msg-Id is stored again. On an upgraded server the window disappears with the next"
        " update."
    ),
    fix=(
        "Write duplicate_window: 2m (with several sources see JS209), or 0s if publishers do not"
        " rely on it."
    ),
)
def no_window(view: View) -> Iterator[Hit]:
    """Streams with subjects and sources whose files do not set the window."""
    for item in view.streams():
        window = "duplicate_window" in item.declared_fields or item.config.get("duplicate_window")
        if item.config.get("sources") and item.config.get("subjects") and not window:
            text = (
                "publishers to it are not protected by Nats-Msg-Id:"
                " with sources there is no duplicate_window"
            )
            yield item.hit(text, "sources")


# --- JS211: a mirror or source that ignores the TTLs of the messages that it copies ---


@rule(
    "JS211",
    "warning",
    why=(
        "A message with a Nats-TTL expires only in streams that allow it. A mirror or source"
        " without allow_msg_ttl copies such messages and keeps them after the origin has removed"
        " them."
    ),
    fix=(
        "Add allow_msg_ttl: true to this stream, or ignore this with the reason that it is to"
        " keep them."
    ),
)
def ttl_not_copied(view: View) -> Iterator[Hit]:
    """Streams without `allow_msg_ttl` whose origins have it."""
    for item in view.streams():
        if item.config.get("allow_msg_ttl"):
            continue
        for edge in view.origins.get(item.address, ()):
            origin = view.all_streams.get(edge.origin)
            if origin is not None and origin.config.get("allow_msg_ttl"):
                text = (
                    f"messages of {origin.address} have TTLs of their own,"
                    " which this copy does not apply: expired messages stay here"
                )
                yield item.hit(text, "mirror" if edge.kind == "mirror" else "sources")
                break


# --- JS212: a mirror of a stream that loses its sequences with a restart ---


@rule(
    "JS212",
    "warning",
    why=(
        "When its server restarts, a stream in memory is lost: on a single server the stream"
        " itself, in a cluster its messages. The recreated stream counts from 1 again, and its"
        " mirror waits for the sequence after its own last one. The mirror copies nothing until"
        " the origin reaches that sequence, without an error and with lag 0."
    ),
    fix=(
        "Keep the origin on disk or with several replicas, or use a source instead of the mirror:"
        " a source detects the restart."
    ),
)
def memory_origin(view: View) -> Iterator[Hit]:
    """Mirrors of streams that one server holds in memory."""
    for item in view.streams():
        for edge in view.origins.get(item.address, ()) if item.config.get("mirror") else ():
            origin = view.all_streams.get(edge.origin)
            if (
                origin is not None
                and origin.config.get("storage") == "memory"
                and origin.replicas == 1
            ):
                yield item.hit(
                    f"{origin.address} is in the memory of one server;"
                    " after a restart of it, this mirror stops",
                    "mirror",
                )


# --- JS213: a mirror or source whose filter matches no subject of its origin ---


@rule(
    "JS213",
    "warning",
    why=(
        "The server accepts any filter, and copies nothing if none of the origin's subjects"
        " matches it. Transforms of the origin count: the filter sees the subjects as the origin"
        " stores them."
    ),
    fix="Correct the filter, or the subjects of the origin.",
    in_plan=False,
)
def copies_nothing(view: View) -> Iterator[Hit]:
    """Each filter of each origin with known subjects."""
    for item in view.streams():
        for edge in view.origins.get(item.address, ()):
            stored = view.stored_subjects(edge.origin)
            for src, _ in subject_mappings(edge.config) if stored else ():
                if not any(intersect(subject, src) is not None for subject in stored or ()):
                    yield item.hit(
                        f'"{src}" matches no subject of {edge.origin},'
                        f" which stores {', '.join(stored or ())}",
                        "mirror" if edge.kind == "mirror" else "sources",
                    )


# --- JS214: a mirror that keeps messages only for its own consumers ---


@rule(
    "JS214",
    "warning",
    why=(
        "With interest retention a stream does not keep a message that none of its consumers"
        " waits for, copied or not. It skips the message and never copies it later. Consumers of"
        " the origin do not count."
    ),
    fix="Declare the consumers with the stream, or use retention: limits.",
)
def mirror_interest(view: View) -> Iterator[Hit]:
    """Streams with an origin and interest retention, for which no consumer is declared."""
    for item in view.streams():
        origins = item.config.get("mirror") or item.config.get("sources")
        if (
            origins
            and item.retention == "interest"
            and not view.consumers_by_stream.get(item.address)
        ):
            yield item.hit(
                "stores no message of its origin as long as it has no consumer", "retention"
            )


# --- JS215: one delivery prefix for streams in two accounts ---


@rule(
    "JS215",
    "note",
    why=(
        "A delivery prefix is exported as a stream, and every account that imports it receives"
        " what is delivered on it. With one prefix for two accounts each of them can read the"
        " messages of the other, and access cannot be granted or revoked for one of them alone."
    ),
    fix="Give each importing account a prefix of its own: deliver.<owner>.<domain>.<importer>.",
)
def shared_prefix(view: View) -> Iterator[Hit]:
    """Prefixes that are equal, or one within the other, over different connections."""
    tree: SubjectTree[tuple[str, str, str]] = SubjectTree()
    found = ((edge, view.topology.delivery_prefix(edge)) for edge in view.topology.edges)
    edges = [(edge, prefix) for edge, prefix in found if prefix]
    wanted = {item.address for item in view.streams()} if edges else set()
    for edge, prefix in edges:
        account = view.workspace.domains[
            view.topology.routes.canonicalize(edge.downstream.domain)
        ].connection
        other = next(
            (found for found in tree.find_overlapping(f"{prefix}.>") if found[0] != account), None
        )
        if other is not None and edge.downstream in wanted:
            yield Hit(
                edge.downstream,
                f"is delivered to on {prefix}, and {other[2]} in another account on {other[1]}",
                "mirror" if edge.kind == "mirror" else "sources",
            )
        tree.add(f"{prefix}.>", (account, prefix, str(edge.downstream)))


# --- JS216: a replicated stream that may copy messages again after an election ---

#: A limit by which the last message of an origin is often removed.
_SHORT_AGE: Final = 24 * 3600 * SECOND


@rule(
    "JS216",
    "note",
    why=(
        "A replica that was offline and caught up knows the position of a source by the messages of"
        " the stream. Where these are removed already, it begins earlier when it becomes the"
        " leader, and copies what was copied before. nats-server 2.15 stores the positions with the"
        " feature flag js_snapshot_sources, which is off by default. jsplan cannot see the flag."
    ),
    fix=(
        "Set `feature_flags { js_snapshot_sources: true }` in the configuration of each server of"
        " the cluster, restart them one by one, and ignore this with that reason."
    ),
)
def copies_again(view: View) -> Iterator[Hit]:
    """Streams with replicas and sources whose messages are removed soon."""
    for item in view.streams():
        age = int(item.config.get("max_age") or 0)
        removed = (
            f"retention {item.retention}"
            if item.retention != "limits"
            else f"max_age {format_duration(age)}"
            if 0 < age <= _SHORT_AGE
            else ""
        )
        if (
            removed
            and item.replicas > 1
            and item.config.get("sources")
            and view.level(item.address.domain) >= SNAPSHOT_SOURCES_LEVEL
        ):
            yield item.hit(
                f"has sources, {item.replicas} replicas and {removed}: a new leader may copy"
                " messages again",
                "sources",
            )


# --- JS217: a source whose header makes messages at the limit of their origin too large ---


@rule(
    "JS217",
    "warning",
    why=(
        "max_msg_size counts headers, and a source adds one to each message, Nats-Stream-Source,"
        " with names and subjects. It stops at the first message that is too large, also for what"
        " comes later. A mirror adds none."
    ),
    fix="Let max_msg_size be 1KiB larger than that of the origin, or leave it out.",
)
def no_place_for_header(view: View) -> Iterator[Hit]:
    """Streams whose `max_msg_size` leaves no place for the header that a source adds.

    A stream that stores only copies itself has messages with such a header, which is replaced.
    """
    for item in view.streams():
        ours = limit_of(item, "max_msg_size")
        for edge in view.origins.get(item.address, ()) if ours else ():
            origin = view.all_streams.get(edge.origin)
            if edge.kind != "source" or origin is None or not origin.config.get("subjects"):
                continue
            theirs = limit_of(origin, "max_msg_size")
            subject = min(origin.config["subjects"], key=len)
            header = measure_headers(b"", dict(edge.config), 1, subject)
            if theirs > 0 and ours < theirs + header:
                sizes = [format_limit("max_bytes", size) for size in (ours, theirs)]
                yield item.hit(
                    f"max_msg_size is {sizes[0]}; a message of {origin.address} may have"
                    f" {sizes[1]}, and its source adds about {header} bytes",
                    "max_msg_size",
                )
