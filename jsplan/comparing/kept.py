"""A kept result, so that equal messages are not read a second time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jsplan.comparing.relation import Relation
from jsplan.disk import display_path, write_private
from jsplan.documents.base import dumps
from jsplan.documents.comparison import ComparedSide, Comparison
from jsplan.documents.reading import read_file
from jsplan.errors import ApiError, JsplanError
from jsplan.facts.live import LiveObject
from jsplan.jetstream import DomainApi
from jsplan.units import parse_instant

MAX_BYTES: Final = 16 << 20
_HINT: Final = "Write a new one: jsplan compare -o FILE"


def read_kept(path: Path) -> Comparison | None:
    """Read a kept result; None where there is no file yet. Raises DocumentError, JsplanError."""
    return read_file(Comparison, path, MAX_BYTES, _HINT)


def write_kept(path: Path, found: Comparison) -> None:
    """Write a result. Raises JsplanError."""
    try:
        write_private(path, dumps(found.to_json()))
    except OSError as error:
        raise JsplanError(f"cannot write {display_path(path)}: {error.strerror}") from None


async def why_unusable(
    kept: Comparison, relation: Relation, apis: tuple[DomainApi, DomainApi], first: int
) -> str:
    """Return why a kept result says nothing about these streams; empty where it does.

    Messages of a stream never change: with the same stream, the same message at its end, and no
    message in between that was deleted since, what was equal is equal. Raises ApiError.
    """
    if kept.exit_code or kept.by != relation.by or first != kept.first:
        return "it is of another comparison, or has differences"
    for then, now, api in (
        (kept.origin, relation.origin, apis[0]),
        (kept.copy, relation.copy, apis[1]),
    ):
        if then.address != str(now.address) or then.created != now.created:
            return f"{then.address} is another stream now"
        if (why := await _why_changed(then, now, api)) is not None:
            return f"{then.address} {why}"
    return ""


async def _why_changed(then: ComparedSide, now: LiveObject, api: DomainApi) -> str | None:
    first, last = (int(now.state.get(name) or 0) for name in ("first_seq", "last_seq"))
    messages = int(now.state.get("messages") or 0)
    is_whole = then.messages == then.last_seq - then.first_seq + 1 and messages == last - first + 1
    unchanged = first == then.first_seq and messages - then.messages == last - then.last_seq
    if last < then.last_seq or not (unchanged or is_whole):
        return "has lost or deleted messages since"
    if not then.last_time or last == then.last_seq:
        return None if last > then.last_seq or _same(then, now) else "has another last message"
    try:
        message = await api.get_message(now.address.stream, {"seq": then.last_seq})
    except ApiError:
        return "does not give out its message"
    if message is None or parse_instant(message["time"]) != parse_instant(then.last_time):
        return f"has another message {then.last_seq:,}: it went back"
    return None


def _same(then: ComparedSide, now: LiveObject) -> bool:
    return not then.messages or then.last_time == str(now.state.get("last_ts") or "")
