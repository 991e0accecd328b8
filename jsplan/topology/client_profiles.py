"""The requests of client libraries for each use of a resource, as data. Pure.

Recorded from nats-py 2.16, from the JavaScript clients 3 (`@nats-io/jetstream`, `kv`, `obj`) and
from nats.java 2.26.3 against servers; that of Go is from its source. A test runs the recorded
clients with the permissions that follow from this.

A subject has `{api}` for the API prefix of the domain, `{own}` for what stands before a key that is
written in another domain, `{stream}`, `{consumer}`, and `{subject}` for each subject of the use.
`{content}` and `{info}` are those of objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from msgspec import Struct

from jsplan.config.model import AppUse, Client, Verb
from jsplan.resources.buckets import subject_prefixes


class Request(Struct, frozen=True):
    """One request, the clients that send it, and whether only with or without `allow_direct`.

    `pull`: only for a pull consumer.
    """

    subject: str
    clients: tuple[Client, ...] = get_args(Client)
    direct: bool | None = None
    pull: bool = False


_INFO: Final = "{api}.STREAM.INFO.{stream}"
_GET: Final = "{api}.STREAM.MSG.GET.{stream}"
_DIRECT: Final = "{api}.DIRECT.GET.{stream}"
_CREATE: Final = "{api}.CONSUMER.CREATE.{stream}"
_CREATED: Final = "{api}.CONSUMER.INFO.{stream}.*"
#: Requests to open a bucket.
_OPEN_KV: Final = (Request(_INFO, ("go", "java", "py")),)
_OPEN_OBJECTS: Final = (Request(_INFO), Request("{api}.INFO", ("js",)))
_GET_KEY: Final = (
    Request(f"{_DIRECT}.{{subject}}", ("go", "java", "py"), direct=True),
    Request(_GET, ("go", "java", "py"), direct=False),
    Request(_GET, ("js",)),
)
_GET_INFO: Final = (
    Request(f"{_DIRECT}.{{info}}", ("go", "java"), direct=True),
    Request(_GET, ("go", "java"), direct=False),
    Request(_GET, ("js", "py")),
)
#: By kind and verb. `app_permissions` adds delivery subjects, acknowledgements and flow control.
REQUESTS: Final[dict[tuple[str, Verb], tuple[Request, ...]]] = {
    ("stream", "publish"): (Request("{subject}"),),
    ("consumer", "consume"): (
        Request(_INFO, ("java",), pull=True),
        Request("{api}.CONSUMER.INFO.{stream}.{consumer}"),
    ),
    ("kv", "read"): (*_OPEN_KV, *_GET_KEY),
    ("kv", "watch"): (
        *_OPEN_KV,
        Request(f"{_CREATE}.*.{{subject}}", ("go", "java", "js")),
        Request(_CREATE, ("py",)),
        Request(_CREATED, ("java", "js", "py")),
    ),
    ("kv", "write"): (*_OPEN_KV, Request("{own}{subject}")),
    ("object_store", "read"): (
        *_OPEN_OBJECTS,
        *_GET_INFO,
        Request(f"{_DIRECT}.{{content}}", ("java",), direct=True),
        Request(f"{_CREATE}.*.{{content}}", ("go", "java", "js")),
        Request(_CREATE, ("py",)),
        Request("{api}.STREAM.NAMES", ("py",)),
    ),
    ("object_store", "watch"): (
        *_OPEN_OBJECTS,
        Request(f"{_CREATE}.*.{{info}}", ("go", "java", "js")),
        Request(_CREATE, ("py",)),
        Request(_CREATED, ("java",)),
    ),
    ("object_store", "write"): (
        *_OPEN_OBJECTS,
        *_GET_INFO,
        Request("{own}{subject}"),
        Request("{api}.STREAM.PURGE.{stream}"),
    ),
}


def list_requests(use: AppUse, client: Client, body: Mapping[str, Any], api: str) -> Iterator[str]:
    """Yield the subjects that this client asks over the prefix `api`, in its order.

    `body` is the configuration of the stream or consumer. A key of another domain is written with
    the prefix of that; servers map no such prefix for objects.
    """
    address = use.address
    # A bucket is created with direct reads, unless its entry says otherwise.
    direct = bool(body.get("allow_direct", address.kind in ("kv", "object_store")))
    own = f"{api}." if address.kind == "kv" and api != "$JS.API" else ""
    consumer = address.consumer if address.kind == "consumer" else ""
    content, info = (f"{each}>" for each in subject_prefixes("object_store", address.name))
    for row in REQUESTS[address.kind, use.verb]:
        if client not in row.clients or row.direct not in (None, direct):
            continue
        if row.pull and body.get("deliver_subject"):
            continue
        for subject in _list_subjects(use) if "{subject}" in row.subject else [""]:
            yield row.subject.format(
                api=api, own=own, stream=address.stream, consumer=consumer,
                subject=subject, content=content, info=info,
            )  # fmt: skip


def find_limit(
    use: AppUse, client: Client, body: Mapping[str, Any], api: str
) -> tuple[str, str] | None:
    """Return why this client cannot do a use over the prefix `api`, and what to do instead."""
    kind, elsewhere = use.address.kind, api != "$JS.API"
    if client == "py" and (kind, use.verb) == ("kv", "write") and elsewhere:
        return (
            "nats-py writes no key of another domain",
            "Let it connect to a server of that domain, or use another client there.",
        )
    if client == "java" and body.get("deliver_group") and body.get("flow_control"):
        return (
            "in a group (`deliver_group`), nats.java answers no flow control, so messages stop",
            "Leave `flow_control` out, or use a pull consumer.",
        )
    return None


def _list_subjects(use: AppUse) -> Sequence[str]:
    """Return the subjects of a use; those of a bucket are below its own.

    The subject of an object is a hash of its name.
    """
    address = use.address
    if address.kind not in ("kv", "object_store"):
        return use.subjects
    keys = (">",) if address.kind == "object_store" else use.subjects or (">",)
    prefixes = subject_prefixes(address.kind, address.name)
    return [f"{prefix}{key}" for prefix in prefixes for key in keys]
