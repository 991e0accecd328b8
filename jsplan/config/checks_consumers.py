"""Rules between the fields of a consumer that the server is known to enforce.

Measured on nats-server 2.15; the number in each text is the server's err_code. Rules that depend
on the stream are in `planning.refusals`, except those of work queues.
"""

from __future__ import annotations

from typing import Final

from jsplan.config.findings import Body, Checks, Problem, Problems
from jsplan.subjects import find_overlap, is_literal, is_valid, overlaps
from jsplan.units import format_duration

_MILLISECOND: Final = 1_000_000
_MIN_DURATION: Final = 100 * _MILLISECOND


def check_consumer(body: Body) -> Problems:
    """Find everything that the server refuses in a consumer's configuration on any stream."""
    return _CONSUMER_CHECKS.find(body)


def _filters(body: Body) -> Problems:
    one, many = body.get("filter_subject"), body.get("filter_subjects") or ()
    if one and many:
        yield Problem(
            "JS170",
            "filter_subject",
            "a consumer has either filter_subject or filter_subjects (10136)",
            "Put all of them into filter_subjects.",
        )
    bad = [subject for subject in (*many, *([one] if one else [])) if not is_valid(subject)]
    for subject in bad:
        field = "filter_subject" if subject == one else "filter_subjects"
        yield Problem(
            "JS170",
            field,
            f'{field}: "{subject}" is not a subject',
            "It has no blanks and no empty parts, and > only at the end.",
        )
    pair = None if bad else find_overlap(many)
    if pair is not None:
        yield Problem(
            "JS170",
            "filter_subjects",
            f'filter_subjects: "{pair[0]}" and "{pair[1]}" overlap (10138)',
            "Keep the wider one.",
        )


_START_FIELDS: Final = {"by_start_sequence": "opt_start_seq", "by_start_time": "opt_start_time"}


def _start(body: Body) -> Problems:
    policy = body.get("deliver_policy") or "all"
    needed = _START_FIELDS.get(policy)
    if needed and not body.get(needed):
        yield Problem(
            "JS171",
            "deliver_policy",
            f"deliver_policy: {policy} needs {needed} (10094)",
            f"Add `{needed}:`.",
        )
    for other, field in _START_FIELDS.items():
        if field != needed and body.get(field):
            yield Problem(
                "JS171",
                field,
                f"{field} cannot be combined with deliver_policy: {policy} (10094)",
                f"Write deliver_policy: {other}, or remove {field}.",
            )
    if (
        policy == "last_per_subject"
        and not body.get("filter_subject")
        and not body.get("filter_subjects")
    ):
        yield Problem(
            "JS171",
            "deliver_policy",
            "deliver_policy: last_per_subject needs a filter (10094)",
            'Add `filter_subject:`; ">" is every subject.',
        )


_ONLY_PUSH: Final = (
    ("flow_control", 10089),
    ("idle_heartbeat", 10088),
    ("rate_limit_bps", 10086),
)


def _push_or_pull(body: Body) -> Problems:
    subject = body.get("deliver_subject")
    if subject:
        if body.get("max_waiting"):
            yield Problem(
                "JS172",
                "max_waiting",
                "max_waiting is for pull consumers (10080)",
                "Remove it, or deliver_subject.",
            )
        if not is_valid(subject) or not is_literal(subject):
            yield Problem(
                "JS172",
                "deliver_subject",
                f'deliver_subject: "{subject}" is not a subject to publish to (10079)',
                "It has no wildcards or blanks.",
            )
        return
    if 0 < (body.get("max_expires") or 0) < _MILLISECOND:
        yield Problem(
            "JS172",
            "max_expires",
            "max_expires is less than 1ms (10115)",
            "An integer is nanoseconds; write 30s.",
        )
    for field, err in _ONLY_PUSH:
        if body.get(field):
            yield Problem(
                "JS172",
                field,
                f"{field} is for push consumers ({err})",
                "Remove it, or add `deliver_subject:`.",
            )
    if body.get("ack_policy") == "flow_control":
        yield Problem(
            "JS172",
            "ack_policy",
            "ack_policy: flow_control is for push consumers (10218)",
            "Write explicit, all or none, or add `deliver_subject:`.",
        )


def _direct(body: Body) -> Problems:
    """Check `direct`: servers use it for push consumers that end with their client."""
    if not body.get("direct"):
        return
    if not body.get("deliver_subject"):
        yield Problem(
            "JS172",
            "direct",
            "direct is for push consumers (10090)",
            "Remove it, or add `deliver_subject:`.",
        )
    elif body.get("durable_name"):
        detail = "Remove it, or write `durable_name: null` and an inactive_threshold."
        yield Problem(
            "JS172", "direct", "direct cannot be combined with durable_name (10091)", detail
        )


def _heartbeat(body: Body) -> Problems:
    beat = body.get("idle_heartbeat") or 0
    if body.get("ack_policy") == "flow_control":
        return  # has a heartbeat of its own in any case
    if 0 < beat < _MIN_DURATION:
        yield Problem(
            "JS173",
            "idle_heartbeat",
            f"idle_heartbeat is {format_duration(beat)}; the server takes 100ms or more (10083)",
            "Write 5s.",
        )
    if body.get("flow_control") and body.get("deliver_subject") and not beat:
        yield Problem(
            "JS173",
            "flow_control",
            "flow_control needs idle_heartbeat (10108)",
            "Add `idle_heartbeat: 5s`.",
        )


def _backoff(body: Body) -> Problems:
    waits, most = body.get("backoff") or (), body.get("max_deliver") or 0
    if body.get("ack_policy") == "flow_control":
        for field, err in (("backoff", 10221), ("ack_wait", 10221), ("max_deliver", 10222)):
            if (body.get(field) or 0) != 0 and body.get(field) != -1:
                yield Problem(
                    "JS174",
                    field,
                    f"{field} cannot be combined with ack_policy: flow_control ({err})",
                    "Remove it.",
                )
    if 0 < most < len(waits):
        yield Problem(
            "JS174",
            "max_deliver",
            f"max_deliver is {most} and backoff has {len(waits)} waits (10116)",
            f"Write max_deliver: {len(waits)} or more.",
        )


def _priority(body: Body) -> Problems:
    policy, groups = body.get("priority_policy") or "none", body.get("priority_groups")
    if policy != "none" and not groups:
        yield Problem(
            "JS175",
            "priority_policy",
            f"priority_policy: {policy} needs priority_groups (10159)",
            "Add `priority_groups: [NAME]`.",
        )
    if groups and policy != "none" and body.get("deliver_subject"):
        yield Problem(
            "JS175",
            "priority_groups",
            "priority_groups are for pull consumers (10178)",
            "Remove them, or deliver_subject.",
        )


_CONSUMER_CHECKS: Final = Checks(
    (_filters, frozenset(["filter_subject", "filter_subjects"])),
    (_start, frozenset(["deliver_policy", *_START_FIELDS.values()])),
    (
        _push_or_pull,
        frozenset(["deliver_subject", "max_expires", "ack_policy", *(f for f, _ in _ONLY_PUSH)]),
    ),
    (_direct, frozenset(["direct"])),
    (_heartbeat, frozenset(["idle_heartbeat", "flow_control"])),
    (_backoff, frozenset(["backoff", "ack_policy"])),
    (_priority, frozenset(["priority_policy", "priority_groups"])),
)


def check_queue_consumer(body: Body, others: list[tuple[str, Body]]) -> Problems:
    """Yield what a work queue refuses of a consumer, given its earlier consumers by name."""
    if body.get("ack_policy") != "explicit" and body.get("ack_policy") != "flow_control":
        yield Problem(
            "JS176",
            "ack_policy",
            "a consumer of a work queue needs ack_policy: explicit (10084)",
            "Add `ack_policy: explicit`.",
        )
    if (body.get("deliver_policy") or "all") != "all":
        yield Problem(
            "JS176",
            "deliver_policy",
            "a consumer of a work queue delivers all (10101)",
            "Remove deliver_policy.",
        )
    mine = filters_of(body)
    for name, other in others:
        if any(overlaps(one, two) for one in mine for two in filters_of(other)):
            field = (
                "filter_subject"
                if body.get("filter_subject")
                else "filter_subjects"
                if body.get("filter_subjects")
                else "name"
            )
            detail = (
                "Give each consumer its own filters, so that every message belongs to one of them."
            )
            yield Problem(
                "JS176",
                field,
                "two consumers of a work queue want the same messages:"
                f" this one and {name} (10099, 10100)",
                detail,
            )
            return


def filters_of(body: Body) -> list[str]:
    """Return the subjects that a consumer delivers; without a filter all of them."""
    return body.get("filter_subjects") or [body.get("filter_subject") or ">"]
