"""One Terraform module of .tf files: its variables, locals and providers, and its resources, one for each `count` or `for_each`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from jsplan.config.node import Node, Place, mapping, node_of
from jsplan.converting.model import MAIN, Conversion, Owner, Teller
from jsplan.converting.terraform import provider
from jsplan.converting.terraform.expressions import Scope, Unknown, value_of
from jsplan.converting.terraform.hcl import Attribute
from jsplan.converting.terraform.hcl import Block as HclBlock
from jsplan.converting.terraform.provider_words import META
from jsplan.converting.terraform.resources import KINDS, LEFT_OUT, Block, convert_block, left_out


def convert_module(files: Sequence[HclBlock], values: Sequence[HclBlock], out: Conversion) -> None:
    """Add everything of the module. `values` are its .tfvars files, the later ones counting more."""
    _Module(files, values, out).read()


@dataclass(slots=True)
class _Module:
    files: Sequence[HclBlock]
    values: Sequence[HclBlock]
    out: Conversion
    variables: dict[str, Attribute | None] = field(default_factory=dict)
    locals: dict[str, Attribute] = field(default_factory=dict)
    named: dict[tuple[str, str], HclBlock] = field(default_factory=dict)
    working: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Everything that is declared first, then the resources."""
        for block in self._all("variable"):
            self.variables[block.labels[0]] = block.attributes.get("default")
        for given in self.values:
            self.variables |= given.attributes
        for block in self._all("locals"):
            self.locals |= block.attributes
        resources = [block for block in self._all("resource") if len(block.labels) == 2]
        self.named = {(block.labels[0], block.labels[1]): block for block in resources if block.labels[0] in KINDS}
        for block in self._all("provider"):
            if block.labels[:1] == ("jetstream",):
                provider.connection(block, lambda one: self._value(one, {}), self.out)
        for block in self._all("module"):
            self.out.general.lost(
                block.place, f"module {block.labels[0]} is not followed", "Convert its folder too, or use `terraform show -json`."
            )
        for block in resources:
            if block.labels[0] in KINDS or block.labels[0] in LEFT_OUT:
                self._resource(block)

    def _all(self, kind: str) -> Iterator[HclBlock]:
        for file in self.files:
            yield from file.of(kind)

    # --- resources -------------------------------------------------------------------------------------------

    def _resource(self, block: HclBlock) -> None:
        label = ".".join(block.labels)
        if block.labels[0] in LEFT_OUT:
            left_out(block.labels[0], label, block.place, self.out)
            return
        try:
            instances = list(self._instances(block))
        except (Unknown, TypeError, ValueError) as why:
            self.out.general.lost(block.place, f"{label} is not carried over: how often it is made is not known ({why})", _SHOW)
            return
        for suffix, own in instances:
            tell = self.out.general
            node = self._node(block, f"{label}{suffix}", own, tell)
            settings = self._settings(block, label, own, tell)
            convert_block(
                Block(block.labels[0], f"{label}{suffix}", node, written=True, owner=self._owner(block), settings=settings), self.out
            )

    def _instances(self, block: HclBlock) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each instance: what Terraform puts behind the label, and what `each` and `count` are in it."""
        if (many := block.attributes.get("for_each")) is not None:
            found = self._value(many, {})
            pairs = found.items() if isinstance(found, dict) else ((key, key) for key in found)
            yield from ((f'["{key}"]', {"each": {"key": key, "value": value}}) for key, value in pairs)
        elif (count := block.attributes.get("count")) is not None:
            yield from ((f"[{number}]", {"count": {"index": number}}) for number in range(int(self._value(count, {}))))
        else:
            yield "", {}

    def _node(self, block: HclBlock, label: str, own: dict[str, Any], tell: Teller) -> Node:
        """The attributes and blocks with what they come to; what is not known is told and left out."""
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for name, attribute in block.attributes.items():
            if name in META:
                continue
            try:
                values[name] = node_of(self._value(attribute, own), attribute.place)
                keys[name] = attribute.place
            except Unknown as why:
                tell.lost(attribute.place, f"{label}: {name} is not carried over: {why}", _SHOW)
        for inner in block.blocks:
            if inner.type == "dynamic":
                tell.lost(inner.place, f"{label}: dynamic {inner.labels[0]} is not carried over", _SHOW)
            elif inner.type not in META:
                keys.setdefault(inner.type, inner.place)
                values.setdefault(inner.type, Node(inner.place, [])).value.append(self._node(inner, label, own, tell))
        return mapping(block.place, values, keys)

    def _settings(self, block: HclBlock, label: str, own: dict[str, Any], tell: Teller) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for inner in block.of("lifecycle"):
            guard = inner.attributes.get("prevent_destroy")
            if guard is not None and self._guards(guard, own):
                settings = {"lifecycle": {"prevent_destroy": True}}
            for name, attribute in inner.attributes.items():
                if name != "prevent_destroy":
                    advice = (
                        "Name fields in `lifecycle: {ignore_changes: […]}`."
                        if name == "ignore_changes"
                        else "jsplan orders by what depends on what."
                    )
                    tell.lost(attribute.place, f"{label}: lifecycle {name} is not carried over", advice)
        return settings

    def _guards(self, guard: Attribute, own: dict[str, Any]) -> bool:
        """Whether it is on; what cannot be worked out guards."""
        try:
            return self._value(guard, own) is not False
        except Unknown:
            return True

    def _owner(self, block: HclBlock) -> Owner:
        chosen = block.attributes.get("provider")
        if chosen is None:
            return Owner()
        names: list[Any] = []

        def remember(path: list[Any]) -> Any:
            names.extend(path)

        with suppress(Unknown):
            value_of(chosen.expression, remember)
        return Owner(str(names[1]) if len(names) > 1 else MAIN)

    # --- values ----------------------------------------------------------------------------------------------

    def _value(self, attribute: Attribute, own: dict[str, Any]) -> Any:
        return value_of(attribute.expression, self._scope(own))

    def _scope(self, own: dict[str, Any]) -> Scope:
        def find(path: list[Any]) -> Any:
            root, *steps = path
            if root in own:
                return _into(own[root], steps)
            if root in ("var", "local") and steps:
                return _into(self._named(root, steps[0]), steps[1:])
            if root in KINDS and len(steps) >= 2:
                return self._of_resource(root, steps)
            raise Unknown(f"{_written(path)} is not in these files")

        return find

    def _named(self, root: str, name: str) -> Any:
        declared = self.variables if root == "var" else self.locals
        attribute = declared.get(name)
        if attribute is None:
            raise Unknown(f"{root}.{name} has no value in these files")
        return self._once(f"{root}.{name}", attribute, {})

    def _once(self, key: str, attribute: Attribute, own: dict[str, Any]) -> Any:
        """The value of something that has a name, which may not refer to itself."""
        if key in self.working:
            raise Unknown(f"{key} refers to itself")
        self.working.append(key)
        try:
            return self._value(attribute, own)
        finally:
            self.working.pop()

    def _of_resource(self, root: str, steps: list[Any]) -> Any:
        """`jetstream_kv_bucket.CONFIG.name`, also of one of many (`["a"]`); the id of a stream is made of its name."""
        label, *between, word = steps
        block = self.named.get((root, label))
        if block is None or (word == "id" and root != "jetstream_stream"):
            raise Unknown(f"{_written([root, *steps])} is not in these files")
        own = {"each": {"key": between[0], "value": between[0]}, "count": {"index": between[0]}} if between else {}
        if between and (many := block.attributes.get("for_each")) is not None and isinstance(found := self._value(many, {}), dict):
            own["each"]["value"] = found[between[0]]
        attribute = block.attributes.get("name" if word == "id" else word)
        if attribute is None:
            raise Unknown(f"{word} of {label} is not written")
        value = self._once(f"{root}.{label}.{word}", attribute, own)
        return f"JETSTREAM_STREAM_{value}" if word == "id" else value


_SHOW: Final = "`terraform show -json` has all values: give that file instead."


def _into(value: Any, steps: list[Any]) -> Any:
    for step in steps:
        value = value[step]
    return value


def _written(path: list[Any]) -> str:
    return "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
