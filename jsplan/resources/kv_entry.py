"""Entries of KV buckets: keys, values, and how a value is compared and shown.

Only digests are compared and kept in state, so no value gets there. A plan shows text where it may.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from jsplan import units
from jsplan.resources.fields import Field, Table, update_in_place
from jsplan.units import SECOND

#: The field of an entry. In configurations and in state it is the digest of the value.
VALUE: Final = "value"
#: The time in ns after which the server deletes the value.
TTL: Final = "ttl"
#: The header with that time, as clients write it: seconds, or a duration of Go.
TTL_HEADER: Final = "Nats-TTL"
KV_ENTRY: Final = Table(
    "kv_entry",
    (
        Field(VALUE, "string", "The value.", default="", update=update_in_place),
        Field(
            TTL,
            "duration",
            "The server deletes the value after this time. The bucket needs `limit_marker_ttl`.",
            default=0,
            minimum=SECOND,
            level=1,
            update=update_in_place,
        ),
    ),
)
#: Keys as every client accepts them (nats.go `kv.go`). They are subjects, so no part is empty.
KEY_PATTERN: Final = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
#: Largest key in bytes: servers refuse a longer protocol line.
MAX_KEY: Final = 1024
#: Largest text in bytes that a plan shows. The digest stands for a longer one.
MAX_SHOWN: Final = 4096
#: Bytes of the headers of a conditional write. max_value_size counts headers too (10054).
WRITE_HEADERS: Final = 80
#: Bytes of the header of a TTL.
TTL_HEADER_SIZE: Final = 32
#: Largest message in bytes that a server can be configured for.
MAX_PAYLOAD: Final = 64 << 20
_DELETED: Final = (b"\r\nkv-operation:", b"\r\nnats-marker-reason:")
_TTL: Final = re.compile(rb"\r\nnats-ttl:([^\r]*)", re.IGNORECASE)
#: Compiled where it is used: that takes 7 ms of each start, and few plans have entries.
_INVISIBLE: Final = r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def digest_value(content: bytes) -> str:
    """Return `sha256:…` of a value."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def is_key(key: str) -> bool:
    """Check whether clients accept the key, and an address can name it."""
    return KEY_PATTERN.fullmatch(key) is not None and len(key) <= MAX_KEY and all(key.split("/"))


def readable_text(content: bytes) -> str | None:
    """Return the value as text that a plan can show; None for a binary or a long one."""
    if len(content) > MAX_SHOWN:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(_INVISIBLE, text) else text


def describe_value(config: Mapping[str, object], size: int | None) -> str:
    """Return the digest of a value that is not shown, with its size in bytes if it is known."""
    shown = str(config.get(VALUE, ""))
    return shown if size is None else f"{shown} ({size:,} bytes)"


def is_deleted(headers: bytes) -> bool:
    """Check whether a message is no value but the marker of a deleted or expired key.

    Clients write `KV-Operation`, servers since 2.11 write `Nats-Marker-Reason`.
    """
    lowered = headers.lower()
    return any(name in lowered for name in _DELETED)


def ttl_header(ttl: int) -> dict[str, str]:
    """Return the header for a TTL in ns, which is whole seconds; empty for none."""
    return {TTL_HEADER: f"{ttl // SECOND}s"} if ttl else {}


def ttl_header_size(_: str, config: Mapping[str, object]) -> int:
    """Return the bytes that the header for the TTL of an entry needs at most."""
    return TTL_HEADER_SIZE if config.get(TTL) else 0


def parse_ttl(headers: bytes) -> int:
    """Return the TTL in ns of a message by its headers; 0 if it has none that is understood."""
    found = _TTL.search(headers)
    text = found[1].decode("latin-1").strip() if found else ""
    try:
        return int(text) * SECOND if text.isdecimal() else max(0, units.parse_duration(text))
    except ValueError:  # such as `never`, which servers understand
        return 0


def subject_of(bucket: str, key: str) -> str:
    """Return the subject that stores the values of a key."""
    return f"$KV.{bucket}.{key}"
