"""Rules between the fields of a stream that the server is known to enforce.

Measured on nats-server 2.15; the number in each text is the server's err_code. Rules that depend
on the server or on live are in `planning.refusals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsplan.address import Address
from jsplan.config.checks_origins import check_origins, transform_problem
from jsplan.config.findings import Body, Checks, Problem, Problems
from jsplan.resources import buckets
from jsplan.subjects import find_overlap, is_subset, is_valid, overlaps
from jsplan.units import SECOND, format_duration

_MIN_DURATION: Final = 100_000_000
#: The server's own subjects, and those of them that a stream may store.
_RESERVED: Final = (
    ("$JS.>", "$JS.EVENT.>"),
    ("$JSC.>", "$JS.EVENT.>"),
    ("$NRG.>", "$JS.EVENT.>"),
    ("$SYS.>", "$SYS.ACCOUNT.>"),
)
#: The begin of each subject that overlaps one of them.
_MAY_BE_RESERVED: Final = ("$", "*", ">")
_MAX_METADATA_BYTES: Final = 128 * 1024


def check_stream(body: Body) -> Problems:
    """Find everything that the server is certain to refuse in a stream's configuration."""
    return _STREAM_CHECKS.find(body)


# --- streams --------------------------------------------------------------------------------------


def _mirror(body: Body) -> Problems:
    if not body.get("mirror"):
        return
    for field, why in _NOT_ON_MIRRORS.items():
        if body.get(field):
            hint = "Remove it, or use `sources:` instead of `mirror:`."
            yield Problem("JS150", field, f"a mirror cannot have {field} ({why})", hint)


_NOT_ON_MIRRORS: Final = {
    "subjects": 10034, "sources": 10031, "first_seq": 10143, "subject_delete_marker_ttl": 10052,
    "allow_msg_counter": 10173, "allow_msg_schedules": 10186, "allow_atomic": 10198,
    "allow_batched": 10209,
}  # fmt: skip


def _times(body: Body) -> Problems:
    window, age = body.get("duplicate_window") or 0, body.get("max_age") or 0
    for field, value in (("duplicate_window", window), ("max_age", age)):
        if 0 < value < _MIN_DURATION:
            text = f"{field} is {format_duration(value)}; the server takes 100ms or more (10052)"
            yield Problem("JS153", field, text, "An integer is nanoseconds; write 30s.")
    if age and window > age:
        summary = (
            f"duplicate_window {format_duration(window)} is longer than"
            f" max_age {format_duration(age)} (10052)"
        )
        hint = "Shorten the window, or leave it out: it is then at most max_age."
        yield Problem("JS153", "duplicate_window", summary, hint)
    marker = body.get("subject_delete_marker_ttl") or 0
    if 0 < marker < SECOND:
        text = "subject_delete_marker_ttl is less than 1s (10052)"
        yield Problem("JS164", "subject_delete_marker_ttl", text, "Write 1s or more.")


def _discard(body: Body) -> Problems:
    if not body.get("discard_new_per_subject"):
        return
    if body.get("discard") != "new" and not body.get("sealed"):
        text = "discard_new_per_subject needs discard: new (10052)"
        yield Problem("JS154", "discard_new_per_subject", text, "Add `discard: new`.")
    if (body.get("max_msgs_per_subject") or 0) <= 0:
        text = "discard_new_per_subject needs max_msgs_per_subject (10052)"
        yield Problem("JS154", "discard_new_per_subject", text, "Add `max_msgs_per_subject:`.")


def _subjects(body: Body) -> Problems:
    subjects = body.get("subjects") or ()
    bad = [subject for subject in subjects if not is_valid(subject)]
    for subject in bad:
        hint = "It has no blanks and no empty parts, and > only at the end."
        yield Problem("JS156", "subjects", f'subjects: "{subject}" is not a subject (10052)', hint)
    pair = None if bad else find_overlap(subjects)
    if pair is not None:
        text = f'subjects: "{pair[0]}" and "{pair[1]}" overlap (10052)'
        yield Problem("JS156", "subjects", text, "Keep the wider one.")
    caught = None if bad else find_reserved(body)
    if caught is not None and (caught == ">" or caught.startswith("$")):
        yield reserved_problem(caught)
    if ">" in subjects and (body.get("num_replicas") or 1) > 1:
        text = "a stream of all subjects has one copy (10052)"
        hint = "Write num_replicas: 1, or narrow the subjects."
        yield Problem("JS157", "num_replicas", text, hint)


def find_reserved(body: Body) -> str | None:
    """Return a subject that catches those of the server, which nats-server refuses since 2.11.

    Up to 2.10 only those that begin with a `$`, and `>`.
    """
    subjects = () if body.get("no_ack") else body.get("subjects") or ()
    return next((subject for subject in subjects if _is_reserved(subject)), None)


def reserved_problem(subject: str) -> Problem:
    """Return the problem of a subject that `find_reserved` found."""
    system = overlaps(subject, "$SYS.>") and not overlaps(subject, "$JS.>")
    whose = "the system's subjects" if system else "the JetStream API"
    return Problem(
        "JS157",
        "subjects",
        f'subjects: "{subject}" catches {whose} (10052)',
        "Narrow it, or set no_ack: true.",
    )


def _is_reserved(subject: str) -> bool:
    return subject.startswith(_MAY_BE_RESERVED) and any(
        overlaps(subject, reserved) and not is_subset(subject, free) for reserved, free in _RESERVED
    )


def _mapping(body: Body) -> Problems:
    transform, republish = body.get("subject_transform"), body.get("republish")
    if transform:
        src = transform.get("src") or ""
        why = (
            f'"{src}" is not a subject'
            if src and not is_valid(src)
            else transform_problem(src, transform.get("dest") or "")
        )
        if why:
            text = f"subject_transform: {why} (10155, 10156)"
            yield Problem("JS167", "subject_transform", text, _TRANSFORM_HELP)
    if republish:
        yield from _republish(republish, body)


_TRANSFORM_HELP: Final = (
    "Both sides end with > or neither does; `dest` has no *, but {{wildcard(n)}} for the n-th *"
    " of `src`."
)


def _republish(republish: Body, body: Body) -> Problems:
    src, dest = republish.get("src") or ">", republish.get("dest") or ""
    origins = body.get("mirror") or body.get("sources")
    stored = body.get("subjects") or ([] if origins else [body.get("name") or ""])
    looped = next((subject for subject in stored if dest and overlaps(dest, subject)), None)
    transform = body.get("subject_transform") or {}
    narrowed = (
        src == dest == ">"
        and transform.get("dest")
        and not overlaps(transform["dest"], looped or "")
    )
    if looped is not None and not narrowed:
        text = f'republish: "{dest}" is stored again by this stream, as {looped} (10052)'
        yield Problem("JS168", "republish", text, "Use another prefix.")
    elif dest and (why := transform_problem(src, dest)):
        yield Problem("JS168", "republish", f"republish: {why} (10052)", _TRANSFORM_HELP)


def _lengths(body: Body) -> Problems:
    """Check the sizes. The server counts metadata of its own too, depending on its version."""
    size = sum(
        len(key.encode()) + len(value.encode())
        for key, value in (body.get("metadata") or {}).items()
    )
    if size > _MAX_METADATA_BYTES:
        text = f"metadata is {size:,} bytes; the server takes {_MAX_METADATA_BYTES:,} (10052)"
        yield Problem("JS169", "metadata", text, "Keep documents elsewhere.")


def _exclusions(body: Body) -> Problems:
    if (body.get("placement") or {}).get("preferred"):
        text = "placement.preferred is refused in a configuration (10052)"
        hint = "Use tags. To move a leader: nats stream cluster step-down"
        yield Problem("JS158", "placement", text, hint)
    if body.get("deny_purge") and body.get("allow_rollup_hdrs"):
        text = "allow_rollup_hdrs needs the right to purge (10052)"
        yield Problem("JS160", "allow_rollup_hdrs", text, "Remove deny_purge or allow_rollup_hdrs.")
    if body.get("allow_msg_schedules") and body.get("sources"):
        text = "a stream with sources cannot schedule messages (10187)"
        yield Problem("JS162", "allow_msg_schedules", text, "Remove one of them.")


def _counter(body: Body) -> Problems:
    if not body.get("allow_msg_counter"):
        return
    wrong = {
        "discard": body.get("discard") == "new" and not body.get("sealed"),
        "retention": (body.get("retention") or "limits") != "limits",
        "allow_msg_ttl": body.get("allow_msg_ttl"),
    }
    for field in (name for name, is_wrong in wrong.items() if is_wrong):
        text = f"a counter stream cannot have {field}: {str(body[field]).lower()} (10052)"
        yield Problem("JS161", field, text, "Remove it, or allow_msg_counter.")


def _async(body: Body) -> Problems:
    if body.get("persist_mode") != "async":
        return
    wrong = {
        "storage": body.get("storage") == "memory",
        "num_replicas": (body.get("num_replicas") or 1) > 1,
        "allow_atomic": body.get("allow_atomic"),
    }
    for field in (name for name, is_wrong in wrong.items() if is_wrong):
        text = (
            "persist_mode: async cannot be combined with"
            f" {field}: {str(body[field]).lower()} (10052)"
        )
        yield Problem("JS163", field, text, "Remove one of them.")


_STREAM_CHECKS: Final = Checks(
    (_mirror, frozenset(["mirror"])),
    (check_origins, frozenset(["mirror", "sources"])),
    (_times, frozenset(["duplicate_window", "max_age", "subject_delete_marker_ttl"])),
    (_discard, frozenset(["discard_new_per_subject"])),
    (_subjects, frozenset(["subjects"])),
    (_mapping, frozenset(["subject_transform", "republish"])),
    (_exclusions, frozenset(["placement", "deny_purge", "allow_msg_schedules"])),
    (_counter, frozenset(["allow_msg_counter"])),
    (_async, frozenset(["persist_mode"])),
    (_lengths, frozenset(["metadata"])),
)


def check_bucket(address: Address, body: Mapping[str, Any]) -> Problems:
    """Yield everything that the server is certain to refuse in the stream of a bucket.

    Buckets are KV buckets and object stores.
    """
    kind, lowered = address.kind, buckets.lower(address, body)
    lowered = {
        "name": address.stream,
        "discard": buckets.client_defaults(kind, lowered).get("discard"),
    } | lowered
    for problem in check_stream(lowered):
        summary, detail = (
            buckets.with_aliases(kind, problem.summary),
            buckets.with_aliases(kind, problem.detail),
        )
        yield problem._replace(
            field=buckets.alias_of(kind, problem.field), summary=summary, detail=detail
        )
