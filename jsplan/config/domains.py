"""`domains:` and `imports:` as the files have them, with ranges expanded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from jsplan import units
from jsplan.config import parsing
from jsplan.config.connections import IMPLIED_CONNECTION, NAME_PATTERN, parse_subject_prefix
from jsplan.config.expand import expand_range
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Connection, Domain, ImportRow
from jsplan.config.node import (
    Node,
    Place,
    count_values,
    from_plain,
    make_mapping,
    source_range,
    to_plain,
)
from jsplan.diagnostics import did_you_mean, list_known

_KEYS: Final = (
    "connection",
    "js_domain",
    "api_prefix",
    "labels",
    "vars",
    "may_be_offline",
    "same_as",
)
_CONSUMER = re.compile(r"[^.*>\s/]+/[^.*>\s/]+")
_JS_DOMAIN = re.compile(r"[^.*>\s]+")
_DOMAIN_HELP: Final = (
    "A domain is one JetStream. Write, with the name in the server's `jetstream { domain: hub }`:\n"
    "  domains:\n    hub: {connection: %s}\n"
    "or, for a server without a domain:\n"
    "  domains:\n    hub: {connection: %s, js_domain: null}"
)


def expand_domain_keys(section: Node, findings: Findings) -> Node:
    """Return `domains:` with one entry per name; an exact name replaces the entry of a range."""
    values: dict[str, Node] = {}
    keys: dict[str, Place] = {}
    for key, node in section.value.items():
        place = section.key_place(key)
        for name in _expand_names(key, place, findings):
            if name != key and name in section.value:
                continue
            if name in values:
                findings.error(
                    "JS110",
                    place,
                    f"domain {name} is in two ranges",
                    f"It is also at {source_range(keys[name])}; let one of them end before.",
                )
            values[name], keys[name] = node, place
    return make_mapping(section.place, values, keys)


def _expand_names(key: str, place: Place, findings: Findings) -> list[str]:
    try:
        found = expand_range(key)
    except ValueError as error:
        findings.error("JS121", place, f'"{key}" {error}', "Write a range as in store-{001..200}.")
        return []
    if not all(NAME_PATTERN.fullmatch(name) for name in found):
        findings.error(
            "JS121",
            place,
            f'"{key}" is not a name for a domain',
            "Use letters, digits, - and _; a range is written {001..200}.",
        )
        return []
    return found


class DomainBuilder:
    """Builds the domains of one workspace; `vars` has each domain's variables with their places."""

    def __init__(
        self, connections: dict[str, Connection], scope: Scope, findings: Findings
    ) -> None:
        self.connections = connections
        self.scope = scope
        self.findings = findings
        self.vars: dict[str, Mapping[str, Node]] = {}
        self._sizes: dict[int, int] = {}

    def build(self, section: Node | None, wanted: Node | None, document: Node) -> dict[str, Domain]:
        """Return all domains by key.

        `wanted` is `defaults.domain`. It alone can imply the only domain of a workspace.
        """
        if section is not None and not isinstance(section.value, dict | None):
            self.findings.wrong_type(section, "`domains`", "a mapping")
            return {}
        if section is None or not section.value:
            return self._implied_domain(wanted, document)
        entries = expand_domain_keys(section, self.findings)
        self._imply_connection(entries)
        out = {
            key: self._read_domain(key, node, entries.key_place(key))
            for key, node in entries.value.items()
            if self._is_within_limit(node)
        }
        return self._resolve_same_as(out)

    def _is_within_limit(self, node: Node) -> bool:
        """Check whether one more domain may have these values.

        The values of a range are counted once for all of its names.
        """
        size = self._sizes.setdefault(id(node), 0) or count_values(node)
        self._sizes[id(node)] = size
        return self.findings.allow_values(size, node)

    def _implied_domain(self, wanted: Node | None, document: Node) -> dict[str, Domain]:
        if (
            wanted is not None
            and isinstance(wanted.value, str)
            and NAME_PATTERN.fullmatch(wanted.value)
            and len(self.connections) <= 1
        ):
            key = wanted.value
            self._imply_connection(None)
            self.vars[key] = {}
            return {
                key: Domain(
                    key,
                    next(iter(self.connections)),
                    key,
                    f"$JS.{key}.API",
                    range=source_range(wanted.place),
                )
            }
        connection = next(iter(self.connections), IMPLIED_CONNECTION)
        self.findings.error(
            "JS126",
            document,
            "the workspace has no domains",
            _DOMAIN_HELP % (connection, connection),
        )
        return {}

    def _imply_connection(self, entries: Node | None) -> None:
        """Without `connections:` there is one, under the name that the domains use for it."""
        if self.connections:
            return
        nodes = (
            [node.get("connection") for node in entries.value.values()]
            if entries is not None
            else []
        )
        asked = {node.value for node in nodes if node is not None and isinstance(node.value, str)}
        key = asked.pop() if len(asked) == 1 else IMPLIED_CONNECTION
        self.connections[key] = Connection(key)

    def _read_domain(self, key: str, written: Node, place: Place) -> Domain:
        node = interpolate(written, replace(self.scope, domain=key), self.findings)
        what = f"domain {key}"
        self.vars[key] = {}
        if node.value is None:
            node = from_plain({}, place)
        if not parsing.check_mapping(node, what, _KEYS, self.findings, _key_hint):
            return Domain(key, "", key, f"$JS.{key}.API", range=source_range(place))
        self.vars[key] = dict(
            parsing.read_mapping(node.get("vars"), f"`vars` of {what}", self.findings)
        )
        js_domain = self._read_js_domain(key, node)
        prefix = parsing.read_parsed(
            node.get("api_prefix"), "`api_prefix`", parse_subject_prefix, self.findings
        )
        return Domain(
            key,
            self._read_connection(node, what),
            js_domain,
            prefix or (f"$JS.{js_domain}.API" if js_domain else "$JS.API"),
            labels=frozenset(
                parsing.read_texts(node.get("labels"), f"`labels` of {what}", self.findings)
            ),
            vars={name: to_plain(value) for name, value in self.vars[key].items()},
            may_be_offline=parsing.read_parsed(
                node.get("may_be_offline"), "`may_be_offline`", units.parse_duration, self.findings
            ),
            same_as=parsing.read_text(node.get("same_as"), f"`same_as` of {what}", self.findings),
            range=source_range(place),
        )

    def _read_js_domain(self, key: str, node: Node) -> str | None:
        item = node.get("js_domain")
        if item is None:
            return key
        name = parsing.read_text(item, "`js_domain`", self.findings)
        if name is not None and not _JS_DOMAIN.fullmatch(name):
            self.findings.error(
                "JS121",
                item,
                f'"{name}" is not a JetStream domain',
                "It is one word without dots, blanks and wildcards.",
            )
        return name

    def _read_connection(self, node: Node, what: str) -> str:
        item = node.get("connection")
        key = parsing.read_text(item, f"`connection` of {what}", self.findings)
        if key is None:
            if len(self.connections) != 1:
                known = list_known("connections", self.connections)
                self.findings.missing(node, "connection", what, f"Add `connection:`. {known}")
            return next(iter(self.connections))
        if key not in self.connections:
            self.findings.error(
                "JS122",
                item,
                f'there is no connection "{key}"',
                list_known("connections", self.connections, key),
            )
        return key

    def _resolve_same_as(self, domains: dict[str, Domain]) -> dict[str, Domain]:
        """Check `same_as`, and take over the server's domain.

        Two domains for one JetStream need `same_as`.
        """
        out: dict[str, Domain] = {}
        seen: dict[tuple[str, str], str] = {}
        for key, domain in domains.items():
            out[key] = domain
            if domain.same_as is not None:
                out[key] = self._resolve_alias(domain, domains)
            elif (
                domain.connection in self.connections
                and seen.setdefault((domain.connection, domain.api_prefix), key) != key
            ):
                first = seen[domain.connection, domain.api_prefix]
                self._report_duplicate(domain, first)
        return out

    def _resolve_alias(self, domain: Domain, domains: Mapping[str, Domain]) -> Domain:
        other = domains.get(domain.same_as or "")
        if other is None or other.same_as is not None:
            why = (
                f'there is no domain "{domain.same_as}"'
                if other is None
                else f"domain {other.key} is itself the same as another"
            )
            self.findings.error(
                "JS122",
                domain.range,
                f"`same_as` of domain {domain.key}: {why}",
                f"Name a domain without `same_as`.{did_you_mean(domain.same_as or '', domains)}",
            )
            return replace(domain, same_as=None) if other is None else domain
        if domain.js_domain == domain.key:  # the default: both have the server's own name
            return replace(domain, js_domain=other.js_domain)
        return domain

    def _report_duplicate(self, domain: Domain, first: str) -> None:
        summary = (
            f"domains {first} and {domain.key} are the same JetStream:"
            f" {domain.api_prefix} over connection {domain.connection}"
        )
        self.findings.error(
            "JS123",
            domain.range,
            summary,
            f"Correct one of them, or add `same_as: {first}`"
            f" if {domain.key} is another connection to it.",
        )


def _key_hint(key: str) -> str:
    return {
        "domain": 'Did you mean "js_domain"?',
        "label": 'Did you mean "labels"?',
        "url": "A URL belongs to a connection.",
    }.get(key, "")


def read_imports(
    section: Node | None, domains: Mapping[str, Domain], scope: Scope, findings: Findings
) -> tuple[ImportRow, ...]:
    """Read the rows of `imports:`, and report unknown domains and rows between the same domains."""
    out: dict[tuple[str, str], ImportRow] = {}
    for written in parsing.read_list(section, "`imports`", findings):
        node = interpolate(written, scope, findings)
        if not parsing.check_mapping(
            node, "an import", ("from", "into", "api", "deliver", "consumers"), findings
        ):
            continue
        row = _read_import(node, domains, findings)
        if row is None:
            continue
        first = out.setdefault((row.from_domain, row.into_domain), row)
        if first is not row:
            detail = (
                f"The first one is at {first.range}. Keep one:"
                " mirrors and sources would not know which to use."
            )
            findings.error(
                "JS110", node, f"two imports from {row.from_domain} into {row.into_domain}", detail
            )
    return tuple(out.values())


def _read_import(node: Node, domains: Mapping[str, Domain], findings: Findings) -> ImportRow | None:
    origin, into = (_read_existing_domain(node, key, domains, findings) for key in ("from", "into"))
    api = parsing.read_parsed(node.get("api"), "`api`", parse_subject_prefix, findings)
    detail = (
        'Add `api:`, the prefix under which the importing account sees it, as in "JS.acc@hub.API".'
    )
    findings.missing(node, "api", "an import", detail)
    deliver = parsing.read_parsed(node.get("deliver"), "`deliver`", parse_subject_prefix, findings)
    consumers = tuple(parsing.read_texts(node.get("consumers"), "`consumers`", findings))
    for name in consumers:
        if not _CONSUMER.fullmatch(name):
            findings.error(
                "JS143",
                node.value["consumers"],
                f'"{name}" is not STREAM/CONSUMER',
                "Write it as in ORDERS/NEW.",
            )
    return (
        ImportRow(origin, into, api, deliver, consumers, source_range(node.place))
        if origin and into and api
        else None
    )


def _read_existing_domain(
    node: Node, key: str, domains: Mapping[str, Domain], findings: Findings
) -> str | None:
    name = parsing.read_required_text(node, key, "an import", findings)
    if name is not None and name not in domains:
        findings.error(
            "JS122",
            node.value[key],
            f'there is no domain "{name}"',
            f"Declare it under `domains:`.{did_you_mean(name, domains)}",
        )
    return name
