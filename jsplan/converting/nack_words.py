"""The words of NACK's custom resources (`jetstream.nats.io/v1beta2` and v1beta1), with what the CRDs and the controller fill in.

From docs/api.md and deploy/crds.yml of nats-io/nack. How documents are read is left to `nack`.
"""

from __future__ import annotations

from typing import Final

from jsplan.converting.words import Word, Words, anything, flag, go_duration, labels, listed, one_of, percent, text, texts, whole
from jsplan.units import DURATIONS

#: What empty text, zero and false mean: nothing was said.
_NONE: Final = (None, "")
#: In control-loop mode a stream without `maxAge` gets the client library's year; without it, none.
CONTROL_LOOP_AGE: Final = DURATIONS["y"]

#: Where and how to connect, and what the controller may do: read elsewhere.
CONNECTION: Final = ("account", "creds", "nkey", "servers", "tls", "tlsFirst", "jsDomain")
GUARDS: Final = ("preventDelete", "preventUpdate")

STREAM: Final[Words] = {
    "name": Word("name", text),
    "description": Word("description", text, usual=_NONE),
    "subjects": Word("subjects", texts),
    "retention": Word("retention", text),
    "maxConsumers": Word("max_consumers", whole),
    "maxMsgs": Word("max_msgs", whole),
    "maxBytes": Word("max_bytes", whole),
    "maxAge": Word("max_age", go_duration, usual=_NONE),
    "maxMsgsPerSubject": Word("max_msgs_per_subject", whole, usual=(None, 0)),
    "maxMsgSize": Word("max_msg_size", whole),
    "storage": Word("storage", text, default="memory"),
    "replicas": Word("num_replicas", whole),
    "noAck": Word("no_ack", flag),
    "discard": Word("discard", text),
    "discardPerSubject": Word("discard_new_per_subject", flag),
    "duplicateWindow": Word("duplicate_window", go_duration, usual=_NONE),
    "metadata": Word("metadata", labels),
    "firstSequence": Word("first_seq", whole),
    "compression": Word("compression", text, usual=_NONE),
    "allowDirect": Word("allow_direct", flag),
    "allowRollup": Word("allow_rollup_hdrs", flag),
    "denyDelete": Word("deny_delete", flag),
    "denyPurge": Word("deny_purge", flag),
    "mirrorDirect": Word("mirror_direct", flag),
    "sealed": Word("sealed", flag),
    "allowMsgTtl": Word("allow_msg_ttl", flag),
    "subjectDeleteMarkerTtl": Word("subject_delete_marker_ttl", go_duration, usual=_NONE),
    "allowMsgCounter": Word("allow_msg_counter", flag),
    "allowAtomicPublish": Word("allow_atomic", flag),
    "allowMsgSchedules": Word("allow_msg_schedules", flag),
    "allowBatched": Word("allow_batched", flag),
    "persistMode": Word("persist_mode", text, usual=_NONE),
}
STREAM_ELSEWHERE: Final = ("mirror", "sources", "placement", "republish", "subjectTransform", "consumerLimits")

CONSUMER: Final[Words] = {
    "durableName": Word("durable_name", text, usual=_NONE),
    "name": Word("name", text, usual=_NONE),
    "description": Word("description", text, usual=_NONE),
    "deliverPolicy": Word(
        "deliver_policy",
        one_of(
            {
                "all": "all", "last": "last", "new": "new", "lastPerSubject": "last_per_subject",
                "byStartSequence": "by_start_sequence", "byStartTime": "by_start_time",
            }
        ),
        usual=_NONE,
    ),
    "optStartSeq": Word("opt_start_seq", whole),
    "optStartTime": Word("opt_start_time", text, usual=_NONE),
    "ackPolicy": Word("ack_policy", text, default="none", usual=_NONE),
    "ackWait": Word("ack_wait", go_duration, default=1, usual=_NONE),
    "maxDeliver": Word("max_deliver", whole, usual=(None, 0)),
    "backoff": Word("backoff", listed(go_duration)),
    "filterSubject": Word("filter_subject", text, usual=_NONE),
    "filterSubjects": Word("filter_subjects", texts),
    "replayPolicy": Word("replay_policy", text, usual=_NONE),
    "sampleFreq": Word("sample_freq", percent, usual=_NONE),
    "rateLimitBps": Word("rate_limit_bps", whole),
    "maxAckPending": Word("max_ack_pending", whole, usual=(None, 0)),
    "maxWaiting": Word("max_waiting", whole, usual=(None, 0)),
    "maxRequestBatch": Word("max_batch", whole),
    "maxRequestExpires": Word("max_expires", go_duration, usual=_NONE),
    "maxRequestMaxBytes": Word("max_bytes", whole),
    "headersOnly": Word("headers_only", flag),
    "inactiveThreshold": Word("inactive_threshold", go_duration, usual=_NONE),
    "deliverSubject": Word("deliver_subject", text, usual=_NONE),
    "deliverGroup": Word("deliver_group", text, usual=_NONE),
    "heartbeatInterval": Word("idle_heartbeat", go_duration, usual=_NONE),
    "flowControl": Word("flow_control", flag),
    "replicas": Word("num_replicas", whole),
    "memStorage": Word("mem_storage", flag),
    "metadata": Word("metadata", labels),
    "pauseUntil": Word("pause_until", text, usual=_NONE),
    "priorityGroups": Word("priority_groups", texts),
    "priorityPolicy": Word("priority_policy", text, usual=_NONE),
    "pinnedTtl": Word("priority_timeout", go_duration, usual=_NONE),
}  # fmt: skip
CONSUMER_ELSEWHERE: Final = ("streamName",)

_BUCKET: Final[Words] = {
    "bucket": Word("bucket", text),
    "description": Word("description", text, usual=_NONE),
    "ttl": Word("ttl", go_duration, usual=_NONE),
    "maxBytes": Word("max_bytes", whole, usual=(None, 0)),
    "storage": Word("storage", text, usual=_NONE),
    "replicas": Word("num_replicas", whole),
    "compression": Word("compression", flag),
    "metadata": Word("metadata", labels),
}
KEY_VALUE: Final[Words] = {
    **_BUCKET,
    "history": Word("history", whole, usual=(None, 0)),
    "maxValueSize": Word("max_value_size", whole, usual=(None, 0)),
    "limitMarkerTtl": Word("limit_marker_ttl", go_duration, usual=(None, 0)),
}
KEY_VALUE_ELSEWHERE: Final = ("mirror", "sources", "placement", "republish")
OBJECT_STORE: Final[Words] = _BUCKET
OBJECT_STORE_ELSEWHERE: Final = ("placement",)

# --- nested ---------------------------------------------------------------------------------------------------

TRANSFORM: Final[Words] = {"source": Word("src", text), "dest": Word("dest", text)}
REPUBLISH: Final[Words] = {
    "source": Word("src", text),
    "destination": Word("dest", text),
    "headers_only": Word("headers_only", flag),
    "headersOnly": Word("headers_only", flag),
}
PLACEMENT: Final[Words] = {"cluster": Word("cluster", text, usual=_NONE), "tags": Word("tags", texts, usual=(None, []))}
LIMITS: Final[Words] = {
    "inactiveThreshold": Word("inactive_threshold", go_duration, usual=_NONE),
    "maxAckPending": Word("max_ack_pending", whole),
}
ORIGIN: Final[Words] = {
    "name": Word("name", text),
    "optStartSeq": Word("opt_start_seq", whole, usual=(None, 0)),
    "optStartTime": Word("opt_start_time", text, usual=_NONE),
    "filterSubject": Word("filter_subject", text, usual=_NONE),
    "consumer": Word("consumer", anything),
}
ORIGIN_ELSEWHERE: Final = ("externalApiPrefix", "externalDeliverPrefix", "subjectTransforms")
