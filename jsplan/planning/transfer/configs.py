"""The streams of a transfer: names, metadata and configurations.

Three configurations lead from the old stream to the new one. The *quiesced* origin accepts no
messages and loses none. The *staging stream* of a replacement holds them under a name of our own,
without limits. The *initial* target has what no update can set (storage, a work queue, its mirror)
and nothing that could delete a message; it gets the rest last. A *probe* is given both before the
old stream is changed, so that the server refuses early what it would refuse later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from jsplan.address import PARKING_PREFIX, STAGING_PREFIX, Address
from jsplan.facts.live import LiveObject
from jsplan.resources import STREAM
from jsplan.resources.fields import Config
from jsplan.resources.server_features import REMOVABLE_LIMITS_LEVEL, ROLLUP_MIRROR_LEVEL
from jsplan.units import SECOND

#: Metadata of a staging object: the address that it replaces, and the id of the replacement.
REPLACES_KEY, REPLACEMENT_ID_KEY = "jsplan.replaces", "jsplan.replacement"
#: The fields that only a create sets, or that decide where the messages are stored.
_INITIAL_FIELDS: Final = (
    "storage",
    "persist_mode",
    "allow_msg_counter",
    "compression",
    "num_replicas",
    "placement",
    "max_consumers",
)
#: Those that no update changes, at least on some server. Another value needs a new stream.
_CREATE_ONLY_FIELDS: Final = (
    "storage",
    "persist_mode",
    "allow_msg_counter",
    "max_consumers",
    "retention",
    "mirror",
)
#: Limits that the old stream loses while its messages are copied, so that none is deleted.
_QUIESCED_LIMITS: Final[Config] = {"max_age": 0, "max_msgs": -1}
CONSUMER_LIMITS: Final = ("max_ack_pending", "inactive_threshold")
#: Nanoseconds after which servers delete the consumers by which they copy (measured, 2.10 to 2.12).
_COPY_CONSUMER_LIFETIME: Final = 10 * SECOND
#: Stream names may have 255 bytes.
_MAX_NAME_BYTES: Final = 200


def replacement_id(address: Address, created: str) -> str:
    """Return the id of a replacement: the same in every plan, another per `created`."""
    return hashlib.sha256(f"{address}|{created}".encode()).hexdigest()[:16]


def staging_address(address: Address, created: str) -> Address:
    """Return the address of the staging stream."""
    stem, ident = address.stream[:_MAX_NAME_BYTES], replacement_id(address, created)[:8]
    return Address(address.domain, "stream", f"{STAGING_PREFIX}{stem}_{ident}")


def probe_address(staging: Address) -> Address:
    """Return the address of the empty stream that tests whether the server accepts the new one."""
    return Address.of_stream(staging.domain, f"{staging.stream}_PROBE")


def parking_subject(stream: str, ident: str) -> str:
    """Return a subject without publishers that no other stream has."""
    return f"{PARKING_PREFIX}{ident}.{stream}"


def belongs_to_replacement(config: Mapping[str, Any], ident: str) -> bool:
    """Check whether a configuration is that of a staging object of the replacement."""
    return bool((config.get("metadata") or {}).get(REPLACEMENT_ID_KEY) == ident)


def is_transferred(config: Mapping[str, Any]) -> bool:
    """Check whether a transfer made this stream, and has not activated it."""
    return REPLACEMENT_ID_KEY in (config.get("metadata") or {})


def _replacement_metadata(address: Address, ident: str) -> Config:
    return {"metadata": {REPLACES_KEY: str(address), REPLACEMENT_ID_KEY: ident}}


def is_quiesced(address: Address, live: LiveObject, ident: str) -> bool:
    """Check whether a stream has the parking subject of a quiesced one."""
    return parking_subject(address.stream, ident) in (live.raw.get("subjects") or ())


def limits_copy_consumers(limits: Mapping[str, Any]) -> bool:
    """Check whether limits also bind the consumers by which servers copy.

    Those then never start (measured on 2.10 to 2.14).
    """
    return bool(
        limits.get("max_ack_pending", 0) > 0
        or 0 < limits.get("inactive_threshold", 0) < _COPY_CONSUMER_LIFETIME
    )


def accepts_nothing(address: Address, live: LiveObject, ident: str) -> bool:
    """Check whether no client writes to a stream: it is quiesced, or sealed by its owner."""
    return bool(live.raw.get("sealed")) or is_quiesced(address, live, ident)


def quiesced_config(address: Address, live: LiveObject, level: int) -> Config | None:
    """Return the quiesced configuration of the old stream; None if it is sealed.

    A mirror can only be stopped by promoting it. Interest retention becomes limits, so that copying
    consumes nothing.
    """
    raw = live.raw
    if raw.get("sealed"):
        return None
    out = {
        name: value for name, value in raw.items() if name not in ("mirror", "sources", "republish")
    } | _QUIESCED_LIMITS
    out["subjects"] = [parking_subject(address.stream, replacement_id(address, live.created))]
    # Messages are compared several times faster with direct reads.
    out["allow_direct"] = True
    # Before 2.14 the server refuses to remove limits because of the consumers (10069).
    limits = raw.get("consumer_limits") or {}
    if level >= REMOVABLE_LIMITS_LEVEL or limits_copy_consumers(limits):
        out["consumer_limits"] = {}
    if raw.get("retention") == "interest":
        out["retention"] = "limits"
    if not out.get("duplicate_window"):
        out.pop("duplicate_window", None)
    return out


def rollups_of_copy(origin: Mapping[str, Any], level: int) -> Config:
    """Return whether a copy allows rollups: as its origin does, since mirrors repeat them.

    An origin that allows none may have messages with Nats-Rollup from its sources, and what they
    did not delete. Before 2.14 it has none, and a mirror takes them only if it allows rollups.
    """
    if level >= ROLLUP_MIRROR_LEVEL and not origin.get("allow_rollup_hdrs"):
        return {}
    return {"allow_rollup_hdrs": True}


def staging_config(address: Address, live: LiveObject, level: int, *, memory: bool) -> Config:
    """Return the configuration of the staging stream.

    It has the replicas of the old stream, and is on disk unless the account has none.
    """
    ident = replacement_id(address, live.created)
    name = staging_address(address, live.created).stream
    out: Config = {"name": name, "subjects": [parking_subject(name, ident)]}
    out |= {"retention": "limits", "storage": "memory" if memory else "file"}
    out |= {"allow_direct": True} | rollups_of_copy(live.raw, level)
    out |= {key: live.raw[key] for key in ("num_replicas", "placement") if live.raw.get(key)}
    if live.raw.get("max_bytes", -1) > 0 and memory:
        out["max_bytes"] = live.raw["max_bytes"]
    return out | _replacement_metadata(address, ident)


def initial_config(
    address: Address, live: LiveObject, creation: Config, level: int, *, can_mirror: bool
) -> Config:
    """Return the new stream before it gets its limits and subjects.

    `can_mirror`: it can be created as the mirror that it will be.
    """
    ident = replacement_id(address, live.created)
    out: Config = {"name": address.stream} | {
        key: creation[key] for key in _INITIAL_FIELDS if key in creation
    }
    out["retention"] = "workqueue" if creation.get("retention") == "workqueue" else "limits"
    out["allow_direct"] = True
    if not creation.get("allow_msg_counter"):
        out |= rollups_of_copy(live.raw, level)
    if can_mirror and creation.get("mirror"):
        out["mirror"] = creation["mirror"]
    else:
        out["subjects"] = [parking_subject(address.stream, ident)]
    return out | _replacement_metadata(address, ident)


def probe_config(name: str, ident: str, config: Config, *, most_bytes: int) -> Config:
    """Return a configuration for the probe: it copies nothing and reserves `most_bytes`."""
    left_out = ("mirror", "mirror_direct", "sources", "max_bytes")
    out = {key: value for key, value in config.items() if key not in left_out}
    out |= {"name": name, "subjects": [parking_subject(name, ident)]}
    out |= {"max_bytes": most_bytes} if most_bytes else {}
    return out | {"metadata": {**(config.get("metadata") or {}), REPLACEMENT_ID_KEY: ident}}


def needs_recreation(current: Mapping[str, Any], wanted: Config) -> bool:
    """Check whether an initial stream for older files cannot become `wanted`; both are raw."""
    before, after = STREAM.compact(dict(current)), STREAM.compact(wanted)
    return any(before.get(name) != after.get(name) for name in _CREATE_ONLY_FIELDS)
