"""Mirrors and sources by `domain:` instead of `external`, and many sources as one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsplan.address import Address
from jsplan.codegen.model import CodegenContext
from jsplan.codegen.selectors import shortest_selector
from jsplan.topology.routes import NoRouteError


def name_origin_domains(
    address: Address, fields: Mapping[str, Any], context: CodegenContext
) -> dict[str, Any]:
    """Return the fields with domains for `mirror` and `sources`.

    Sources that differ in nothing else are one with a selector.
    """
    out = dict(fields)
    if out.get("mirror"):
        out["mirror"] = _convert_origin(address, out["mirror"], "mirror", context)
    if out.get("sources"):
        out["sources"] = _merge_origins(
            address,
            [_convert_origin(address, origin, "source", context) for origin in out["sources"]],
            context,
        )
    return out


def has_own_domain_origin(
    address: Address, config: Mapping[str, Any], context: CodegenContext
) -> bool:
    """Check whether an origin's `external` is its own JetStream.

    The server accepts that and copies nothing; the files refuse it.
    """
    origins = [config.get("mirror") or {}, *(config.get("sources") or ())]
    prefixes = [origin["external"].get("api") for origin in origins if origin.get("external")]
    return any(
        _domain_of_prefix(address.domain, str(prefix), context)
        == _resolve_alias(address.domain, context)
        for prefix in prefixes
    )


def _convert_origin(
    address: Address, origin: Mapping[str, Any], kind: str, context: CodegenContext
) -> dict[str, Any]:
    external = origin.get("external")
    if not external:
        return dict(origin)
    api, deliver = str(external.get("api")), external.get("deliver")
    target = _domain_of_prefix(address.domain, api, context)
    usual = (
        _default_deliver_prefix(address, str(origin["name"]), kind, target, api, context)
        if target
        else None
    )
    if target is None or usual is None:
        return dict(origin)
    rest = {name: value for name, value in origin.items() if name not in ("external", "name")}
    prefix = {"deliver": deliver} if deliver and deliver != usual else {}
    return {"name": origin["name"], "domain": target} | rest | prefix


def _domain_of_prefix(own: str, api: str, context: CodegenContext) -> str | None:
    if context.reach is not None:
        return context.reach.resolve_prefix(own, api)
    named = [key for key in context.domains if f"$JS.{key}.API" == api]
    return named[0] if named else None


def _resolve_alias(key: str, context: CodegenContext) -> str:
    return context.reach.canonicalize(key) if context.reach is not None else key


def _default_deliver_prefix(
    address: Address, name: str, kind: str, target: str, api: str, context: CodegenContext
) -> str | None:
    """Return the delivery prefix that `domain:` would give, empty for none.

    None if `domain:` would take another route.
    """
    if context.reach is None:
        return ""
    try:
        route = context.reach.find_route(address.domain, target)
    except NoRouteError:
        return None
    if route.api != api:
        return None
    parts = [
        route.deliver or "",
        _resolve_alias(address.domain, context),
        address.stream,
        *([name] if kind == "source" else []),
    ]
    return ".".join(parts) if route.deliver else ""


def _merge_origins(
    address: Address, origins: list[dict[str, Any]], context: CodegenContext
) -> list[dict[str, Any]]:
    """Merge origins that differ in their domain only."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for origin in origins:
        rest = {name: value for name, value in origin.items() if name != "domain"}
        alone = "domain" not in origin or "deliver" in origin
        key = json.dumps([rest, origin.get("domain") if alone else "", alone], sort_keys=True)
        groups.setdefault(key, []).append(origin)
    return [_merge_group(address, group, context) for group in groups.values()]


def _merge_group(
    address: Address, group: list[dict[str, Any]], context: CodegenContext
) -> dict[str, Any]:
    if len(group) == 1:
        return group[0]
    origin = group[0]
    # A stream cannot source itself.
    own = address.domain if origin["name"] == address.name else None
    matched = shortest_selector([item["domain"] for item in group], context.domains, without=own)
    return {name: matched if name == "domain" else value for name, value in origin.items()}
