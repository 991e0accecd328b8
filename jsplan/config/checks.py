"""Rules between fields that STREAM.CREATE and CONSUMER.CREATE are known to refuse, and updates too.

Measured on nats-server 2.15; the number in each text is the server's err_code. What depends on the live side, such as
sealing or `mirror_direct` (which only an update may set), is left to planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from jsplan.subjects import first_overlap, is_literal, is_valid, overlap
from jsplan.units import SECOND, format_duration

Body = Mapping[str, Any]
_SHORTEST: Final = 100_000_000
_JS_API: Final = "$JS.API.>"


class Problem(NamedTuple):
    """One contradiction; `field` is where it is shown."""

    code: str
    field: str
    summary: str
    detail: str


Found = Iterator[Problem]


def check_stream(body: Body) -> Found:
    """Everything that is certain to be refused in a stream's configuration."""
    for check in _STREAM:
        yield from check(body)


def check_consumer(body: Body) -> Found:
    """Everything that is certain to be refused in a consumer's configuration, whatever its stream."""
    for check in _CONSUMER:
        yield from check(body)


# --- streams -------------------------------------------------------------------------------------------------


def _mirror(body: Body) -> Found:
    if not body.get("mirror"):
        return
    for field, why in _NOT_ON_MIRRORS.items():
        if body.get(field):
            yield Problem("JS150", field, f"a mirror cannot have {field} ({why})", "Remove it, or use `sources:` instead of `mirror:`.")


_NOT_ON_MIRRORS: Final = {
    "subjects": 10034, "sources": 10031, "first_seq": 10143, "subject_delete_marker_ttl": 10052, "allow_msg_counter": 10173,
    "allow_msg_schedules": 10186, "allow_atomic": 10198, "allow_batched": 10209,
}  # fmt: skip


def _origins(body: Body) -> Found:
    found = [("mirror", body["mirror"])] if body.get("mirror") else []
    found += [("sources", origin) for origin in body.get("sources") or ()]
    for field, origin in found:
        if origin.get("filter_subject") and origin.get("subject_transforms"):
            err = 10150 if field == "mirror" else 10144
            yield Problem(
                "JS151",
                field,
                f"{field}: an origin has either filter_subject or subject_transforms ({err})",
                "A transform's `src` filters too; keep the transforms.",
            )
        if origin.get("name") == body.get("name") and not origin.get("external") and not origin.get("domain"):
            yield Problem("JS152", field, f"{field}: {origin['name']} would copy itself (10052)", "Name another stream, or its `domain:`.")
        yield from _external(field, origin.get("external") or {})


def _external(field: str, external: Body) -> Found:
    api, deliver = external.get("api") or "", external.get("deliver") or ""
    if api == "$JS.API" or api.startswith("$JS.API."):
        yield Problem(
            "JS165",
            field,
            f"{field}: external.api {api} overlaps with $JS.API (10021)",
            "Write `domain:`, or $JS.<domain>.API; without a domain it needs an import.",
        )
    if deliver and not is_literal(deliver):
        yield Problem("JS165", field, f"{field}: external.deliver {deliver} has wildcards (10024)", "Write the prefix without them.")


def _duplicate_sources(body: Body) -> Found:
    seen = set()
    for origin in body.get("sources") or ():
        external = origin.get("external") or {}
        transforms = tuple((t.get("src", ""), t.get("dest", "")) for t in origin.get("subject_transforms") or ())
        key = (origin.get("name"), origin.get("domain"), external.get("api"), origin.get("filter_subject") or "", transforms)
        if key in seen:
            where = f" in domain {origin['domain']}" if origin.get("domain") else ""
            yield Problem(
                "JS152",
                "sources",
                f"sources: {origin.get('name')}{where} is listed twice (10140)",
                "Remove one, or give them different filters.",
            )
        seen.add(key)


def _times(body: Body) -> Found:
    window, age = body.get("duplicate_window") or 0, body.get("max_age") or 0
    for field, value in (("duplicate_window", window), ("max_age", age)):
        if 0 < value < _SHORTEST:
            yield Problem(
                "JS153",
                field,
                f"{field} is {format_duration(value)}; the server takes 100ms or more (10052)",
                "An integer is nanoseconds; write 30s.",
            )
    if age and window > age:
        summary = f"duplicate_window {format_duration(window)} is longer than max_age {format_duration(age)} (10052)"
        yield Problem("JS153", "duplicate_window", summary, "Shorten the window, or leave it out: it is then at most max_age.")
    marker = body.get("subject_delete_marker_ttl") or 0
    if 0 < marker < SECOND:
        yield Problem("JS164", "subject_delete_marker_ttl", "subject_delete_marker_ttl is less than 1s (10052)", "Write 1s or more.")


def _discard(body: Body) -> Found:
    if not body.get("discard_new_per_subject"):
        return
    if body.get("discard") != "new":
        yield Problem("JS154", "discard_new_per_subject", "discard_new_per_subject needs discard: new (10052)", "Add `discard: new`.")
    if (body.get("max_msgs_per_subject") or 0) <= 0:
        yield Problem(
            "JS154", "discard_new_per_subject", "discard_new_per_subject needs max_msgs_per_subject (10052)", "Add `max_msgs_per_subject:`."
        )


def _subjects(body: Body) -> Found:
    subjects = body.get("subjects") or ()
    bad = [subject for subject in subjects if not is_valid(subject)]
    for subject in bad:
        yield Problem(
            "JS156",
            "subjects",
            f'subjects: "{subject}" is not a subject (10052)',
            "It has no blanks and no empty parts, and > only at the end.",
        )
    pair = None if bad else first_overlap(subjects)
    if pair is not None:
        yield Problem("JS156", "subjects", f'subjects: "{pair[0]}" and "{pair[1]}" overlap (10052)', "Keep the wider one.")
    caught = next((subject for subject in subjects if subject not in bad and overlap(subject, _JS_API)), None)
    if caught is not None and not body.get("no_ack"):
        yield Problem("JS157", "subjects", f'subjects: "{caught}" catches the JetStream API (10052)', "Narrow it, or set no_ack: true.")


def _exclusions(body: Body) -> Found:
    if (body.get("placement") or {}).get("preferred"):
        yield Problem(
            "JS158",
            "placement",
            "placement.preferred is refused in a configuration (10052)",
            "Use tags; a leader is moved with `nats stream cluster`.",
        )
    if (
        body.get("deny_purge")
        and body.get("allow_rollup_hdrs")
        and not body.get("subject_delete_marker_ttl")
        and not body.get("allow_msg_schedules")
    ):
        yield Problem(
            "JS160", "allow_rollup_hdrs", "allow_rollup_hdrs needs the right to purge (10052)", "Remove deny_purge or allow_rollup_hdrs."
        )
    if body.get("allow_msg_schedules") and body.get("sources"):
        yield Problem("JS162", "allow_msg_schedules", "a stream with sources cannot schedule messages (10187)", "Remove one of them.")


def _counter(body: Body) -> Found:
    if not body.get("allow_msg_counter"):
        return
    wrong = {
        "discard": body.get("discard") == "new",
        "retention": (body.get("retention") or "limits") != "limits",
        "allow_msg_ttl": body.get("allow_msg_ttl"),
        "allow_msg_schedules": body.get("allow_msg_schedules"),
    }
    for field in (name for name, is_wrong in wrong.items() if is_wrong):
        yield Problem(
            "JS161", field, f"a counter stream cannot have {field}: {str(body[field]).lower()} (10052)", "Remove it, or allow_msg_counter."
        )


def _async(body: Body) -> Found:
    if body.get("persist_mode") != "async":
        return
    wrong = {
        "storage": body.get("storage") == "memory",
        "num_replicas": (body.get("num_replicas") or 1) > 1,
        "allow_atomic": body.get("allow_atomic"),
    }
    for field in (name for name, is_wrong in wrong.items() if is_wrong):
        yield Problem(
            "JS163", field, f"persist_mode: async does not go with {field}: {str(body[field]).lower()} (10052)", "Remove one of them."
        )


_STREAM: Final[tuple[Callable[[Body], Found], ...]] = (
    _mirror, _origins, _duplicate_sources, _times, _discard, _subjects, _exclusions, _counter, _async,
)  # fmt: skip


# --- consumers -----------------------------------------------------------------------------------------------


def _filters(body: Body) -> Found:
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
            "JS170", field, f'{field}: "{subject}" is not a subject', "It has no blanks and no empty parts, and > only at the end."
        )
    pair = None if bad else first_overlap(many)
    if pair is not None:
        yield Problem("JS170", "filter_subjects", f'filter_subjects: "{pair[0]}" and "{pair[1]}" overlap (10138)', "Keep the wider one.")


_STARTS: Final = {"by_start_sequence": "opt_start_seq", "by_start_time": "opt_start_time"}


def _start(body: Body) -> Found:
    policy = body.get("deliver_policy") or "all"
    needed = _STARTS.get(policy)
    if needed and not body.get(needed):
        yield Problem("JS171", "deliver_policy", f"deliver_policy: {policy} needs {needed} (10094)", f"Add `{needed}:`.")
    for other, field in _STARTS.items():
        if field != needed and body.get(field):
            yield Problem(
                "JS171",
                field,
                f"{field} does not go with deliver_policy: {policy} (10094)",
                f"Write deliver_policy: {other}, or remove {field}.",
            )
    if policy == "last_per_subject" and not body.get("filter_subject") and not body.get("filter_subjects"):
        yield Problem(
            "JS171",
            "deliver_policy",
            "deliver_policy: last_per_subject needs a filter (10094)",
            'Add `filter_subject:`; ">" is every subject.',
        )


def _push_or_pull(body: Body) -> Found:
    subject = body.get("deliver_subject")
    if subject:
        if body.get("max_waiting"):
            yield Problem("JS172", "max_waiting", "max_waiting is for pull consumers (10080)", "Remove it, or deliver_subject.")
        if not is_valid(subject) or not is_literal(subject):
            yield Problem(
                "JS172",
                "deliver_subject",
                f'deliver_subject: "{subject}" is not a subject to publish to (10079)',
                "It has no wildcards or blanks.",
            )
        return
    for field, err in (("flow_control", 10089), ("idle_heartbeat", 10088), ("rate_limit_bps", 10086)):
        if body.get(field):
            yield Problem("JS172", field, f"{field} is for push consumers ({err})", "Remove it, or add `deliver_subject:`.")
    if body.get("ack_policy") == "flow_control":
        yield Problem(
            "JS172",
            "ack_policy",
            "ack_policy: flow_control is for push consumers (10218)",
            "Write explicit, all or none, or add `deliver_subject:`.",
        )


def _heartbeat(body: Body) -> Found:
    beat = body.get("idle_heartbeat") or 0
    if 0 < beat < _SHORTEST:
        yield Problem(
            "JS173", "idle_heartbeat", f"idle_heartbeat is {format_duration(beat)}; the server takes 100ms or more (10083)", "Write 5s."
        )
    if body.get("flow_control") and body.get("deliver_subject") and not beat and body.get("ack_policy") != "flow_control":
        yield Problem("JS173", "flow_control", "flow_control needs idle_heartbeat (10108)", "Add `idle_heartbeat: 5s`.")


def _backoff(body: Body) -> Found:
    waits, most = body.get("backoff") or (), body.get("max_deliver") or 0
    if 0 < most < len(waits):
        yield Problem(
            "JS174",
            "max_deliver",
            f"max_deliver is {most} and backoff has {len(waits)} waits (10116)",
            f"Write max_deliver: {len(waits)} or more.",
        )


def _priority(body: Body) -> Found:
    policy, groups = body.get("priority_policy") or "none", body.get("priority_groups")
    if policy == "none" and groups:
        yield Problem(
            "JS175",
            "priority_groups",
            "priority_groups need a priority_policy (10196)",
            "Add `priority_policy: overflow`, or remove the groups.",
        )
    if policy != "none" and not groups:
        yield Problem(
            "JS175", "priority_policy", f"priority_policy: {policy} needs priority_groups (10159)", "Add `priority_groups: [NAME]`."
        )
    if groups and body.get("deliver_subject"):
        yield Problem("JS175", "priority_groups", "priority_groups are for pull consumers (10178)", "Remove them, or deliver_subject.")


_CONSUMER: Final[tuple[Callable[[Body], Found], ...]] = (_filters, _start, _push_or_pull, _heartbeat, _backoff, _priority)


def check_queue_consumer(body: Body, others: list[tuple[str, Body]]) -> Found:
    """What a work queue refuses of a consumer, given its earlier consumers by name."""
    if body.get("ack_policy") != "explicit" and body.get("ack_policy") != "flow_control":
        yield Problem("JS176", "ack_policy", "a consumer of a work queue needs ack_policy: explicit (10084)", "Add `ack_policy: explicit`.")
    if (body.get("deliver_policy") or "all") != "all":
        yield Problem("JS176", "deliver_policy", "a consumer of a work queue delivers all (10101)", "Remove deliver_policy.")
    mine = _filters_of(body)
    for name, other in others:
        if any(overlap(one, two) for one in mine for two in _filters_of(other)):
            field = "filter_subject" if body.get("filter_subject") else "filter_subjects" if body.get("filter_subjects") else "name"
            detail = "Give each consumer filters of its own, so that every message belongs to one of them."
            yield Problem(
                "JS176", field, f"two consumers of a work queue want the same messages: this one and {name} (10099, 10100)", detail
            )
            return


def _filters_of(body: Body) -> list[str]:
    return body.get("filter_subjects") or [body.get("filter_subject") or ">"]
