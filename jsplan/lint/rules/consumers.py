"""Rules about consumers."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.address import Address
from jsplan.lint.rule import rule
from jsplan.lint.rules.copies import limit_of
from jsplan.lint.view import Hit, View
from jsplan.subjects import is_covered, overlaps
from jsplan.units import format_duration

# --- JS240: a consumer whose files do not set the acknowledgement policy ---


@rule(
    "JS240",
    "warning",
    why=(
        "The server's default is none, although most clients and tools create consumers with"
        " explicit. With none a message counts as done when it is sent, and ack_wait and"
        " max_deliver have no effect. The policy of an existing consumer cannot be changed."
    ),
    fix="Write ack_policy: explicit, or ack_policy: none if it is intended.",
)
def ack_policy(view: View) -> Iterator[Hit]:
    """Consumers without `ack_policy`."""
    for item in view.consumers():
        if item.declared_fields.get("ack_policy") is None:
            yield item.hit(
                "ack_policy is left out, so it is none: what a client loses is not delivered again"
            )


# --- JS241: a consumer whose filter matches no subject of its stream ---


@rule(
    "JS241",
    "warning",
    why=(
        "The server accepts any filter, and delivers nothing if no message matches it. A stream"
        " with a subject_transform stores the transformed subjects, and its consumers see those."
    ),
    fix="Correct the filter, or the subjects of the stream.",
)
def filter_matches_nothing(view: View) -> Iterator[Hit]:
    """Each filter, if the subjects of the stream are known."""
    for item in view.consumers():
        stream = view.stream_of(item) if item.filters else None
        stored = view.stored_subjects(stream.address) if stream is not None else None
        for wanted in item.filters if stored else ():
            if not any(overlaps(wanted, subject) for subject in stored or ()):
                assert stream is not None
                field = "filter_subject" if item.config.get("filter_subject") else "filter_subjects"
                yield item.hit(
                    f'"{wanted}" matches no subject of {stream.address},'
                    f" which stores {_format_subjects(stored or [])}",
                    field,
                )


def _format_subjects(stored: list[str]) -> str:
    return ", ".join(stored[:5]) + (f" and {len(stored) - 5} more" if len(stored) > 5 else "")


# --- JS242: several workers, and one unacknowledged message at a time ---


@rule(
    "JS242",
    "warning",
    why=(
        "max_ack_pending counts the unacknowledged messages of all workers of a consumer"
        " together. With 1 the next message is delivered when the last one is acknowledged, by"
        " any worker: more workers do not help."
    ),
    fix=(
        "Raise max_ack_pending to the number that all workers may have together. For strict order"
        " keep one worker, without a group."
    ),
)
def one_at_a_time(view: View) -> Iterator[Hit]:
    """Consumers with a group of workers and `max_ack_pending: 1`."""
    for item in view.consumers():
        acknowledges = item.config.get("ack_policy", "none") != "none"
        if item.workers and acknowledges and item.config.get("max_ack_pending") == 1:
            text = f"max_ack_pending is 1, so only one worker of {item.workers} works at a time"
            yield item.hit(text, "max_ack_pending")


# --- JS243: batches larger than the limit of unacknowledged messages ---


@rule(
    "JS243",
    "warning",
    why=(
        "A client that acknowledges a batch as a whole waits for messages that are not sent"
        " before it acknowledges some. Each request ends by its timeout."
    ),
    fix="Make max_ack_pending at least as large as max_batch.",
)
def batch_never_full(view: View) -> Iterator[Hit]:
    """Pull consumers that allow larger requests than they can answer."""
    for item in view.consumers():
        batch, pending = item.config.get("max_batch", 0), item.config.get("max_ack_pending", 0)
        if item.config.get("ack_policy", "none") != "none" and 0 < pending < batch:
            yield item.hit(
                f"max_batch is {batch}, and only {pending} may be unacknowledged (max_ack_pending)",
                "max_batch",
            )


# --- JS244: acknowledgements that include messages of other workers ---


@rule(
    "JS244",
    "warning",
    why=(
        "With `all`, an acknowledgement counts for every message up to that one, also for those"
        " of other workers. If a faster worker has acknowledged a later message, a worker that"
        " fails loses its own."
    ),
    fix="Write ack_policy: explicit if several workers share a consumer.",
)
def ack_all(view: View) -> Iterator[Hit]:
    """Consumers with a group of workers and `ack_policy: all`."""
    for item in view.consumers():
        if item.workers and item.config.get("ack_policy") == "all":
            text = f"a worker of {item.workers} acknowledges what others still work on"
            yield item.hit(f"with ack_policy: all {text}", "ack_policy")


# --- JS245: a durable consumer with a threshold, its own or its stream's ---


@rule(
    "JS245",
    "warning",
    why=(
        "A threshold applies to durable consumers too: after that time without a client the"
        " server deletes the consumer with its position, and the next plan recreates it from its"
        " deliver_policy. The consumer_limits of a stream set the threshold of every consumer"
        " that has none."
    ),
    fix=(
        "Remove inactive_threshold (from the stream's consumer_limits too), or declare"
        " durable_name: null if the consumer is meant to expire."
    ),
)
def durable_expires(view: View) -> Iterator[Hit]:
    """Durable consumers that are deleted without a client."""
    for item in view.consumers():
        threshold = item.config.get("inactive_threshold", 0)
        if threshold and item.config.get("durable_name"):
            own = bool(item.declared_fields.get("inactive_threshold"))
            whose = "" if own else " (consumer_limits of its stream)"
            age = format_duration(threshold)
            text = f"is durable, and deleted after {age} without a client{whose}"
            yield item.hit(text, "inactive_threshold" if own else "")


# --- JS246: an `ack_wait` that `backoff` replaces ---


@rule(
    "JS246",
    "warning",
    why="The server sets ack_wait to the first wait of backoff and ignores the declared value.",
    fix="Remove ack_wait, or make it the first wait of backoff.",
    in_plan=False,
)
def backoff(view: View) -> Iterator[Hit]:
    """Consumers whose files set both, to different times."""
    for item in view.consumers():
        waits, ack_wait = (
            item.declared_fields.get("backoff") or (),
            item.declared_fields.get("ack_wait"),
        )
        if waits and ack_wait and ack_wait != waits[0]:
            text = (
                f"ack_wait {format_duration(ack_wait)} is replaced by the first wait of backoff,"
                f" {format_duration(waits[0])}"
            )
            yield item.hit(text, "ack_wait")


# --- JS247: a stream's max_age that is shorter than a consumer's ack_wait ---


@rule(
    "JS247",
    "warning",
    why=(
        "A message that was not acknowledged is delivered again after ack_wait, if it still"
        " exists. If max_age of the stream removes it earlier, a worker that fails loses it."
    ),
    fix="Make ack_wait shorter than max_age of the stream.",
)
def expires_first(view: View) -> Iterator[Hit]:
    """Consumers that redeliver later than their stream keeps messages."""
    for item in view.consumers():
        stream = view.stream_of(item)
        age, wait = (
            (stream.config.get("max_age", 0) if stream else 0),
            item.config.get("ack_wait", 0),
        )
        if item.config.get("ack_policy", "none") != "none" and 0 < age <= wait:
            text = (
                f"ack_wait ({format_duration(wait)}) is not shorter than max_age"
                f" ({format_duration(age)}): no message is ever redelivered"
            )
            yield item.hit(text, "ack_wait")


# --- JS248: subjects of a work queue that none of its consumers takes ---


@rule(
    "JS248",
    "note",
    why=(
        "A work queue removes a message when it is acknowledged. A message that no consumer takes"
        " is never acknowledged. Such messages fill the queue until a limit removes them, or"
        " refuses new work."
    ),
    fix="Add a consumer for the rest, narrow the subjects of the stream, or add a max_age.",
)
def unconsumed_subjects(view: View) -> Iterator[Hit]:
    """Work queues with declared consumers that do not cover all subjects."""
    for item in view.streams():
        consumers = (
            view.consumers_by_stream.get(item.address, []) if item.retention == "workqueue" else []
        )
        if not consumers or not all(consumer.filters for consumer in consumers):
            continue
        taken = [subject for consumer in consumers for subject in consumer.filters]
        uncovered = [
            subject
            for subject in view.stored_subjects(item.address) or ()
            if not is_covered(subject, taken)
        ]
        if uncovered:
            names = ", ".join(consumer.address.consumer for consumer in consumers)
            yield item.hit(
                f'"{uncovered[0]}" is not fully covered by the consumers ({names}):'
                " the rest stays in the queue",
                "subjects",
            )


# --- JS249: a stream with interest retention and without consumers ---


@rule(
    "JS249",
    "note",
    why=(
        "With interest retention the server keeps the messages that a consumer waits for. Without"
        " a consumer every publish is acknowledged and removed immediately. If applications"
        " create the consumers, that happens until the first of them starts."
    ),
    fix="Declare the consumers with the stream, or use retention: limits.",
)
def interest_no_consumers(view: View) -> Iterator[Hit]:
    """Streams with interest retention and subjects, and no declared consumer or downstream."""
    copied = {edge.origin for edge in view.topology.edges}
    for item in view.streams():
        waited_for = view.consumers_by_stream.get(item.address) or item.address in copied
        if item.retention == "interest" and item.config.get("subjects") and not waited_for:
            yield item.hit(
                "no consumer of it is declared:"
                " messages published before there is one are acknowledged and not kept",
                "retention",
            )


# --- JS250: push consumers with the same deliver_subject ---


@rule(
    "JS250",
    "warning",
    why=(
        "A subscriber of a deliver_subject receives what every consumer sends there. The messages"
        " of two consumers mix, messages of one stream come twice, and acknowledgements reach"
        " either consumer."
    ),
    fix=(
        "Give each consumer a deliver_subject of its own; workers that share one consumer use"
        " deliver_group."
    ),
)
def one_delivery(view: View) -> Iterator[Hit]:
    """Consumers of joined domains with one `deliver_subject`; the second of two is reported."""
    first: dict[tuple[str, str], Address] = {}
    wanted = {item.address for item in view.consumers()}
    for address, item in sorted(view.all_consumers.items()):
        subject = item.config.get("deliver_subject")
        if not subject:
            continue
        other = first.setdefault(
            (view.connected_domains.group_of(address.domain), subject), address
        )
        if other != address and (address in wanted or other in wanted):
            one, two = (address, other) if address in wanted else (other, address)
            yield Hit(
                one,
                f'delivers to "{subject}", as {two} does: subscribers get both',
                "deliver_subject",
                also=(two,),
            )


# --- JS251: a push consumer without acknowledgements, heartbeat and flow control ---


@rule(
    "JS251",
    "note",
    why=(
        "A push consumer sends as fast as it can. Messages that a slow subscriber or a broken"
        " link drops are not sent again. Without heartbeats no client notices that the last"
        " message is missing, or that the consumer is gone."
    ),
    fix="Add idle_heartbeat and flow_control, or let clients pull.",
)
def unnoticed(view: View) -> Iterator[Hit]:
    """Push consumers whose subscriber cannot notice a lost message."""
    for item in view.consumers():
        config = item.config
        if (
            config.get("deliver_subject")
            and config.get("ack_policy", "none") == "none"
            and not config.get("idle_heartbeat")
        ):
            yield item.hit(
                "its subscriber cannot detect lost messages:"
                " no acknowledgements, no idle_heartbeat",
                "deliver_subject",
            )


# --- JS252: a consumer with fewer replicas than its stream, or in memory on a stream on disk ---


@rule(
    "JS252",
    "note",
    why=(
        "A consumer that loses its position starts again where its deliver_policy says. Usually"
        " that is the first message, and everything is delivered again."
    ),
    fix="Remove num_replicas and mem_storage: the consumer is then as safe as its stream.",
)
def position(view: View) -> Iterator[Hit]:
    """Durable consumers that acknowledge, and whose position is less safe than the messages."""
    for item in view.consumers():
        stream = view.stream_of(item)
        config = item.config
        if (
            stream is None
            or not config.get("durable_name")
            or config.get("ack_policy", "none") == "none"
        ):
            continue
        replicas = config.get("num_replicas", 0)
        if 0 < replicas < stream.replicas:
            yield item.hit(
                f"its position has {replicas} of the {stream.replicas} replicas of its stream",
                "num_replicas",
            )
        elif config.get("mem_storage") and stream.config.get("storage") != "memory":
            yield item.hit("its position is in memory, and its stream on disk", "mem_storage")


# --- JS253: messages that reached max_deliver and stay in the queue ---


@rule(
    "JS253",
    "note",
    why=(
        "max_deliver ends the attempts, not the message: it stays in the work queue, counts for"
        " its limits, and for max_ack_pending of the consumer. The server reports it once, with"
        " the advisory MAX_DELIVERIES."
    ),
    fix=(
        "Add a max_age to the stream, or subscribe to"
        " $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.> and delete such messages."
    ),
)
def given_up(view: View) -> Iterator[Hit]:
    """Consumers of queues with max_deliver, if no limit removes messages."""
    for item in view.consumers():
        most, stream = item.config.get("max_deliver", -1), view.stream_of(item)
        if (
            most > 0
            and stream is not None
            and stream.retention == "workqueue"
            and not limit_of(stream, "max_age")
        ):
            yield item.hit(
                f"after {most} deliveries a message is not delivered again, and stays in the queue",
                "max_deliver",
            )


# --- JS254: a worker that gets messages at the pace of their publishing ---


@rule(
    "JS254",
    "note",
    why=(
        "replay_policy: original keeps the pauses between messages. It is made for simulations: a"
        " worker that was offline never catches up. It cannot be changed later."
    ),
    fix="Remove replay_policy, unless the pauses are intended.",
)
def original_pace(view: View) -> Iterator[Hit]:
    """Consumers that acknowledge, with replay_policy original."""
    for item in view.consumers():
        if (
            item.config.get("replay_policy") == "original"
            and item.config.get("ack_policy", "none") != "none"
        ):
            yield item.hit(
                "replay_policy original: a week of history takes a week to replay", "replay_policy"
            )
