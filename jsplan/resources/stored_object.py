"""Objects of an object store, in the protocol of all clients: chunks, and metadata as JSON.

The metadata of an object is the last message of a subject with its name. Its chunks are on a
subject with an id (`nuid`) that each upload makes. So a reader sees the old object or the new one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec import Struct, field

from jsplan.resources.fields import Field, Table, update_in_place
from jsplan.resources.kv_entry import VALUE

OBJECT: Final = Table(
    "object",
    (Field(VALUE, "string", "The digest of the content.", default="", update=update_in_place),),
)
#: Bytes of a chunk, as all clients choose it.
CHUNK_SIZE: Final = 128 << 10
#: Largest name in bytes: it is in a subject, as base64.
MAX_NAME: Final = 512
#: The id of an upload. It becomes part of the filter of a purge, so nothing else is accepted.
_UPLOAD_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME: Final = re.compile(r"[^/*?\x00-\x1f\x7f]+(/[^/*?\x00-\x1f\x7f]+)*")
_DIGEST_TYPE: Final = "SHA-256="


def is_object_name(name: str) -> bool:
    """Check whether an address can name the object: no wildcard, no empty or invisible part."""
    return (
        _NAME.fullmatch(name) is not None
        and name.isprintable()
        and len(name.encode(errors="replace")) <= MAX_NAME
    )


def metadata_subject(bucket: str, name: str) -> str:
    """Return the subject of the metadata of an object."""
    encoded = base64.urlsafe_b64encode(name.encode(errors="surrogatepass")).decode()
    return f"$O.{bucket}.M.{encoded}"


def name_of_subject(subject: str) -> str | None:
    """Return the name of an object by the subject of its metadata; None if it has no name."""
    try:
        return base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode()
    except (ValueError, binascii.Error):
        return None


def chunk_subject(bucket: str, upload: str) -> str:
    """Return the subject of the chunks of one upload. Raises ValueError for no id of an upload."""
    if not is_upload_id(upload):
        raise ValueError(f'"{upload}" is not the id of an upload')
    return f"$O.{bucket}.C.{upload}"


def is_upload_id(text: str) -> bool:
    """Check whether the text may be the id of an upload."""
    return _UPLOAD_ID.fullmatch(text) is not None


class ObjectMetadata(Struct, frozen=True):
    """The metadata of an object. `upload` is empty where the object has no chunks of its own.

    `digest` is `sha256:…`, or says what else the object is. `size` is bytes. `raw` is the JSON,
    of which a new upload keeps what it does not know.
    """

    digest: str
    upload: str
    chunks: int
    size: int
    raw: Mapping[str, Any] = field(default_factory=dict)


def parse_metadata(payload: bytes) -> ObjectMetadata | None:
    """Parse the metadata of an object; None for a deleted one, and for no metadata at all."""
    try:
        raw = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(raw, dict) or raw.get("deleted"):
        return None
    options, upload = raw.get("options"), raw.get("nuid")
    link = options.get("link") if isinstance(options, dict) else None
    return ObjectMetadata(
        _describe_link(link) if link else _parse_digest(raw.get("digest")),
        upload if isinstance(upload, str) and is_upload_id(upload) else "",
        0 if link else _count(raw.get("chunks")),
        _count(raw.get("size")),
        raw,
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else 0


def _describe_link(link: object) -> str:
    found = link if isinstance(link, dict) else {}
    return f"link to {found.get('bucket')}/{found.get('name') or ''}".rstrip("/")


def _parse_digest(text: object) -> str:
    """Return `sha256:…` for `SHA-256=` and base64, with or without its padding."""
    if isinstance(text, str) and text.upper().startswith(_DIGEST_TYPE):
        encoded = text[len(_DIGEST_TYPE) :].rstrip("=")
        try:
            found = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except (ValueError, binascii.Error):
            return "unknown digest"
        return f"sha256:{found.hex()}"
    return "unknown digest"


class Upload(Struct, frozen=True):
    """A finished upload: its id, its chunks, its bytes, and `sha256:…` of these."""

    id: str
    chunks: int
    size: int
    digest: str


def build_metadata(
    bucket: str, name: str, before: Mapping[str, Any], upload: Upload, at: str
) -> bytes:
    """Return the metadata of an uploaded object. `at` is RFC 3339.

    Description, headers and the rest of `before` stay.
    """
    known = before.get("options")
    options = {key: value for key, value in (known or {}).items() if key != "link"}
    digest = base64.urlsafe_b64encode(bytes.fromhex(upload.digest.removeprefix("sha256:")))
    kept = {key: value for key, value in before.items() if key != "deleted"}
    return orjson.dumps(
        kept
        | {
            "name": name,
            "options": {"max_chunk_size": CHUNK_SIZE} | options,
            "bucket": bucket,
            "nuid": upload.id,
            "size": upload.size,
            "mtime": at,
            "chunks": upload.chunks,
            "digest": f"{_DIGEST_TYPE}{digest.decode()}",
        }
    )


def build_deleted_metadata(before: Mapping[str, Any], at: str) -> bytes:
    """Return the metadata that clients write over those of an object that they delete."""
    gone = {"size": 0, "chunks": 0, "digest": "", "deleted": True, "mtime": at}
    return orjson.dumps({**before, **gone})
