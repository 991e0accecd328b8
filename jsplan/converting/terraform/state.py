"""`terraform show -json` of a state or a plan, and terraform.tfstate itself: every value is there, nothing is filled in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsplan.config.node import Node
from jsplan.converting.model import MAIN, Conversion, Owner
from jsplan.converting.terraform.resources import KINDS, LEFT_OUT, Block, convert_block


def is_terraform(node: Node) -> bool:
    """Whether a JSON document is one of the three."""
    return any(node.get(key) is not None for key in ("values", "planned_values", "prior_state", "terraform_version"))


def convert_state(node: Node, out: Conversion) -> None:
    """Add every resource of the jetstream provider in the document."""
    version = _value(node, "version")
    if isinstance(version, int) and version < 4:
        out.general.unreadable(
            node, f"a state of version {version} is too old to be read", "Let a newer Terraform write it again, or use the .tf files."
        )
        return
    blocks = list(_of_state(node)) if node.get("resources") is not None else list(_of_show(node))
    for block in blocks:
        convert_block(block, out)
    if not blocks:
        out.general.lost(node, "has nothing of the jetstream provider", "Give the state that has its resources.")


def _of_show(node: Node) -> Iterator[Block]:
    """`values` of a state; of a plan, what is planned."""
    values = node.get("values") or node.get("planned_values")
    root = values.get("root_module") if values is not None else None
    if root is not None:
        yield from _of_module(root)


def _of_module(module: Node) -> Iterator[Block]:
    for one in _list(module, "resources"):
        kind = _value(one, "type")
        if (kind in KINDS or kind in LEFT_OUT) and _value(one, "mode") in (None, "managed"):
            values = one.get("values")
            label = str(_value(one, "address") or f"{kind}.{_value(one, 'name')}")
            if values is not None and isinstance(values.value, dict):
                yield Block(str(kind), label, values, written=False, owner=_owner(_value(one, "provider_config_key")))
    for child in _list(module, "child_modules"):
        yield from _of_module(child)


def _of_state(node: Node) -> Iterator[Block]:
    for one in _list(node, "resources"):
        kind = _value(one, "type")
        if (kind not in KINDS and kind not in LEFT_OUT) or _value(one, "mode") not in (None, "managed"):
            continue
        for instance in _list(one, "instances"):
            attributes = instance.get("attributes")
            module, key = _value(one, "module"), _value(instance, "index_key")
            label = f"{f'{module}.' if module else ''}{kind}.{_value(one, 'name')}{f'[{key!r}]' if key is not None else ''}"
            if attributes is not None and isinstance(attributes.value, dict):
                yield Block(str(kind), label, attributes, written=False, owner=_owner(_alias(str(_value(one, "provider") or ""))))


def _alias(provider: str) -> str | None:
    """`provider["registry.terraform.io/nats-io/jetstream"].leaf` has the alias leaf."""
    tail = provider.rpartition("]")[2]
    return tail.lstrip(".") or None


def _owner(alias: Any) -> Owner:
    name = str(alias).rpartition(":")[2].rpartition(".")[2] if alias else MAIN
    return Owner(MAIN if name == "jetstream" else name)


def _value(node: Node, key: str) -> Any:
    found = node.get(key)
    return found.value if found is not None else None


def _list(node: Node, key: str) -> list[Node]:
    found = _value(node, key)
    return found if isinstance(found, list) else []
