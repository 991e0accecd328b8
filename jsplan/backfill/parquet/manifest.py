"""The manifest of an archive: its origins, their chunks, and the Parquet file of each chunk.

A chunk is a range of sequences that a run pinned before it read the first message. Its file has a
name that follows from origin, range and transformation, and is created in one step that fails where
there is one: a second writer of the chunk finds it there. So no process, however late,
adds a message twice.

The manifest is replaced as a whole: each version is a new file of `_jsplan/`, created in one step
that fails if another process was first. The one with the highest number counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from jsplan.backfill.parquet.store import ArchiveError, ArchiveStore
from jsplan.backfill.seq_ranges import count_sequences, subtract
from jsplan.documents.base import MAX_BYTES, DocumentError, parse
from jsplan.documents.reading import decode
from jsplan.errors import ApiError
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, SeqRange, merge_ranges

FORMAT: Final = "jsplan-archive/1"
DAMAGED_HINT: Final = (
    "Remove the file and run the backfill that wrote the archive. It copies the missing messages."
)
FOLDER: Final = "_jsplan"
_MANIFEST: Final = re.compile(rf"{FOLDER}/manifest-([0-9]{{6,18}})\.json")
_DRAFT: Final = re.compile(rf"{FOLDER}/draft-([0-9]{{6,18}})-.*")
_PART: Final = re.compile(rf"{FOLDER}/part-(.*\.parquet)-[0-9a-f]*")
_PARQUET: Final = re.compile(r"(?!_|\.).*\.parquet", re.DOTALL)

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9-][A-Za-z0-9_-]*\.parquet\Z", max_length=400)]
_Sha = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Span = tuple[_Count, _Count]


class ArchiveFile(Struct, frozen=True, forbid_unknown_fields=False):
    """One Parquet file of an archive.

    Times are ns, and `content` is the total size of subjects, headers and payloads in bytes. The
    bounds of a file without a message are 0.
    """

    name: _Name
    rows: _Count
    bytes: _Count
    sha256: _Sha
    first_seq: _Count
    last_seq: _Count
    first_time: _Time
    last_time: _Time
    content: _Count = 0


class Chunk(Struct, frozen=True):
    """A pinned range, both ends included, and its file once it is complete."""

    name: _Name
    first: _Count
    last: _Count
    file: ArchiveFile | None = None

    @property
    def span(self) -> SeqRange:
        """The range of the chunk."""
        return SeqRange(self.first, self.last)

    @property
    def is_valid(self) -> bool:
        """True if its file has its name, and no message outside of its range."""
        file = self.file
        return self.first <= self.last and (
            file is None
            or (
                file.name == self.name
                and (not file.rows or self.first <= file.first_seq <= file.last_seq <= self.last)
            )
        )


class ArchivedOrigin(Struct, frozen=True):
    """Origin of archived messages, and what was done to them.

    `domain` is as in `Jsplan-Origin`. `created` distinguishes the stream from another one of its
    name. `filters` are subjects (none: all), `where` SQL, `transform` `FILE.py:FUNCTION`, and
    `subject_transform` source and destination.
    """

    domain: str
    stream: str
    created: str
    filters: tuple[str, ...] = ()
    where: str | None = None
    transform: str | None = None
    subject_transform: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.domain}/{self.stream}"

    @property
    def identity(self) -> tuple[str, str, str]:
        """The stream itself."""
        return self.domain, self.stream, self.created

    @property
    def is_transformed(self) -> bool:
        """True if the messages are not what the origin has."""
        return bool(self.transform or self.subject_transform)

    def describe_selection(self) -> str:
        """Describe what was done to the messages, for errors."""
        parts = [
            f"{name} {value}"
            for name, value in (
                ("filter_subjects", ", ".join(self.filters)),
                ("where", self.where),
                ("transform", self.transform),
                ("subject_transform", " to ".join(self.subject_transform)),
            )
            if value
        ]
        return " and ".join(parts) or "no filter and no transform"

    def name_chunk(self, span: SeqRange, fingerprint: str) -> str:
        """Return the name of the file of a chunk; `fingerprint` is that of the function's text."""
        stream = "".join(
            c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in self.stream
        )
        content = json.dumps([msgspec.to_builtins(self), fingerprint]).encode()
        key = hashlib.sha256(content).hexdigest()[:12]
        return f"s-{stream[:120]}-{span.first:012}-{span.last:012}-{key}.parquet"


class OriginContent(Struct, frozen=True):
    """Chunks and gaps of one origin.

    `gaps` are the first ranges that were gone before they could be archived, `gap_messages` is the
    number of messages in all of them.
    """

    origin: ArchivedOrigin
    chunks: tuple[Chunk, ...] = ()
    gaps: tuple[_Span, ...] = ()
    gap_messages: _Count = 0

    @property
    def files(self) -> list[ArchiveFile]:
        """The files with messages, in order."""
        files = [chunk.file for chunk in self.chunks if chunk.file is not None and chunk.file.rows]
        return sorted(files, key=lambda file: file.first_seq)

    @property
    def pending(self) -> list[Chunk]:
        """The chunks without a file, in order."""
        return [chunk for chunk in self.chunks if chunk.file is None]

    def complete(self, files: Iterable[ArchiveFile], gaps: list[SeqRange]) -> OriginContent:
        """Return the content with the files of its pending chunks, and the gaps found in them."""
        by_name = {file.name: file for file in files}
        spans = [chunk.span for chunk in self.pending]
        earlier = [SeqRange(*gap) for gap in self.gaps]
        kept = subtract(earlier, spans)
        count = self.gap_messages - count_sequences(earlier) + count_sequences([*kept, *gaps])
        return replace(
            self,
            chunks=tuple(
                chunk if chunk.file is not None else replace(chunk, file=by_name[chunk.name])
                for chunk in self.chunks
            ),
            gaps=tuple((gap.first, gap.last) for gap in merge_ranges([*kept, *gaps]))[
                :MAX_LISTED_RANGES
            ],
            gap_messages=count,
        )


class _Manifest(Struct, frozen=True):
    """The document. `id` is of one writer; `expected` are the origins that have to be there."""

    format: str
    id: str
    expected: tuple[str, ...]
    origins: tuple[OriginContent, ...]
    dropped: tuple[_Name, ...] = ()


class Archive(Struct, frozen=True):
    """Current content of an archive, and the number of its manifest (0: none).

    `dropped` are names of chunks that are no longer wanted. A late worker may still write one.
    """

    store: ArchiveStore
    number: int = 0
    expected: tuple[str, ...] = ()
    origins: tuple[OriginContent, ...] = ()
    dropped: tuple[str, ...] = ()

    @classmethod
    def read(cls, store: ArchiveStore) -> Archive:
        """Read the manifest. A place that does not exist is an empty archive.

        Raises ArchiveError for another folder, and DocumentError for a damaged manifest.
        """
        with explain_errors(store, "read"):
            names = store.list()
        numbers = _list_numbers(names)
        if not numbers:
            if any(not name.startswith(f"{FOLDER}/") for name in names) or not (
                names or store.is_empty()
            ):
                raise ArchiveError(
                    f"{store} is not empty, and is not an archive of jsplan",
                    hint="Name an empty folder.",
                )
            return cls(store)
        name = _name_manifest(max(numbers))
        try:
            data = store.read(name, MAX_BYTES)
        except FileNotFoundError:
            raise ApiError(
                f"another process wrote to the archive {store} at the same time",
                hint="Run the command again.",
            ) from None
        except OSError as error:
            raise ArchiveError(
                f"{store.locate(name)} cannot be read: {error.strerror}", hint=store.hint
            ) from None
        found = _decode(data, store.locate(name))
        return cls(store, max(numbers), found.expected, found.origins, found.dropped)

    def find(self, *identities: tuple[str, str, str]) -> OriginContent | None:
        """Return what the archive has of a stream, by the first of its identities that it knows."""
        known = {each.origin.identity: each for each in self.origins}
        return next((known[identity] for identity in identities if identity in known), None)

    def put(self, content: OriginContent) -> Archive:
        """Return the archive with other content of one origin."""
        identity = content.origin.identity
        known = self.find(identity) is not None
        origins = tuple(
            content if each.origin.identity == identity else each for each in self.origins
        )
        return replace(self, origins=origins if known else (*origins, content))

    def save(self) -> Archive:
        """Write the next version of the manifest.

        Raises ApiError when another process was first, and ArchiveError.
        """
        number = self.number + 1
        name = _name_manifest(number)
        draft = f"{FOLDER}/draft-{number:06}-{os.urandom(8).hex()}"
        document = _Manifest(FORMAT, os.urandom(8).hex(), self.expected, self.origins, self.dropped)
        try:
            self.store.begin(draft, msgspec.json.encode(document))
            try:
                self.store.link(draft, name)
            finally:
                self.store.delete(draft)
            others = _list_numbers(self.store.list())
            is_first = max(others) == number
            if not is_first:  # this one is older than some that were deleted
                self.store.delete(name)
        except (FileExistsError, FileNotFoundError):  # the winner has deleted the draft
            is_first = False
        except OSError as error:
            raise ArchiveError(
                f"cannot write {self.store.locate(name)}: {error.strerror}",
                hint=self.store.link_hint if error.errno in _NO_LINK else self.store.hint,
            ) from None
        if not is_first:
            raise ApiError(
                f"another process wrote to the archive {self.store} at the same time",
                hint="Run the backfill again.",
            )
        return replace(self, number=number)

    def find_missing_files(self) -> list[str]:
        """Return the files of complete chunks that are missing.

        Raises ArchiveError for a file of another size, and for one that is not in the manifest.
        """
        with explain_errors(self.store, "read"):
            present = self.store.list()
        chunks = {chunk.name: chunk for each in self.origins for chunk in each.chunks}
        for name, chunk in chunks.items():
            if chunk.file is not None and present.get(name, chunk.file.bytes) != chunk.file.bytes:
                raise ArchiveError(
                    f"{self.store.locate(name)} has {present[name]:,} bytes, "
                    f"and {chunk.file.bytes:,} were written",
                    hint=DAMAGED_HINT,
                )
        known = {*chunks, *self.dropped}
        unknown = next(
            (name for name in present if _PARQUET.fullmatch(name) and name not in known), None
        )
        if unknown is not None:
            raise ArchiveError(
                f"{self.store.locate(unknown)} is not in the manifest of the archive",
                hint="Every reader of the archive would read it. Remove it.",
            )
        return [
            name for name, chunk in chunks.items() if chunk.file is not None and name not in present
        ]

    def require_complete(self) -> None:
        """Raise ArchiveError for a place that has no complete archive."""
        if not self.origins:
            raise ArchiveError(f"{self.store} is not an archive, or it is still empty")
        names = {str(each.origin) for each in self.origins}
        problems = [
            *(f"{name} is missing" for name in self.find_missing_files()),
            *(
                f"{chunk.name} is not written yet"
                for each in self.origins
                for chunk in each.pending
            ),
            *(f"it has no message of {name} yet" for name in self.expected if name not in names),
        ]
        if problems:
            raise ArchiveError(
                f"the archive {self.store} is not complete: {problems[0]}",
                hint="Run the backfill that writes it. It completes the archive.",
            )

    def clean(self) -> None:
        """Delete, as far as possible, what this manifest has made useless, and nothing else.

        That is earlier manifests and their drafts, dropped files, and what tasks have left of
        chunks that are complete or dropped. A task of another run may be writing the rest.
        """
        done = {chunk.name for each in self.origins for chunk in each.chunks if chunk.file}
        useless = done | {*self.dropped}
        with contextlib.suppress(OSError):
            for name in self.store.list():
                part, draft = _PART.fullmatch(name), _DRAFT.fullmatch(name)
                if (
                    any(number < self.number for number in _list_numbers([name]))
                    or (draft and int(draft[1]) <= self.number)
                    or (part and part[1] in useless)
                    or name in self.dropped
                ):
                    self.store.delete(name)


#: Errors of a file system without hard links, and of a store without conditional writes.
_NO_LINK: Final = (1, 38, 95)


def name_part(chunk: str) -> str:
    """Return a new name for the file that a task writes before it is that of the chunk."""
    return f"{FOLDER}/part-{chunk}-{os.urandom(8).hex()}"


def _name_manifest(number: int) -> str:
    return f"{FOLDER}/manifest-{number:06}.json"


def _list_numbers(names: Iterable[str]) -> list[int]:
    return [int(match[1]) for name in names if (match := _MANIFEST.fullmatch(name))]


def _decode(data: bytes, path: str) -> _Manifest:
    """Decode a manifest. Raises DocumentError."""
    hint = "The archive was not changed. Restore the file, or name another place and archive again."
    raw: Any = parse(data, path, hint)
    if isinstance(raw, dict) and raw.get("format") != FORMAT:
        raise ArchiveError(
            f"{path} has another format. This release of jsplan reads {FORMAT}",
            hint="Use the release of jsplan that wrote it.",
        )
    found = decode(_Manifest, raw, path, hint)
    for each in found.origins:
        last = 0
        for chunk in each.chunks:
            if chunk.first <= last or not chunk.is_valid:
                raise DocumentError(
                    f"{path} is damaged: {chunk.name} does not fit its range", hint=hint
                )
            last = chunk.last
    return found


@contextlib.contextmanager
def explain_errors(place: ArchiveStore, verb: str) -> Iterator[None]:
    """Translate OSError to ArchiveError."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"cannot {verb} {place}: {error.strerror or error}", hint=place.hint
        ) from None
