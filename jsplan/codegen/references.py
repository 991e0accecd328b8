"""Mirrors and sources by `domain:` instead of `external`, and many sources by one selector.

The selector is the shortest one for the given domains, from labels, globs, ranges and exceptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import Any

from msgspec import Struct

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
    out, origins = dict(fields), _Origins(address, context)
    if out.get("mirror"):
        out["mirror"] = origins.convert(out["mirror"], "mirror")
    if out.get("sources"):
        out["sources"] = origins.merge([origins.convert(one, "source") for one in out["sources"]])
    return out


def has_own_domain_origin(
    address: Address, config: Mapping[str, Any], context: CodegenContext
) -> bool:
    """Check whether an origin's `external` is its own JetStream.

    The server accepts that and copies nothing; the files refuse it.
    """
    origins = _Origins(address, context)
    every = [config.get("mirror") or {}, *(config.get("sources") or ())]
    prefixes = [origin["external"].get("api") for origin in every if origin.get("external")]
    return any(origins.domain_of(str(prefix)) == origins.own_domain for prefix in prefixes)


class _Origins(Struct):
    """The origins of one stream."""

    address: Address
    context: CodegenContext

    @property
    def own_domain(self) -> str:
        """Its domain, or the one that is the same."""
        key, reach = self.address.domain, self.context.reach
        return reach.canonicalize(key) if reach is not None else key

    def domain_of(self, api: str) -> str | None:
        """Return the domain that an API prefix leads to from there."""
        if self.context.reach is not None:
            return self.context.reach.resolve_prefix(self.address.domain, api)
        named = [key for key in self.context.domains if f"$JS.{key}.API" == api]
        return named[0] if named else None

    def convert(self, origin: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Return an origin with its domain in place of `external`, where that is the same."""
        external = origin.get("external")
        if not external:
            return dict(origin)
        api, deliver = str(external.get("api")), external.get("deliver")
        target = self.domain_of(api)
        usual = self._usual_prefix(str(origin["name"]), kind, target, api) if target else None
        if target is None or usual is None:
            return dict(origin)
        rest = {name: value for name, value in origin.items() if name not in ("external", "name")}
        prefix = {"deliver": deliver} if deliver and deliver != usual else {}
        return {"name": origin["name"], "domain": target} | rest | prefix

    def _usual_prefix(self, name: str, kind: str, target: str, api: str) -> str | None:
        """Return the delivery prefix that `domain:` would give, empty for none.

        None if `domain:` would take another route.
        """
        if self.context.reach is None:
            return ""
        try:
            route = self.context.reach.find_route(self.address.domain, target)
        except NoRouteError:
            return None
        if route.api != api:
            return None
        parts = [route.deliver or "", self.own_domain, self.address.stream]
        parts += [name] if kind == "source" else []
        return ".".join(parts) if route.deliver else ""

    def merge(self, origins: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Merge origins that differ in their domain only."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for origin in origins:
            rest = {name: value for name, value in origin.items() if name != "domain"}
            alone = "domain" not in origin or "deliver" in origin
            key = json.dumps([rest, origin.get("domain") if alone else "", alone], sort_keys=True)
            groups.setdefault(key, []).append(origin)
        return [self._merge_group(group) for group in groups.values()]

    def _merge_group(self, group: list[dict[str, Any]]) -> dict[str, Any]:
        if len(group) == 1:
            return group[0]
        origin, keys = group[0], [item["domain"] for item in group]
        # A stream cannot source itself.
        own = self.address.domain if origin["name"] == self.address.name else None
        matched = shortest_selector(keys, self.context.domains, without=own)
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
