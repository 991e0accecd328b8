"""Addresses `DOMAIN/KIND/NAME`, globs over them, and names of many domains as ranges."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

Kind = Literal[
    "stream", "consumer", "kv", "object_store", "kv_entry", "object", "schedule", "account"
]
#: Every kind of an address.
ADDRESS_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: The kinds that have a section in the files. Entries are below their bucket.
KINDS: Final[tuple[Kind, ...]] = ("stream", "consumer", "kv", "object_store")
#: The kinds of what a bucket, object store or stream holds, with the kind of that. The accounts of
#: an operator are in none.
CONTENT_PARENTS: Final[dict[str, Kind | None]] = {
    "kv_entry": "kv",
    "object": "object_store",
    "schedule": "stream",
    "account": None,
}
_STREAM_KINDS: Final = frozenset({"stream", "kv", "object_store"})
_CONTENT_PREFIXES: Final = {"kv_entry": "KV_", "object": "OBJ_", "schedule": "", "account": ""}
#: Prefix of the names of staging streams and placeholder consumers.
#: They are never planned, imported or listed.
STAGING_PREFIX = "JSPLAN_STAGING_"
#: Prefix of the staging streams of backfills. The target sources them until the copy is complete.
BACKFILL_PREFIX = f"{STAGING_PREFIX}BACKFILL_"
#: Metadata of a stream that a backfill is restoring from a snapshot: the name of the backfill.
BACKFILL_INCOMPLETE = "jsplan.backfill.incomplete"
#: Metadata that marks a bucket made for state, also for workspaces with another backend.
STATE_TAG = ("jsplan", "state")
#: Prefixes of the consumers with which servers since 2.14 read a stream for its downstream.
SERVER_CONSUMER_PREFIXES = ("JS_SRC_", "JS_MIRROR_")
#: Prefixes of consumers of the server and of placeholders: never planned, imported or listed.
INTERNAL_CONSUMER_PREFIXES = (*SERVER_CONSUMER_PREFIXES, STAGING_PREFIX)
#: Prefix of the subjects of a quiesced stream, and of subjects and filters that an apply sets while
#: others are exchanged. No message is published to them.
PARKING_PREFIX = "jsplan.staging."
#: Prefixes of the streams that carry a bucket or an object store.
_STREAM_PREFIXES: dict[str, Kind] = {"KV_": "kv", "OBJ_": "object_store"}
_PREFIXES = tuple(_STREAM_PREFIXES)
#: Runs of names that a list shows before it only counts the rest.
MAX_SHOWN_RUNS = 12
_NUMBERED = re.compile(r"(.*?)(\d+)")
#: The addresses of kinds that are below another resource. A key, or the name of an object, may
#: have more slashes.
_SHAPES: dict[str, str] = {
    "consumer": "DOMAIN/consumer/STREAM/CONSUMER",
    "kv_entry": "DOMAIN/kv_entry/BUCKET/KEY",
    "object": "DOMAIN/object/BUCKET/NAME",
    "schedule": "DOMAIN/schedule/STREAM/SUBJECT",
}


class Address(NamedTuple):
    """One resource in one domain. A consumer is named `STREAM/CONSUMER`, an entry `BUCKET/KEY`.

    An object is named `BUCKET/NAME`, a schedule `STREAM/SUBJECT`.

    A tuple, because plans hold tens of thousands of them and compare them all the time.
    Sorts by domain, kind, name: the order of every list in the documents.
    """

    domain: str
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.domain}/{self.kind}/{self.name}"

    @property
    def stream(self) -> str:
        """The name of the stream on the server that carries this resource."""
        if self.kind == "consumer":
            return self.name.split("/", 1)[0]
        if self.kind in CONTENT_PARENTS:
            return _CONTENT_PREFIXES[self.kind] + self.name.split("/", 1)[0]
        return {"stream": "", "kv": "KV_", "object_store": "OBJ_"}[self.kind] + self.name

    @property
    def consumer(self) -> str:
        """The consumer's own name; raises ValueError for another kind."""
        if self.kind != "consumer":
            raise ValueError(f"{self} is not a consumer")
        return self.name.split("/", 1)[1]

    @property
    def key(self) -> str:
        """The key of an entry, name of an object or subject of a schedule; else ValueError."""
        if CONTENT_PARENTS.get(self.kind) is None:
            raise ValueError(f"{self} is not an entry of a bucket")
        return self.name.split("/", 1)[1]

    @property
    def is_stream(self) -> bool:
        """True for a stream, KV bucket and object store: a stream of the server carries each."""
        return self.kind in _STREAM_KINDS

    @property
    def is_content(self) -> bool:
        """True for what is no object of a JetStream: entries, objects, schedules and accounts."""
        return self.kind in CONTENT_PARENTS

    @property
    def parent(self) -> Address | None:
        """The stream or bucket that it is in; None for streams, buckets and accounts."""
        if (holder := CONTENT_PARENTS.get(self.kind)) is not None:
            return _bucket_of(self.domain, holder, self.name)
        return _parent_of(self.domain, self.name) if self.kind == "consumer" else None

    @classmethod
    def of_stream(cls, domain: str, stream: str) -> Address:
        """Return the address of a stream by its name on the server.

        The streams of buckets and object stores get the address of the bucket or object store.
        """
        if not stream.startswith(_PREFIXES):
            return cls(domain, "stream", stream)
        for prefix, kind in _STREAM_PREFIXES.items():
            if stream.startswith(prefix) and len(stream) > len(prefix):
                return cls(domain, kind, stream.removeprefix(prefix))
        return cls(domain, "stream", stream)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `hub/stream/ORDERS` or `hub/consumer/ORDERS/NEW`; ValueError says what is wrong."""
        return _parse(text)


@lru_cache(maxsize=1 << 15)
def _parse(text: str) -> Address:
    """Parse an address; a step asks for its own forty times."""
    parts = text.split("/")
    if len(parts) < 3 or not all(parts):
        raise ValueError(
            f'"{text}" is not an address; it is DOMAIN/KIND/NAME, as in hub/stream/ORDERS'
        )
    domain, kind, *rest = parts
    if kind not in ADDRESS_KINDS:
        raise ValueError(
            f'"{kind}" in "{text}" is not a kind; the kinds are {", ".join(ADDRESS_KINDS)}'
        )
    most = len(rest) if CONTENT_PARENTS.get(kind) else 2 if kind in _SHAPES else 1
    if not (2 if kind in _SHAPES else 1) <= len(rest) <= most:
        shape = _SHAPES.get(kind, f"DOMAIN/{kind}/NAME")
        raise ValueError(f'"{text}" is not an address; a {kind} is {shape}')
    return Address(sys.intern(domain), kind, "/".join(rest))


@lru_cache(maxsize=1 << 16)
def _parent_of(domain: str, name: str) -> Address:
    """Return the stream of a consumer; a plan of many asks for each twenty times."""
    return Address.of_stream(domain, name.split("/", 1)[0])


@lru_cache(maxsize=1 << 16)
def _bucket_of(domain: str, kind: Kind, name: str) -> Address:
    """Return the bucket of an entry, object store of an object, or stream of a schedule."""
    return Address(domain, kind, name.partition("/")[0])


@lru_cache(maxsize=1024)
def _compile_glob(glob: str) -> re.Pattern[str]:
    """Compile the glob to an expression that never backtracks.

    The first place where a piece fits is as good as any later one, except for the last piece,
    which must end the text. So the time does not explode with the number of wildcards.
    """
    *pieces, last = glob.split("**")
    before_last = "".join(
        f"(?>{'.*?' if index else ''}{_compile_part(piece)})" for index, piece in enumerate(pieces)
    )
    return re.compile(
        before_last + (".*?" if pieces else "") + _compile_part(last, ends=True) + r"\Z"
    )


def _compile_part(text: str, *, ends: bool = False) -> str:
    """Compile a part of a glob without `**`; with `ends` the text ends after it."""
    first, *chunks = (
        "".join("[^/]" if sign == "?" else re.escape(sign) for sign in chunk)
        for chunk in text.split("*")
    )
    last = [f"[^/]*{chunks.pop()}"] if ends and chunks else []
    return "".join([first, *(f"(?>[^/]*?{chunk})" for chunk in chunks), *last])


def capture_wildcards(glob: str, text: str) -> list[str] | None:
    """Return the text that each wildcard of the glob matches; None if the glob does not match.

    The first wildcards match as much as they can.
    """
    signs = [sign for sign in re.split(r"(\*\*|\*|\?)", glob) if sign]
    size = len(text)
    #: For each sign, the positions where the rest of the glob matches the rest of the text.
    fits = [[False] * (size + 1) for _ in signs] + [[False] * size + [True]]
    for number, sign in reversed([*enumerate(signs)]):
        here, after = fits[number], fits[number + 1]
        for at in range(size, -1, -1):
            crosses = sign == "**" or text[at : at + 1] not in ("", "/")
            if sign in ("*", "**"):
                here[at] = after[at] or (at < size and crosses and here[at + 1])
            elif sign == "?":
                here[at] = crosses and after[at + 1]
            else:
                here[at] = text.startswith(sign, at) and after[at + len(sign)]
    if not fits[0][0]:
        return None
    found, at = [], 0
    for number, sign in enumerate(signs):
        end = at + (1 if sign == "?" else len(sign))
        if sign in ("*", "**"):
            last = (
                size if sign == "**" else next((n for n in range(at, size) if text[n] == "/"), size)
            )
            end = next(n for n in range(last, at - 1, -1) if fits[number + 1][n])
        if sign in ("*", "**", "?"):
            found.append(text[at:end])
        at = end
    return found


def is_parked(value: object) -> bool:
    """Check whether a filter, or a list of subjects, has one to which nothing is published."""
    if isinstance(value, list):
        return any(map(is_parked, value))
    return isinstance(value, str) and value.startswith(PARKING_PREFIX)


def names_content(glob: str) -> bool:
    """Check whether an address or glob can only match entries, objects or schedules."""
    return glob.split("/")[1:2] in ([kind] for kind in CONTENT_PARENTS)


def is_glob(text: str) -> bool:
    """Check whether the text is a pattern rather than one address."""
    return "*" in text or "?" in text


def matches(glob: str, address: Address | str) -> bool:
    """Check whether the glob matches: `*` stays within one part, `**` crosses parts."""
    return _compile_glob(glob).match(str(address)) is not None


def matches_any(globs: Iterable[str], address: Address | str) -> bool:
    """Check whether one of the globs matches."""
    return any(matches(glob, address) for glob in globs)


def is_selected(
    address: Address | str, targets: Collection[str], excludes: Iterable[str] = ()
) -> bool:
    """Check whether `--target` (none: all) and `--exclude` select the address."""
    return (not targets or matches_any(targets, address)) and not matches_any(excludes, address)


_WILDCARDS = ("**", "*", "?")
_WILDCARD = re.compile(r"(\*\*|\*|\?)")


def has_same_wildcards(origin: str, to: str) -> bool:
    """Check whether both sides of a move have the same wildcards in the same order."""
    return _WILDCARD.findall(origin) == _WILDCARD.findall(to)


def changes_only_domain(origin: str, to: str) -> bool:
    """Check whether a move changes only the domain.

    All after the domain, wildcards included, must be the same on both sides.
    """
    return _without_domain(origin) == _without_domain(to)


def _without_domain(glob: str) -> str:
    """The glob from its first `/`, or from an earlier `**`, which crosses it."""
    found = re.search(r"/|\*\*", glob)
    return glob[found.start() :] if found else ""


def move_address(origin: str, to: str, old: Address) -> Address:
    """Return the new address of `old`: wildcards of both sides match the same parts, in order.

    Raises ValueError if the sides have different wildcards, or if the result is not an address.
    """
    if not has_same_wildcards(origin, to):
        raise ValueError(
            f'"{origin}" and "{to}" have different wildcards; write the same ones in the same order'
        )
    parts = iter(capture_wildcards(origin, str(old)) or ())
    return Address.parse(
        "".join(next(parts) if piece in _WILDCARDS else piece for piece in _WILDCARD.split(to))
    )


def compress_names(names: list[str], *, show_all: bool = False) -> str:
    """`store-002, store-{004..200}`: sorted names, runs of equal width as ranges."""
    runs: list[list[str]] = []
    for name in sorted(set(names)):
        if runs and _is_next_number(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    shown = runs if show_all or len(runs) <= MAX_SHOWN_RUNS + 1 else runs[:MAX_SHOWN_RUNS]
    left = sum(len(run) for run in runs[len(shown) :])
    return ", ".join(_format_run(run) for run in shown) + (f" and {left:,} more" if left else "")


def _is_next_number(before: str, name: str) -> bool:
    a, b = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    return (
        a is not None
        and b is not None
        and a[1] == b[1]
        and len(a[2]) == len(b[2])
        and int(b[2]) == int(a[2]) + 1
    )


def _format_run(run: list[str]) -> str:
    if len(run) < 3:
        return ", ".join(run)
    first, last = _NUMBERED.fullmatch(run[0]), _NUMBERED.fullmatch(run[-1])
    assert first is not None
    assert last is not None
    return f"{first[1]}{{{first[2]}..{last[2]}}}"
