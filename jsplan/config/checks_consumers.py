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
        text = "a consumer has either filter_subject or filter_subjects (10136)"
        yield Problem("JS170", "filter_subject", text, "Put all of them into filter_subjects.")
    bad = [subject for subject in (*many, *([one] if one else [])) if not is_valid(subject)]
    for subject in bad:
        field = "filter_subject" if subject == one else "filter_subjects"
        hint = "It has no blanks and no empty parts, and > only at the end."
        yield Problem("JS170", field, f'{field}: "{subject}" is not a subject', hint)
    pair = None if bad else find_overlap(many)
    if pair is not None:
        text = f'filter_subjects: "{pair[0]}" and "{pair[1]}" overlap (10138)'
        yield Problem("JS170", "filter_subjects", text, "Keep the wider one.")


_START_FIELDS: Final = {"by_start_sequence": "opt_start_seq", "by_start_time": "opt_start_time"}


def _start(body: Body) -> Problems:
    policy = body.get("deliver_policy") or "all"
    needed = _START_FIELDS.get(policy)
    if needed and not body.get(needed):
        text = f"deliver_policy: {policy} needs {needed} (10094)"
        yield Problem("JS171", "deliver_policy", text, f"Add `{needed}:`.")
    for other, field in _START_FIELDS.items():
        if field != needed and body.get(field):
            text = f"{field} cannot be combined with deliver_policy: {policy} (10094)"
            hint = f"Write deliver_policy: {other}, or remove {field}."
            yield Problem("JS171", field, text, hint)
    if (
        policy == "last_per_subject"
        and not body.get("filter_subject")
        and not body.get("filter_subjects")
    ):
        text = "deliver_policy: last_per_subject needs a filter (10094)"
        hint = 'Add `filter_subject:`; ">" is every subject.'
        yield Problem("JS171", "deliver_policy", text, hint)


_ONLY_PUSH: Final = (
    ("flow_control", 10089),
    ("idle_heartbeat", 10088),
    ("rate_limit_bps", 10086),
)


def _push_or_pull(body: Body) -> Problems:
    subject = body.get("deliver_subject")
    if subject:
        if body.get("max_waiting"):
            text = "max_waiting is for pull consumers (10080)"
            yield Problem("JS172", "max_waiting", text, "Remove it, or deliver_subject.")
        if not is_valid(subject) or not is_literal(subject):
            text = f'deliver_subject: "{subject}" is not a subject to publish to (10079)'
            yield Problem("JS172", "deliver_subject", text, "It has no wildcards or blanks.")
        return
    if 0 < (body.get("max_expires") or 0) < _MILLISECOND:
        text = "max_expires is less than 1ms (10115)"
        yield Problem("JS172", "max_expires", text, "An integer is nanoseconds; write 30s.")
    for field, err in _ONLY_PUSH:
        if body.get(field):
            text = f"{field} is for push consumers ({err})"
            yield Problem("JS172", field, text, "Remove it, or add `deliver_subject:`.")
    if body.get("ack_policy") == "flow_control":
        text = "ack_policy: flow_control is for push consumers (10218)"
        hint = "Write explicit, all or none, or add `deliver_subject:`."
        yield Problem("JS172", "ack_policy", text, hint)


def _direct(body: Body) -> Problems:
    """Check `direct`: servers use it for push consumers that end with their client."""
    if not body.get("direct"):
        return
    if not body.get("deliver_subject"):
        text = "direct is for push consumers (10090)"
        yield Problem("JS172", "direct", text, "Remove it, or add `deliver_subject:`.")
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
        text = f"idle_heartbeat is {format_duration(beat)}; the server takes 100ms or more (10083)"
        yield Problem("JS173", "idle_heartbeat", text, "Write 5s.")
    if body.get("flow_control") and body.get("deliver_subject") and not beat:
        text = "flow_control needs idle_heartbeat (10108)"
        yield Problem("JS173", "flow_control", text, "Add `idle_heartbeat: 5s`.")


def _backoff(body: Body) -> Problems:
    waits, most = body.get("backoff") or (), body.get("max_deliver") or 0
    if body.get("ack_policy") == "flow_control":
        for field, err in (("backoff", 10221), ("ack_wait", 10221), ("max_deliver", 10222)):
            if (body.get(field) or 0) != 0 and body.get(field) != -1:
                text = f"{field} cannot be combined with ack_policy: flow_control ({err})"
                yield Problem("JS174", field, text, "Remove it.")
    if 0 < most < len(waits):
        text = f"max_deliver is {most} and backoff has {len(waits)} waits (10116)"
        yield Problem("JS174", "max_deliver", text, f"Write max_deliver: {len(waits)} or more.")


def _priority(body: Body) -> Problems:
    policy, groups = body.get("priority_policy") or "none", body.get("priority_groups")
    if policy != "none" and not groups:
        text = f"priority_policy: {policy} needs priority_groups (10159)"
        yield Problem("JS175", "priority_policy", text, "Add `priority_groups: [NAME]`.")
    if groups and policy != "none" and body.get("deliver_subject"):
        text = "priority_groups are for pull consumers (10178)"
        yield Problem("JS175", "priority_groups", text, "Remove them, or deliver_subject.")


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
        text = "a consumer of a work queue needs ack_policy: explicit (10084)"
        yield Problem("JS176", "ack_policy", text, "Add `ack_policy: explicit`.")
    if (body.get("deliver_policy") or "all") != "all":
        text = "a consumer of a work queue delivers all (10101)"
        yield Problem("JS176", "deliver_policy", text, "Remove deliver_policy.")
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
            text = (
                "two consumers of a work queue want the same messages:"
                f" this one and {name} (10099, 10100)"
            )
            yield Problem("JS176", field, text, detail)
            return


def filters_of(body: Body) -> list[str]:
    """Return the subjects that a consumer delivers; without a filter all of them."""
    return body.get("filter_subjects") or [body.get("filter_subject") or ">"]
