"""`moved:`, `relocate:` and `removed:`: new addresses, and what left the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from jsplan.address import (
    Address,
    changes_only_domain,
    has_same_wildcards,
    is_glob,
    matches,
    move_address,
)
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope
from jsplan.config.model import DeclaredResource, Domain, Moved, Relocate, Removed
from jsplan.config.node import Node, source_range
from jsplan.config.resource_names import may_be_declared
from jsplan.config.sections import Reading, Section
from jsplan.config.tables.changes import MOVED, RELOCATE, REMOVED
from jsplan.diagnostics import did_you_mean

_BOTH_DECLARED: Final = (
    "Both sides of a relocation are declared domains. Remove the entry if it is done."
)


class ChangeReader(Struct):
    """Reads the sections about what changes; `declared` is what no old address may name."""

    domains: Mapping[str, Domain]
    declared: Mapping[Address, DeclaredResource]
    scope: Scope
    findings: Findings

    def read_moved(self, section: Node | None) -> tuple[Moved, ...]:
        """Read the entries of `moved:`.

        Both sides have the same shape, and nothing is declared under the old address.
        """
        out = []
        for node, origin, to in self._read_sides(section, MOVED):
            if to is not None:
                self._check_domain(node.value["to"], to, "`to` is what is declared now.")
            if origin is not None:
                self._refuse_declared(node.value["from"], origin, "moved")
            if origin is None or to is None:
                continue
            if self._check_sides(node, origin, to, "moved") and (
                refused := rename_problem(origin, to)
            ):
                self.findings.error("JS147", node.value["to"], *refused)
            out.append(Moved(origin, to, source_range(node.place)))
        return tuple(out)

    def read_relocate(self, section: Node | None) -> tuple[Relocate, ...]:
        """Read the entries of `relocate:`.

        Both sides have the same shape. `to` is declared, and `from` is not, unless both exchange
        their roles: it is declared as a mirror of `to`.
        """
        out: list[Relocate] = []
        for node, origin, to in self._read_sides(section, RELOCATE):
            for key, text in (("from", origin), ("to", to)):
                if text is not None:
                    self._check_domain(node.value[key], text, _BOTH_DECLARED)
            if origin is not None:
                allowed = partial(_mirrors, self.declared, origin, to)
                self._refuse_declared(node.value["from"], origin, "relocated", allowed)
            if to is not None:
                self._require_declared(node.value["to"], to)
            if origin is None or to is None:
                continue
            if self._check_sides(node, origin, to, "relocated"):
                self._check_relocated_kind(node, origin, to)
            if any(other.old_address == origin or other.new_address == to for other in out):
                twice = origin if out[-1].old_address == origin else to
                summary = f"two relocate entries name {twice}"
                self.findings.error("JS144", node, summary, "Keep one of them.")
            out.append(Relocate(origin, to, source_range(node.place)))
        for entry in out:
            if entry.names_consumers and not any(_moves_stream_of(other, entry) for other in out):
                text = (
                    f"no relocate entry moves the stream of {entry.old_address} to that of"
                    f" {entry.new_address}"
                )
                hint = (
                    "A consumer moves with its stream only. Add the entry of the stream. Consumers"
                    " that keep their names need no entry."
                )
                self.findings.error("JS149", entry.range, text, hint)
        return tuple(out)

    def read_removed(self, section: Node | None) -> tuple[Removed, ...]:
        """Read the entries of `removed:`; each says whether to destroy or to forget."""
        out = []
        reading = Reading(self.findings)
        for node, values in REMOVED.read_all(section, "`removed`", reading, self.scope):
            address, destroy = values["address"], values["destroy"]
            if address is not None:
                self._refuse_declared(node.value["address"], address, "removed")
            if address is not None and destroy is not None:
                place, guard = source_range(node.place), values["prevent_destroy"]
                out.append(Removed(address, destroy, place, guard))
        return tuple(out)

    def _read_sides(
        self, section: Node | None, table: Section
    ) -> Iterator[tuple[Node, str | None, str | None]]:
        """Yield the entries with `from` and `to`; None after a finding."""
        reading = Reading(self.findings)
        for node, values in table.read_all(section, f"`{table.id}`", reading, self.scope):
            yield node, values["from"], values["to"]

    def _check_domain(self, node: Node, address: str, advice: str) -> None:
        domain = address.split("/")[0]
        if not is_glob(domain) and domain not in self.domains:
            text = f'there is no domain "{domain}"'
            hint = f"{advice}{did_you_mean(domain, self.domains)}"
            self.findings.error("JS122", node, text, hint)

    def _require_declared(self, node: Node, glob: str) -> None:
        declared = self.declared
        if not self.findings.allow_values(len(declared) // 4, node):
            return
        if not any(matches(glob, a) for a in declared) and not may_be_declared(glob, declared):
            text = f"{glob} is the target of a relocation and is not declared"
            hint = "Declare the resource under its new address, and nothing under the old one."
            self.findings.error("JS144", node, text, hint)

    def _refuse_declared(
        self,
        node: Node,
        glob: str,
        what: str,
        allowed: Callable[[Address], bool] = lambda _: False,
    ) -> None:
        if not self.findings.allow_values(len(self.declared) // 4, node):
            return
        still = next((a for a in self.declared if matches(glob, a) and not allowed(a)), None)
        if still is not None:
            text = f"{still} is {what} and still declared"
            hint = "Remove the declaration, or this entry."
            self.findings.error("JS144", node, text, hint, str(still))

    def _check_sides(self, node: Node, origin: str, to: str, what: str) -> bool:
        """Check that both sides of an entry differ and have the same kind and wildcards."""
        if origin == to:
            text = f"{origin} is {what} to itself"
            self.findings.error("JS144", node, text, "Remove the entry, or correct one side.")
        elif not has_same_wildcards(origin, to) or _kind_of(origin) != _kind_of(to):
            hint = "Both sides have the same kind and the same wildcards in the same order."
            text = f"{origin} and {to} have different shapes"
            self.findings.error("JS144", node, text, hint)
        else:
            return True
        return False

    def _check_relocated_kind(self, node: Node, origin: str, to: str) -> None:
        """Refuse buckets under another name: their keys have the name in them."""
        kind = _kind_of(origin)
        if kind in ("kv", "object_store") and not changes_only_domain(origin, to):
            self.findings.error("JS149", node.value["from"], *_NOT_RENAMED[kind])


def _moves_stream_of(entry: Relocate, consumers: Relocate) -> bool:
    """Check whether an entry moves the stream that an entry of consumers is about."""
    if entry.names_consumers:
        return False
    try:
        old, new = (
            Address.of_stream(*glob.split("/")[:3:2])
            for glob in (consumers.old_address, consumers.new_address)
        )
        return matches(entry.old_address, old) and (
            move_address(entry.old_address, entry.new_address, old) == new
        )
    except (TypeError, ValueError):
        return False  # a side is no address, or the entry has an error of its own


def _mirrors(
    declared: Mapping[Address, DeclaredResource], origin: str, to: str | None, address: Address
) -> bool:
    """Check whether a stream is declared as a mirror of the one that it is relocated to."""
    mirror = declared[address].body.get("mirror")
    if to is None or not isinstance(mirror, dict):
        return False
    return bool(move_address(origin, to, address).stream == mirror.get("name"))


def rename_problem(origin: str, to: str) -> tuple[str, str] | None:
    """Return why a move is refused and what to do instead; None if it changes only the domain.

    Used by `moved:` and by `state mv`.
    """
    if changes_only_domain(origin, to):
        return None
    text = f"{origin} and {to} are different things on a server: only the domain can change"
    advice = _RENAME_HELP.get(_kind_of(origin), _RENAME_HELP[""])
    return text, f"{advice} See docs/how-to/rename-or-split-a-stream.md."


_RENAME_HELP: Final = {
    "stream": (
        "A stream cannot be renamed in place."
        " To give it another name with its messages, write `relocate:` in place of `moved:`."
    ),
    "consumer": (
        "A consumer cannot be renamed in place."
        " Create the new consumer beside the old one, then remove the old one."
    ),
    "kv": (
        "A bucket cannot be renamed in place."
        " Create the new bucket with the old one as a source, then remove the old one."
    ),
    "object_store": (
        "An object store cannot be renamed in place."
        " Create the new one, copy the objects, then remove the old one."
    ),
    "": "Nothing can be renamed in place. Create it under the new name, then remove the old one.",
}


_NOT_RENAMED: Final = {
    "kv": (
        "a bucket cannot get another name: its keys are subjects with its name",
        (
            "Declare the new bucket with the old one as a source, switch the clients, then take"
            " the source and the old bucket out of the files."
        ),
    ),
    "object_store": (
        "an object store cannot get another name: its objects are subjects with its name",
        "Create the new one, copy the objects with a client, then remove the old one.",
    ),
}


def _kind_of(text: str) -> str:
    parts = text.split("/")
    return parts[1] if len(parts) > 1 and not is_glob(parts[1]) else ""
