"""One Terraform module of .tf files: variables, locals, providers and resources.

Resources are expanded by `count` and `for_each`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from jsplan.config.node import Node, Place, from_plain, make_mapping
from jsplan.converting.model import DEFAULT_CONNECTION, Conversion, NoteWriter, Owner
from jsplan.converting.terraform import provider
from jsplan.converting.terraform.entries import KNOWN_TYPES, convert_known
from jsplan.converting.terraform.expressions import Scope, UnknownValue, evaluate
from jsplan.converting.terraform.hcl import Attribute
from jsplan.converting.terraform.hcl import Block as HclBlock
from jsplan.converting.terraform.provider_fields import META_ARGUMENTS
from jsplan.converting.terraform.resources import (
    RESOURCE_TYPES,
    SHOW_HINT,
    UNSUPPORTED_TYPES,
    ResourceInstance,
    report_unsupported,
)


def convert_module(files: Sequence[HclBlock], values: Sequence[HclBlock], out: Conversion) -> None:
    """Add everything of the module. `values` are its .tfvars files; later ones override."""
    _Module(files, values, out).read()


class _Module(Struct):
    files: Sequence[HclBlock]
    values: Sequence[HclBlock]
    out: Conversion
    variables: dict[str, Attribute | None] = field(default_factory=dict)
    locals: dict[str, Attribute] = field(default_factory=dict)
    named_blocks: dict[tuple[str, str], HclBlock] = field(default_factory=dict)
    evaluating: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read all declarations first, then the resources."""
        for block in self._blocks_of("variable"):
            self.variables[block.labels[0]] = block.attributes.get("default")
        for given in self.values:
            self.variables |= given.attributes
        for block in self._blocks_of("locals"):
            self.locals |= block.attributes
        resources = [block for block in self._blocks_of("resource") if len(block.labels) == 2]
        self.named_blocks = {
            (block.labels[0], block.labels[1]): block
            for block in resources
            if block.labels[0] in RESOURCE_TYPES
        }
        for block in self._blocks_of("provider"):
            if block.labels[:1] == ("jetstream",):
                provider.convert_provider(block, lambda one: self._evaluate(one, {}), self.out)
        for block in self._blocks_of("module"):
            self.out.general_notes.not_converted(
                block.place,
                f"module {block.labels[0]} is not followed",
                "Convert its folder too, or use `terraform show -json`.",
            )
        for block in resources:
            if block.labels[0] in KNOWN_TYPES:
                self._convert_resource(block)

    def _blocks_of(self, kind: str) -> Iterator[HclBlock]:
        for file in self.files:
            yield from file.blocks_of(kind)

    # --- resources --------------------------------------------------------------------------------

    def _convert_resource(self, block: HclBlock) -> None:
        label = ".".join(block.labels)
        if block.labels[0] in UNSUPPORTED_TYPES:
            report_unsupported(block.labels[0], label, block.place, self.out)
            return
        try:
            instances = list(self._instances(block))
        except (UnknownValue, TypeError, ValueError) as why:
            self.out.general_notes.not_converted(
                block.place,
                f"{label} is not carried over: the number of its instances is unknown ({why})",
                SHOW_HINT,
            )
            return
        for suffix, own in instances:
            notes = self.out.general_notes
            node = self._evaluate_body(block, f"{label}{suffix}", own, notes)
            settings = self._settings(block, label, own, notes)
            instance = ResourceInstance(
                block.labels[0],
                f"{label}{suffix}",
                node,
                is_source=True,
                owner=self._owner(block),
                settings=settings,
            )
            convert_known(instance, self.out)

    def _instances(self, block: HclBlock) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the suffix of each instance's label, and its `each` and `count`."""
        if (many := block.attributes.get("for_each")) is not None:
            found = self._evaluate(many, {})
            pairs = found.items() if isinstance(found, dict) else ((key, key) for key in found)
            yield from (
                (f'["{key}"]', {"each": {"key": key, "value": value}}) for key, value in pairs
            )
        elif (count := block.attributes.get("count")) is not None:
            yield from (
                (f"[{number}]", {"count": {"index": number}})
                for number in range(int(self._evaluate(count, {})))
            )
        else:
            yield "", {}

    def _evaluate_body(
        self, block: HclBlock, label: str, own: dict[str, Any], notes: NoteWriter
    ) -> Node:
        """Evaluate the attributes and blocks; note and omit unknown values."""
        values: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        for name, attribute in block.attributes.items():
            if name in META_ARGUMENTS:
                continue
            try:
                values[name] = from_plain(self._evaluate(attribute, own), attribute.place)
                keys[name] = attribute.place
            except UnknownValue as why:
                notes.not_converted(
                    attribute.place, f"{label}: {name} is not carried over: {why}", SHOW_HINT
                )
        for inner in block.blocks:
            if inner.type == "dynamic":
                notes.not_converted(
                    inner.place,
                    f"{label}: dynamic {inner.labels[0]} is not carried over",
                    SHOW_HINT,
                )
            elif inner.type not in META_ARGUMENTS:
                keys.setdefault(inner.type, inner.place)
                values.setdefault(inner.type, Node(inner.place, [])).value.append(
                    self._evaluate_body(inner, label, own, notes)
                )
        return make_mapping(block.place, values, keys)

    def _settings(
        self, block: HclBlock, label: str, own: dict[str, Any], notes: NoteWriter
    ) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for inner in block.blocks_of("lifecycle"):
            guard = inner.attributes.get("prevent_destroy")
            if guard is not None and self._is_guard_on(guard, own):
                settings = {"lifecycle": {"prevent_destroy": True}}
            for name, attribute in inner.attributes.items():
                if name != "prevent_destroy":
                    advice = (
                        "Name fields in `lifecycle: {ignore_changes: […]}`."
                        if name == "ignore_changes"
                        else "jsplan derives the order from the dependencies."
                    )
                    notes.not_converted(
                        attribute.place, f"{label}: lifecycle {name} is not carried over", advice
                    )
        return settings

    def _is_guard_on(self, guard: Attribute, own: dict[str, Any]) -> bool:
        """Check whether it is on; a guard that cannot be evaluated is on."""
        try:
            return self._evaluate(guard, own) is not False
        except UnknownValue:
            return True

    def _owner(self, block: HclBlock) -> Owner:
        chosen = block.attributes.get("provider")
        if chosen is None:
            return Owner()
        names: list[Any] = []

        def remember(path: list[Any]) -> Any:
            names.extend(path)

        with suppress(UnknownValue):
            evaluate(chosen.expression, remember)
        return Owner(str(names[1]) if len(names) > 1 else DEFAULT_CONNECTION)

    # --- values -----------------------------------------------------------------------------------

    def _evaluate(self, attribute: Attribute, own: dict[str, Any]) -> Any:
        return evaluate(attribute.expression, self._scope(own))

    def _scope(self, own: dict[str, Any]) -> Scope:
        def find(path: list[Any]) -> Any:
            root, *steps = path
            if root in own:
                return _follow_path(own[root], steps)
            if root in ("var", "local") and steps:
                return _follow_path(self._look_up(root, steps[0]), steps[1:])
            if root in RESOURCE_TYPES and len(steps) >= 2:
                return self._resource_attribute(root, steps)
            raise UnknownValue(f"{_format_path(path)} is not in these files")

        return find

    def _look_up(self, root: str, name: str) -> Any:
        declared = self.variables if root == "var" else self.locals
        attribute = declared.get(name)
        if attribute is None:
            raise UnknownValue(f"{root}.{name} has no value in these files")
        return self._evaluate_named(f"{root}.{name}", attribute, {})

    def _evaluate_named(self, key: str, attribute: Attribute, own: dict[str, Any]) -> Any:
        """Evaluate something with a name, which may not refer to itself."""
        if key in self.evaluating:
            raise UnknownValue(f"{key} refers to itself")
        self.evaluating.append(key)
        try:
            return self._evaluate(attribute, own)
        finally:
            self.evaluating.pop()

    def _resource_attribute(self, root: str, steps: list[Any]) -> Any:
        """Evaluate `jetstream_kv_bucket.CONFIG.name`, also of one instance (`["a"]`).

        The id of a stream is built from its name.
        """
        label, *between, word = steps
        block = self.named_blocks.get((root, label))
        if block is None or (word == "id" and root != "jetstream_stream"):
            raise UnknownValue(f"{_format_path([root, *steps])} is not in these files")
        own = (
            {"each": {"key": between[0], "value": between[0]}, "count": {"index": between[0]}}
            if between
            else {}
        )
        if (
            between
            and (many := block.attributes.get("for_each")) is not None
            and isinstance(found := self._evaluate(many, {}), dict)
        ):
            own["each"]["value"] = found[between[0]]
        attribute = block.attributes.get("name" if word == "id" else word)
        if attribute is None:
            raise UnknownValue(f"{word} of {label} is not written")
        value = self._evaluate_named(f"{root}.{label}.{word}", attribute, own)
        return f"JETSTREAM_STREAM_{value}" if word == "id" else value


def _follow_path(value: Any, steps: list[Any]) -> Any:
    for step in steps:
        value = value[step]
    return value


def _format_path(path: list[Any]) -> str:
    return "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(
        "."
    )
