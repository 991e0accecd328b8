"""Status documents for the views and the schema: all that can be wrong, and a fleet."""

from __future__ import annotations

from typing import Any

import msgspec

from jsplan.documents.status import Status
from jsplan.units import SECOND
from tests.render.samples import read

PARTS: dict[str, dict[str, Any]] = read("status_parts")


def domain(key: str, *, offline_reason: str = "", **more: Any) -> dict[str, Any]:
    """Return one element of `domains`; `offline_reason` is why it does not answer."""
    there = PARTS["domain"] | {"domain": key, "js_domain": key, "server": f"{key}-server"}
    gone = PARTS["offline"] | {"reason": offline_reason}
    return there | (gone if offline_reason else {}) | more


def stream(address: str, messages: int = 1200, **more: Any) -> dict[str, Any]:
    """Return one element of `streams`."""
    counts = {"messages": messages, "bytes": messages * 64, "last_seq": messages}
    return {"address": address} | PARTS["stream"] | counts | more


def consumer(address: str, **more: Any) -> dict[str, Any]:
    """Return one element of `consumers`."""
    return {"address": address} | PARTS["consumer"] | more


def flow(origin: str, to: str, cause: str | None = None, **more: Any) -> dict[str, Any]:
    """Return one element of `replication`."""
    ends = {"from": origin, "to": to, "healthy": cause is None, "cause": cause}
    return PARTS["flow"] | ends | more


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
