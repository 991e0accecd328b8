"""Mirrors and sources by `domain:` instead of `external`, and many sources by one selector.

The selector is the shortest one for the given domains, from labels, globs, ranges and exceptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import Any

from jsplan.address import Address
from jsplan.codegen.model import CodegenContext
from jsplan.config.model import Domain
from jsplan.topology.routes import NoRouteError

#: The number of exceptions (`!store-017`) that is easier to read than the names.
MAX_EXCEPTIONS = 3
_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)")


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


def shortest_selector(
    keys: Collection[str], domains: Mapping[str, Domain], *, without: str | None = None
) -> str | list[str]:
    """Return one name, a label, a glob, or a list.

    `without` is a domain that no pattern matches in any case.
    """
    wanted = set(keys)
    order = [key for key, domain in domains.items() if domain.is_own and key != without]
    if len(wanted) == 1:
        return next(iter(wanted))
    if len(wanted) > 2 or any(
        matched == wanted
        for text, matched in _candidate_patterns(order, domains, wanted)
        if text.startswith("label:")
    ):
        for text, matched in _candidate_patterns(order, domains, wanted):
            if matched == wanted:
                return text
    short = _with_exceptions(order, domains, wanted)
    return short or _compress_ranges(
        [key for key in [*order, *sorted(wanted - set(order))] if key in wanted]
    )


def _candidate_patterns(
    order: list[str], domains: Mapping[str, Domain], wanted: set[str]
) -> Iterator[tuple[str, set[str]]]:
    """Yield patterns with their matches: labels of the workspace first."""
    for label in sorted(
        {label for key in wanted if key in domains for label in domains[key].labels}
    ):
        yield f"label:{label}", {key for key in order if label in domains[key].labels}
    prefix = _common_prefix(wanted)
    if len(prefix) > 1:
        yield f"{prefix}*", {key for key in order if key.startswith(prefix)}
    yield "*", set(order)


def _common_prefix(keys: Collection[str]) -> str:
    """Return the common beginning, up to a number or the last word."""
    first, last = min(keys), max(keys)
    same = next(
        (n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
        min(len(first), len(last)),
    )
    return first[:same].rstrip("0123456789")


def _with_exceptions(
    order: list[str], domains: Mapping[str, Domain], wanted: set[str]
) -> list[str] | None:
    found = [
        [text, *(f"!{key}" for key in order if key in matched - wanted)]
        for text, matched in _candidate_patterns(order, domains, wanted)
        if matched > wanted and len(matched - wanted) <= min(MAX_EXCEPTIONS, len(wanted) - 2)
    ]
    return min(found, key=len, default=None)


def _compress_ranges(keys: list[str]) -> str | list[str]:
    """Return the names, with three or more consecutive ones as one range."""
    out: list[str] = []
    for (prefix, width, tail), some in groupby(keys, key=_split_number):
        group = list(some)
        out += _format_ranges(group, prefix, width, tail) if width else group
    return out[0] if len(out) == 1 else out


def _split_number(key: str) -> tuple[str, int, str]:
    """Split a key into the common parts of its range and its number; width 0 without a number."""
    found = _NUMBERED.fullmatch(key)
    return (found[1], len(found[2]), found[3]) if found else (key, 0, "")


def _format_ranges(keys: list[str], prefix: str, width: int, tail: str) -> list[str]:
    numbers = sorted(int(key[len(prefix) : len(prefix) + width]) for key in keys)
    out: list[str] = []
    for _, some in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [f"{number:0{width}d}" for _, number in some]
        out += (
            [f"{prefix}{{{run[0]}..{run[-1]}}}{tail}"]
            if len(run) > 2
            else [f"{prefix}{number}{tail}" for number in run]
        )
    return out
