"""Rules of subject transforms: which `src` and `dest` the server accepts.

Measured on nats-server 2.15 (10146, 10154, 10156, and 10052 for republish).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from jsplan.subjects import is_valid

_FUNCTION = re.compile(r"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}")
_NUMBER = re.compile(r"\s*-?\d+\s*")


def transform_problem(src: str, dest: str) -> str | None:
    """Explain why the server refuses to map `src` to `dest`, or return None.

    An empty `src` is every subject, an empty `dest` no change.
    """
    if not dest:
        return None
    source = src or ">"
    tokens = dest.split(".")
    if not all(tokens) or ">" in tokens[:-1] or re.search(r"\s", _FUNCTION.sub("", dest)):
        return f'"{dest}" is not a subject'
    if src and not is_valid(src):
        return f'"{src}" is not a subject'
    if "*" in tokens:
        return f'"{dest}" has a * in it'
    if (source.split(".")[-1] == ">") != (tokens[-1] == ">"):
        return f'"{source}" and "{dest}" must both end with > or neither'
    wildcards = source.split(".").count("*")
    return next((why for token in tokens if (why := _token_problem(token, wildcards))), None)


def _token_problem(token: str, wildcards: int) -> str | None:
    """Check `$1` or `{{function(arguments)}}`; any other token is literal."""
    if token.startswith("$") and token[1:].isdigit():
        return None if wildcards and int(token[1:]) <= wildcards else _wildcard_problem(token)
    if not (len(token) > 4 and token.startswith("{{") and token.endswith("}}")):
        return None
    match = _FUNCTION.fullmatch(token)
    name = match[1].lower() if match else ""
    if match is None or name not in _FUNCTIONS:
        return f"{token} is not a function of subject transforms"
    arguments = [text.strip() for text in match[2].split(",")]
    indexes = _FUNCTIONS[name](arguments)
    if indexes is None:
        return f"{token} has the wrong arguments"
    uses_wildcards = name not in ("partition", "random")
    return (
        _wildcard_problem(token)
        if any(i > wildcards for i in indexes) or (uses_wildcards and not wildcards)
        else None
    )


def _wildcard_problem(token: str) -> str:
    return f"{token} names a * that the source does not have"


def _wildcard_arguments(arguments: list[str]) -> list[int] | None:
    return _parse_numbers(arguments) if len(arguments) == 1 else None


def _two_arguments(arguments: list[str]) -> list[int] | None:
    numbers = _parse_numbers(arguments)
    return numbers[:1] if numbers is not None and len(numbers) == 2 else None


def _split_arguments(arguments: list[str]) -> list[int] | None:
    return (
        _parse_numbers(arguments[:1])
        if len(arguments) == 2 and not re.search(r"[ .]", arguments[1])
        else None
    )


def _partition_arguments(arguments: list[str]) -> list[int] | None:
    numbers = _parse_numbers(arguments)
    return numbers[1:] if numbers else None


def _random_arguments(arguments: list[str]) -> list[int] | None:
    return [] if len(arguments) == 1 and _parse_numbers(arguments) else None


def _parse_numbers(arguments: list[str]) -> list[int] | None:
    return (
        [int(text) for text in arguments]
        if all(_NUMBER.fullmatch(text) for text in arguments)
        else None
    )


#: The wildcards that the arguments name, or None for arguments that the function rejects.
_FUNCTIONS: Final[dict[str, Callable[[list[str]], list[int] | None]]] = {
    "wildcard": _wildcard_arguments, "partition": _partition_arguments, "split": _split_arguments,
    "random": _random_arguments, "splitfromleft": _two_arguments, "splitfromright": _two_arguments,
    "slicefromleft": _two_arguments, "slicefromright": _two_arguments, "left": _two_arguments,
    "right": _two_arguments,
}  # fmt: skip
