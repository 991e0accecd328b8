"""What stands in for a stream while it is made anew with its messages: names, marks and configurations. Pure.

Three configurations lead from the old stream to the new one. The *stopped* old stream takes no more messages and loses none.
The *stand-in* holds them under a name of our own, without any limit. The *bare* new stream has what no update can give it
(storage, a work queue, its mirror) and none of what could delete a message; the rest it is given last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from jsplan.address import PARKING, STAGING, Address
from jsplan.facts.live import LiveObject
from jsplan.resources.fields import Config

#: Metadata of whatever stands in for something: for whom, and for which object of that name.
FOR, ID = "jsplan.replaces", "jsplan.replacement"
#: What only a new stream can be given, and what decides where its messages lie.
_FROM_THE_START: Final = ("storage", "persist_mode", "allow_msg_counter", "compression", "num_replicas", "placement")
#: What the old stream must not do any more while its messages are copied: expire, make room; its limits for consumers also
#: bind those by which servers copy, which then never begin (measured on 2.10 to 2.14).
_STOPPED: Final[Config] = {"max_age": 0, "max_msgs": -1, "consumer_limits": {}}
#: Stream names may have 255 bytes.
_LONGEST: Final = 200


def identity(address: Address, created: str) -> str:
    """Which object is replaced: the same for everybody who plans it, another one for the next object of that name."""
    return hashlib.sha256(f"{address}|{created}".encode()).hexdigest()[:16]


def stand_in_of(address: Address, created: str) -> Address:
    """The stream that holds the messages meanwhile."""
    return Address(address.domain, "stream", f"{STAGING}{address.stream[:_LONGEST]}_{identity(address, created)[:8]}")


def parked(stream: str, ident: str) -> str:
    """A subject that nobody publishes to and no other stream has."""
    return f"{PARKING}{ident}.{stream}"


def marked(config: Mapping[str, Any], ident: str) -> bool:
    """Whether a configuration is that of something that stands in for the object."""
    return bool((config.get("metadata") or {}).get(ID) == ident)


def _mark(address: Address, ident: str) -> Config:
    return {"metadata": {FOR: str(address), ID: ident}}


def stopped(address: Address, live: LiveObject) -> Config | None:
    """The old stream so that no message comes and none goes; None where it is so already, because it is sealed.

    A mirror can only be stopped by promoting it. Interest retention becomes limits, so that copying consumes nothing.
    """
    raw = live.raw
    if raw.get("sealed"):
        return None
    out = {name: value for name, value in raw.items() if name not in ("mirror", "sources", "republish")} | _STOPPED
    out["subjects"] = [parked(address.stream, identity(address, live.created))]
    if raw.get("retention") == "interest":
        out["retention"] = "limits"
    if not out.get("duplicate_window"):
        out.pop("duplicate_window", None)
    return out


def stand_in(address: Address, live: LiveObject, *, memory: bool) -> Config:
    """The stream that holds the messages meanwhile: with as many copies as the old one, on disk unless the account has none."""
    ident, name = identity(address, live.created), stand_in_of(address, live.created).stream
    out: Config = {"name": name, "subjects": [parked(name, ident)], "retention": "limits", "storage": "memory" if memory else "file"}
    out |= {key: live.raw[key] for key in ("num_replicas", "placement") if live.raw.get(key)}
    if live.raw.get("max_bytes", -1) > 0 and memory:
        out["max_bytes"] = live.raw["max_bytes"]
    return out | _mark(address, ident)


def bare(address: Address, live: LiveObject, creation: Config, *, mirrors: bool) -> Config:
    """The new stream before it gets its limits and subjects. `mirrors`: it can be made as the mirror that it shall be."""
    ident = identity(address, live.created)
    out: Config = {"name": address.stream} | {key: creation[key] for key in _FROM_THE_START if key in creation}
    out["retention"] = "workqueue" if creation.get("retention") == "workqueue" else "limits"
    if mirrors and creation.get("mirror"):
        out["mirror"] = creation["mirror"]
    else:
        out["subjects"] = [parked(address.stream, ident)]
    return out | _mark(address, ident)
