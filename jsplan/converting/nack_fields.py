"""The keys of NACK's custom resources, with the defaults of the CRDs and the controller.

`jetstream.nats.io/v1beta2` and v1beta1, from docs/api.md and deploy/crds.yml of nats-io/nack.
"""

from __future__ import annotations

from typing import Final

from jsplan.converting.field_map import (
    FieldMap,
    MappedField,
    any_value,
    flag,
    go_duration,
    integer,
    list_of,
    one_of,
    percent,
    text,
    text_map,
    texts,
)
from jsplan.units import DURATIONS

#: Empty text, zero and false mean that the key is not set.
_EMPTY: Final = (None, "")
#: In control-loop mode a stream without `maxAge` gets the client library's year; else none.
CONTROL_LOOP_AGE: Final = DURATIONS["y"]

#: The connection, and the permissions of the controller: `nack` reads them.
CONNECTION_KEYS: Final = ("account", "creds", "nkey", "servers", "tls", "tlsFirst", "jsDomain")
GUARD_KEYS: Final = ("preventDelete", "preventUpdate")

STREAM: Final[FieldMap] = {
    "name": MappedField("name", text),
    "description": MappedField("description", text, empty_values=_EMPTY),
    "subjects": MappedField("subjects", texts),
    "retention": MappedField("retention", text),
    "maxConsumers": MappedField("max_consumers", integer),
    "maxMsgs": MappedField("max_msgs", integer),
    "maxBytes": MappedField("max_bytes", integer),
    "maxAge": MappedField("max_age", go_duration, empty_values=_EMPTY),
    "maxMsgsPerSubject": MappedField("max_msgs_per_subject", integer, empty_values=(None, 0)),
    "maxMsgSize": MappedField("max_msg_size", integer),
    "storage": MappedField("storage", text, default="memory"),
    "replicas": MappedField("num_replicas", integer),
    "noAck": MappedField("no_ack", flag),
    "discard": MappedField("discard", text),
    "discardPerSubject": MappedField("discard_new_per_subject", flag),
    "duplicateWindow": MappedField("duplicate_window", go_duration, empty_values=_EMPTY),
    "metadata": MappedField("metadata", text_map),
    "firstSequence": MappedField("first_seq", integer),
    "compression": MappedField("compression", text, empty_values=_EMPTY),
    "allowDirect": MappedField("allow_direct", flag),
    "allowRollup": MappedField("allow_rollup_hdrs", flag),
    "denyDelete": MappedField("deny_delete", flag),
    "denyPurge": MappedField("deny_purge", flag),
    "mirrorDirect": MappedField("mirror_direct", flag),
    "sealed": MappedField("sealed", flag),
    "allowMsgTtl": MappedField("allow_msg_ttl", flag),
    "subjectDeleteMarkerTtl": MappedField(
        "subject_delete_marker_ttl", go_duration, empty_values=_EMPTY
    ),
    "allowMsgCounter": MappedField("allow_msg_counter", flag),
    "allowAtomicPublish": MappedField("allow_atomic", flag),
    "allowMsgSchedules": MappedField("allow_msg_schedules", flag),
    "allowBatched": MappedField("allow_batched", flag),
    "persistMode": MappedField("persist_mode", text, empty_values=_EMPTY),
}
STREAM_SPECIAL_KEYS: Final = (
    "mirror",
    "sources",
    "placement",
    "republish",
    "subjectTransform",
    "consumerLimits",
)

CONSUMER: Final[FieldMap] = {
    "durableName": MappedField("durable_name", text, empty_values=_EMPTY),
    "name": MappedField("name", text, empty_values=_EMPTY),
    "description": MappedField("description", text, empty_values=_EMPTY),
    "deliverPolicy": MappedField(
        "deliver_policy",
        one_of(
            {
                "all": "all", "last": "last", "new": "new", "lastPerSubject": "last_per_subject",
                "byStartSequence": "by_start_sequence", "byStartTime": "by_start_time",
            }
        ),
        empty_values=_EMPTY,
    ),
    "optStartSeq": MappedField("opt_start_seq", integer),
    "optStartTime": MappedField("opt_start_time", text, empty_values=_EMPTY),
    "ackPolicy": MappedField("ack_policy", text, default="none", empty_values=_EMPTY),
    "ackWait": MappedField("ack_wait", go_duration, default=1, empty_values=_EMPTY),
    "maxDeliver": MappedField("max_deliver", integer, empty_values=(None, 0)),
    "backoff": MappedField("backoff", list_of(go_duration)),
    "filterSubject": MappedField("filter_subject", text, empty_values=_EMPTY),
    "filterSubjects": MappedField("filter_subjects", texts),
    "replayPolicy": MappedField("replay_policy", text, empty_values=_EMPTY),
    "sampleFreq": MappedField("sample_freq", percent, empty_values=_EMPTY),
    "rateLimitBps": MappedField("rate_limit_bps", integer),
    "maxAckPending": MappedField("max_ack_pending", integer, empty_values=(None, 0)),
    "maxWaiting": MappedField("max_waiting", integer, empty_values=(None, 0)),
    "maxRequestBatch": MappedField("max_batch", integer),
    "maxRequestExpires": MappedField("max_expires", go_duration, empty_values=_EMPTY),
    "maxRequestMaxBytes": MappedField("max_bytes", integer),
    "headersOnly": MappedField("headers_only", flag),
    "inactiveThreshold": MappedField("inactive_threshold", go_duration, empty_values=_EMPTY),
    "deliverSubject": MappedField("deliver_subject", text, empty_values=_EMPTY),
    "deliverGroup": MappedField("deliver_group", text, empty_values=_EMPTY),
    "heartbeatInterval": MappedField("idle_heartbeat", go_duration, empty_values=_EMPTY),
    "flowControl": MappedField("flow_control", flag),
    "replicas": MappedField("num_replicas", integer),
    "memStorage": MappedField("mem_storage", flag),
    "metadata": MappedField("metadata", text_map),
    "pauseUntil": MappedField("pause_until", text, empty_values=_EMPTY),
    "priorityGroups": MappedField("priority_groups", texts),
    "priorityPolicy": MappedField("priority_policy", text, empty_values=_EMPTY),
    "pinnedTtl": MappedField("priority_timeout", go_duration, empty_values=_EMPTY),
}  # fmt: skip
CONSUMER_SPECIAL_KEYS: Final = ("streamName",)

_BUCKET: Final[FieldMap] = {
    "bucket": MappedField("bucket", text),
    "description": MappedField("description", text, empty_values=_EMPTY),
    "ttl": MappedField("ttl", go_duration, empty_values=_EMPTY),
    "maxBytes": MappedField("max_bytes", integer, empty_values=(None, 0)),
    "storage": MappedField("storage", text, empty_values=_EMPTY),
    "replicas": MappedField("num_replicas", integer),
    "compression": MappedField("compression", flag),
    "metadata": MappedField("metadata", text_map),
}
KEY_VALUE: Final[FieldMap] = {
    **_BUCKET,
    "history": MappedField("history", integer, empty_values=(None, 0)),
    "maxValueSize": MappedField("max_value_size", integer, empty_values=(None, 0)),
    "limitMarkerTtl": MappedField("limit_marker_ttl", go_duration, empty_values=(None, 0)),
}
KEY_VALUE_SPECIAL_KEYS: Final = ("mirror", "sources", "placement", "republish")
OBJECT_STORE: Final[FieldMap] = _BUCKET
OBJECT_STORE_SPECIAL_KEYS: Final = ("placement",)

# --- nested ---------------------------------------------------------------------------------------

TRANSFORM: Final[FieldMap] = {"source": MappedField("src", text), "dest": MappedField("dest", text)}
REPUBLISH: Final[FieldMap] = {
    "source": MappedField("src", text),
    "destination": MappedField("dest", text),
    "headers_only": MappedField("headers_only", flag),
    "headersOnly": MappedField("headers_only", flag),
}
PLACEMENT: Final[FieldMap] = {
    "cluster": MappedField("cluster", text, empty_values=_EMPTY),
    "tags": MappedField("tags", texts, empty_values=(None, [])),
}
LIMITS: Final[FieldMap] = {
    "inactiveThreshold": MappedField("inactive_threshold", go_duration, empty_values=_EMPTY),
    "maxAckPending": MappedField("max_ack_pending", integer),
}
ORIGIN: Final[FieldMap] = {
    "name": MappedField("name", text),
    "optStartSeq": MappedField("opt_start_seq", integer, empty_values=(None, 0)),
    "optStartTime": MappedField("opt_start_time", text, empty_values=_EMPTY),
    "filterSubject": MappedField("filter_subject", text, empty_values=_EMPTY),
    "consumer": MappedField("consumer", any_value),
}
ORIGIN_SPECIAL_KEYS: Final = ("externalApiPrefix", "externalDeliverPrefix", "subjectTransforms")
