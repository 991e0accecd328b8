"""Stream and consumer configurations in documents; they may have more fields.

Every known field has the type that servers give it, or is null. Configurations stay plain data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType, defstruct

from jsplan.documents.types import Instant, Name, UInt64, kept

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


class Transform(Struct):
    """A subject transform."""

    src: str | UnsetType | None = UNSET
    dest: str | UnsetType | None = UNSET


class External(Struct):
    """Another domain or account, by the prefix of its API."""

    api: str | UnsetType = UNSET
    deliver: str | UnsetType | None = UNSET


class SourceConsumer(Struct):
    """The consumer with which a stream reads from its origin."""

    name: str
    deliver_subject: str | UnsetType | None = UNSET


class OriginShape(Struct):
    """A mirror or a source."""

    name: Name
    opt_start_seq: UInt64 | UnsetType | None = UNSET
    opt_start_time: Instant | UnsetType | None = UNSET
    filter_subject: str | UnsetType | None = UNSET
    subject_transforms: list[Transform] | UnsetType | None = UNSET
    external: External | UnsetType | None = UNSET
    consumer: SourceConsumer | UnsetType | None = UNSET


class Placement(Struct):
    """The cluster and servers of a stream."""

    cluster: str | UnsetType | None = UNSET
    tags: list[str] | UnsetType | None = UNSET
    preferred: str | UnsetType | None = UNSET


class Republish(Struct):
    """Subjects under which a stream publishes again."""

    src: str | UnsetType | None = UNSET
    dest: str | UnsetType | None = UNSET
    headers_only: bool | UnsetType | None = UNSET


class ConsumerLimits(Struct):
    """Limits of the consumers of a stream."""

    inactive_threshold: int | UnsetType | None = UNSET
    max_ack_pending: int | UnsetType | None = UNSET


_FIELDS: dict[str, Any] = (
    dict.fromkeys(("name", *_TEXTS), str)
    | dict.fromkeys(_NUMBERS, int)
    | dict.fromkeys(_FLAGS, bool)
    | dict.fromkeys(("opt_start_time", "pause_until"), Instant)
    | dict.fromkeys(("subjects", "filter_subjects", "priority_groups"), list[str])
    | {
        "backoff": list[int], "metadata": dict[str, str], "mirror": OriginShape,
        "sources": list[OriginShape], "subject_transform": Transform, "placement": Placement,
        "republish": Republish, "consumer_limits": ConsumerLimits,
    }
)  # fmt: skip
ConfigShape = defstruct(
    "ConfigShape",
    [(name, kind | None, UNSET) for name, kind in _FIELDS.items()],
    namespace={"__doc__": "A configuration in API names and units, as the server has it."},
    gc=False,
)

if TYPE_CHECKING:
    Config = dict[str, Any]
    Origin = dict[str, Any]
    Payload = dict[str, Any]
else:
    Config = kept(ConfigShape)
    Origin = kept(OriginShape)
    #: A configuration, or an object with one under `config`, as CONSUMER.CREATE takes it.
    Payload = kept(
        defstruct("PayloadShape", [("config", Config, UNSET)], bases=(ConfigShape,), gc=False)
    )
