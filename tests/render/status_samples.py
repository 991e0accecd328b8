"""Status documents for the views and the schema: all that can be wrong, and a fleet."""

from __future__ import annotations

from typing import Any

import msgspec

from jsplan.documents.status import Status
from jsplan.units import SECOND
from tests.render.samples import read

NO_LIMITS = dict.fromkeys(("max_streams", "max_consumers", "max_memory", "max_storage"))


def domain(key: str, *, offline_reason: str = "", **more: Any) -> dict[str, Any]:
    """Return one element of `domains`; `offline_reason` is why it does not answer."""
    there = {
        "domain": key,
        "js_domain": key,
        "connection": "hub",
        "reachable": True,
        "reason": None,
        "may_be_offline": None,
        "last_seen": "2026-01-31T11:00:00Z",
        "excused": None,
        "server": f"{key}-server",
        "cluster": None,
        "version": "2.15.1",
        "api_level": 5,
        "messages": 1200,
        "bytes": 4096,
        "streams": 1,
        "consumers": 1,
        "memory": 0,
        "storage": 4096,
        "limits": NO_LIMITS,
    }
    gone = dict.fromkeys(
        ("server", "version", "api_level", "streams", "consumers", "memory", "storage", "limits")
    )
    gone |= {
        "reachable": False,
        "reason": offline_reason,
        "excused": True,
        "may_be_offline": 7 * 86_400 * SECOND,
        "messages": 0,
        "bytes": 0,
    }
    return there | (gone if offline_reason else {}) | more


def stream(address: str, messages: int = 1200, **more: Any) -> dict[str, Any]:
    """Return one element of `streams`."""
    return {
        "address": address,
        "type": "stream",
        "managed": True,
        "down": False,
        "fed_by": None,
        "messages": messages,
        "bytes": messages * 64,
        "first_seq": 1,
        "last_seq": messages,
        "last_time": "2026-01-31T11:59:48.5Z",
        "consumers": 1,
        "created": "2026-01-01T00:00:00Z",
        "cluster": None,
        "thresholds": [],
    } | more


def consumer(address: str, **more: Any) -> dict[str, Any]:
    """Return one element of `consumers`."""
    place = {"consumer_seq": 1000, "stream_seq": 1100}
    return {
        "address": address,
        "managed": True,
        "pending": 100,
        "ack_pending": 7,
        "redelivered": 1,
        "waiting": 0,
        "delivered": place,
        "ack_floor": {"consumer_seq": 990, "stream_seq": 1090},
        "cluster": None,
        "thresholds": [],
    } | more


def flow(origin: str, to: str, cause: str | None = None, **more: Any) -> dict[str, Any]:
    """Return one element of `replication`."""
    return {
        "from": origin,
        "to": to,
        "kind": "source",
        "healthy": cause is None,
        "cause": cause,
        "origin_last_seq": 1200,
        "last_seq": 1200,
        "lag": 0,
        "active": SECOND // 2,
    } | more


def status(**parts: Any) -> Status:
    """Return a document with these parts."""
    return Status("0.1.0", "shop", "prod", "2026-01-31T12:00:00Z", "s1", **parts)


def two_domains() -> Status:
    """Return two domains, one of them with limits, one that is offline, and a flow of each kind."""
    return msgspec.convert(read("status"), Status)


def fleet(stores: int) -> Status:
    """Return a hub that sources from many stores: three are offline, one was set up again."""
    names = [f"store-{number:03}" for number in range(1, stores + 1)]
    gone, reset = set(names[16:18]) | {names[-9]}, names[7]
    there = [name for name in names if name not in gone]
    was = "origin re-created: the downstream has messages of a deleted stream SALES"
    recreated = f"{was}, and receives only higher sequences of the new one"
    unknown = {name: f"not known: the origin's domain {name} is offline" for name in gone}
    flows = [
        flow(
            f"{name}/stream/SALES",
            "hub/stream/ALL_SALES",
            recreated if name == reset else unknown.get(name),
            healthy=None if name in gone else name != reset,
            active=None if name in gone else SECOND,
        )
        for name in names
    ]
    return status(
        domains=[domain("hub", streams=2, messages=1200 * stores)]
        + [
            domain(name, offline_reason=f"no responders on $JS.{name}.API" if name in gone else "")
            for name in names
        ],
        streams=[
            stream("hub/stream/ALL_SALES", 1200 * stores, copies="sources"),
            *(stream(f"{name}/stream/SALES") for name in there),
        ],
        consumers=[consumer(f"{name}/consumer/SALES/TILL") for name in there],
        replication=[
            *flows,
            *(flow("hub/stream/PRICES", f"{name}/stream/PRICES", kind="mirror") for name in there),
        ],
    )
