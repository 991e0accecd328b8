"""KV backends on the embedded servers, and the content of their buckets."""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Any

from jsplan.config.model import Connection, Domain
from jsplan.state.kv import KvBackend
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

_number = itertools.count()
#: A lease that no test outlives, in ns.
LONG_LEASE = 60_000_000_000


def new_bucket() -> str:
    """Return a name that no other test of this worker uses."""
    return f"STATE_{next(_number)}"


def kv_backend(
    server: Server,
    bucket: str,
    *,
    js_domain: str | None = None,
    workspace: str = "shop",
    environment: str | None = None,
    lease: int = LONG_LEASE,
    timeout: int | None = None,
) -> KvBackend:
    """A backend with its own connection to the server.

    `js_domain` is the domain of the bucket. `lease` and `timeout` (of one request) are in ns.
    """
    prefix = f"$JS.{js_domain}.API" if js_domain else "$JS.API"
    domain = Domain("there", "way", js_domain, prefix)
    connection = Connection(
        "way", url=server.url, user=server.user, password=server.password, timeout=timeout
    )
    return KvBackend.open_bucket(
        bucket, domain, connection, {}, of=(workspace, environment), lease=lease
    )


def bucket_config(bucket: str, **fields: Any) -> dict[str, Any]:
    """The configuration of a bucket that another client creates."""
    config = {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": 10,
        "allow_rollup_hdrs": True,
    }
    return config | {"discard": "new", "deny_delete": True, "allow_direct": True} | fields


def make_bucket(raw: Raw, bucket: str, **fields: Any) -> None:
    """Create a bucket in the domain of the server.

    Without `allow_msg_ttl` a lock in it is one as on a server before 2.11.
    """
    raw.api_ok(f"$JS.API.STREAM.CREATE.KV_{bucket}", bucket_config(bucket, **fields))


def keys(raw: Raw, bucket: str) -> list[str]:
    """Return the keys that hold something, markers included."""
    info = raw.api_ok(f"$JS.API.STREAM.INFO.KV_{bucket}", {"subjects_filter": ">"})
    return sorted(
        subject.removeprefix(f"$KV.{bucket}.") for subject in info["state"].get("subjects") or {}
    )


def value(raw: Raw, bucket: str, key: str) -> bytes:
    """Return the value of a key."""
    message = raw.api_ok(
        f"$JS.API.STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.{key}"}
    )["message"]
    return base64.b64decode(message.get("data", ""))


def revision(raw: Raw, bucket: str, key: str) -> int:
    """Return the revision of a key."""
    message = raw.api_ok(
        f"$JS.API.STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.{key}"}
    )["message"]
    return int(message["seq"])
