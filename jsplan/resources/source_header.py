"""`Nats-Stream-Source`, the header of a message that a source copied.

`<stream>[:<hash of the API prefix>][:C=<hash of the consumer>] <sequence> <filters> <destinations>
[<subject>]`. A form feed separates several filters. Without filters and destinations it is of a server before 2.10.
"""

from __future__ import annotations

import hashlib
import string
from typing import Final, NamedTuple

from jsplan.resources.fields import Config

SOURCE_HEADER: Final = "Nats-Stream-Source"
#: The origin of a message of a backfill:
#: `<js_domain>/<stream>/<seq>/<RFC 3339 time with nanoseconds>`.
ORIGIN_HEADER: Final = "Jsplan-Origin"
#: The prefix of a header that a backfill renames, since it would act again at the target.
KEPT_PREFIX: Final = "Jsplan-Kept-"
_LINE: Final = f"\r\n{SOURCE_HEADER}:".encode()
_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase


class SourceName(NamedTuple):
    """A source as the header names it.

    By this the server finds what a stream already has of a source, and continues after it
    (server_semantics 5).
    """

    stream: str
    filters: str
    destinations: str


class SourceHeader(NamedTuple):
    """The source of a message, and its sequence there."""

    source: SourceName
    seq: int


def source_name(origin: Config) -> SourceName:
    """Return the name of a configured source."""
    api = (origin.get("external") or {}).get("api")
    transforms = origin.get("subject_transforms") or [{"src": origin.get("filter_subject")}]
    filters, destinations = (
        "\f".join(t.get(end) or ">" for t in transforms) for end in ("src", "dest")
    )
    stream = f"{origin['name']}:{_short_hash(api)}" if api else str(origin["name"])
    if consumer := (origin.get("consumer") or {}).get("name"):
        stream += f":C={_short_hash(consumer)}"
    return SourceName(stream, filters, destinations)


def parse_source_header(headers: bytes) -> SourceHeader | None:
    """Parse the header in the header block of a message; None where no source copied it."""
    words = headers.partition(_LINE)[2].partition(b"\r\n")[0].strip(b" ").split(b" ")
    if len(words) < 2 or not words[1].isdigit() or len(words[1]) > 20:
        return None
    stream, filters, destinations = (
        word.decode("utf-8", "replace") for word in (words[0], *(*words[2:4], b"", b"")[:2])
    )
    return SourceHeader(SourceName(stream, filters, destinations), int(words[1]))


def measure_headers(headers: bytes, origin: Config, seq: int, subject: str) -> int:
    """Return the size of the header block of a message that a source has copied.

    nats-server 2.15 writes a hash besides, older ones do not.
    """
    before, found, after = (headers or b"NATS/1.0\r\n\r\n").partition(_LINE)
    kept = before + b"\r\n" + after.partition(b"\r\n")[2] if found else before
    name = source_name(origin)
    words = (name.stream, str(seq), name.filters, name.destinations, subject, _short_hash(subject))
    return len(kept) + len(f"{SOURCE_HEADER}: {' '.join(words)}\r\n".encode())


def _short_hash(text: str) -> str:
    """Return the server's short hash: eight digits of base 62."""
    return "".join(
        _DIGITS[byte % len(_DIGITS)] for byte in hashlib.sha256(text.encode()).digest()[:8]
    )
