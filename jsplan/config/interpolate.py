"""References `${var.x}`, `${env.X}`, `${domain}` and `${domain.key}`.

`$${` is a literal `${`; every other `$` stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field

from jsplan.config.findings import Findings, is_placeholder
from jsplan.config.node import Node, count_values, make_mapping, make_unknown
from jsplan.diagnostics import did_you_mean

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAMES = "${var.x}, ${domain}, ${domain.key}, and ${env.X} in connections, backend and sinks"


class Scope(Struct, frozen=True):
    """The names that references may use.

    `environ` is None where `${env.X}` is not allowed. With `allow_unset`, the value of a variable
    that is not set or empty is unknown.
    """

    variables: Mapping[str, Node]
    environ: Mapping[str, str] | None = None
    domain: str | None = None
    domain_vars: Mapping[str, Node] = field(default_factory=dict)
    allow_unset: bool = False


def interpolate(node: Node, scope: Scope, findings: Findings) -> Node:
    """Return the node with all references replaced; the same object if there are none.

    A value that is one reference alone takes the type of what it names. An unresolved reference is
    reported and becomes unknown; in a list it is omitted. What aliases repeat is resolved once.
    """
    return _resolve(node, scope, findings, {})


def _resolve(node: Node, scope: Scope, findings: Findings, known: dict[int, Node]) -> Node:
    if not node.dynamic:
        return node
    value = node.value
    if not isinstance(value, dict | list):
        return _resolve_text(node, scope, findings)
    if (found := known.get(id(node))) is None:
        found = known[id(node)] = _resolve_children(node, scope, findings, known)
    return found


def _resolve_children(node: Node, scope: Scope, findings: Findings, known: dict[int, Node]) -> Node:
    value = node.value
    if isinstance(value, list):
        items = [_resolve(item, scope, findings, known) for item in value]
        return Node(node.place, [item for item in items if not _is_unresolved(item)])
    keys = {key: _unescape_key(key, node, findings) if "${" in key else key for key in value}
    places = {name: node.key_place(key) for key, name in keys.items()}
    return make_mapping(
        node.place,
        {keys[key]: _resolve(item, scope, findings, known) for key, item in value.items()},
        places,
    )


def _unescape_key(key: str, node: Node, findings: Findings) -> str:
    """Return a key with `$${` as `${`; report any reference in it."""
    if any(match[0] != "$${" for match in _REFERENCE.finditer(key)):
        text = f'"{key}" is a key; ${{…}} works in values only'
        hint = "Write the key out, with $${ for a literal ${."
        findings.error("JS113", node.key_place(key), text, hint)
        return key
    return key.replace("$${", "${")


def variables_in(node: Node) -> list[str]:
    """Return the names of the variables that the text of a scalar refers to."""
    found = (match[1] for match in _REFERENCE.finditer(node.raw or "") if match[1])
    return [name.strip().removeprefix("var.") for name in found if name.strip().startswith("var.")]


def _is_unresolved(node: Node) -> bool:
    """Check whether it is the null of a reported reference; a null from the files has a text."""
    return node.value is None and node.raw is None


def _resolve_text(node: Node, scope: Scope, findings: Findings) -> Node:
    raw = node.raw or ""
    only = _REFERENCE.fullmatch(raw)
    if only is not None and only[1] is not None:
        found = _resolve_reference(only[1].strip(), node, scope, findings)
        if found is None or (
            found.raw is None and not findings.allow_values(count_values(found), node)
        ):
            return make_unknown(node.place)
        return _copy_to_place(found, node)
    pieces, kept, end, secret, unknown = [], [], 0, False, False
    references: dict[str, str] = {}
    for match in _REFERENCE.finditer(raw):
        pieces.append(raw[end : match.start()])
        kept.append(pieces[-1])
        end = match.end()
        if match[0] == "$${":
            pieces.append("${")
            kept.append(match[0])
            continue
        found = _resolve_reference(match[1], node, scope, findings)
        if found is None:
            return make_unknown(node.place)
        secret = secret or found.secret
        references |= found.references
        unknown = unknown or found.unknown
        if found.unknown:
            continue
        pieces.append(_embed(found, match[0], node, findings))
        kept.append(found.template or escape(pieces[-1]))
    if unknown:
        return make_unknown(node.place)
    pieces.append(raw[end:])
    text = "".join(pieces)
    out = Node(node.place, text, text)
    out.secret, out.references = secret, references
    out.template = "".join([*kept, raw[end:]]) if references else ""
    return out


def escape(text: str) -> str:
    """Return the text as files have it, where it is no reference."""
    return text.replace("${", "$${")


def _copy_to_place(found: Node, at: Node) -> Node:
    out = Node(at.place, found.value, found.raw)
    out.keys, out.secret, out.unknown = found.keys, found.secret, found.unknown
    out.references, out.template = found.references, found.template
    return out


def _embed(found: Node, reference: str, at: Node, findings: Findings) -> str:
    if found.raw is None or found.value is None:
        kind = (
            "nothing"
            if found.value is None
            else "a list"
            if isinstance(found.value, list)
            else "a mapping"
        )
        text = f"{reference} is {kind} and cannot be put inside text"
        findings.error("JS113", at, text, f"Write {reference} as the whole value.")
        return ""
    return found.raw


def _resolve_reference(name: str | None, at: Node, scope: Scope, findings: Findings) -> Node | None:
    if name is None:
        findings.error("JS113", at, "${ is not closed", "Write }, or $${ for a literal ${.")
        return None
    space, dot, key = name.strip().partition(".")
    if space == "domain":
        return _resolve_domain(key, bool(dot), at, scope, findings)
    if space == "env" and key:
        return _resolve_env(key, at, scope, findings)
    if space == "var" and key:
        found = _look_up_name(f"var.{key}", key, scope.variables, at, findings, "Add it to `vars:`")
        return None if found is not None and _is_unresolved(found) else found
    guess = (
        f" Did you mean ${{var.{name}}}?"
        if name in scope.variables
        else did_you_mean(space, ("var", "env", "domain"))
    )
    findings.error("JS113", at, f"${{{name}}} is not known", f"Known names: {_NAMES}.{guess}")
    return None


def _look_up_name(
    shown: str, key: str, known: Mapping[str, Node], at: Node, findings: Findings, where: str
) -> Node | None:
    found = known.get(key)
    if found is None:
        findings.error(
            "JS111", at, f"${{{shown}}} does not exist", f"{where}.{did_you_mean(key, known)}"
        )
    return found


def _resolve_domain(
    key: str, dotted: bool, at: Node, scope: Scope, findings: Findings
) -> Node | None:
    if scope.domain is None:
        hint = "It is the domain of a resource; use it in a resource's fields."
        findings.error("JS111", at, "${domain} has no meaning here", hint)
        return None
    if not dotted:
        return Node(at.place, scope.domain, scope.domain)
    if is_placeholder(scope.domain):
        return None
    return _look_up_name(
        f"domain.{key}",
        key,
        scope.domain_vars,
        at,
        findings,
        f"Add it to `vars:` of domain {scope.domain}",
    )


def _resolve_env(key: str, at: Node, scope: Scope, findings: Findings) -> Node | None:
    if scope.environ is None:
        hint = f"It works in connections, backend and sinks; use ${{var.{key.lower()}}} instead."
        findings.error("JS112", at, f"${{env.{key}}} is not allowed here", hint)
        return None
    value = scope.environ.get(key)
    if not value and scope.allow_unset:
        return make_unknown(at.place)
    if value is None:
        hint = f"Set it before jsplan runs.{did_you_mean(key, scope.environ)}"
        findings.error("JS111", at, f"the environment variable {key} is not set", hint)
        return None
    found = Node(at.place, value, value)
    found.secret, found.template = True, f"${{env.{key}}}"
    found.references = {value: found.template}
    return found
