"""`terraform show -json` of a state or a plan, and terraform.tfstate: with every value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsplan.config.node import Node
from jsplan.converting.model import DEFAULT_CONNECTION, Conversion, Owner
from jsplan.converting.terraform.entries import KNOWN_TYPES, convert_known
from jsplan.converting.terraform.resources import ResourceInstance


def is_terraform(node: Node) -> bool:
    """Check whether a JSON document is one of the three."""
    return any(
        node.get(key) is not None
        for key in ("values", "planned_values", "prior_state", "terraform_version")
    )


def convert_state(node: Node, out: Conversion) -> None:
    """Add every resource of the jetstream provider in the document."""
    version = node.get_value("version")
    if isinstance(version, int) and version < 4:
        out.general_notes.unreadable(
            node,
            f"a state of version {version} is too old to be read",
            "Write it again with a newer Terraform, or use the .tf files.",
        )
        return
    blocks = (
        list(_state_instances(node))
        if node.get("resources") is not None
        else list(_show_instances(node))
    )
    for block in blocks:
        convert_known(block, out)
    if not blocks:
        out.general_notes.not_converted(
            node, "has nothing of the jetstream provider", "Give the state that has its resources."
        )


def _show_instances(node: Node) -> Iterator[ResourceInstance]:
    """Yield `values` of a state; of a plan, the planned values."""
    values = node.get("values") or node.get("planned_values")
    root = values.get("root_module") if values is not None else None
    if root is not None:
        yield from _module_instances(root)


def _module_instances(module: Node) -> Iterator[ResourceInstance]:
    for one in _list(module, "resources"):
        kind = one.get_value("type")
        if kind in KNOWN_TYPES and one.get_value("mode") in (None, "managed"):
            values = one.get("values")
            label = str(one.get_value("address") or f"{kind}.{one.get_value('name')}")
            if values is not None and isinstance(values.value, dict):
                yield ResourceInstance(
                    str(kind),
                    label,
                    values,
                    is_source=False,
                    owner=_owner_of_alias(one.get_value("provider_config_key")),
                )
    for child in _list(module, "child_modules"):
        yield from _module_instances(child)


def _state_instances(node: Node) -> Iterator[ResourceInstance]:
    for one in _list(node, "resources"):
        kind = one.get_value("type")
        if kind not in KNOWN_TYPES or one.get_value("mode") not in (None, "managed"):
            continue
        for instance in _list(one, "instances"):
            attributes = instance.get("attributes")
            module, key = one.get_value("module"), instance.get_value("index_key")
            instance_key = f"[{key!r}]" if key is not None else ""
            label = f"{f'{module}.' if module else ''}{kind}.{one.get_value('name')}{instance_key}"
            if attributes is not None and isinstance(attributes.value, dict):
                yield ResourceInstance(
                    str(kind),
                    label,
                    attributes,
                    is_source=False,
                    owner=_owner_of_alias(_provider_alias(str(one.get_value("provider") or ""))),
                )


def _provider_alias(provider: str) -> str | None:
    """Return the alias: leaf for `provider["registry.terraform.io/nats-io/jetstream"].leaf`."""
    tail = provider.rpartition("]")[2]
    return tail.lstrip(".") or None


def _owner_of_alias(alias: Any) -> Owner:
    name = str(alias).rpartition(":")[2].rpartition(".")[2] if alias else DEFAULT_CONNECTION
    return Owner(DEFAULT_CONNECTION if name == "jetstream" else name)


def _list(node: Node, key: str) -> list[Node]:
    found = node.get_value(key)
    return found if isinstance(found, list) else []
