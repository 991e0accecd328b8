"""Checks that answers of servers have the shape that jsplan reads.

Only fields that jsplan uses are checked, and only for the kind of their value. Unknown fields pass,
and so do values that a newer server may add to a field. A null field is removed from the answer, as
if it was absent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Container, Mapping
from functools import cache, cached_property
from typing import Annotated, Any, Final

import orjson
from msgspec import Meta

from jsplan import units
from jsplan.json_types import has_type, object_type, text_type, whole_text
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.fields import Field, Table
from jsplan.resources.nested import NAME

Check = Callable[[Any], None]
#: Not verbs of the JetStream API: the answer to the end of a restore, and two system requests.
RESTORE_DONE, USER_INFO, ACCOUNT_INFO = (
    "STREAM.RESTORE",
    "$SYS.REQ.USER.INFO",
    "$SYS.REQ.SERVER.*.ACCOUNTZ",
)
#: Nesting levels of a value unknown to jsplan: it is stored, compared and written again.
MAX_DEPTH: Final = 64
#: Characters of a wrong value that an error shows.
_MAX_SHOWN: Final = 40
_NAME: Final = re.compile(NAME)
#: A verb of two words, with the dot before the names.
_VERB: Final = re.compile(r"\w+(\.\w+\.?)?")
_UINT64_LIMIT: Final = 1 << 64
#: Most times of a server: those that no calendar is needed for.
_SURE_TIME: Final = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?Z",
    re.ASCII,
)


class InvalidAnswer(Exception):
    """An answer does not have the expected shape. The text says where."""

    def __init__(self, value: Any, expected: str, path: str = "") -> None:
        super().__init__(value, expected, path)
        self._value, self._expected, self._path = value, expected, path

    def below(self, step: str) -> InvalidAnswer:
        """Return the same of a value that has this one at `step`: `.name` or `[5]`."""
        return InvalidAnswer(self._value, self._expected, step + self._path)

    def __str__(self) -> str:
        shown = "missing" if self._value is None else repr(self._value)
        if len(shown) > _MAX_SHOWN:
            shown = shown[:_MAX_SHOWN] + "…"
        where = self._path.removeprefix(".") or "the answer"
        return f"{where} is {shown}, expected {self._expected}"


def parse_system_answer(kind: str, data: bytes) -> dict[str, Any]:
    """Parse an answer to `USER_INFO` or `ACCOUNT_INFO`. Raises InvalidAnswer."""
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise InvalidAnswer(data, "JSON") from None
    SHAPES[kind](answer)
    return dict(answer)


def check_answer(api: str, answer: dict[str, Any]) -> None:
    """Raise InvalidAnswer if an answer to `api` lacks a field or has a wrong value.

    `api` is a verb with its names, such as `STREAM.INFO.ORDERS`.
    """
    verb = _VERB.match(api)
    known = verb[0] if verb and verb[0] in SHAPES else _find_verb(api)
    if known:
        if (expected := type_of_answer(known)) is None or not has_type(answer, expected):
            SHAPES[known](answer)
        _require_same_name(known, api.removeprefix(known), answer)


@cache
def type_of_answer(verb: str) -> Any:
    """Return a type of which every answer passes the check of `SHAPES`; None if there is none."""
    return _type_of(SHAPES[verb])


def _find_verb(api: str) -> str:
    """Return the key of `SHAPES` for a verb of another length; empty if there is none."""
    return next((verb for verb in SHAPES if verb.endswith(".") and api.startswith(verb)), "")


def check_error(error: Any) -> None:
    """Raise InvalidAnswer if `error` does not have the shape of a server's error."""
    try:
        _ERROR(error)
    except InvalidAnswer as wrong:
        raise wrong.below(".error") from None


def _require_same_name(verb: str, name: str, answer: Mapping[str, Any]) -> None:
    """Raise InvalidAnswer if the answer is about another stream or consumer."""
    if verb == "STREAM.INFO." and answer["config"]["name"] != name:
        raise InvalidAnswer(answer["config"]["name"], repr(name), ".config.name")
    if verb == "CONSUMER.INFO." and f"{answer['stream_name']}.{answer['name']}" != name:
        raise InvalidAnswer(f"{answer['stream_name']}.{answer['name']}", repr(name), ".name")


# --- kinds of values ---


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidAnswer(value, "text")


def _name(value: Any) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidAnswer(value, "a name")


def _whole(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidAnswer(value, "a whole number")


def _whole_or_flag(value: Any) -> None:
    if not isinstance(value, int):
        raise InvalidAnswer(value, "a whole number")


def _count(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _UINT64_LIMIT:
        raise InvalidAnswer(value, "a number of at least 0")


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidAnswer(value, "true or false")


def _time(value: Any) -> None:
    if type(value) is str and _SURE_TIME.fullmatch(value):
        return
    try:
        units.parse_instant(value)
    except ValueError:
        raise InvalidAnswer(value, "a time") from None


def _base64(value: Any) -> None:
    try:
        base64.b64decode(value if isinstance(value, str) else "!", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidAnswer(value, "base64") from None


def _any_value(value: Any) -> None:
    """Check a value that is stored unchanged: no deeper than can be written again."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            for item in (
                each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            )
        ]
        if not level:
            return
    raise InvalidAnswer("…", f"at most {MAX_DEPTH} levels")


#: Types whose values all pass a check, of the checks that have one.
_TYPES: Final[dict[Check, Any]] = {
    _text: str,
    _name: text_type(whole_text(_NAME)),
    _whole: int,
    _whole_or_flag: int | bool,
    _count: Annotated[int, Meta(ge=0)],  # no number in JSON is too large
    _flag: bool,
    _time: text_type(whole_text(_SURE_TIME)),
}


def _type_of(check: Check) -> Any:
    """Return a type whose values all pass; None if no type says so."""
    return check.type if isinstance(check, _List | _Map | _Object) else _TYPES.get(check)


def _drop_nulls(value: dict[str, Any], known: Container[str]) -> None:
    if None not in value.values():
        return
    for name in [name for name, each in value.items() if each is None and name in known]:
        del value[name]


class _List:
    """A check of a list whose items pass a check."""

    def __init__(self, item: Check) -> None:
        self._item = item

    def __call__(self, value: Any) -> None:
        """Check one list."""
        if not isinstance(value, list):
            raise InvalidAnswer(value, "a list")
        for number, each in enumerate(value):
            try:
                self._item(each)
            except InvalidAnswer as wrong:
                raise wrong.below(f"[{number}]") from None

    @property
    def type(self) -> Any:
        """Return a type whose values all pass; None if no type says so."""
        item = _type_of(self._item)
        return None if item is None else list[item]  # type: ignore[valid-type]


class _Map:
    """A check of an object with any names, whose values pass a check."""

    def __init__(self, item: Check) -> None:
        self._item = item

    def __call__(self, value: Any) -> None:
        """Check one object."""
        if not isinstance(value, dict):
            raise InvalidAnswer(value, "an object")
        _drop_nulls(value, value)
        for key, each in value.items():
            try:
                self._item(each)
            except InvalidAnswer as wrong:
                raise wrong.below(f".{key}") from None

    @property
    def type(self) -> Any:
        """Return a type whose values all pass; None if no type says so."""
        item = _type_of(self._item)
        return None if item is None else dict[str, item]  # type: ignore[valid-type]


class _Object:
    """A check of an object with these fields; `others` checks the rest."""

    def __init__(
        self,
        required: Mapping[str, Check],
        optional: Mapping[str, Check] | None = None,
        others: Check | None = None,
    ) -> None:
        self._required, self._others = required, others
        self._known = {**(optional or {}), **required}

    def __call__(self, value: Any) -> None:
        """Check one object."""
        if not isinstance(value, dict):
            raise InvalidAnswer(value, "an object")
        _drop_nulls(value, self._known)
        for name, each in value.items():
            check = self._known.get(name, self._others)
            if check is None:
                continue
            try:
                check(each)
            except InvalidAnswer as wrong:
                raise wrong.below(f".{name}") from None
        for name in self._required:
            if name not in value:
                raise InvalidAnswer(None, "a value", f".{name}")

    @cached_property
    def type(self) -> Any:
        """Return a type whose values all pass; None if no type says so.

        Where `others` are checked, an object with any other field does not have it.
        """
        types = {name: _type_of(check) for name, check in self._known.items()}
        untyped = {name for name, found in types.items() if found is None}
        if untyped and (self._others is None or untyped & self._required.keys()):
            return None
        required = {name: types[name] for name in self._required}
        optional = {n: found for n, found in types.items() if n not in required.keys() | untyped}
        return object_type(required, optional, may_have_others=self._others is None)


# --- configurations ---

_CHECK_BY_TYPE: Final[dict[str, Check]] = {
    "string": _text, "enum": _text, "percent": _text, "bool": _flag, "int": _whole,
    "duration": _whole, "size": _whole, "time": _time,
    "strings": _List(_text), "durations": _List(_whole), "metadata": _Map(_text),
}  # fmt: skip


#: Optional fields of a stream that every server sends, also with their defaults.
_ALWAYS_SENT: Final = ("retention", "storage", "num_replicas")


def _table(table: Table) -> Check:
    """Return a check of a configuration by its field table."""
    fields = {row.name: _field(row) for row in table.rows}
    required = {
        row.name: _name if row.pattern == NAME else fields[row.name]
        for row in table.rows
        if (row.required and table is not CONSUMER)
        or (table is STREAM and row.name in _ALWAYS_SENT)
    }
    return _Object(required, fields, _any_value)


def _field(row: Field) -> Check:
    if row.table is None:
        return _CHECK_BY_TYPE.get(row.type, _any_value)
    return _List(_table(row.table)) if row.type == "objects" else _table(row.table)


# --- answers ---

_ERROR: Final = _Object({}, {"code": _whole, "err_code": _whole, "description": _text})
_SEQUENCE_PAIR: Final = _Object(
    {"consumer_seq": _count, "stream_seq": _count}, {"last_active": _time}
)
_ORIGIN_INFO: Final = _Object(
    {"name": _text},
    {
        "external": _Object({}, {"api": _text, "deliver": _text}),
        "lag": _whole,
        "active": _whole,
        "seq": _count,
        "error": _ERROR,
        "filter_subject": _text,
        "subject_transforms": _List(_Object({}, {"src": _text, "dest": _text})),
    },
)
_PEER: Final = _Object(
    {}, {"name": _text, "current": _flag, "offline": _flag, "active": _whole, "lag": _whole}
)
_CLUSTER: Final = _Object({}, {"name": _text, "leader": _text, "replicas": _List(_PEER)})
_STREAM_STATE: Final = _Object(
    {
        "messages": _count,
        "bytes": _count,
        "first_seq": _count,
        "last_seq": _count,
        "first_ts": _time,
        "last_ts": _time,
    },
    {
        "num_subjects": _count,
        "num_deleted": _count,
        "deleted": _List(_count),
        "lost": _Object({}, {"bytes": _count}),
        "subjects": _Map(_count),
        "consumer_count": _count,
    },
)
_STREAM_INFO: Final = _Object(
    {"config": _table(STREAM), "created": _time, "state": _STREAM_STATE},
    {
        "cluster": _CLUSTER,
        "mirror": _ORIGIN_INFO,
        "sources": _List(_ORIGIN_INFO),
        "total": _count,
        "ts": _time,
    },
)
_CONSUMER_INFO: Final = _Object(
    {
        "stream_name": _name,
        "name": _name,
        "config": _table(CONSUMER),
        "created": _time,
        "delivered": _SEQUENCE_PAIR,
        "ack_floor": _SEQUENCE_PAIR,
        "num_ack_pending": _count,
        "num_redelivered": _count,
        "num_pending": _count,
    },
    {
        "num_waiting": _count,
        "push_bound": _flag,
        "cluster": _CLUSTER,
        "ts": _time,
        "priority_groups": _List(_Object({}, {"group": _text, "pinned_client_id": _text})),
    },
)
_LIMITS: Final = _Map(_whole_or_flag)
_ACCOUNT_USAGE: Final[dict[str, Check]] = {
    "memory": _whole,
    "storage": _whole,
    "reserved_memory": _whole,
    "reserved_storage": _whole,
    "streams": _count,
    "consumers": _count,
    "limits": _LIMITS,
}
_API_INFO: Final = _Object(
    {},
    _ACCOUNT_USAGE
    | {
        "domain": _text,
        "api": _Object({}, {"level": _count}),
        "tiers": _Map(_Object({}, _ACCOUNT_USAGE)),
    },
)
_GRANT: Final = _Object({}, {"approved_accounts": _List(_text)})
_MESSAGE: Final = _Object(
    {"subject": _text, "seq": _count, "time": _time}, {"hdrs": _base64, "data": _base64}
)

#: What a list could not read: objects without servers, and those that the server cannot run.
_UNREAD: Final[dict[str, Check]] = {"missing": _List(_name), "offline": _Map(_text)}


def _listed_consumer(value: Any) -> None:
    """Check an element of CONSUMER.LIST; one whose servers are down has no name (measured)."""
    if not isinstance(value, dict) or value.get("name") != "":
        _CONSUMER_INFO(value)


_TYPES[_listed_consumer] = _CONSUMER_INFO.type


#: The shape of each answer, by API verb. A verb that ends with a dot is followed by names.
SHAPES: Final[dict[str, Check]] = {
    "INFO": _API_INFO,
    "STREAM.INFO.": _STREAM_INFO,
    "STREAM.CREATE.": _STREAM_INFO,
    "STREAM.UPDATE.": _STREAM_INFO,
    "STREAM.NAMES": _Object({}, {"streams": _List(_name), "total": _count}),
    "STREAM.LIST": _Object({}, {"streams": _List(_STREAM_INFO), **_UNREAD, "total": _count}),
    "STREAM.MSG.GET.": _Object({"message": _MESSAGE}),
    "STREAM.SNAPSHOT.": _Object({"config": _table(STREAM), "state": _STREAM_STATE}),
    "STREAM.RESTORE.": _Object({"deliver_subject": _text}),
    RESTORE_DONE: _STREAM_INFO,
    "CONSUMER.INFO.": _CONSUMER_INFO,
    "CONSUMER.CREATE.": _CONSUMER_INFO,
    "CONSUMER.NAMES.": _Object({}, {"consumers": _List(_name), "total": _count}),
    "CONSUMER.LIST.": _Object(
        {}, {"consumers": _List(_listed_consumer), **_UNREAD, "total": _count}
    ),
    USER_INFO: _Object(
        {}, {"server": _Object({}, {"id": _text}), "data": _Object({}, {"account": _text})}
    ),
    ACCOUNT_INFO: _Object(
        {},
        {
            "data": _Object(
                {},
                {
                    "account_detail": _Object(
                        {}, {"exports": _List(_GRANT), "imports": _List(_GRANT)}
                    )
                },
            )
        },
    ),
}
