"""Evaluates HCL expressions, as far as their values are in the files.

Supported are literals, arithmetic, variables, locals and a few functions.
"""

from __future__ import annotations

import operator
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.converting.terraform.hcl import child_trees, identifier_text

if TYPE_CHECKING:
    from jsplan.converting.terraform.hcl import Expression

_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_NAMED_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_HEREDOC: Final = re.compile(
    r"<<(-?)[A-Za-z][\w.-]*\r?\n(.*?)[ \t]*[A-Za-z][\w.-]*\r?\n?\Z", re.DOTALL
)


class UnknownValue(Exception):
    """The value is not in the files; the message says why."""


def _divide(one: Any, other: Any) -> Any:
    if not other:
        raise UnknownValue("division by zero")
    return one // other if one % other == 0 else one / other


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide, "%": operator.mod,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "&&": lambda one, other: one and other,
    "||": lambda one, other: one or other,
}  # fmt: skip
_LITERALS: Final = {"true": True, "false": False, "null": None}


def to_template_text(value: Any) -> str:
    """Return the value as Terraform writes it into text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if value is None or isinstance(value, list | dict):
        raise UnknownValue("a list or nothing is no text")
    return str(value)


def _flatten(*lists: Any) -> list[Any]:
    return [item for one in lists for item in one]


def _merge(*maps: Any) -> dict[str, Any]:
    return {key: value for one in maps for key, value in one.items()}


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "toset": lambda value: list(dict.fromkeys(value)), "tolist": list, "tomap": dict,
    "tonumber": lambda value: _number(str(value)), "tostring": to_template_text,
    "lower": lambda text: text.lower(), "upper": lambda text: text.upper(), "length": len,
    "concat": _flatten, "merge": _merge,
    "join": lambda mark, items: mark.join(map(to_template_text, items)), "keys": sorted,
    "replace": lambda text, old, new: text.replace(old, new),
    "format": lambda text, *values: text.replace("%d", "%s") % tuple(map(to_template_text, values)),
}  # fmt: skip

#: Returns the value of a path such as `var.keep` or `jetstream_stream.ORDERS.id`;
#: raises UnknownValue.
Scope = Callable[[list[Any]], Any]


def evaluate(node: Expression, scope: Scope) -> Any:
    """Return the value as plain Python; raises UnknownValue if it is not in the files."""
    handler = _HANDLERS.get(str(node.data))
    if handler is None:
        raise UnknownValue(f"{str(node.data).replace('_', ' ')} is not evaluated here")
    try:
        return handler(node, scope)
    except UnknownValue:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise UnknownValue(f"it cannot be evaluated ({error})") from None


# --- handlers, by the name of the rule ------------------------------------------------------------


def _evaluate_term(node: Expression, scope: Scope) -> Any:
    inner = list(child_trees(node))
    if inner and inner[0].data == "identifier":
        return scope([identifier_text(inner[0])])
    return evaluate(inner[0], scope)


def _number(text: str) -> Any:
    found = float(text)
    return int(found) if found.is_integer() else found


def _evaluate_string(node: Expression, scope: Scope) -> Any:
    parts = [_evaluate_part(part, scope) for part in child_trees(node)]
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    return "".join(part if isinstance(part, str) else to_template_text(part) for part in parts)


def _evaluate_part(node: Expression, scope: Scope) -> Any:
    inner = list(child_trees(node))
    if inner:
        if inner[0].data != "interpolation":
            raise UnknownValue("a template with if or for is not evaluated here")
        return evaluate(next(child_trees(inner[0])), scope)
    text = str(node.children[0])
    if text.startswith(("$${", "%%{")):
        return text[1:]
    return _ESCAPE.sub(
        lambda found: (
            chr(int(found[1] or found[2], 16))
            if found[1] or found[2]
            else _NAMED_ESCAPES.get(found[3], found[3])
        ),
        text,
    )


def _evaluate_heredoc(node: Expression, _: Scope) -> str:
    found = _HEREDOC.fullmatch(str(node.children[0]))
    if found is None or "${" in found[2].replace("$${", ""):
        raise UnknownValue("a heredoc with ${…} is not evaluated here")
    text = textwrap.dedent(found[2]) if found[1] else found[2]
    return text.replace("$${", "${")


def _evaluate_tuple(node: Expression, scope: Scope) -> list[Any]:
    return [evaluate(item, scope) for item in child_trees(node)]


def _evaluate_object(node: Expression, scope: Scope) -> dict[str, Any]:
    out = {}
    for element in child_trees(node):
        key, value = child_trees(element)
        out[_evaluate_key(key, scope)] = evaluate(value, scope)
    return out


def _evaluate_key(node: Expression, scope: Scope) -> str:
    inner = next(child_trees(node))
    bare = list(child_trees(inner))
    return (
        identifier_text(inner)
        if inner.data == "keyword" or (bare and bare[0].data == "identifier")
        else to_template_text(evaluate(inner, scope))
    )


def _evaluate_binary(node: Expression, scope: Scope) -> Any:
    left, term = list(child_trees(node))[:2]
    sign, right = child_trees(term)
    return _OPERATORS[str(sign.children[0])](evaluate(left, scope), evaluate(right, scope))


def _evaluate_unary(node: Expression, scope: Scope) -> Any:
    value = evaluate(next(child_trees(node)), scope)
    return not value if str(node.children[0]) == "!" else -value


def _evaluate_conditional(node: Expression, scope: Scope) -> Any:
    test, then, otherwise = child_trees(node)
    return evaluate(then if evaluate(test, scope) else otherwise, scope)


def _evaluate_call(node: Expression, scope: Scope) -> Any:
    name, *rest = child_trees(node)
    function = _FUNCTIONS.get(identifier_text(name))
    if function is None:
        raise UnknownValue(f"the function {identifier_text(name)} is not evaluated here")
    return function(*(evaluate(item, scope) for item in child_trees(rest[0])) if rest else ())


def _evaluate_path(node: Expression, scope: Scope) -> Any:
    """Evaluate `a.b["c"].d`: a path from a name, or into a value that is written here."""
    steps = _path_steps(node, scope)
    if isinstance(steps[0], InlineValue):
        value = steps[0].value
        for step in steps[1:]:
            value = value[step]
        return value
    return scope(steps)


class InlineValue:
    """The beginning of a path that is a value, not a name."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _path_steps(node: Expression, scope: Scope) -> list[Any]:
    inner = list(child_trees(node))
    if node.data == "expr_term":
        if inner[0].data == "identifier":
            return [identifier_text(inner[0])]
        return (
            _path_steps(inner[0], scope)
            if inner[0].data in ("get_attr_expr_term", "index_expr_term")
            else [InlineValue(evaluate(node, scope))]
        )
    base, step = inner[0], inner[1]
    if step.data == "get_attr":
        return [*_path_steps(base, scope), identifier_text(next(child_trees(step)))]
    index = list(child_trees(step))
    return [
        *_path_steps(base, scope),
        evaluate(index[0], scope) if index else int(str(step.children[-1])),
    ]


_HANDLERS: Final[Mapping[str, Callable[[Expression, Scope], Any]]] = {
    "expr_term": _evaluate_term, "int_lit": lambda node, _: int(str(node.children[0])),
    "float_lit": lambda node, _: _number(str(node.children[0])),
    "literal_value": lambda node, _: _LITERALS[str(node.children[0])], "string": _evaluate_string,
    "heredoc_template": _evaluate_heredoc, "heredoc_template_trim": _evaluate_heredoc,
    "tuple": _evaluate_tuple, "object": _evaluate_object, "binary_op": _evaluate_binary,
    "unary_op": _evaluate_unary, "conditional": _evaluate_conditional,
    "function_call": _evaluate_call, "get_attr_expr_term": _evaluate_path,
    "index_expr_term": _evaluate_path,
}  # fmt: skip
