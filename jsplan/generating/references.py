"""Mirrors and sources by `domain:`, as far as the files know where an `external` prefix leads, and many sources as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsplan.address import Address
from jsplan.generating.model import Surroundings
from jsplan.generating.selectors import selector
from jsplan.topology.reach import NoWay


def by_domain(address: Address, fields: Mapping[str, Any], world: Surroundings) -> dict[str, Any]:
    """The fields with `mirror` and `sources` naming domains; sources that differ in nothing else are one with a selector."""
    out = dict(fields)
    if out.get("mirror"):
        out["mirror"] = _origin(address, out["mirror"], "mirror", world)
    if out.get("sources"):
        out["sources"] = _folded(address, [_origin(address, origin, "source", world) for origin in out["sources"]], world)
    return out


def leads_home(address: Address, config: Mapping[str, Any], world: Surroundings) -> bool:
    """Whether an origin's `external` is its own JetStream: the server takes it and copies nothing, and the files refuse it."""
    origins = [config.get("mirror") or {}, *(config.get("sources") or ())]
    prefixes = [origin["external"].get("api") for origin in origins if origin.get("external")]
    return any(_leads_to(address.domain, str(prefix), world) == _real(address.domain, world) for prefix in prefixes)


def _origin(address: Address, origin: Mapping[str, Any], kind: str, world: Surroundings) -> dict[str, Any]:
    external = origin.get("external")
    if not external:
        return dict(origin)
    api, deliver = str(external.get("api")), external.get("deliver")
    target = _leads_to(address.domain, api, world)
    usual = _usual_delivery(address, str(origin["name"]), kind, target, api, world) if target else None
    if target is None or usual is None:
        return dict(origin)
    rest = {name: value for name, value in origin.items() if name not in ("external", "name")}
    prefix = {"deliver": deliver} if deliver and deliver != usual else {}
    return {"name": origin["name"], "domain": target} | rest | prefix


def _leads_to(own: str, api: str, world: Surroundings) -> str | None:
    if world.reach is not None:
        return world.reach.leads_to(own, api)
    named = [key for key in world.domains if f"$JS.{key}.API" == api]
    return named[0] if named else None


def _real(key: str, world: Surroundings) -> str:
    return world.reach.real(key) if world.reach is not None else key


def _usual_delivery(address: Address, name: str, kind: str, target: str, api: str, world: Surroundings) -> str | None:
    """The delivery prefix that `domain:` alone would give, empty for none; None where it would lead another way."""
    if world.reach is None:
        return ""
    try:
        way = world.reach.way(address.domain, target)
    except NoWay:
        return None
    if way.api != api:
        return None
    parts = [way.deliver or "", _real(address.domain, world), address.stream, *([name] if kind == "source" else [])]
    return ".".join(parts) if way.deliver else ""


def _folded(address: Address, origins: list[dict[str, Any]], world: Surroundings) -> list[dict[str, Any]]:
    """One origin for those that differ in their domain alone."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for origin in origins:
        rest = {name: value for name, value in origin.items() if name != "domain"}
        alone = "domain" not in origin or "deliver" in origin
        key = json.dumps([rest, origin.get("domain") if alone else "", alone], sort_keys=True)
        groups.setdefault(key, []).append(origin)
    return [_one(address, group, world) for group in groups.values()]


def _one(address: Address, group: list[dict[str, Any]], world: Surroundings) -> dict[str, Any]:
    if len(group) == 1:
        return group[0]
    origin = group[0]
    own = address.domain if origin["name"] == address.name else None  # a stream is not a source of itself
    matched = selector([item["domain"] for item in group], world.domains, without=own)
    return {name: matched if name == "domain" else value for name, value in origin.items()}
