"""Checks that answers of servers have the shape that jsplan reads.

Only fields that jsplan uses are checked, and only for the kind of their value. Unknown fields pass,
and so do values that a newer server may add to a field. A null field is removed from the answer, as
if it was absent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final

import orjson

from jsplan import units
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
#: Forms of one kind of object that are remembered, and the fields of one.
_MAX_FORMS: Final = 64


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
        SHAPES[known](answer)
        _require_same_name(known, api.removeprefix(known), answer)


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


#: The type whose values all pass a check.
_ONLY_TYPE: Final[dict[Check, type]] = {_text: str, _flag: bool, _whole: int}


def _drop_nulls(value: dict[str, Any], known: Container[str]) -> None:
    if None not in value.values():
        return
    for name in [name for name, each in value.items() if each is None and name in known]:
        del value[name]


def _list(item: Check) -> Check:
    only = _ONLY_TYPE.get(item)

    def checked(value: Any) -> None:
        if not isinstance(value, list):
            raise InvalidAnswer(value, "a list")
        if only is not None and {only}.issuperset(map(type, value)):
            return
        for number, each in enumerate(value):
            try:
                item(each)
            except InvalidAnswer as wrong:
                raise wrong.below(f"[{number}]") from None

    return checked


def _map(item: Check) -> Check:
    only = _ONLY_TYPE.get(item)

    def checked(value: Any) -> None:
        if not isinstance(value, dict):
            raise InvalidAnswer(value, "an object")
        if only is not None and {only}.issuperset(map(type, value.values())):
            return
        _drop_nulls(value, value)
        for key, each in value.items():
            try:
                item(each)
            except InvalidAnswer as wrong:
                raise wrong.below(f".{key}") from None

    return checked


class _Object:
    """A check of an object with these fields; `others` checks the rest.

    A plan checks tens of thousands of objects, most of them with the same fields of the same types.
    The first one of such a form is checked completely. Of the others only those fields are checked
    for which the type does not suffice; no number in JSON is too large for a count.
    """

    def __init__(
        self,
        required: Mapping[str, Check],
        optional: Mapping[str, Check] | None = None,
        others: Check | None = None,
    ) -> None:
        self._required, self._others = required, others
        self._known = {**(optional or {}), **required}
        #: By the names and types of all fields: the names of counts, and what else to check.
        self._forms: dict[tuple[Any, ...], tuple[list[str], list[tuple[str, Check]]]] = {}

    def __call__(self, value: Any) -> None:
        """Check one object."""
        if not isinstance(value, dict):
            raise InvalidAnswer(value, "an object")
        form = (*value, *map(type, value.values()))
        known = self._forms.get(form)
        if known is not None:
            counts, checks = known
            if not counts or min(map(value.__getitem__, counts)) >= 0:
                self._check_fields(value, checks)
                return
        _drop_nulls(value, self._known)
        self._check_fields(value, self._checks_of(value))
        for name in self._required:
            if name not in value:
                raise InvalidAnswer(None, "a value", f".{name}")
        if type(None) not in form and len(form) < _MAX_FORMS > len(self._forms):
            checks = self._checks_of(value)
            self._forms[form] = (
                [name for name, check in checks if check is _count],
                [
                    (n, c)
                    for n, c in checks
                    if c is not _count and type(value[n]) is not _ONLY_TYPE.get(c)
                ],
            )

    def _checks_of(self, value: dict[str, Any]) -> list[tuple[str, Check]]:
        found = ((name, self._known.get(name, self._others)) for name in value)
        return [(name, check) for name, check in found if check is not None]

    @staticmethod
    def _check_fields(value: dict[str, Any], checks: Iterable[tuple[str, Check]]) -> None:
        for name, check in checks:
            try:
                check(value[name])
            except InvalidAnswer as wrong:
                raise wrong.below(f".{name}") from None


_object = _Object


# --- configurations ---

_CHECK_BY_TYPE: Final[dict[str, Check]] = {
    "string": _text, "enum": _text, "percent": _text, "bool": _flag, "int": _whole,
    "duration": _whole, "size": _whole, "time": _time,
    "strings": _list(_text), "durations": _list(_whole), "metadata": _map(_text),
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
    return _object(required, fields, _any_value)


def _field(row: Field) -> Check:
    if row.table is None:
        return _CHECK_BY_TYPE.get(row.type, _any_value)
    return _list(_table(row.table)) if row.type == "objects" else _table(row.table)


# --- answers ---

_ERROR: Final = _object({}, {"code": _whole, "err_code": _whole, "description": _text})
_SEQUENCE_PAIR: Final = _object(
    {"consumer_seq": _count, "stream_seq": _count}, {"last_active": _time}
)
_ORIGIN_INFO: Final = _object(
    {"name": _text},
    {
        "external": _object({}, {"api": _text, "deliver": _text}),
        "lag": _whole,
        "active": _whole,
        "seq": _count,
        "error": _ERROR,
        "filter_subject": _text,
        "subject_transforms": _list(_object({}, {"src": _text, "dest": _text})),
    },
)
_PEER: Final = _object(
    {}, {"name": _text, "current": _flag, "offline": _flag, "active": _whole, "lag": _whole}
)
_CLUSTER: Final = _object({}, {"name": _text, "leader": _text, "replicas": _list(_PEER)})
_STREAM_STATE: Final = _object(
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
        "deleted": _list(_count),
        "subjects": _map(_count),
        "consumer_count": _count,
    },
)
_STREAM_INFO: Final = _object(
    {"config": _table(STREAM), "created": _time, "state": _STREAM_STATE},
    {
        "cluster": _CLUSTER,
        "mirror": _ORIGIN_INFO,
        "sources": _list(_ORIGIN_INFO),
        "total": _count,
        "ts": _time,
    },
)
_CONSUMER_INFO: Final = _object(
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
        "priority_groups": _list(_object({}, {"group": _text, "pinned_client_id": _text})),
    },
)
_LIMITS: Final = _map(_whole_or_flag)
_ACCOUNT_USAGE: Final[dict[str, Check]] = {
    "memory": _whole,
    "storage": _whole,
    "reserved_memory": _whole,
    "reserved_storage": _whole,
    "streams": _count,
    "consumers": _count,
    "limits": _LIMITS,
}
_API_INFO: Final = _object(
    {},
    _ACCOUNT_USAGE
    | {
        "domain": _text,
        "api": _object({}, {"level": _count}),
        "tiers": _map(_object({}, _ACCOUNT_USAGE)),
    },
)
_GRANT: Final = _object({}, {"approved_accounts": _list(_text)})
_MESSAGE: Final = _object(
    {"subject": _text, "seq": _count, "time": _time}, {"hdrs": _base64, "data": _base64}
)

#: What a list could not read: objects without servers, and those that the server cannot run.
_UNREAD: Final[dict[str, Check]] = {"missing": _list(_name), "offline": _map(_text)}


def _listed_consumer(value: Any) -> None:
    """Check an element of CONSUMER.LIST; one whose servers are down has no name (measured)."""
    if not isinstance(value, dict) or value.get("name") != "":
        _CONSUMER_INFO(value)


#: The shape of each answer, by API verb. A verb that ends with a dot is followed by names.
SHAPES: Final[dict[str, Check]] = {
    "INFO": _API_INFO,
    "STREAM.INFO.": _STREAM_INFO,
    "STREAM.CREATE.": _STREAM_INFO,
    "STREAM.UPDATE.": _STREAM_INFO,
    "STREAM.NAMES": _object({}, {"streams": _list(_name), "total": _count}),
    "STREAM.LIST": _object({}, {"streams": _list(_STREAM_INFO), **_UNREAD, "total": _count}),
    "STREAM.MSG.GET.": _object({"message": _MESSAGE}),
    "STREAM.SNAPSHOT.": _object({"config": _table(STREAM), "state": _STREAM_STATE}),
    "STREAM.RESTORE.": _object({"deliver_subject": _text}),
    RESTORE_DONE: _STREAM_INFO,
    "CONSUMER.INFO.": _CONSUMER_INFO,
    "CONSUMER.CREATE.": _CONSUMER_INFO,
    "CONSUMER.NAMES.": _object({}, {"consumers": _list(_name), "total": _count}),
    "CONSUMER.LIST.": _object(
        {}, {"consumers": _list(_listed_consumer), **_UNREAD, "total": _count}
    ),
    USER_INFO: _object(
        {}, {"server": _object({}, {"id": _text}), "data": _object({}, {"account": _text})}
    ),
    ACCOUNT_INFO: _object(
        {},
        {
            "data": _object(
                {},
                {
                    "account_detail": _object(
                        {}, {"exports": _list(_GRANT), "imports": _list(_GRANT)}
                    )
                },
            )
        },
    ),
}
