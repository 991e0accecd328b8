"""URLs of archives: folders, and paths in buckets of object stores."""

from __future__ import annotations

import re
from typing import Final

from jsplan.config.parsing import url_problem

OBJECT_SCHEMES: Final = ("s3", "gs", "az")
PLACE_HINT: Final = (
    "Write a folder, file:///FOLDER, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH."
)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def archive_url_problem(text: str) -> str:
    """Explain why text cannot be the place of an archive; empty if it can.

    A folder always can. Apart from the scheme, nothing of the text is repeated.
    """
    scheme, is_url, rest = text.partition("://")
    if not is_url:
        return ""
    bucket, _, path = rest.partition("/")
    if scheme == "file":
        return "" if bucket in {"", "localhost"} else "a file:// URL names no other machine"
    if scheme not in OBJECT_SCHEMES:
        return url_problem(f"{scheme}://host", ("file", *OBJECT_SCHEMES))
    if "@" in bucket or ":" in bucket:
        return (
            "it has a user, password or port. The environment has the credentials and the "
            "endpoint of the object store"
        )
    if re.search(r"[?#\s]", rest) or not rest.isprintable():
        return "it has a query, a blank or an invisible character"
    if not _BUCKET.fullmatch(bucket):
        return "it names no bucket"
    if not (path := path.strip("/")):
        return "it names no path in the bucket"
    return "its path has an empty part, . or .." if {"", ".", ".."} & {*path.split("/")} else ""
