"""Messages of a deleted stream that a server gives to the next stream of that name.

A server answers STREAM.DELETE when the stream's folder has a hidden name, and removes that folder
later. A second deletion under the name cannot use the hidden name meanwhile: it removes nothing and
reports success. The next stream of that name has the old messages, and the positions of the old
consumers (measured in `tests/facts/test_leftovers.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from jsplan.address import PARKING_PREFIX
from jsplan.errors import ServerRefusedError
from jsplan.units import parse_instant

#: Sends one API request and returns the answer.
Send = Callable[[str, dict[str, Any] | None], Awaitable[dict[str, Any]]]
#: Begin of the times of a stream that never had a message.
_NO_TIME: Final = "0001-"
#: Seconds for a server to remove the folder of an earlier stream of the name.
REMOVAL_TIMEOUT: Final = 20.0
#: Fields that decide whether an account may have the stream, and on which servers it is.
_PLACING_FIELDS: Final = ("name", "storage", "num_replicas", "placement", "max_bytes")


def has_leftovers(answer: dict[str, Any]) -> bool:
    """Return True if the stream was created with messages of an earlier one.

    That includes mirrors: the answer to a creation comes before the first message of the origin.
    """
    return bool(answer.get("did_create")) and has_older_messages(answer["created"], answer["state"])


def has_older_messages(created: str, state: dict[str, Any]) -> bool:
    """Return True if the stream has, or had, messages that are older than itself.

    A mirror keeps the times of its origin, and a restored stream those of its backup.
    """
    return any(instant < parse_instant(created) for instant in _message_times(state))


async def create_without_leftovers(
    send: Send, payload: dict[str, Any], answer: dict[str, Any]
) -> dict[str, Any]:
    """Delete and create a stream until nothing is left of the old one; return the last answer.

    `answer` is that of the first creation, with leftovers. No message is lost: the stream takes no
    new ones before it is deleted, and one that has new ones is not deleted. Raises
    ServerRefusedError where the stream has new messages, and where the server does not remove the
    old ones in time.
    """
    name, end = payload["name"], time.monotonic() + REMOVAL_TIMEOUT
    parked = {"subjects": [PARKING_PREFIX + name]}
    probe = {field: payload[field] for field in _PLACING_FIELDS if field in payload} | parked
    if not payload.get("mirror"):
        await _require_no_new_messages(send, answer, parked)
    await send(f"STREAM.DELETE.{name}", None)
    # Publishers get no answer while the name is tried with a stream that takes no messages.
    while has_leftovers(tried := await send(f"STREAM.CREATE.{name}", probe)):
        await send(f"STREAM.DELETE.{name}", None)
        if time.monotonic() > end:
            raise _refused_error(
                name,
                f"has {tried['state']['messages']:,} messages of a deleted stream {name}, "
                f"which the server did not remove within {REMOVAL_TIMEOUT:.0f}s",
                "It was deleted again. Restart the server, then plan again.",
            )
        await asyncio.sleep(0.1)
    await send(f"STREAM.DELETE.{name}", None)
    return await send(f"STREAM.CREATE.{name}", payload)


async def _require_no_new_messages(
    send: Send, info: dict[str, Any], parked: dict[str, Any]
) -> None:
    """Quiesce the stream; where it has messages of its own, give its subjects back and raise."""
    config, name = info["config"], info["config"]["name"]
    quiet = {field: value for field, value in config.items() if field != "sources"} | parked
    quiesced = await send(f"STREAM.UPDATE.{name}", quiet)
    created = parse_instant(info["created"])
    if all(instant < created for instant in _message_times(quiesced["state"])):
        return
    await send(f"STREAM.UPDATE.{name}", config)
    raise _refused_error(
        name,
        f"has messages of a deleted stream {name}, which the server did not remove, "
        "and has received new ones",
        f"Delete its messages before {info['created']}, then adopt it (--adopt).",
    )


def _message_times(state: dict[str, Any]) -> list[int]:
    times = (str(state.get(name) or _NO_TIME) for name in ("first_ts", "last_ts"))
    return [parse_instant(text) for text in times if not text.startswith(_NO_TIME)]


def _refused_error(name: str, description: str, hint: str) -> ServerRefusedError:
    message = f"stream {name} {description}"
    return ServerRefusedError(message, code=0, err_code=0, description=description, hint=hint)
