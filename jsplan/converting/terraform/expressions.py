"""What an expression of HCL comes to, as far as that is written in the files: literals, arithmetic, variables, locals, a few functions."""

from __future__ import annotations

import operator
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.converting.terraform.hcl import trees, word

if TYPE_CHECKING:
    from jsplan.converting.terraform.hcl import Expression

_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_NAMED: Final = {"n": "\n", "t": "\t", "r": "\r"}
_HEREDOC: Final = re.compile(r"<<(-?)[A-Za-z][\w.-]*\r?\n(.*?)[ \t]*[A-Za-z][\w.-]*\r?\n?\Z", re.DOTALL)


class Unknown(Exception):
    """The value is not in the files; the message says why."""


def _divide(one: Any, other: Any) -> Any:
    if not other:
        raise Unknown("division by zero")
    return one // other if one % other == 0 else one / other


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide, "%": operator.mod,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "&&": lambda one, other: one and other, "||": lambda one, other: one or other,
}  # fmt: skip
_LITERALS: Final = {"true": True, "false": False, "null": None}


def shown(value: Any) -> str:
    """The value as Terraform writes it into text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if value is None or isinstance(value, list | dict):
        raise Unknown("a list or nothing is no text")
    return str(value)


def _flat(*lists: Any) -> list[Any]:
    return [item for one in lists for item in one]


def _merged(*maps: Any) -> dict[str, Any]:
    return {key: value for one in maps for key, value in one.items()}


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "toset": lambda value: list(dict.fromkeys(value)), "tolist": list, "tomap": dict, "tonumber": lambda value: _number(str(value)),
    "tostring": shown, "lower": lambda text: text.lower(), "upper": lambda text: text.upper(), "length": len,
    "concat": _flat, "merge": _merged, "join": lambda mark, items: mark.join(map(shown, items)), "keys": sorted,
    "replace": lambda text, old, new: text.replace(old, new),
    "format": lambda text, *values: text.replace("%d", "%s") % tuple(map(shown, values)),
}  # fmt: skip

#: Finds what a path such as `var.keep` or `jetstream_stream.ORDERS.id` comes to; raises Unknown.
Scope = Callable[[list[Any]], Any]


def value_of(node: Expression, scope: Scope) -> Any:
    """The value as plain Python; raises Unknown where it is not in the files."""
    handler = _HANDLERS.get(str(node.data))
    if handler is None:
        raise Unknown(f"{str(node.data).replace('_', ' ')} is not worked out here")
    try:
        return handler(node, scope)
    except Unknown:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise Unknown(f"it cannot be worked out ({error})") from None


# --- handlers, by the name of the rule ------------------------------------------------------------------------


def _first(node: Expression, scope: Scope) -> Any:
    inner = list(trees(node))
    if inner and inner[0].data == "identifier":
        return scope([word(inner[0])])
    return value_of(inner[0], scope)


def _number(text: str) -> Any:
    found = float(text)
    return int(found) if found.is_integer() else found


def _string(node: Expression, scope: Scope) -> Any:
    parts = [_part(part, scope) for part in trees(node)]
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    return "".join(part if isinstance(part, str) else shown(part) for part in parts)


def _part(node: Expression, scope: Scope) -> Any:
    inner = list(trees(node))
    if inner:
        if inner[0].data != "interpolation":
            raise Unknown("a template with if or for is not worked out here")
        return value_of(next(trees(inner[0])), scope)
    text = str(node.children[0])
    if text.startswith(("$${", "%%{")):
        return text[1:]
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)) if found[1] or found[2] else _NAMED.get(found[3], found[3]), text)


def _heredoc(node: Expression, _: Scope) -> str:
    found = _HEREDOC.fullmatch(str(node.children[0]))
    if found is None or "${" in found[2].replace("$${", ""):
        raise Unknown("a heredoc with ${…} is not worked out here")
    text = textwrap.dedent(found[2]) if found[1] else found[2]
    return text.replace("$${", "${")


def _tuple(node: Expression, scope: Scope) -> list[Any]:
    return [value_of(item, scope) for item in trees(node)]


def _object(node: Expression, scope: Scope) -> dict[str, Any]:
    out = {}
    for element in trees(node):
        key, value = trees(element)
        out[_key(key, scope)] = value_of(value, scope)
    return out


def _key(node: Expression, scope: Scope) -> str:
    inner = next(trees(node))
    bare = list(trees(inner))
    return word(inner) if inner.data == "keyword" or (bare and bare[0].data == "identifier") else shown(value_of(inner, scope))


def _binary(node: Expression, scope: Scope) -> Any:
    left, term = list(trees(node))[:2]
    sign, right = trees(term)
    return _OPERATORS[str(sign.children[0])](value_of(left, scope), value_of(right, scope))


def _unary(node: Expression, scope: Scope) -> Any:
    value = value_of(next(trees(node)), scope)
    return not value if str(node.children[0]) == "!" else -value


def _conditional(node: Expression, scope: Scope) -> Any:
    test, then, otherwise = trees(node)
    return value_of(then if value_of(test, scope) else otherwise, scope)


def _call(node: Expression, scope: Scope) -> Any:
    name, *rest = trees(node)
    function = _FUNCTIONS.get(word(name))
    if function is None:
        raise Unknown(f"the function {word(name)} is not worked out here")
    return function(*(value_of(item, scope) for item in trees(rest[0])) if rest else ())


def _path(node: Expression, scope: Scope) -> Any:
    """`a.b["c"].d`: a path from a name, or into a value that is written here."""
    steps = _steps(node, scope)
    if isinstance(steps[0], Known):
        value = steps[0].value
        for step in steps[1:]:
            value = value[step]
        return value
    return scope(steps)


class Known:
    """The beginning of a path that is no name but a value."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _steps(node: Expression, scope: Scope) -> list[Any]:
    inner = list(trees(node))
    if node.data == "expr_term":
        if inner[0].data == "identifier":
            return [word(inner[0])]
        return _steps(inner[0], scope) if inner[0].data in ("get_attr_expr_term", "index_expr_term") else [Known(value_of(node, scope))]
    base, step = inner[0], inner[1]
    if step.data == "get_attr":
        return [*_steps(base, scope), word(next(trees(step)))]
    index = list(trees(step))
    return [*_steps(base, scope), value_of(index[0], scope) if index else int(str(step.children[-1]))]


_HANDLERS: Final[Mapping[str, Callable[[Expression, Scope], Any]]] = {
    "expr_term": _first, "int_lit": lambda node, _: int(str(node.children[0])), "float_lit": lambda node, _: _number(str(node.children[0])),
    "literal_value": lambda node, _: _LITERALS[str(node.children[0])], "string": _string, "heredoc_template": _heredoc,
    "heredoc_template_trim": _heredoc, "tuple": _tuple, "object": _object, "binary_op": _binary, "unary_op": _unary,
    "conditional": _conditional, "function_call": _call, "get_attr_expr_term": _path, "index_expr_term": _path,
}  # fmt: skip
