"""Accept documents that surely fit their schema, without the library that explains why not.

It is compiled from the same schemas in a millisecond, where the library writes and compiles Python
for fifty, and it reads only the fields that a document has. What it does not accept may fit all the
same: a keyword that it does not know accepts nothing. The library then decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Schema = Mapping[str, Any]
Accept = Callable[[Any], bool]

#: The types of parsed JSON by their names. A number with a fraction is no integer, not even 5.0.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "object": (dict,), "array": (list,), "null": (type(None),),
}  # fmt: skip
#: Forms of one kind of object that are remembered, and twice the fields of one.
MAX_FORMS: Final = 64
#: Keywords that accept everything.
_SILENT: Final = frozenset(("$schema", "$id", "$defs", "title", "description"))
#: The instants of `date-time` that jsplan writes.
_INSTANT: Final = re.compile(
    r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-][0-2]\d:[0-5]\d)", re.ASCII
)
#: The end of a text. `$` alone also fits before a line break, which the library does not accept.
_END: Final = r"$(?!\n)"


def compile_acceptance(schema: Schema) -> Accept:
    """Return a function that is True only for documents that fit the schema."""
    return _Compiler(schema.get("$defs", {})).compile(schema)


def _never(_: Any) -> bool:
    return False


def _all_of(checks: list[Accept]) -> Accept:
    if len(checks) == 1:
        return checks[0]
    if len(checks) == 2:
        first, second = checks
        return lambda value: first(value) and second(value)

    def accept(value: Any) -> bool:
        for check in checks:  # noqa: SIM110 - `all` of a generator takes twice the time
            if not check(value):
                return False
        return True

    return accept


class _Compiler:
    """Compiles the parts of one schema; each definition once."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._compiled: dict[str, Accept] = {}

    def compile(self, schema: Schema) -> Accept:
        """Return a function that is True only for values that fit this part."""
        types = _allowed_types(schema)
        is_object = not schema.keys().isdisjoint(_OBJECT)
        must_be_object = is_object and types == frozenset([dict])
        checks = [
            *([_has_type(types)] if types is not None and not must_be_object else []),
            *([self._compile_object(schema, others=not must_be_object)] if is_object else []),
            *(
                self._compile_keyword(keyword, schema[keyword])
                for keyword in sorted(schema.keys() - _OBJECT - _SILENT - {"type"})
            ),
        ]
        return _all_of(checks)

    def _compile_keyword(self, keyword: str, given: Any) -> Accept:
        """Compile one keyword. As in JSON Schema it accepts values of other types."""
        match keyword:
            case "$ref":
                return self._compile_reference(given)
            case "allOf":
                return _all_of([self.compile(schema) for schema in given])
            case "anyOf":
                some = [self.compile(schema) for schema in given]
                return lambda value: any(accept(value) for accept in some)
            case "items" if isinstance(given, dict):
                item = self.compile(given)
                return lambda value: type(value) is not list or all(map(item, value))
            case "enum":
                return lambda value: any(type(value) is type(e) and value == e for e in given)
            case "minimum":
                return lambda value: type(value) not in _NUMBERS or value >= given
            case "maximum":
                return lambda value: type(value) not in _NUMBERS or value <= given
            case "minItems":
                return lambda value: type(value) is not list or len(value) >= given
            case "maxItems":
                return lambda value: type(value) is not list or len(value) <= given
            case "pattern" if given.count("$") == given.count(_END) + given.count("*$)"):
                search = re.compile(given).search
                return lambda value: type(value) is not str or search(value) is not None
            case "format" if given == "date-time":
                return lambda value: type(value) is not str or bool(_INSTANT.fullmatch(value))
        return _never

    def _compile_reference(self, reference: str) -> Accept:
        name = reference.removeprefix("#/$defs/")
        if name not in self._compiled:
            self._compiled[name] = _never  # of a definition that refers to itself
            self._compiled[name] = self.compile(self._definitions[name])
        return self._compiled[name]

    def _compile_object(self, schema: Schema, *, others: bool) -> Accept:
        """Compile the fields of an object; `others` is the answer for what is no object."""
        if "patternProperties" in schema:
            return self._compile_map(schema, others=others)
        properties: Mapping[str, Schema] = schema.get("properties", {})
        more = schema.get("additionalProperties", True)
        rest = self.compile(more) if isinstance(more, dict) else _never if more is False else None
        # Most fields may have any value of a type: no call says so.
        types = {name: found for name, p in properties.items() if (found := _only_types(p))}
        return _ObjectAcceptance(
            types,
            {name: self.compile(p) for name, p in properties.items() if name not in types},
            rest,
            frozenset(schema.get("required", ())),
            schema.get("minProperties", 0),
            others=others,
        )

    def _compile_map(self, schema: Schema, *, others: bool) -> Accept:
        """Compile an object with one pattern for all names and one schema for all values."""
        (pattern, each), *more = schema["patternProperties"].items()
        known = schema.keys() & _OBJECT == {"patternProperties", "additionalProperties"}
        if more or not known or schema["additionalProperties"] is not False:
            return _never
        search, item = re.compile(pattern).search, self.compile(each)
        return lambda value: (
            all(map(search, value)) and all(map(item, value.values()))
            if type(value) is dict
            else others
        )


class _ObjectAcceptance:
    """Accepts objects by their fields: those of some types, others by a check, and the rest.

    A state holds tens of thousands of objects, most of them with the same fields of the same types.
    Such a form is looked at once. Of each object only those fields are checked that have a check.
    """

    def __init__(
        self,
        types: Mapping[str, frozenset[type]],
        known: Mapping[str, Accept],
        rest: Accept | None,
        required: frozenset[str],
        least: int,
        *,
        others: bool,
    ) -> None:
        self._types, self._known, self._rest = types, known, rest
        self._required, self._least, self._others = required, least, others
        #: What to check, by the names and types of all fields, of objects that may fit.
        self._forms: dict[tuple[Any, ...], list[tuple[str, Accept]]] = {}

    def __call__(self, value: Any) -> bool:
        """Accept one object."""
        if type(value) is not dict:
            return self._others
        form = (*value, *map(type, value.values()))
        checks = self._forms.get(form)
        if checks is None:
            checks = self._find_checks(value)
            if checks is None:
                return False
            if len(form) < MAX_FORMS > len(self._forms):
                self._forms[form] = checks
        for name, check in checks:  # noqa: SIM110 - `all` of a generator takes twice the time
            if not check(value[name]):
                return False
        return True

    def _find_checks(self, value: dict[str, Any]) -> list[tuple[str, Accept]] | None:
        if len(value) < self._least or not self._required <= value.keys():
            return None
        checks = list[tuple[str, Accept]]()
        for name, item in value.items():
            if (allowed := self._types.get(name)) is not None:
                if type(item) not in allowed:
                    return None
            elif (check := self._known.get(name)) is not None:
                checks.append((name, check))
            elif self._rest is not None:
                checks.append((name, self._rest))
        return checks


_NUMBERS: Final = (int, float)
#: Keywords that are compiled together.
_OBJECT: Final = frozenset(
    ("properties", "required", "additionalProperties", "patternProperties", "minProperties")
)


def _allowed_types(schema: Schema) -> frozenset[type] | None:
    if "type" not in schema:
        return None
    names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return frozenset(found for name in names for found in _TYPES[name])


def _has_type(types: frozenset[type]) -> Accept:
    return lambda value: type(value) in types


def _only_types(schema: Schema) -> frozenset[type]:
    """Return the types of which every value fits; none where anything else is required."""
    return (
        (_allowed_types(schema) or frozenset())
        if schema.keys() - _SILENT == {"type"}
        else frozenset()
    )
