"""The attributes of the jetstream provider's resources, with the defaults of its schema.

From the Technical Preview to today; docs/resources of nats-io/terraform-provider-jetstream.
"""

from __future__ import annotations

from typing import Final

from jsplan.converting.field_map import (
    FieldMap,
    MappedField,
    flag,
    integer,
    list_of,
    seconds,
    text,
    text_map,
    texts,
)
from jsplan.units import SECOND

_EMPTY: Final = (None, "")
_ZERO: Final = (None, 0, "")

STREAM: Final[FieldMap] = {
    "name": MappedField("name", text),
    "description": MappedField("description", text, empty_values=_EMPTY),
    "metadata": MappedField("metadata", text_map),
    "subjects": MappedField("subjects", texts, empty_values=(None, [])),
    "discard": MappedField("discard", text, empty_values=_EMPTY),
    "discard_new_per_subject": MappedField("discard_new_per_subject", flag),
    "max_msgs": MappedField("max_msgs", integer),
    "max_msgs_per_subject": MappedField("max_msgs_per_subject", integer),
    "max_bytes": MappedField("max_bytes", integer),
    "max_age": MappedField("max_age", seconds),
    "duplicate_window": MappedField(
        "duplicate_window", seconds, default=120 * SECOND, empty_values=_ZERO
    ),
    "max_msg_size": MappedField("max_msg_size", integer),
    "storage": MappedField("storage", text, empty_values=_EMPTY),
    "retention": MappedField("retention", text, empty_values=_EMPTY),
    "compression": MappedField("compression", text, empty_values=_EMPTY),
    "max_consumers": MappedField("max_consumers", integer),
    "replicas": MappedField("num_replicas", integer),
    "deny_delete": MappedField("deny_delete", flag),
    "deny_purge": MappedField("deny_purge", flag),
    "allow_rollup_hdrs": MappedField("allow_rollup_hdrs", flag),
    "allow_direct": MappedField("allow_direct", flag, default=True),
    "mirror_direct": MappedField("mirror_direct", flag),
    "allow_msg_ttl": MappedField("allow_msg_ttl", flag),
    "subject_delete_marker_ttl": MappedField(
        "subject_delete_marker_ttl", seconds, empty_values=_ZERO
    ),
    "allow_msg_counter": MappedField("allow_msg_counter", flag),
    "allow_atomic": MappedField("allow_atomic", flag),
    "allow_atomic_publish": MappedField("allow_atomic", flag),
    "allow_msg_schedules": MappedField("allow_msg_schedules", flag),
    "allow_batched": MappedField("allow_batched", flag),
    "persist_mode": MappedField("persist_mode", text, empty_values=_EMPTY),
    "first_seq": MappedField("first_seq", integer, empty_values=_ZERO),
    "sealed": MappedField("sealed", flag),
}
#: Attributes of a stream that `resources` reads. `ack` is inverted there; limits for consumers
#: are not nested.
STREAM_SPECIAL_KEYS: Final = (
    "ack", "mirror", "source", "subject_transform", "placement_cluster", "placement_tags",
    "max_ack_pending", "inactive_threshold", "republish_source", "republish_destination",
    "republish_headers_only",
)  # fmt: skip

CONSUMER: Final[FieldMap] = {
    "durable_name": MappedField("durable_name", text),
    "description": MappedField("description", text, empty_values=_EMPTY),
    "metadata": MappedField("metadata", text_map),
    "delivery_subject": MappedField("deliver_subject", text, empty_values=_EMPTY),
    "delivery_group": MappedField("deliver_group", text, empty_values=_EMPTY),
    "ack_policy": MappedField("ack_policy", text, default="explicit", empty_values=_EMPTY),
    "ack_wait": MappedField("ack_wait", seconds, default=30 * SECOND, empty_values=_ZERO),
    "max_delivery": MappedField("max_deliver", integer),
    "filter_subject": MappedField("filter_subject", text, empty_values=_EMPTY),
    "filter_subjects": MappedField("filter_subjects", texts, empty_values=(None, [])),
    "replay_policy": MappedField("replay_policy", text, empty_values=_EMPTY),
    "ratelimit": MappedField("rate_limit_bps", integer),
    "max_ack_pending": MappedField("max_ack_pending", integer, default=20000, empty_values=_ZERO),
    "heartbeat": MappedField("idle_heartbeat", seconds, empty_values=_ZERO),
    "flow_control": MappedField("flow_control", flag),
    "max_waiting": MappedField("max_waiting", integer, empty_values=_ZERO),
    "headers_only": MappedField("headers_only", flag),
    "max_batch": MappedField("max_batch", integer, empty_values=_ZERO),
    "max_expires": MappedField("max_expires", seconds, empty_values=_ZERO),
    "max_bytes": MappedField("max_bytes", integer, empty_values=_ZERO),
    "inactive_threshold": MappedField("inactive_threshold", seconds, empty_values=_ZERO),
    "replicas": MappedField("num_replicas", integer),
    "memory": MappedField("mem_storage", flag),
    "backoff": MappedField("backoff", list_of(seconds), empty_values=(None, [])),
    "priority_groups": MappedField("priority_groups", texts, empty_values=(None, [])),
    "priority_policy": MappedField("priority_policy", text, empty_values=_EMPTY),
    "priority_timeout": MappedField("priority_timeout", seconds, empty_values=_ZERO),
}
#: Attributes of a consumer that `resources` reads.
CONSUMER_SPECIAL_KEYS: Final = (
    "stream_id", "sample_freq", "stream_sequence", "start_time", "deliver_all", "deliver_last",
    "deliver_new", "deliver_last_per_subject",
)  # fmt: skip

_BUCKET: Final[FieldMap] = {
    "name": MappedField("bucket", text),
    "description": MappedField("description", text, empty_values=_EMPTY),
    "ttl": MappedField("ttl", seconds, empty_values=_ZERO),
    "max_bucket_size": MappedField("max_bytes", integer),
    "storage": MappedField("storage", text, empty_values=_EMPTY),
    "replicas": MappedField("num_replicas", integer),
    "metadata": MappedField("metadata", text_map),
    "compression": MappedField("compression", flag),
}
KV: Final[FieldMap] = {
    **_BUCKET,
    "history": MappedField("history", integer, default=5),
    "max_value_size": MappedField("max_value_size", integer),
    "limit_marker_ttl": MappedField("limit_marker_ttl", seconds, empty_values=_ZERO),
}
OBJECT_STORE: Final[FieldMap] = _BUCKET
BUCKET_SPECIAL_KEYS: Final = ("placement_cluster", "placement_tags")

ORIGIN: Final[FieldMap] = {
    "name": MappedField("name", text),
    "start_seq": MappedField("opt_start_seq", integer, empty_values=_ZERO),
    "start_time": MappedField("opt_start_time", text, empty_values=_EMPTY),
    "filter_subject": MappedField("filter_subject", text, empty_values=_EMPTY),
}
ORIGIN_SPECIAL_KEYS: Final = ("external", "subject_transform")
EXTERNAL: Final[FieldMap] = {
    "api": MappedField("api", text, empty_values=_EMPTY),
    "deliver": MappedField("deliver", text, empty_values=_EMPTY),
}
TRANSFORM: Final[FieldMap] = {
    "source": MappedField("src", text),
    "destination": MappedField("dest", text),
}

#: Defaults of the provider that differ from the server's: the field, and the server's default.
DIFFERENT_DEFAULTS: Final = {
    "stream": {"allow_direct": ("allow_direct: true", "false")},
    "consumer": {
        "max_ack_pending": ("max_ack_pending: 20000", "1000"),
        "sample_freq": ("sample_freq: 0%", "none, which is the same"),
    },
    "kv": {"history": ("history: 5", "1")},
    "object_store": {},
}

#: Attributes of Terraform and the provider themselves.
META_ARGUMENTS: Final = (
    "id",
    "provider",
    "depends_on",
    "lifecycle",
    "count",
    "for_each",
    "provisioner",
    "connection",
    "timeouts",
    "dynamic",
)
