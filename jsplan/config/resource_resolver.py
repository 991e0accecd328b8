"""Resolves the entries of the files to declared resources: one per domain, layers merged.

Layers, the weakest first: `defaults`, those of `copy_of`, `config_file`, the entry, `overrides`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address, Kind, matches
from jsplan.config import body, checks, checks_consumers, copy_of, environments, lifecycle, parsing
from jsplan.config.checks import check_bucket
from jsplan.config.contents import ContentReaders
from jsplan.config.copy_of import CopyOfResolver
from jsplan.config.expand import DomainSelectors, choose_only_domain
from jsplan.config.files import NAME_KEYS, WorkspaceFiles
from jsplan.config.findings import Findings, Problem
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import DeclaredResource
from jsplan.config.node import (
    FieldPlaces,
    Node,
    count_values,
    make_mapping,
    source_range,
    to_plain,
)
from jsplan.config.origins import OriginExpander
from jsplan.config.overrides import Override, refuse_names
from jsplan.config.resource_names import (
    is_name_allowed,
    may_be_declared,
    read_name,
    read_stream_name,
    set_consumer_names,
)
from jsplan.config.tables.resources import POSITION
from jsplan.config.tables.workspace import ENTRIES, NESTED_CONSUMER
from jsplan.resources import TABLES, buckets

#: The cost of one resource besides its values, counted in values.
_RESOURCE_COST: Final = 40
_NO_NODES: Final[tuple[Node, ...]] = ()


class ResolveContext(Struct):
    """The input that all resources of one workspace share."""

    files: WorkspaceFiles
    scope: Scope
    selectors: DomainSelectors
    domain_vars: Mapping[str, Mapping[str, Node]]
    environment: str | None
    environments: tuple[str, ...]
    default_domain: Node | None = None
    defaults: dict[Kind, Node] = field(default_factory=dict)
    overrides: list[Override] = field(default_factory=list)
    #: The domains of a resource without `domain:`; there must be one.
    own_domains: tuple[str, ...] = ()
    #: The scope of values that may come from the environment: entries of buckets.
    secrets: Scope | None = None

    @property
    def findings(self) -> Findings:
        """The findings of the load."""
        return self.files.findings


class ResourceResolver:
    """Collects the declared resources by address in `declared`, in the order of the files."""

    def __init__(self, context: ResolveContext) -> None:
        self.context = context
        self.findings = context.findings
        self.origins = OriginExpander(context.selectors, context.findings)
        self.copies = CopyOfResolver(context.findings)
        self.declared: dict[Address, DeclaredResource] = {}
        self.contents = ContentReaders(context.files, context.secrets)
        self._scopes: dict[str, Scope] = {}
        self._has_other_environments = False
        #: The cost of a resource besides its entry: its own parts, its defaults, the overrides.
        self._cost = (
            _RESOURCE_COST
            + max(map(count_values, context.defaults.values()), default=0)
            + len(context.overrides) // 4
        )

    def resolve_section(self, kind: Kind, node: Node | None, name: str) -> None:
        """Declare everything in one top-level list."""
        for entry in parsing.read_list(node, f"`{name}`", self.findings):
            if not isinstance(entry.value, dict):
                self.findings.wrong_type(entry, f"an element of `{name}`", "a mapping")
            elif (names_known := self._in_environment(entry)) is not False:
                body.check_keys(TABLES[kind], entry, ENTRIES[kind].by_name, self.findings)
                domains = self._select_domains(entry)
                if not names_known:
                    domains = [self.findings.make_placeholder()]
                size = self._cost + (count_values(entry) if len(domains) > 1 else 0)
                plain = self.contents.split(kind, entry)
                for domain in (
                    domains if self.findings.allow_values(len(domains) * size, entry) else ()
                ):
                    scope = self._domain_scope(domain)
                    scoped = interpolate(plain, scope, self.findings)
                    address = self._resolve_entry(kind, domain, scoped)
                    if plain is not entry:
                        self.contents.add(address, entry, scope)

    # --- domains and environments -----------------------------------------------------------------

    def _in_environment(self, entry: Node) -> bool | None:
        """Check whether an entry is for this environment; None after a finding."""
        node, before = entry.get("environments"), len(self.findings)
        if node is None:
            return True
        names = environments.read_environment_names(node, self.context.environments, self.findings)
        if len(self.findings) > before:
            return None
        if self.context.environment in names:
            return True
        self._has_other_environments = True
        return False

    def _select_domains(self, entry: Node) -> Sequence[str]:
        node = entry.get("domain")
        if node is None or node.value is None:
            node = self.context.default_domain
        if node is None:
            return choose_only_domain(entry, self.context.own_domains, self.findings)
        if node.dynamic:
            node = interpolate(node, self.context.scope, self.findings)
        if node.unknown:
            return [self.findings.make_placeholder()]
        return self.context.selectors.select(node)

    def _domain_scope(self, domain: str) -> Scope:
        found = self._scopes.get(domain)
        if found is None:
            found = replace(
                self.context.scope,
                domain=domain,
                domain_vars=self.context.domain_vars.get(domain, {}),
            )
            self._scopes[domain] = found
        return found

    # --- one resource -----------------------------------------------------------------------------

    def _resolve_entry(self, kind: Kind, domain: str, entry: Node) -> Address:
        stream = None
        if kind == "consumer":
            stream = read_stream_name(entry, self.findings) or self.findings.make_placeholder()
        address = self._add_resource(kind, domain, entry, stream)
        nested = entry.get("consumers") if kind == "stream" else None
        for item in parsing.read_list(nested, "`consumers`", self.findings):
            if not isinstance(item.value, dict):
                self.findings.wrong_type(item, "an element of `consumers`", "a mapping")
            elif self._in_environment(item) is not False:
                known = NESTED_CONSUMER.by_name
                body.check_keys(TABLES["consumer"], item, known, self.findings)
                self._add_resource("consumer", domain, item, address.name)
        return address

    def _add_resource(self, kind: Kind, domain: str, entry: Node, stream: str | None) -> Address:
        name = read_name(kind, entry, self.findings)
        if name is None or not is_name_allowed(kind, name.value, name, self.findings):
            text = self.findings.make_placeholder()
            name = Node(entry.place, text, text)
            entry = make_mapping(entry.place, entry.value | {NAME_KEYS[kind]: name}, entry.keys)
        address = Address(
            domain, kind, f"{stream}/{name.value}" if stream is not None else name.value
        )
        first = self.declared.get(address)
        if first is not None:
            self.findings.declared_twice(entry, str(address), first.range, str(address))
            return address
        if kind == "stream" and self.copies.add(
            address, entry, partial(self._finish_resource, address, entry, name)
        ):
            self.declared[address] = DeclaredResource(
                address, {}, source_range(entry.place)
            )  # keeps its place in the order of the files
        else:
            self._finish_resource(address, entry, name, ())
        return address

    def _finish_resource(
        self, address: Address, entry: Node, name: Node, base: tuple[Node, ...]
    ) -> None:
        layers, is_complete = self._collect_layers(address, entry, name, base)
        self.declared[address] = self._parse_resource(
            address, entry, name, layers, is_complete=is_complete
        )

    # --- layers -----------------------------------------------------------------------------------

    def _collect_layers(
        self, address: Address, entry: Node, name: Node, base: tuple[Node, ...]
    ) -> tuple[tuple[Node, ...], bool]:
        """Return the layers of the resource, the weakest first, and whether no file is missing.

        `base` are the layers of the stream that it is a copy of.
        """
        context, is_complete = self.context, True
        layers = []
        default = context.defaults.get(address.kind)
        if default is not None:
            layers.append(interpolate(default, self._domain_scope(address.domain), self.findings))
        layers += base
        file = entry.get("config_file")
        if file is not None and file.value is not None:
            config = copy_of.read_config_file(address.kind, file, name, context.files)
            if config is None or not self.findings.allow_values(count_values(config), file):
                is_complete = False
            else:
                body.check_keys(TABLES[address.kind], config, (), self.findings, str(address))
                layers.append(config)
        layers.append(entry)
        for override in context.overrides:
            if matches(override.glob, address) and self.findings.allow_values(
                override.size, override.node
            ):
                override.is_used = True
                node = interpolate(override.node, self._domain_scope(address.domain), self.findings)
                known = (*sorted(lifecycle.settings_of(address.kind)), "address")
                body.check_keys(TABLES[address.kind], node, known, self.findings, str(address))
                refuse_names(address.kind, node, self.findings)
                layers.append(node)
        return tuple(layers), is_complete

    def _parse_resource(
        self,
        address: Address,
        entry: Node,
        name: Node,
        layers: tuple[Node, ...],
        *,
        is_complete: bool,
    ) -> DeclaredResource:
        fields: Mapping[str, Node] = entry.value
        if len(layers) > 1:
            fields = {key: node for layer in layers for key, node in layer.value.items()}
        raw: dict[str, Any] = {}
        if "x_raw" in fields:
            raw, known = self._read_raw_fields(address, layers, fields)
            fields = {**fields, **known}
        if "mirror" in fields or "sources" in fields:
            fields = self.origins.expand(fields, address.domain, address.name)
        parsed = body.parse(TABLES[address.kind], fields, self.findings)
        if address.kind == "consumer":
            set_consumer_names(
                parsed, entry, name, self.findings, from_file="config_file" in entry.value
            )
        places = FieldPlaces(layers)
        missing: AbstractSet[str] = frozenset()
        if self.findings.failed:
            missing = _find_missing(address.kind, fields, parsed, is_complete=is_complete)
        self._check(address, parsed, places, entry, missing)
        declared = DeclaredResource(
            address,
            parsed | raw if raw else parsed,
            source_range(entry.place),
            places,
            raw_fields=frozenset(raw),
        )
        present = lifecycle.settings_of(address.kind).intersection(fields)
        return self._with_settings(declared, layers, present) if present else declared

    def _read_raw_fields(
        self, address: Address, layers: tuple[Node, ...], fields: Mapping[str, Node]
    ) -> tuple[dict[str, Any], dict[str, Node]]:
        """Return the fields of `x_raw`, plain, and those that the table knows, to parse."""
        raw, known = dict[str, Any](), dict[str, Node]()
        rows = TABLES[address.kind].by_name
        for layer in layers:
            for key, node in parsing.read_mapping(layer.get("x_raw"), "`x_raw`", self.findings):
                if key in rows and key not in fields:
                    known[key] = node
                    hint = "This release knows the field; write it directly."
                    self.findings.warning("JS136", node, f"x_raw is not needed for `{key}`", hint)
                    continue
                raw[key] = to_plain(node)
                if key in rows:
                    text = f"`{key}` is given in x_raw and beside it"
                    hint = "Remove it from x_raw; this release knows the field."
                    self.findings.error("JS136", node, text, hint)
        return raw, known

    def _with_settings(
        self, declared: DeclaredResource, layers: tuple[Node, ...], present: frozenset[str]
    ) -> DeclaredResource:
        """Return the resource with the settings that are `present`; most resources have none."""

        def under(key: str) -> tuple[Node, ...]:
            if key in present:
                return tuple(layer.value[key] for layer in layers if key in layer.value)
            return _NO_NODES

        known = TABLES[declared.address.kind].by_name.keys() | declared.raw_fields
        guards = lifecycle.read_lifecycle(under("lifecycle"), known, self.findings)
        ignored = tuple(
            buckets.resolve_alias(declared.address.kind, name) for name in guards.ignore_changes
        )
        return replace(
            declared,
            lifecycle=replace(guards, ignore_changes=ignored) if ignored else guards,
            lint_ignore=lifecycle.read_lint_ignore(under("lint"), self.findings),
            depends_on=lifecycle.read_depends_on(under("depends_on"), self.findings),
            position=lifecycle.read_position(under(POSITION.id), self.findings),
        )

    # --- rules between fields ---------------------------------------------------------------------

    def _check(
        self,
        address: Address,
        parsed: Mapping[str, Any],
        places: FieldPlaces,
        entry: Node,
        missing: AbstractSet[str],
    ) -> None:
        problems = (
            check_bucket(address, parsed)
            if buckets.is_bucket(address.kind)
            else checks.check_stream(parsed)
            if address.kind == "stream"
            else checks_consumers.check_consumer(parsed)
        )
        if missing:  # a rule about a field that has a finding would report that a second time
            problems = (p for p in problems if missing.isdisjoint(_words_of(p)))
        self._report(address, problems, places, entry)

    def _report(
        self, address: Address, problems: Iterator[Problem], places: Mapping[str, Any], entry: Any
    ) -> None:
        for problem in problems:
            at = places.get(problem.field) or entry
            self.findings.error(problem.code, at, problem.summary, problem.detail, str(address))

    def finish(self) -> None:
        """Finish copies, work queues, overrides and dependencies, once all resources are known."""
        self.copies.resolve(self.declared)
        self.contents.read(self.declared)
        self._check_work_queues()
        if self._has_other_environments:
            return  # an address without a match here may match in another environment
        for override in self.context.overrides:
            if not override.is_used and not may_be_declared(override.glob, self.declared):
                at = override.node.value["address"]
                text = f'the override of "{override.glob}" matches no resource'
                hint = "Correct the address, or remove the override."
                self.findings.warning("JS145", at, text, hint)
        for address, declared in self.declared.items():
            for wanted in declared.depends_on:
                if not any(
                    matches(wanted, other) for other in self.declared
                ) and not may_be_declared(wanted, self.declared, address):
                    at = declared.ranges.get("depends_on")
                    text = f'`depends_on`: "{wanted}" matches no resource'
                    hint = "Correct the address, or remove it."
                    self.findings.warning("JS145", at, text, hint, str(address))

    def _check_work_queues(self) -> None:
        queues = [
            a
            for a, d in self.declared.items()
            if a.kind == "stream" and d.body.get("retention") == "workqueue"
        ]
        consumers: dict[Address, list[tuple[str, Mapping[str, Any]]]] = {
            address: [] for address in queues
        }
        if not consumers:
            return
        for address, declared in self.declared.items():
            parent = address.parent
            if parent in consumers:
                others = consumers[parent]
                self._report(
                    address,
                    checks_consumers.check_queue_consumer(declared.body, others),
                    declared.ranges,
                    declared.range,
                )
                others.append((address.consumer, declared.body))


def _find_missing(
    kind: Kind, fields: Mapping[str, Node], parsed: Mapping[str, Any], *, is_complete: bool
) -> AbstractSet[str]:
    """Return the fields without a value that may have one: theirs has a finding, or its file."""
    rows = TABLES[kind].by_name.keys()
    return (rows & fields.keys() if is_complete else rows) - parsed.keys()


def _words_of(problem: Problem) -> list[str]:
    return re.findall(r"\w+", f"{problem.field} {problem.summary} {problem.detail}")
