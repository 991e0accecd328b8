"""From the entries of the files to declared resources: one per matching domain, all layers merged.

Layers, the weakest first: `defaults`, those of `copy_of`, `config_file`, the entry, `overrides`. Fields are parsed by `body`, rules
between them checked by `checks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from jsplan.address import STAGING, Address, Kind, matches
from jsplan.config import body, checks, checks_consumers, config_file, environments, grammar, lifecycle
from jsplan.config.checks_buckets import check_bucket
from jsplan.config.copies import Copies
from jsplan.config.expand import Selectors
from jsplan.config.files import Files
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import Declared
from jsplan.config.node import Node, Places, mapping, plain, range_of, size_of
from jsplan.config.origins import Origins
from jsplan.config.problem import Problem
from jsplan.resources import TABLES, buckets

_SETTINGS: Final = ("lifecycle", "lint", "depends_on", "x_raw")
_ENTRY: Final = (*_SETTINGS, "domain", "environments", "config_file")
_NESTED: Final = (*_SETTINGS, "environments", "config_file")
#: What an entry may hold beside its fields; a consumer nested in a stream has neither domain nor stream of its own.
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "stream": (*_ENTRY, "consumers", "copy_of"), "consumer": (*_ENTRY, "stream"), "nested": _NESTED, "kv": _ENTRY, "object_store": _ENTRY,
}  # fmt: skip
_NAME: Final[dict[Kind, str]] = {"stream": "name", "consumer": "name", "kv": "bucket", "object_store": "bucket"}
_STREAM_NAME = re.compile(r"[^.*>\s/\\]{1,255}")
_BUCKET_NAME = re.compile(r"[A-Za-z0-9_-]{1,240}")
#: What one resource costs beside its values, counted in values.
_PARTS: Final = 40
_NO_NODES: Final[tuple[Node, ...]] = ()


@dataclass(slots=True)
class Override:
    """One element of `overrides`; `used` once an address matched."""

    glob: str
    node: Node
    used: bool = False
    size: int = 1


@dataclass(slots=True)
class Context:
    """What all resources of one workspace share."""

    files: Files
    scope: Scope
    selectors: Selectors
    domain_vars: Mapping[str, Mapping[str, Node]]
    environment: str | None
    environments: tuple[str, ...]
    default_domain: Node | None = None
    defaults: dict[Kind, Node] = field(default_factory=dict)
    overrides: list[Override] = field(default_factory=list)
    #: The domains that a resource without `domain:` may be in; it must be one.
    own_domains: tuple[str, ...] = ()

    @property
    def findings(self) -> Findings:
        """Where everything that is wrong goes."""
        return self.files.findings


class Declarer:
    """Collects the declared resources; `declared` has them by address, in the order of the files."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.findings = context.findings
        self.origins = Origins(context.selectors, context.findings)
        self.copies = Copies(context.findings)
        self.declared: dict[Address, Declared] = {}
        self._scopes: dict[str, Scope] = {}
        self._some_elsewhere = False
        #: What any resource may take beside its own entry: its own parts, its defaults, and the look at each override.
        self._cost = _PARTS + max(map(size_of, context.defaults.values()), default=0) + len(context.overrides) // 4

    def section(self, kind: Kind, node: Node | None, name: str) -> None:
        """Declare everything in one top-level list."""
        for entry in grammar.items(node, f"`{name}`", self.findings):
            if not isinstance(entry.value, dict):
                self.findings.shape(entry, f"an element of `{name}`", "a mapping")
            elif self._in_environment(entry):
                domains = self._domains(entry)
                size = self._cost + (size_of(entry) if len(domains) > 1 else 0)
                for domain in domains if self.findings.allow(len(domains) * size, entry) else ():
                    scoped = interpolate(entry, self._scope(domain), self.findings)
                    self._resource(kind, domain, scoped)

    # --- where and when -----------------------------------------------------------------------------------

    def _in_environment(self, entry: Node) -> bool:
        node = entry.get("environments")
        if node is None:
            return True
        if self.context.environment in environments.named(node, self.context.environments, self.findings):
            return True
        self._some_elsewhere = True
        return False

    def _domains(self, entry: Node) -> Sequence[str]:
        node = entry.get("domain")
        if node is None or node.value is None:
            node = self.context.default_domain
        if node is None:
            own = self.context.own_domains
            if len(own) > 1:
                self.findings.error(
                    "JS127", entry, "which domain is not said, and there are several", "Add `domain:` here, or `defaults: {domain: …}`."
                )
            return list(own) if len(own) == 1 else []
        if node.dynamic:
            node = interpolate(node, self.context.scope, self.findings)
            if node.value is None:
                return []
        return self.context.selectors.select(node)

    def _scope(self, domain: str) -> Scope:
        found = self._scopes.get(domain)
        if found is None:
            found = replace(self.context.scope, domain=domain, domain_vars=self.context.domain_vars.get(domain, {}))
            self._scopes[domain] = found
        return found

    # --- one resource -------------------------------------------------------------------------------------

    def _resource(self, kind: Kind, domain: str, entry: Node) -> None:
        stream = self._stream_of(entry) if kind == "consumer" else None
        if kind == "consumer" and stream is None:
            return
        address = self._one(kind, domain, entry, stream, _KEYS[kind])
        nested = entry.get("consumers") if kind == "stream" else None
        if nested is None or address is None:
            return
        for item in grammar.items(nested, "`consumers`", self.findings):
            if not isinstance(item.value, dict):
                self.findings.shape(item, "an element of `consumers`", "a mapping")
            elif self._in_environment(item):
                self._one("consumer", domain, item, address.name, _KEYS["nested"])

    def _stream_of(self, entry: Node) -> str | None:
        name = grammar.required(entry, "stream", "a consumer outside of a stream", self.findings)
        if name is not None and not _STREAM_NAME.fullmatch(name):
            self._bad_name(entry.value["stream"], name)
            return None
        return name

    def _bad_name(self, node: Node, name: str) -> None:
        self.findings.error(
            "JS131", node, f'"{name}" is not a name', "A name has no dots, blanks, wildcards or slashes, and at most 255 characters."
        )

    def _one(self, kind: Kind, domain: str, entry: Node, stream: str | None, keys: tuple[str, ...]) -> Address | None:
        name = self._name(kind, entry)
        body.check_keys(TABLES[kind], entry, keys, self.findings)
        if name is None or not self._allowed(kind, name.value, name):
            return None
        address = Address(domain, kind, f"{stream}/{name.value}" if stream is not None else name.value)
        first = self.declared.get(address)
        if first is not None:
            self.findings.error("JS110", entry, f"{address} is declared twice", f"It is also at {first.range}; keep one.", str(address))
            return address
        finish = partial(self._finish, address, entry, name)
        if kind == "stream" and self.copies.wait(address, entry, finish):
            self.declared[address] = Declared(address, {}, range_of(entry.place))  # keeps its place in the order of the files
        else:
            finish(())
        return address

    def _finish(self, address: Address, entry: Node, name: Node, base: tuple[Node, ...]) -> None:
        layers = self._layers(address, entry, name, base)
        if layers is not None:
            self.declared[address] = self._declared(address, entry, name, layers)

    def _name(self, kind: Kind, entry: Node) -> Node | None:
        key = _NAME[kind]
        node = entry.get(key)
        if kind == "consumer" and (node is None or node.value is None):
            node = entry.get("durable_name")
        if node is None or node.value is None:
            what = kind.replace("_", " ")
            self.findings.error("JS106", entry, f"{'an' if what[0] == 'o' else 'a'} {what} has no `{key}`", f"Add `{key}:`.")
            return None
        if not isinstance(node.value, str):
            self.findings.error("JS130", node, f"{key} must be text, not the number {node.raw}", f'Put it in quotes: "{node.raw}".')
            return None
        pattern = _BUCKET_NAME if key == "bucket" else _STREAM_NAME
        if not pattern.fullmatch(node.value):
            if key == "bucket":
                self.findings.error("JS131", node, f'"{node.value}" is not a name for a bucket', "Use letters, digits, - and _.")
            else:
                self._bad_name(node, node.value)
            return None
        return node

    def _allowed(self, kind: Kind, name: str, node: Node) -> bool:
        if kind == "stream" and name.startswith(("KV_", "OBJ_")):
            section, bucket = ("kv", name[3:]) if name.startswith("KV_") else ("object_stores", name[4:])
            self.findings.error("JS132", node, f"{name} is the stream of a bucket", f"Declare it under `{section}:` with bucket: {bucket}.")
            return False
        reserved = ("$MQTT_", STAGING) if kind == "stream" else ("JS_SRC_", "JS_MIRROR_", STAGING) if kind == "consumer" else ()
        if reserved and name.startswith(reserved):
            self.findings.error(
                "JS133",
                node,
                f"{name} belongs to {'jsplan' if name.startswith(STAGING) else 'the server'}",
                "It makes and removes it itself; choose another name.",
            )
            return False
        return True

    # --- layers -------------------------------------------------------------------------------------------

    def _layers(self, address: Address, entry: Node, name: Node, base: tuple[Node, ...]) -> tuple[Node, ...] | None:
        """Everything that says something about the resource, the weakest first; None if the file cannot be used.

        `base` are the layers of what it is a copy of.
        """
        context = self.context
        layers = []
        default = context.defaults.get(address.kind)
        if default is not None:
            layers.append(interpolate(default, self._scope(address.domain), self.findings))
        layers += base
        file = entry.get("config_file")
        if file is not None and file.value is not None:
            config = config_file.read(address.kind, file, name, context.files)
            if config is None or not self.findings.allow(size_of(config), file):
                return None
            body.check_keys(TABLES[address.kind], config, (), self.findings, str(address))
            layers.append(config)
        layers.append(entry)
        for override in context.overrides:
            if matches(override.glob, address) and self.findings.allow(override.size, override.node):
                override.used = True
                node = interpolate(override.node, self._scope(address.domain), self.findings)
                known = (*_SETTINGS, "address")
                body.check_keys(TABLES[address.kind], node, known, self.findings, str(address))
                self._no_names(address.kind, node)
                layers.append(node)
        return tuple(layers)

    def _no_names(self, kind: Kind, node: Node) -> None:
        for key in ("name", "bucket", "durable_name"):
            if key in node.value and (key != "durable_name" or kind == "consumer"):
                self.findings.error(
                    "JS105", node.key_place(key), f"an override cannot change `{key}`", "Names are given where the resource is declared."
                )

    def _declared(self, address: Address, entry: Node, name: Node, layers: tuple[Node, ...]) -> Declared:
        fields: Mapping[str, Node] = entry.value
        if len(layers) > 1:
            fields = {key: node for layer in layers for key, node in layer.value.items()}
        raw = self._raw(address, layers, fields) if any("x_raw" in layer.value for layer in layers) else {}
        known = {key: value for key, value in raw.items() if isinstance(value, Node)}
        if known:
            fields = {**fields, **known}
        if "mirror" in fields or "sources" in fields:
            fields = self.origins.written_out(fields, address.domain, address.name)
        parsed = body.parse(TABLES[address.kind], fields, self.findings)
        if address.kind == "consumer":
            self._consumer_names(parsed, entry, name, from_file="config_file" in entry.value)
        places = Places(layers)
        self._check(address, parsed, places, entry)
        extra = {key: value for key, value in raw.items() if key not in known}
        declared = Declared(address, parsed | extra if extra else parsed, range_of(entry.place), places, raw_fields=frozenset(extra))
        return self._with_settings(declared, layers, fields.keys() & set(_SETTINGS))

    def _raw(self, address: Address, layers: tuple[Node, ...], fields: Mapping[str, Node]) -> dict[str, Any]:
        """The fields of `x_raw`, plain; those that the table knows stay nodes, to be parsed as any other."""
        out: dict[str, Any] = {}
        rows = TABLES[address.kind].by_name
        for layer in layers:
            for key, node in grammar.pairs(layer.get("x_raw"), "`x_raw`", self.findings):
                out[key] = plain(node)
                if key in fields and key in rows:
                    self.findings.error(
                        "JS136", node, f"`{key}` is given in x_raw and beside it", "Remove it from x_raw; this release knows the field."
                    )
                elif key in rows:
                    self.findings.warning(
                        "JS136", node, f"x_raw is not needed for `{key}`", "This release knows the field; write it directly."
                    )
                    out[key] = node
        return out

    def _with_settings(self, declared: Declared, layers: tuple[Node, ...], present: set[str]) -> Declared:
        """The resource with its guards; most resources have none."""
        if not present - {"x_raw"}:
            return declared

        def under(key: str) -> tuple[Node, ...]:
            return tuple(layer.value[key] for layer in layers if key in layer.value) if key in present else _NO_NODES

        known = TABLES[declared.address.kind].by_name.keys() | declared.raw_fields
        guards = lifecycle.lifecycle(under("lifecycle"), known, self.findings)
        ignored = tuple(buckets.field_of(declared.address.kind, name) for name in guards.ignore_changes)
        return replace(
            declared,
            lifecycle=replace(guards, ignore_changes=ignored) if ignored else guards,
            lint_ignore=lifecycle.lint_ignore(under("lint"), self.findings),
            depends_on=lifecycle.depends_on(under("depends_on"), self.findings),
        )

    # --- rules between fields -----------------------------------------------------------------------------

    def _consumer_names(self, parsed: dict[str, Any], entry: Node, name: Node, *, from_file: bool) -> None:
        """`name` alone implies `durable_name` and the other way round; a null `durable_name` needs a threshold."""
        parsed["name"] = name.value
        durable = parsed.get("durable_name")
        if durable is not None and durable != name.value:
            at = entry.get("durable_name") or name
            self.findings.error(
                "JS134", at, f'the consumer has two names, "{name.value}" and "{durable}" (10017)', "Keep one; the other follows."
            )
        elif from_file:
            return
        elif "durable_name" not in parsed:
            parsed["durable_name"] = name.value
        elif durable is None and not parsed.get("inactive_threshold"):
            detail = "Add inactive_threshold: 1h (deleted after so long without a client), or remove `durable_name: null`."
            self.findings.error(
                "JS134", entry.get("durable_name") or name, f"consumer {name.value} may expire, and is not said when", detail
            )

    def _check(self, address: Address, parsed: Mapping[str, Any], places: Places, entry: Node) -> None:
        if buckets.is_bucket(address.kind):
            self._report(address, check_bucket(address, parsed), places, entry)
        elif address.kind == "stream":
            self._report(address, checks.check_stream(parsed), places, entry)
        elif address.kind == "consumer":
            self._report(address, checks_consumers.check_consumer(parsed), places, entry)

    def _report(self, address: Address, problems: Iterator[Problem], places: Mapping[str, Any], entry: Any) -> None:
        for problem in problems:
            at = places.get(problem.field) or entry
            self.findings.error(problem.code, at, problem.summary, problem.detail, str(address))

    def finish(self) -> None:
        """What can be done only when all resources are known: copies, work queues, overrides and dependencies that match nothing."""
        self.copies.settle(self.declared)
        self._work_queues()
        if self._some_elsewhere:
            return  # what matches nothing here may match in another environment
        for override in self.context.overrides:
            if not override.used:
                at = override.node.value["address"]
                self.findings.warning(
                    "JS145", at, f'the override of "{override.glob}" matches no resource', "Correct the address, or remove the override."
                )
        for address, declared in self.declared.items():
            for wanted in declared.depends_on:
                if not any(matches(wanted, other) for other in self.declared):
                    at = declared.ranges.get("depends_on")
                    self.findings.warning(
                        "JS145", at, f'`depends_on`: "{wanted}" matches no resource', "Correct the address, or remove it.", str(address)
                    )

    def _work_queues(self) -> None:
        queues = [a for a, d in self.declared.items() if a.kind == "stream" and d.body.get("retention") == "workqueue"]
        consumers: dict[Address, list[tuple[str, Mapping[str, Any]]]] = {address: [] for address in queues}
        if not consumers:
            return
        for address, declared in self.declared.items():
            parent = address.parent
            if parent in consumers:
                others = consumers[parent]
                self._report(address, checks_consumers.check_queue_consumer(declared.body, others), declared.ranges, declared.range)
                others.append((address.consumer, declared.body))


def read_overrides(node: Node | None, scope: Scope, findings: Findings) -> list[Override]:
    """`overrides:` with their globs; the fields are checked against each kind they are applied to."""
    out = []
    for item in grammar.items(node, "`overrides`", findings):
        if not isinstance(item.value, dict):
            findings.shape(item, "an override", "a mapping")
            continue
        address = item.get("address")
        if address is None:
            findings.error(
                "JS106", item, "an override has no `address`", "Add `address:`, an address or a glob such as store-*/stream/SALES."
            )
            continue
        glob = grammar.address(interpolate(address, scope, findings), "`address`", findings)
        if glob is not None:
            out.append(Override(glob, item, size=size_of(item)))
    return out


def read_defaults(node: Node | None, findings: Findings) -> tuple[Node | None, dict[Kind, Node]]:
    """`defaults:` as the default domain and the fields per kind."""
    kinds: dict[Kind, Node] = {}
    if node is None or node.value is None or not grammar.fields(node, "`defaults`", ("domain", *TABLES), findings):
        return None, kinds
    for kind, table in TABLES.items():
        fields = node.get(kind)
        if fields is None or fields.value is None:
            continue
        if not isinstance(fields.value, dict):
            findings.shape(fields, f"`defaults.{kind}`", "a mapping")
            continue
        body.check_keys(table, fields, ("lifecycle", "lint", "x_raw"), findings)
        for key in ("name", "bucket", "durable_name"):
            if key in fields.value and (key != "durable_name" or kind == "consumer"):
                findings.error("JS105", fields.key_place(key), f"`{key}` cannot have a default", "Every resource has a name of its own.")
        names = ("name", "bucket", "durable_name") if kind == "consumer" else ("name", "bucket")
        kinds[kind] = mapping(fields.place, {key: item for key, item in fields.value.items() if key not in names}, fields.keys)
    return node.get("domain"), kinds
