"""Rules of mirrors and sources that the server enforces: filters, transforms, prefixes.

Also for origins that are listed twice. The number in each text is the server's err_code. Those of
subject transforms were measured on nats-server 2.15 (10146, 10154, 10156, and 10052 for republish).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from jsplan.config.findings import Body, Problem, Problems
from jsplan.resources.nested import origin_key
from jsplan.subjects import is_literal, is_subset, is_valid, overlaps

_FUNCTION = re.compile(r"\{\{\s*(\w+)\s*\((.*)\)\s*\}\}")
_NUMBER = re.compile(r"\s*-?\d+\s*")


def check_origins(body: Body) -> Problems:
    """Yield everything that the server is certain to refuse in the origins of one stream."""
    found = [("mirror", body["mirror"])] if body.get("mirror") else []
    found += [("sources", origin) for origin in body.get("sources") or ()]
    for field, origin in found:
        yield from _filters(field, origin)
        if (
            origin.get("name") == body.get("name")
            and not origin.get("external")
            and not origin.get("domain")
        ):
            text = f"{field}: {origin['name']} would copy itself (10052)"
            yield Problem("JS152", field, text, "Name another stream, or its `domain:`.")
        yield from _external(field, origin.get("external") or {})
        yield from _consumer(field, origin)
    yield from _duplicates(body)


def _filters(field: str, origin: Body) -> Problems:
    mirror, transforms = field == "mirror", origin.get("subject_transforms") or []
    if origin.get("filter_subject") and transforms:
        text = (
            f"{field}: an origin has either filter_subject or subject_transforms"
            f" ({10150 if mirror else 10144})"
        )
        yield Problem("JS151", field, text, "A transform's `src` filters too; keep the transforms.")
    if origin.get("filter_subject") and not is_valid(origin["filter_subject"]):
        text = f'{field}: "{origin["filter_subject"]}" is not a subject (10049)'
        yield Problem("JS151", field, text, "Correct filter_subject.")
    for transform in transforms:
        if why := transform_problem(transform.get("src") or "", transform.get("dest") or ""):
            detail = (
                "Both sides end with > or neither does; `dest` has no *, but {{wildcard(n)}} for"
                " the n-th * of `src`."
            )
            yield Problem("JS167", field, f"{field}: {why} ({10154 if mirror else 10146})", detail)
            return
    sources, collide = [t.get("src") or "" for t in transforms], overlaps if mirror else _is_nested
    pair = next(
        ((a, b) for i, a in enumerate(sources) for b in sources[i + 1 :] if collide(a, b)), None
    )
    if pair is not None:
        err = 10152 if mirror else 10147
        text = f'{field}: the filters "{pair[0]}" and "{pair[1]}" overlap ({err})'
        yield Problem("JS151", field, text, "Keep the wider one.")


def _is_nested(one: str, other: str) -> bool:
    if not (one and other):  # servers compare an empty filter of a source only with this one
        return ">" in (one, other)
    return is_subset(one, other) or is_subset(other, one)


def _external(field: str, external: Body) -> Problems:
    api, deliver = external.get("api") or "", external.get("deliver") or ""
    if api == "$JS.API" or api.startswith("$JS.API."):
        text = f"{field}: external.api {api} overlaps with $JS.API (10021)"
        hint = "Write `domain:`, or $JS.<domain>.API; without a domain it needs an import."
        yield Problem("JS165", field, text, hint)
    if deliver and not is_literal(deliver):
        text = f"{field}: external.deliver {deliver} has wildcards (10024)"
        yield Problem("JS165", field, text, "Write the prefix without them.")


def _consumer(field: str, origin: Body) -> Problems:
    """Check `consumer`: a consumer made beforehand sets the start and the filter itself."""
    consumer, err = origin.get("consumer"), 10213 if field == "mirror" else 10215
    if not consumer:
        return
    subject = consumer.get("deliver_subject") or ""
    if not consumer.get("name") or not is_valid(subject) or not is_literal(subject):
        text = (
            f"{field}: a consumer of the origin has a name and a deliver_subject"
            f" without wildcards ({err})"
        )
        yield Problem("JS166", field, text, "Name the consumer that the origin's owner made.")
    for name in ("opt_start_seq", "opt_start_time", "filter_subject"):
        if origin.get(name):
            text = f"{field}: {name} cannot be combined with consumer ({err})"
            yield Problem("JS166", field, text, "The consumer has that; remove it here.")


def _duplicates(body: Body) -> Problems:
    seen, consumers = set(), set()
    for origin in body.get("sources") or ():
        key = (origin.get("domain"), origin_key({"name": "", **origin}))
        if key in seen:
            where = f" in domain {origin['domain']}" if origin.get("domain") else ""
            text = f"sources: {origin.get('name')}{where} is listed twice (10140)"
            yield Problem("JS152", "sources", text, "Remove one, or give them different filters.")
        elif (name := (origin.get("consumer") or {}).get("name")) is not None:
            api = (origin.get("external") or {}).get("api")
            reader = (origin.get("domain"), api, origin.get("name"), name)
            if reader in consumers:
                text = f"sources: two read consumer {name} of {origin.get('name')} (10216)"
                yield Problem("JS166", "sources", text, "Make a consumer for each source.")
            consumers.add(reader)
        seen.add(key)


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
    if any(i > wildcards for i in indexes) or (uses_wildcards and not wildcards):
        return _wildcard_problem(token)
    return None


def _wildcard_problem(token: str) -> str:
    return f"{token} names a * that the source does not have"


def _wildcard_arguments(arguments: list[str]) -> list[int] | None:
    return _parse_numbers(arguments) if len(arguments) == 1 else None


def _two_arguments(arguments: list[str]) -> list[int] | None:
    numbers = _parse_numbers(arguments)
    return numbers[:1] if numbers is not None and len(numbers) == 2 else None


def _split_arguments(arguments: list[str]) -> list[int] | None:
    if len(arguments) == 2 and not re.search(r"[ .]", arguments[1]):
        return _parse_numbers(arguments[:1])
    return None


def _partition_arguments(arguments: list[str]) -> list[int] | None:
    numbers = _parse_numbers(arguments)
    return numbers[1:] if numbers else None


def _random_arguments(arguments: list[str]) -> list[int] | None:
    return [] if len(arguments) == 1 and _parse_numbers(arguments) else None


def _parse_numbers(arguments: list[str]) -> list[int] | None:
    if all(_NUMBER.fullmatch(text) for text in arguments):
        return [int(text) for text in arguments]
    return None


#: The wildcards that the arguments name, or None for arguments that the function rejects.
_FUNCTIONS: Final[dict[str, Callable[[list[str]], list[int] | None]]] = {
    "wildcard": _wildcard_arguments, "partition": _partition_arguments, "split": _split_arguments,
    "random": _random_arguments, "splitfromleft": _two_arguments, "splitfromright": _two_arguments,
    "slicefromleft": _two_arguments, "slicefromright": _two_arguments, "left": _two_arguments,
    "right": _two_arguments,
}  # fmt: skip
