"""Schemas of stream and consumer configurations in documents; they may have more fields.

Every known field has the type that servers give it, or is null.
"""

from __future__ import annotations

from jsplan.documents.schema_types import (
    FLAG,
    INSTANT,
    INTEGER,
    NAME,
    TEXT,
    UINT64,
    Schema,
    list_of,
    map_of,
    object_of,
    or_null,
    ref_or_null,
    ref_to,
    untyped,
)

_TEXTS = (
    "description", "retention", "discard", "storage", "compression", "persist_mode", "durable_name",
    "deliver_policy", "ack_policy",
    "filter_subject", "replay_policy", "sample_freq", "deliver_subject", "deliver_group",
    "priority_policy",
)  # fmt: skip
_NUMBERS = (
    "max_consumers", "max_msgs", "max_bytes", "max_age", "max_msgs_per_subject", "max_msg_size",
    "num_replicas", "duplicate_window",
    "first_seq", "subject_delete_marker_ttl", "opt_start_seq", "ack_wait", "max_deliver",
    "rate_limit_bps", "max_ack_pending",
    "max_waiting", "max_batch", "max_expires", "inactive_threshold", "idle_heartbeat",
    "priority_timeout",
)  # fmt: skip
_FLAGS = (
    "no_ack", "sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs", "allow_direct",
    "mirror_direct", "discard_new_per_subject",
    "allow_msg_ttl", "allow_msg_counter", "allow_atomic", "allow_msg_schedules", "allow_batched",
    "headers_only", "flow_control",
    "mem_storage", "direct", "sourcing",
)  # fmt: skip
_TRANSFORM = object_of({}, {"src": or_null(TEXT), "dest": or_null(TEXT)})

ORIGIN = object_of(
    {"name": NAME},
    {
        "opt_start_seq": or_null(UINT64),
        "opt_start_time": or_null(INSTANT),
        "filter_subject": or_null(TEXT),
        "subject_transforms": or_null(list_of(_TRANSFORM)),
        "external": or_null(object_of({}, {"api": TEXT, "deliver": or_null(TEXT)})),
        "consumer": or_null(object_of({"name": TEXT}, {"deliver_subject": or_null(TEXT)})),
    },
)
CONFIG: Schema = object_of(
    {},
    dict.fromkeys(("name", *_TEXTS), or_null(TEXT))
    | dict.fromkeys(_NUMBERS, or_null(INTEGER))
    | dict.fromkeys(_FLAGS, or_null(FLAG))
    | dict.fromkeys(("opt_start_time", "pause_until"), or_null(INSTANT))
    | dict.fromkeys(("subjects", "filter_subjects", "priority_groups"), or_null(list_of(TEXT)))
    | {
        "backoff": or_null(list_of(INTEGER)),
        "metadata": or_null(map_of(TEXT)),
        "mirror": ref_or_null("origin"),
        "sources": or_null(list_of(ref_to("origin"))),
        "subject_transform": or_null(_TRANSFORM),
        "placement": or_null(
            object_of(
                {},
                {
                    "cluster": or_null(TEXT),
                    "tags": or_null(list_of(TEXT)),
                    "preferred": or_null(TEXT),
                },
            )
        ),
        "republish": or_null(
            object_of(
                {}, {"src": or_null(TEXT), "dest": or_null(TEXT), "headers_only": or_null(FLAG)}
            )
        ),
        "consumer_limits": or_null(
            object_of(
                {}, dict.fromkeys(("inactive_threshold", "max_ack_pending"), or_null(INTEGER))
            )
        ),
    },
    "A configuration in API names and units, as the server has it.",
)

#: References for the fields of a document that has `CONFIG_DEFS` among its definitions.
CONFIG_REF, CONFIG_OR_NULL, ORIGIN_REF = ref_to("config"), ref_or_null("config"), ref_to("origin")
CONFIG_DEFS: dict[str, Schema] = {"config": untyped(CONFIG), "origin": untyped(ORIGIN)}
