"""The field table of streams: every field, its default, and the effect of a change.

From server_semantics sections 1, 2 and 4, which were measured on 2.10 to 2.15.
"""

from __future__ import annotations

from jsplan.resources.fields import (
    Config,
    Effect,
    Field,
    FieldUpdate,
    Table,
    ignore_change,
    require_replacement,
    turn_on_only,
)
from jsplan.resources.nested import (
    CONSUMER_LIMITS,
    NAME,
    ORIGIN,
    PLACEMENT,
    REPUBLISH,
    TRANSFORM,
    origin_key,
)
from jsplan.resources.server_features import (
    MAX_CONSUMERS_UPDATE_LEVEL,
    PROMOTE_LEVEL,
    SOURCES_NO_WINDOW_LEVEL,
)
from jsplan.units import SECOND

DUPLICATE_WINDOW = 120 * SECOND


def _retention_effect(change: FieldUpdate) -> Effect:
    return "replace" if "workqueue" in (change.before, change.after) else "in_place"


def _mirror_effect(change: FieldUpdate) -> Effect:
    """Promotion (removing the mirror) needs 2.12; every other edit is refused with 10055."""
    return "in_place" if change.after is None and change.level >= PROMOTE_LEVEL else "replace"


def max_consumers(config: Config | None) -> int:
    """Return the limit `max_consumers` of a stream, 0 for none."""
    most = (config or {}).get("max_consumers")
    return most if isinstance(most, int) and most > 0 else 0


def _max_consumers_effect(change: FieldUpdate) -> Effect:
    return "in_place" if change.level >= MAX_CONSUMERS_UPDATE_LEVEL else "replace"


def _purging_effect(change: FieldUpdate) -> Effect:
    """Turning it on cancels `deny_purge`, which is refused, also where the update seals (10052)."""
    return "replace" if change.after and change.old.get("deny_purge") else "in_place"


def refuses_updates(old: Config, new: Config) -> bool:
    """Markers and schedules cancel `deny_purge`, which a sealed stream has (10052)."""
    purges = new.get("subject_delete_marker_ttl") or new.get("allow_msg_schedules")
    return bool(purges and old.get("sealed") and new.get("sealed"))


def _schedules_effect(change: FieldUpdate) -> Effect:
    return "replace" if _purging_effect(change) == "replace" else turn_on_only(change)


def _sources_effect(change: FieldUpdate) -> Effect:
    """An edited opt_start_* is ignored; another source, or another filter, takes effect."""
    starts = ("opt_start_seq", "opt_start_time")

    def without_starts(origins: list[Config] | None) -> dict[str, Config]:
        return {
            origin_key(o): {k: v for k, v in o.items() if k not in starts} for o in origins or ()
        }

    return (
        "ignored" if without_starts(change.before) == without_starts(change.after) else "in_place"
    )


def fill_derived(config: Config, level: int) -> None:
    """Fill in what the server derives from other fields, in place, on a compact configuration.

    `level` is the domain's API level: sources lost the two-minute window with 2.14.
    """
    if not (config.get("mirror") or config.get("sources") or config.get("subjects")):
        config["subjects"] = [config["name"]]
    if config.get("subject_delete_marker_ttl"):
        config |= {"allow_msg_ttl": True, "allow_rollup_hdrs": True}
        config.pop("deny_purge", None)
    if config.get("allow_msg_schedules"):
        config["allow_rollup_hdrs"] = True
        config.pop("deny_purge", None)
    if config.get("sealed"):
        config |= {"deny_delete": True, "deny_purge": True, "discard": "new"}
        config.pop("max_age", None)
        config.pop("allow_rollup_hdrs", None)
    _fill_republish(config)
    _fill_duplicate_window(config, level)


def _fill_republish(config: Config) -> None:
    """Narrow republishing to stored subjects, as the server does: after a transform it loops."""
    republish, transform = config.get("republish"), config.get("subject_transform")
    if republish and transform and republish.get("src", ">") == ">" == republish.get("dest"):
        stored = transform.get("dest", "")
        config["republish"] = republish | {"src": stored, "dest": stored}


def _fill_duplicate_window(config: Config, level: int) -> None:
    window, age = config.get("duplicate_window"), config.get("max_age")
    no_window = config.get("mirror") or (config.get("sources") and level >= SOURCES_NO_WINDOW_LEVEL)
    if window is None and no_window:
        return
    if window is None:
        config["duplicate_window"] = min(DUPLICATE_WINDOW, age) if age else DUPLICATE_WINDOW


STREAM = Table(
    "stream",
    (
        Field("name", "string", "Name of the stream.", required=True, pattern=NAME, max_length=255, update=require_replacement),
        Field("description", "string", "For people.", default="", max_length=4096),
        Field("subjects", "strings", "Subjects to store; the name, unless there is a mirror or a source.", default=None, unordered=True),
        Field("retention", "enum", "When messages are removed.", default="limits", values=("limits", "interest", "workqueue"), echoed=True, update=_retention_effect),
        Field("max_consumers", "int", "Most consumers at once.", default=-1, unlimited=True, echoed=True, update=_max_consumers_effect),
        Field("max_msgs", "int", "Most messages kept.", default=-1, unlimited=True, echoed=True),
        Field("max_bytes", "size", "Most bytes kept.", default=-1, unlimited=True, echoed=True),
        Field("max_age", "duration", "Longest life of a message, ns.", default=0, minimum=0, echoed=True),
        Field("max_msgs_per_subject", "int", "Most messages kept of one subject.", default=-1, unlimited=True, echoed=True),
        Field("max_msg_size", "size", "Largest message accepted, bytes.", default=-1, unlimited=True, maximum=2**31 - 1, echoed=True),
        Field("discard", "enum", "At a limit, remove old messages or refuse new ones.", default="old", values=("old", "new"), echoed=True, normalize=str.lower),
        Field("storage", "enum", "Where messages are kept.", default="file", values=("file", "memory"), echoed=True, update=require_replacement),
        Field("num_replicas", "int", "Replicas in the cluster; 0 is 1.", default=1, minimum=0, maximum=5, echoed=True),
        Field("no_ack", "bool", "Do not acknowledge publishes.", default=False),
        Field("duplicate_window", "duration", "How long message ids are remembered, ns; 2m, or max_age if that is less.", default=None, minimum=0),
        Field("placement", "object", "Which servers may carry it.", table=PLACEMENT),
        Field("mirror", "object", "Mirror another stream.", table=ORIGIN, update=_mirror_effect),
        Field("sources", "objects", "Source other streams.", table=ORIGIN, unordered=True, update=_sources_effect),
        Field("sealed", "bool", "Refuse all changes; only deletion is possible.", default=False, echoed=True, update=turn_on_only),
        Field("deny_delete", "bool", "Refuse to delete single messages.", default=False, echoed=True, update=turn_on_only),
        Field("deny_purge", "bool", "Refuse to purge.", default=False, echoed=True, update=turn_on_only),
        Field("allow_rollup_hdrs", "bool", "Let a message replace earlier ones (rollup).", default=False, echoed=True),
        Field("allow_direct", "bool", "Let every replica answer reads.", default=False, echoed=True),
        Field("mirror_direct", "bool", "Let the mirror answer reads for its origin.", default=False, echoed=True),
        Field("discard_new_per_subject", "bool", "Apply `discard: new` per subject.", default=False),
        Field("republish", "object", "Publish stored messages again.", table=REPUBLISH),
        Field("compression", "enum", "How blocks on disk are compressed.", default="none", values=("none", "s2"), echoed=True),
        Field("first_seq", "int", "First sequence of a new stream.", default=0, minimum=0, update=ignore_change),
        Field("subject_transform", "object", "Rewrite subjects before storing.", table=TRANSFORM),
        Field("consumer_limits", "object", "Limits and defaults for consumers.", default={}, table=CONSUMER_LIMITS, echoed=True),
        Field("metadata", "metadata", "Labels; keys that begin with `_nats.` are the server's own.", default={}),
        Field("allow_msg_ttl", "bool", "Allow a TTL per message.", default=False, level=1, echoed=True, update=turn_on_only),
        Field("subject_delete_marker_ttl", "duration", "Life of the marker left where max_age took the last message, ns.", default=0, minimum=0, level=1, update=_purging_effect),
        Field("allow_msg_counter", "bool", "Messages are counters.", default=False, level=2, update=require_replacement),
        Field("allow_atomic", "bool", "Allow atomic batches.", default=False, level=2),
        Field("allow_msg_schedules", "bool", "Allow scheduled messages.", default=False, level=2, update=_schedules_effect),
        Field("persist_mode", "enum", "When a write counts as stored.", default="default", values=("default", "async"), level=2, update=require_replacement,
              normalize=lambda word: word or "default"),
        Field("allow_batched", "bool", "Allow fast batches.", default=False, level=4),
    ),
    fill_derived,
    refuses_updates,
)  # fmt: skip
