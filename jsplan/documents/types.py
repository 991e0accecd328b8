"""Types of the fields of documents, such as bounds and times, and parts that many share.

Bounds are part of a type: a reader may add such numbers, write them as JSON again and turn such
times into instants. A file name must not lead out of the folder of its document.
"""

from __future__ import annotations

import os
from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypedDict

from msgspec import Meta, Struct, field

from jsplan.documents.step_kinds import Severity
from jsplan.resources.nested import NAME

#: A name as servers accept it: no blank, and nothing with a meaning in subjects or paths.
_NAME = r"[^./\\*> \t\r\n\f]+"
_DOMAIN = r"[^/\r\n]+"
#: Python's `$` matches before a last newline, too.
_END = r"$(?!\n)"
_CONSUMER = rf"^{_DOMAIN}/consumer/{_NAME}/{_NAME}{_END}"
_STREAM = rf"^{_DOMAIN}/(stream|kv|object_store)/{_NAME}{_END}"
_KEY = r"[-/_=.a-zA-Z0-9]+"
_ENTRY = rf"^{_DOMAIN}/kv_entry/{_NAME}/{_KEY}{_END}"
#: Parts between slashes, without control characters and the signs of globs.
_OBJECT = rf"^{_DOMAIN}/object/{_NAME}(/[^/*?\x00-\x1f\x7f]+)+{_END}"
_SCHEDULE = rf"^{_DOMAIN}/schedule/{_NAME}/[^/*?> \x00-\x1f\x7f]+{_END}"
_ACCOUNT = rf"^{_DOMAIN}/account/[A-Za-z0-9_-]+{_END}"
ADDRESS_PATTERN: Final = f"{_STREAM}|{_CONSUMER}|{_ENTRY}|{_OBJECT}|{_SCHEDULE}|{_ACCOUNT}"
_MONTH = "(?:0[1-9]|1[0-2])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#: Nearly all dates have a day that is in every month, so these come first.
_DATE = (
    rf"(?:[0-9]{{4}}-(?:{_MONTH}-(?:0[1-9]|1[0-9]|2[0-8])|(?!02){_MONTH}-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|{_LEAP_YEAR}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_DATE}T{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?"
#: In the first and the last year an offset could leave the range of dates.
_INSTANT = rf"^(?!0000|(?:0001|9999).{{15,}}[+-]){_TIME}(?:Z|[+-]{_CLOCK}){_END}"
#: What a text must be, by the pattern that it must match: for errors.
PATTERNS: Final[dict[str, str]] = {}


def text(what: str, pattern: str, form: str | None = None) -> Any:
    """The constraint of a text that is `what`; `form` is a format of JSON Schema."""
    PATTERNS[pattern] = what
    return Meta(pattern=pattern, extra_json_schema={"format": form} if form else None)


#: A count of jsplan: sums of many still fit into 64 bits.
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
#: A number or count of the server. The JSON parser has no integers of more than 64 bits.
UInt64 = Annotated[int, Meta(ge=0)]
#: A number in a column of Arrow.
Int63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e15)]
Name = Annotated[str, text("a name", f"^{NAME}{_END}")]
AnyAddress = Annotated[str, text("an address", ADDRESS_PATTERN)]
StreamAddress = Annotated[str, text("the address of a stream or bucket", _STREAM)]
ConsumerAddress = Annotated[str, text("the address of a consumer", _CONSUMER)]
Time = Annotated[str, text("a time in UTC", f"^(?!0000){_TIME}Z{_END}", "date-time")]
#: A server's own: any offset.
Instant = Annotated[str, text("a time", _INSTANT, "date-time")]
Sha256 = Annotated[str, text("a SHA-256", f"^[0-9a-f]{{64}}{_END}")]
Fingerprint = Annotated[str, text("a fingerprint", f"^(absent|sha256:[0-9a-f]{{64}}){_END}")]
#: The id of an upload of an object (`resources.stored_object`): part of the filter of a purge.
UploadId = Annotated[str, text("the id of an upload", rf"^[A-Za-z0-9_-]{{1,64}}{_END}")]
SeqBounds = Annotated[list[Int63], Meta(min_length=2, max_length=2)]


def kept(*shapes: Any, choose: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the type of plain data that is checked by a shape and kept unchanged.

    Fields that the shape does not know survive. `choose` selects one of several shapes.
    """
    name = shapes[0].__name__.removesuffix("Shape")
    found = ABCMeta(
        name, (), {"shapes": shapes, "choose": choose and staticmethod(choose), "values": ()}
    )
    found.register(dict)
    return found


def listed(name: str, *values: list[Any]) -> Any:
    """Return the type of a list that is one of these."""
    found = ABCMeta(name, (), {"values": values, "choose": None, "shapes": ()})
    found.register(list)
    return found


def written(make: Callable[[], Any]) -> Any:
    """Return a default that is written too, by a struct that leaves out its other defaults."""
    return field(default_factory=partial(make))


def resolve_inside(folder: Path, *names: object) -> Path:
    """Return the path of nested names below a folder.

    Raises ValueError for an invalid name, for one that leads out of the folder, and for a path with
    a symbolic link.
    """
    path = folder
    for name in names:
        for part in name.split("/") if isinstance(name, str) else [""]:
            if part in ("", ".", "..") or "\\" in part or not part.isprintable():
                raise ValueError(f"{name!r} is not a file name below {folder}")
            path = path / part
            if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises for a name that is too long
                raise ValueError(f"{path} is a symbolic link")
    return path


class Deferred(Struct):
    """A resource or origin that is deferred to a later run, because its domain is offline."""

    address: AnyAddress
    reason: str


class Estimate(Struct, frozen=True):
    """An estimated time; `basis` says how it was computed."""

    seconds: Seconds
    basis: str


class InterruptedShape(TypedDict):
    """A replacement or relocation that an apply did not finish.

    Publishers to the subjects of `rejected` are rejected until it is finished.
    """

    address: AnyAddress
    rejected: list[str]
    summary: str
    detail: str


class BreachShape(TypedDict):
    """A threshold in the metadata of an object that is exceeded."""

    key: str
    level: Literal["critical", "warning"]
    threshold: str
    cause: str


class ReplicationShape(TypedDict("Sides", {"from": str, "to": str})):
    """One mirror or source. `healthy` null: not known; `cause` says why.

    `active` is the time since the last contact with its origin, in ns.
    """

    kind: str
    healthy: bool | None
    cause: str | None
    origin_last_seq: Count | None
    last_seq: Count | None
    lag: NotRequired[Count | None]
    active: NotRequired[Count | None]
    severity: NotRequired[Severity]


if TYPE_CHECKING:
    Interrupted = dict[str, Any]
    Breach = dict[str, Any]
    Replication = dict[str, Any]
else:
    Interrupted = kept(InterruptedShape)
    Breach = kept(BreachShape)
    Replication = kept(ReplicationShape)
