"""`apps:` as entries: what each application does with which stream, consumer or bucket."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address, Kind
from jsplan.config import parsing
from jsplan.config.expand import DomainSelectors
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import App, AppUse, DeclaredResource, Verb
from jsplan.config.node import Node, source_range
from jsplan.config.sections import Reading, Values
from jsplan.config.tables.accounts import APP
from jsplan.resources import TABLES
from jsplan.resources.fields import ABSENT
from jsplan.subjects import is_covered

_EXPECTATION: Final = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(>=|<=|=)\s*(\S.*?)\s*")
_COMPARE: Final = {">=": operator.ge, "<=": operator.le, "=": operator.eq}


class _List(Struct, frozen=True):
    """One list of an application: the key of an entry with the address, and its kinds."""

    key: str
    names: str
    kinds: tuple[Kind, ...]
    verb: Verb


_LISTS: Final = (
    _List("publishes", "stream", ("stream",), "publish"),
    _List("consumes", "consumer", ("consumer",), "consume"),
    _List("reads", "bucket", ("kv", "object_store"), "read"),
    _List("writes", "bucket", ("kv", "object_store"), "write"),
)


class _Reader(Struct):
    """Reads one application."""

    node: Node
    name: str
    resources: Mapping[Address, DeclaredResource]
    findings: Findings

    def read_uses(self, values: Values) -> Iterator[AppUse]:
        """Yield what it does."""
        for each in _LISTS:
            for entry in values[each.key]:
                address = self._read_address(entry[each.names], each)
                if address is None:
                    continue
                subjects = tuple(entry.get("subjects") or entry.get("keys") or ())
                if each.verb == "publish":
                    subjects = self._check_subjects(address, subjects)
                for text in entry.get("expects") or ():
                    self._check_expectation(address, text)
                yield AppUse(each.verb, address, subjects)
                if entry.get("watch"):
                    yield AppUse("watch", address, subjects)

    def _read_address(self, text: str | None, each: _List) -> Address | None:
        """Return the address of something that the files declare, or report it."""
        if text is None:
            return None
        try:
            address = Address.parse(text)
        except ValueError:
            self._report(f"names {text} in `{each.key}`, which is no address", "Correct it.")
            return None
        if address.kind not in each.kinds:
            kinds = " or ".join(each.kinds).replace("_", " ")
            self._report(f"names {text} in `{each.key}`, which is no {kinds}", "Correct it.")
        elif address not in self.resources:
            self._report(f"uses {text}, which is in no file", "Declare it, or correct the address.")
        else:
            return address
        return None

    def _check_subjects(self, address: Address, subjects: tuple[str, ...]) -> tuple[str, ...]:
        """Return the subjects that it publishes on, by default those of the stream."""
        body = self.resources[address].body
        copies = bool(body.get("mirror") or body.get("sources"))
        own = tuple(body.get("subjects") or (() if copies else (address.stream,)))
        for subject in subjects or own or ("any subject",):
            if not is_covered(subject, own):
                text = f"publishes on {subject}, which {address} does not store"
                self._report(text, f"It stores {', '.join(own) or 'only what it copies'}.")
        return subjects or own

    def _check_expectation(self, address: Address, text: str) -> None:
        """Report an expectation that the files do not meet, or that cannot be read."""
        match = _EXPECTATION.fullmatch(text)
        row = TABLES[address.kind].by_name.get(match[1]) if match else None
        if match is None or row is None:
            self._report(f'expects "{text}"', "Write FIELD >= VALUE, with a field of the resource.")
            return
        try:
            wanted = row.parse(_parse_scalar(match[3]))
            value = self.resources[address].body.get(match[1], row.default)
            found = False if value is ABSENT and row.type == "bool" else value
            met = found is not None and found is not ABSENT and _COMPARE[match[2]](found, wanted)
        except (ValueError, TypeError) as error:
            self._report(f'expects "{text}": {error}', "Write a value as the resource has it.")
            return
        if not met:
            self._report(
                f"expects {text} of {address}, which is not so", "Change one of both.", "JS469"
            )

    def _report(self, text: str, detail: str, code: str = "JS468") -> None:
        self.findings.error(code, self.node, f"application {self.name} {text}", detail)


def read_apps(
    section: Node | None,
    selectors: DomainSelectors,
    domain_vars: Mapping[str, Mapping[str, Node]],
    resources: Mapping[Address, DeclaredResource],
    scope: Scope,
    findings: Findings,
) -> dict[str, App]:
    """Read the applications by name, and report every error in them.

    In an entry of several domains `${domain}` is each of them, and so is its name.
    """
    found: dict[str, App] = {}
    for written in parsing.read_list(section, "`apps`", findings):
        domains = _select_domains(written, selectors, scope, findings)
        for domain in domains:
            own = replace(scope, domain=domain, domain_vars=domain_vars.get(domain, {}))
            node = interpolate(written, own, findings)
            values = APP.read(node, Reading(findings))
            if values is None or not values["name"] or not values["client"]:
                continue
            name = values["name"] if len(domains) == 1 else f"{values['name']}@{domain}"
            if name in found:
                findings.error("JS110", node, f"application {name} is declared twice", "Keep one.")
            found[name] = App(
                name,
                domain,
                values["client"],
                values["user"] or values["name"],
                tuple(_Reader(node, name, resources, findings).read_uses(values)),
                source_range(node.place),
                values["nkey"],
                values["name"],
                values["role"],
            )
    return found


def _select_domains(
    node: Node, selectors: DomainSelectors, scope: Scope, findings: Findings
) -> Sequence[str]:
    """Return the domains of an entry."""
    wanted = node.get("domain")
    if wanted is not None and wanted.value is not None:
        return selectors.select(interpolate(wanted, scope, findings))
    if len(selectors.own) == 1:
        return selectors.own
    text = "an application does not say to which servers it connects"
    findings.error("JS106", node, text, "Add `domain:`.")
    return ()


def _parse_scalar(text: str) -> Any:
    """Return the value that YAML would read."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdecimal() else text
