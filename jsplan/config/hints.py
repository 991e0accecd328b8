"""Hints for fields that have other names elsewhere.

The other names are those of the technical preview of JetStream, NACK, client libraries and the
nats CLI.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from jsplan.address import Kind
from jsplan.diagnostics import did_you_mean

_POLICY: Final = (
    "Write deliver_policy: all, last, new, last_per_subject, by_start_sequence or by_start_time."
)
_OTHERS: Final = "Others go under the top-level `consumers:`."
#: A text of one word is the right field; a longer text is the hint itself.
_CONSUMER: Final = {
    "delivery_subject": "deliver_subject", "target": "deliver_subject",
    "delivery_group": "deliver_group", "queue_group": "deliver_group",
    "deliver_all": "Write deliver_policy: all.", "deliver_last": "Write deliver_policy: last.",
    "deliver_new": "Write deliver_policy: new.", "deliver": _POLICY,
    "delivery_policy": "deliver_policy", "start_policy": "deliver_policy", "ack": "ack_policy",
    "acks": "ack_policy", "start_time": "Write deliver_policy: by_start_time and opt_start_time.",
    "stream_seq": "Write deliver_policy: by_start_sequence and opt_start_seq.",
    "start_seq": "Write deliver_policy: by_start_sequence and opt_start_seq.",
    "start_sequence": "Write deliver_policy: by_start_sequence and opt_start_seq.",
    "opt_start_sequence": "opt_start_seq", "durable": "durable_name", "filter": "filter_subject",
    "filters": "filter_subjects", "replay": "replay_policy", "sample": "sample_freq",
    "sample_frequency": "sample_freq", "sampling_rate": "sample_freq", "wait": "ack_wait",
    "replicas": "num_replicas", "max_pending": "max_ack_pending",
    "max_outstanding": "max_ack_pending", "max_waiting_pulls": "max_waiting",
    "max_redeliver": "max_deliver", "max_redelivery": "max_deliver", "heartbeat": "idle_heartbeat",
    "rate_limit": "rate_limit_bps", "bps": "rate_limit_bps", "memory_storage": "mem_storage",
    "memory": "mem_storage", "pause": "pause_until", "back_off": "backoff",
    "max_pull_batch": "max_batch",
    "max_request_batch": "max_batch", "max_pull_expire": "max_expires",
    "max_request_expires": "max_expires", "max_pull_bytes": "max_bytes",
    "max_request_max_bytes": "max_bytes", "pinned_ttl": "priority_timeout",
    "priority_group": "priority_groups",
    "stream_name": "The stream is where the consumer is nested, or `stream:` beside its name.",
    "stream": f"A nested consumer belongs to its stream. {_OTHERS}",
    "domain": f"A nested consumer is in the domain of its stream. {_OTHERS}",
}  # fmt: skip
_STREAM: Final = {
    "replicas": "num_replicas", "subject": "subjects", "max_msg": "max_msgs",
    "max_messages": "max_msgs", "max_message_size": "max_msg_size",
    "max_msgs_per_subj": "max_msgs_per_subject", "max_msgs_per": "max_msgs_per_subject",
    "max_per_subject": "max_msgs_per_subject",
    "max_msg_per_subject": "max_msgs_per_subject", "maximum_age": "max_age", "age": "max_age",
    "ttl": "max_age", "size": "max_bytes", "max_size": "max_bytes", "max_byte": "max_bytes",
    "dupe_window": "duplicate_window", "duplicates": "duplicate_window",
    "dedupe_window": "duplicate_window", "ack": "no_ack", "rollup": "allow_rollup_hdrs",
    "allow_rollup": "allow_rollup_hdrs", "allow_rollup_headers": "allow_rollup_hdrs",
    "retention_policy": "retention", "discard_policy": "discard",
    "discard_per_subject": "discard_new_per_subject", "storage_type": "storage",
    "source": "sources", "transform": "subject_transform", "first_sequence": "first_seq",
    "tags": "Write placement: {tags: […]}.", "placement_cluster": "Write placement: {cluster: …}.",
    "placement_tags": "Write placement: {tags: […]}.",
    "template": "Stream templates no longer exist; remove it.",
    "template_owner": "Stream templates no longer exist; remove it.",
    "allow_batch": "allow_batched", "allow_batch_publish": "allow_batched",
    "allow_atomic_publish": "allow_atomic", "re_publish": "republish",
    "msg_ttl": "allow_msg_ttl", "counter": "allow_msg_counter",
    "deny_deletion": "deny_delete", "prevent_delete": "Write lifecycle: {prevent_destroy: true}.",
    "prevent_update": "Write lifecycle: {ignore_changes: […]}.",
    "account": "An account belongs to a connection.", "servers": "Servers belong to a connection.",
    "creds": "Credentials belong to a connection.", "from": "mirror",
    "republish_source": "Write republish: {src: …, dest: …}.",
}  # fmt: skip
_BUCKET: Final = {
    "name": "bucket", "replicas": "num_replicas", "max_age": "ttl",
    "max_msgs_per_subject": "history", "max_msg_size": "max_value_size",
    "subject_delete_marker_ttl": "limit_marker_ttl", "max_value": "max_value_size",
    "size": "max_bytes", "max_bucket_size": "max_bytes", "compress": "compression",
    "marker_ttl": "limit_marker_ttl", "tags": "Write placement: {tags: […]}.",
}  # fmt: skip
_ORIGIN: Final = {
    "stream": "name", "start_seq": "opt_start_seq", "start_time": "opt_start_time",
    "filter": "filter_subject", "api": "Write external: {api: …}.",
    "external_api_prefix": "Write external: {api: …}.",
    "external_deliver_prefix": "Write external: {api: …, deliver: …}.", "deliver_prefix": "deliver",
    "js_domain": "domain", "transforms": "subject_transforms",
    "subject_transform": "subject_transforms",
    "filter_subjects": "Write one subject_transforms entry per filter: [{src: a, dest: a}, …].",
}  # fmt: skip
_HINTS_BY_KIND: Final[dict[str, dict[str, str]]] = {
    "consumer": _CONSUMER, "stream": _STREAM, "kv": _BUCKET, "object_store": _BUCKET,
    "stream_source": _ORIGIN,
    "subject_transform": {"source": "src", "destination": "dest", "from": "src", "to": "dest"},
    "republish": {"source": "src", "destination": "dest", "from": "src", "to": "dest"},
}  # fmt: skip
_WORD = re.compile(r"[a-z_]+")


def field_hint(kind: Kind | str, key: str, known: Collection[str]) -> str:
    """Return what to write instead of an unknown field; empty if there is no suggestion."""
    snake = snake_case(key)
    if snake in known:
        return f'The API name is "{snake}".'
    hint = _HINTS_BY_KIND.get(kind, {}).get(snake)
    if hint is None:
        return did_you_mean(snake, known).strip()
    return f'Did you mean "{hint}"?' if _WORD.fullmatch(hint) else hint


def snake_case(key: str) -> str:
    """Convert `maxAge`, `MaxAge` and `max-age` to `max_age`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower().replace("-", "_")
