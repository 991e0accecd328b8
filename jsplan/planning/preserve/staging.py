"""What stands in for a stream while it is made anew with its messages: names, marks and configurations. Pure.

Three configurations lead from the old stream to the new one. The *stopped* old stream takes no more messages and loses none.
The *stand-in* holds them under a name of our own, without any limit. The *bare* new stream has what no update can give it
(storage, a work queue, its mirror) and none of what could delete a message; the rest it is given last. A *probe* is given both
before the old stream is touched, so that the server refuses then what it would refuse later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from jsplan.address import PARKING_PREFIX, STAGING_PREFIX, Address
from jsplan.facts.live import LiveObject
from jsplan.resources import STREAM
from jsplan.resources.fields import Config
from jsplan.units import SECOND

#: What a message says that marks the end of a stopped stream whose last message was deleted.
END_MARKER: Final = b"the last sequence of this stream"
#: Metadata of whatever stands in for something: for whom, and for which object of that name.
REPLACES_KEY, REPLACEMENT_ID_KEY = "jsplan.replaces", "jsplan.replacement"
#: What only a new stream can be given, and what decides where its messages lie.
_INITIAL_FIELDS: Final = (
    "storage", "persist_mode", "allow_msg_counter", "compression", "num_replicas", "placement", "max_consumers",
)  # fmt: skip
#: Those that no update changes, on some server at least: with another one of them the messages need a new stream.
_CREATE_ONLY_FIELDS: Final = (
    "storage",
    "persist_mode",
    "allow_msg_counter",
    "max_consumers",
    "retention",
    "mirror",
)
#: What the old stream must not do any more while its messages are copied: expire, make room.
_QUIESCED_LIMITS: Final[Config] = {"max_age": 0, "max_msgs": -1}
#: API level (2.14) from which a stream's limits for consumers can be taken out although its consumers have such values.
REMOVABLE_LIMITS_LEVEL: Final = 4
CONSUMER_LIMITS: Final = ("max_ack_pending", "inactive_threshold")
#: Nanoseconds after which servers delete the consumers by which they copy: what consumer_limits must allow (measured on 2.10 to 2.12).
_COPY_CONSUMER_LIFETIME: Final = 10 * SECOND
#: Stream names may have 255 bytes.
_MAX_NAME_BYTES: Final = 200


def replacement_id(address: Address, created: str) -> str:
    """Which object is replaced: the same for everybody who plans it, another one for the next object of that name."""
    return hashlib.sha256(f"{address}|{created}".encode()).hexdigest()[:16]


def staging_address(address: Address, created: str) -> Address:
    """The stream that holds the messages meanwhile."""
    return Address(
        address.domain,
        "stream",
        f"{STAGING_PREFIX}{address.stream[:_MAX_NAME_BYTES]}_{replacement_id(address, created)[:8]}",
    )


def probe_address(staging: Address) -> Address:
    """The empty stream that shows whether the server accepts what the new stream is to be."""
    return Address.of_stream(staging.domain, f"{staging.stream}_PROBE")


def parking_subject(stream: str, ident: str) -> str:
    """A subject that nobody publishes to and no other stream has."""
    return f"{PARKING_PREFIX}{ident}.{stream}"


def belongs_to_replacement(config: Mapping[str, Any], ident: str) -> bool:
    """Whether a configuration is that of something that stands in for the object."""
    return bool((config.get("metadata") or {}).get(REPLACEMENT_ID_KEY) == ident)


def _replacement_metadata(address: Address, ident: str) -> Config:
    return {"metadata": {REPLACES_KEY: str(address), REPLACEMENT_ID_KEY: ident}}


def is_quiesced(address: Address, live: LiveObject, ident: str) -> bool:
    """Whether a stream has the subject of a stopped one."""
    return parking_subject(address.stream, ident) in (live.raw.get("subjects") or ())


def limits_copy_consumers(limits: Mapping[str, Any]) -> bool:
    """Whether limits for consumers also bind those by which servers copy, which then never begin (measured on 2.10 to 2.14)."""
    return bool(
        limits.get("max_ack_pending", 0) > 0
        or 0 < limits.get("inactive_threshold", 0) < _COPY_CONSUMER_LIFETIME
    )


def must_keep_limits(limits: Mapping[str, Any], level: int) -> bool:
    """Whether a stopped stream keeps its limits for consumers: before 2.14 taking them out is refused for the consumers' sake (10069)."""
    return level < REMOVABLE_LIMITS_LEVEL and not limits_copy_consumers(limits)


def quiesced_config(address: Address, live: LiveObject, level: int) -> Config | None:
    """The old stream so that no message comes and none goes; None where it is so already, because it is sealed.

    A mirror can only be stopped by promoting it. Interest retention becomes limits, so that copying consumes nothing.
    """
    raw = live.raw
    if raw.get("sealed"):
        return None
    out = {
        name: value for name, value in raw.items() if name not in ("mirror", "sources", "republish")
    } | _QUIESCED_LIMITS
    out["subjects"] = [parking_subject(address.stream, replacement_id(address, live.created))]
    if not must_keep_limits(raw.get("consumer_limits") or {}, level):
        out["consumer_limits"] = {}
    if raw.get("retention") == "interest":
        out["retention"] = "limits"
    if not out.get("duplicate_window"):
        out.pop("duplicate_window", None)
    return out


def staging_config(address: Address, live: LiveObject, *, memory: bool) -> Config:
    """The stream that holds the messages meanwhile: with as many copies as the old one, on disk unless the account has none.

    Before 2.14 a copy takes messages with Nats-Rollup only where rollups are allowed; what they roll up is gone already.
    """
    ident, name = (
        replacement_id(address, live.created),
        staging_address(address, live.created).stream,
    )
    out: Config = {
        "name": name,
        "subjects": [parking_subject(name, ident)],
        "retention": "limits",
        "storage": "memory" if memory else "file",
    }
    out["allow_rollup_hdrs"] = True
    out |= {key: live.raw[key] for key in ("num_replicas", "placement") if live.raw.get(key)}
    if live.raw.get("max_bytes", -1) > 0 and memory:
        out["max_bytes"] = live.raw["max_bytes"]
    return out | _replacement_metadata(address, ident)


def initial_config(
    address: Address, live: LiveObject, creation: Config, *, can_mirror: bool
) -> Config:
    """The new stream before it gets its limits and subjects. `mirrors`: it can be made as the mirror that it shall be."""
    ident = replacement_id(address, live.created)
    out: Config = {"name": address.stream} | {
        key: creation[key] for key in _INITIAL_FIELDS if key in creation
    }
    out["retention"] = "workqueue" if creation.get("retention") == "workqueue" else "limits"
    if not creation.get("allow_msg_counter"):
        out["allow_rollup_hdrs"] = True
    if can_mirror and creation.get("mirror"):
        out["mirror"] = creation["mirror"]
    else:
        out["subjects"] = [parking_subject(address.stream, ident)]
    return out | _replacement_metadata(address, ident)


def probe_config(name: str, ident: str, config: Config, *, most_bytes: int) -> Config:
    """A configuration on the way, or the last one, as the probe is given it: it copies nothing and reserves `most_bytes`."""
    out = {
        key: value
        for key, value in config.items()
        if key not in ("mirror", "mirror_direct", "sources", "max_bytes")
    }
    out |= {"name": name, "subjects": [parking_subject(name, ident)]} | (
        {"max_bytes": most_bytes} if most_bytes else {}
    )
    return out | {"metadata": {**(config.get("metadata") or {}), REPLACEMENT_ID_KEY: ident}}


def needs_recreation(current: Mapping[str, Any], wanted: Config) -> bool:
    """Whether a bare stream that was made for other files cannot become what they say by now; both are raw configurations."""
    before, after = STREAM.compact(dict(current)), STREAM.compact(wanted)
    return any(before.get(name) != after.get(name) for name in _CREATE_ONLY_FIELDS)
