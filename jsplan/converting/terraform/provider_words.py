"""The attributes of the jetstream provider's resources, with the defaults of its schema, from the Technical Preview's to today's.

From docs/resources of nats-io/terraform-provider-jetstream. How they are read is left to `resources`.
"""

from __future__ import annotations

from typing import Final

from jsplan.converting.words import Word, Words, flag, labels, listed, seconds, text, texts, whole
from jsplan.units import SECOND

_NONE: Final = (None, "")
_ZERO: Final = (None, 0, "")

STREAM: Final[Words] = {
    "name": Word("name", text),
    "description": Word("description", text, usual=_NONE),
    "metadata": Word("metadata", labels),
    "subjects": Word("subjects", texts, usual=(None, [])),
    "discard": Word("discard", text, usual=_NONE),
    "discard_new_per_subject": Word("discard_new_per_subject", flag),
    "max_msgs": Word("max_msgs", whole),
    "max_msgs_per_subject": Word("max_msgs_per_subject", whole),
    "max_bytes": Word("max_bytes", whole),
    "max_age": Word("max_age", seconds),
    "duplicate_window": Word("duplicate_window", seconds, default=120 * SECOND, usual=_ZERO),
    "max_msg_size": Word("max_msg_size", whole),
    "storage": Word("storage", text, usual=_NONE),
    "retention": Word("retention", text, usual=_NONE),
    "compression": Word("compression", text, usual=_NONE),
    "max_consumers": Word("max_consumers", whole),
    "replicas": Word("num_replicas", whole),
    "deny_delete": Word("deny_delete", flag),
    "deny_purge": Word("deny_purge", flag),
    "allow_rollup_hdrs": Word("allow_rollup_hdrs", flag),
    "allow_direct": Word("allow_direct", flag, default=True),
    "mirror_direct": Word("mirror_direct", flag),
    "allow_msg_ttl": Word("allow_msg_ttl", flag),
    "subject_delete_marker_ttl": Word("subject_delete_marker_ttl", seconds, usual=_ZERO),
    "allow_msg_counter": Word("allow_msg_counter", flag),
    "allow_atomic": Word("allow_atomic", flag),
    "allow_atomic_publish": Word("allow_atomic", flag),
    "allow_msg_schedules": Word("allow_msg_schedules", flag),
    "allow_batched": Word("allow_batched", flag),
    "persist_mode": Word("persist_mode", text, usual=_NONE),
    "first_seq": Word("first_seq", whole, usual=_ZERO),
    "sealed": Word("sealed", flag),
}
#: Of a stream: what is read in `resources`. `ack` is the other way round there; limits for consumers stand beside the fields.
STREAM_ELSEWHERE: Final = (
    "ack", "mirror", "source", "subject_transform", "placement_cluster", "placement_tags", "max_ack_pending", "inactive_threshold",
    "republish_source", "republish_destination", "republish_headers_only",
)  # fmt: skip

CONSUMER: Final[Words] = {
    "durable_name": Word("durable_name", text),
    "description": Word("description", text, usual=_NONE),
    "metadata": Word("metadata", labels),
    "delivery_subject": Word("deliver_subject", text, usual=_NONE),
    "delivery_group": Word("deliver_group", text, usual=_NONE),
    "ack_policy": Word("ack_policy", text, default="explicit", usual=_NONE),
    "ack_wait": Word("ack_wait", seconds, default=30 * SECOND, usual=_ZERO),
    "max_delivery": Word("max_deliver", whole),
    "filter_subject": Word("filter_subject", text, usual=_NONE),
    "filter_subjects": Word("filter_subjects", texts, usual=(None, [])),
    "replay_policy": Word("replay_policy", text, usual=_NONE),
    "ratelimit": Word("rate_limit_bps", whole),
    "max_ack_pending": Word("max_ack_pending", whole, default=20000, usual=_ZERO),
    "heartbeat": Word("idle_heartbeat", seconds, usual=_ZERO),
    "flow_control": Word("flow_control", flag),
    "max_waiting": Word("max_waiting", whole, usual=_ZERO),
    "headers_only": Word("headers_only", flag),
    "max_batch": Word("max_batch", whole, usual=_ZERO),
    "max_expires": Word("max_expires", seconds, usual=_ZERO),
    "max_bytes": Word("max_bytes", whole, usual=_ZERO),
    "inactive_threshold": Word("inactive_threshold", seconds, usual=_ZERO),
    "replicas": Word("num_replicas", whole),
    "memory": Word("mem_storage", flag),
    "backoff": Word("backoff", listed(seconds), usual=(None, [])),
    "priority_groups": Word("priority_groups", texts, usual=(None, [])),
    "priority_policy": Word("priority_policy", text, usual=_NONE),
    "priority_timeout": Word("priority_timeout", seconds, usual=_ZERO),
}
#: Of a consumer: what is read in `resources`.
CONSUMER_ELSEWHERE: Final = (
    "stream_id", "sample_freq", "stream_sequence", "start_time", "deliver_all", "deliver_last", "deliver_new", "deliver_last_per_subject",
)  # fmt: skip

_BUCKET: Final[Words] = {
    "name": Word("bucket", text),
    "description": Word("description", text, usual=_NONE),
    "ttl": Word("ttl", seconds, usual=_ZERO),
    "max_bucket_size": Word("max_bytes", whole),
    "storage": Word("storage", text, usual=_NONE),
    "replicas": Word("num_replicas", whole),
    "metadata": Word("metadata", labels),
    "compression": Word("compression", flag),
}
KV: Final[Words] = {
    **_BUCKET,
    "history": Word("history", whole, default=5),
    "max_value_size": Word("max_value_size", whole),
    "limit_marker_ttl": Word("limit_marker_ttl", seconds, usual=_ZERO),
}
OBJECT_STORE: Final[Words] = _BUCKET
BUCKET_ELSEWHERE: Final = ("placement_cluster", "placement_tags")

ORIGIN: Final[Words] = {
    "name": Word("name", text),
    "start_seq": Word("opt_start_seq", whole, usual=_ZERO),
    "start_time": Word("opt_start_time", text, usual=_NONE),
    "filter_subject": Word("filter_subject", text, usual=_NONE),
}
ORIGIN_ELSEWHERE: Final = ("external", "subject_transform")
EXTERNAL: Final[Words] = {"api": Word("api", text, usual=_NONE), "deliver": Word("deliver", text, usual=_NONE)}
TRANSFORM: Final[Words] = {"source": Word("src", text), "destination": Word("dest", text)}

#: Defaults of the provider that are not the server's: the field, and what the server would do.
DIFFERENT: Final = {
    "stream": {"allow_direct": ("allow_direct: true", "false")},
    "consumer": {"max_ack_pending": ("max_ack_pending: 20000", "1000"), "sample_freq": ("sample_freq: 0%", "none, which is the same")},
    "kv": {"history": ("history: 5", "1")},
    "object_store": {},
}

#: What Terraform and the provider keep beside the attributes.
META: Final = ("id", "provider", "depends_on", "lifecycle", "count", "for_each", "provisioner", "connection", "timeouts", "dynamic")
