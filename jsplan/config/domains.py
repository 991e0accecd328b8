"""`domains:` and `imports:` as the files have them, with ranges expanded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from jsplan.config.connections import IMPLIED_CONNECTION, NAME_PATTERN
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
from jsplan.config.sections import Reading
from jsplan.config.tables.connectivity import DOMAINS, IMPORT
from jsplan.diagnostics import did_you_mean, list_known

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
                hint = f"It is also at {source_range(keys[name])}; let one of them end before."
                findings.error("JS110", place, f"domain {name} is in two ranges", hint)
            values[name], keys[name] = node, place
    return make_mapping(section.place, values, keys)


def _expand_names(key: str, place: Place, findings: Findings) -> list[str]:
    try:
        found = expand_range(key)
    except ValueError as error:
        findings.error("JS121", place, f'"{key}" {error}', "Write a range as in store-{001..200}.")
        return []
    if not all(NAME_PATTERN.fullmatch(name) for name in found):
        hint = "Use letters, digits, - and _; a range is written {001..200}."
        findings.error("JS121", place, f'"{key}" is not a name for a domain', hint)
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
        text = "the workspace has no domains"
        self.findings.error("JS126", document, text, _DOMAIN_HELP % (connection, connection))
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
        values = DOMAINS.read(node, Reading(self.findings), what)
        if values is None:
            return Domain(key, "", key, f"$JS.{key}.API", range=source_range(place))
        self.vars[key] = values["vars"] or {}
        js_domain = values["js_domain"] if "js_domain" in node.value else key
        return Domain(
            key,
            self._choose_connection(values["connection"], node, what),
            js_domain,
            values["api_prefix"] or (f"$JS.{js_domain}.API" if js_domain else "$JS.API"),
            labels=frozenset(values["labels"]),
            vars={name: to_plain(value) for name, value in self.vars[key].items()},
            may_be_offline=values["may_be_offline"],
            same_as=values["same_as"],
            range=source_range(place),
            system=self._require_known(values["system"], node, "system"),
        )

    def _choose_connection(self, key: str | None, node: Node, what: str) -> str:
        if key is None:
            if len(self.connections) != 1:
                known = list_known("connections", self.connections)
                self.findings.missing(node, "connection", what, f"Add `connection:`. {known}")
            return next(iter(self.connections))
        return self._require_known(key, node, "connection") or key

    def _require_known(self, key: str | None, node: Node, field: str) -> str | None:
        """Report a connection that is not declared."""
        if key is not None and key not in self.connections:
            text = f'there is no connection "{key}"'
            self.findings.error(
                "JS122", node.value[field], text, list_known("connections", self.connections, key)
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
            text = f"`same_as` of domain {domain.key}: {why}"
            hint = f"Name a domain without `same_as`.{did_you_mean(domain.same_as or '', domains)}"
            self.findings.error("JS122", domain.range, text, hint)
            return replace(domain, same_as=None) if other is None else domain
        if domain.js_domain == domain.key:  # the default: both have the server's own name
            return replace(domain, js_domain=other.js_domain)
        return domain

    def _report_duplicate(self, domain: Domain, first: str) -> None:
        summary = (
            f"domains {first} and {domain.key} are the same JetStream:"
            f" {domain.api_prefix} over connection {domain.connection}"
        )
        hint = (
            f"Correct one of them, or add `same_as: {first}`"
            f" if {domain.key} is another connection to it."
        )
        self.findings.error("JS123", domain.range, summary, hint)


def read_imports(
    section: Node | None, domains: Mapping[str, Domain], scope: Scope, findings: Findings
) -> tuple[ImportRow, ...]:
    """Read the rows of `imports:`, and report unknown domains and rows between the same domains."""
    out: dict[tuple[str, str], ImportRow] = {}
    reading = Reading(findings, domains=domains)
    for node, values in IMPORT.read_all(section, "`imports`", reading, scope):
        origin, into, api = values["from"], values["into"], values["api"]
        if not (origin and into and api):
            continue
        consumers, place = tuple(values["consumers"]), source_range(node.place)
        row = ImportRow(origin, into, api, values["deliver"], consumers, place)
        first = out.setdefault((origin, into), row)
        if first is not row:
            detail = (
                f"The first one is at {first.range}. Keep one:"
                " mirrors and sources would not know which to use."
            )
            findings.error("JS110", node, f"two imports from {origin} into {into}", detail)
    return tuple(out.values())
