"""Archive: Parquet files by day, and a log of commits that lists its files.

The place is a folder or a path in a bucket. An attempt writes its files into a folder of its own
there. The name of the folder begins with `_`, so readers of the archive skip it. A commit is one
new file of the log, created in one step that fails if another process was first. The committer, or
the next run, then moves the committed files to their days. `_SUCCESS` exists only once all of them
are moved.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypedDict, TypeVar

from msgspec import Meta, Struct

from jsplan.backfill.parquet.store import ArchiveError, ArchiveStore
from jsplan.backfill.seq_ranges import count_sequences
from jsplan.documents.base import MAX_BYTES, DocumentError, parse, plain
from jsplan.documents.reading import decode, find_flaw
from jsplan.documents.types import Count, Int63, SeqBounds, Sha256, kept, text
from jsplan.errors import ApiError
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, SeqRange

T = TypeVar("T")
FORMAT: Final = "jsplan-archive/1"
DAMAGED_HINT: Final = (
    "Remove the file and run the backfill that wrote the archive. It copies the missing messages."
)
LOG_FOLDER, SUCCESS_FILE, ATTEMPT_FILE = "_jsplan", "_SUCCESS", "attempt.json"
_ATTEMPT_PREFIX, _COMMIT_PREFIX = "attempt-", "commit-"
_COMMIT_NAME: Final = re.compile(rf"{_COMMIT_PREFIX}[^/]*\.json")
_RECEIPT_NAME: Final = re.compile(r"piece-[^/]*\.json")
_DAY_FILE: Final = re.compile(r"day=[^/]*/[^/]*\.parquet")


class ArchivedOrigin(NamedTuple):
    """Origin of archived messages: domain as in `Jsplan-Origin`, stream, and its creation time."""

    domain: str
    stream: str
    created: str


class OriginShape(TypedDict):
    """The origin in a document of the log."""

    domain: str
    stream: str
    created: str


if TYPE_CHECKING:
    StoredOrigin = ArchivedOrigin
else:
    StoredOrigin = kept(OriginShape)
#: A file in the folder of one day.
DayFile = Annotated[
    str,
    text(
        "the name of a file of one day",
        r"^day=\d{4}-\d\d-\d\d/[A-Za-z0-9_-][A-Za-z0-9_.-]*\.parquet$(?!\n)",
    ),
]
#: A part of the name of a folder.
AttemptName = Annotated[str, text("the name of an attempt", r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]
TimeNs = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Selection(NamedTuple):
    """Messages of a range to archive.

    Those of these subjects, sorted (none: all), for which the SQL condition is true.
    """

    filters: tuple[str, ...] = ()
    where: str | None = None

    def covers(self, other: Selection) -> bool:
        """Return True if this selection includes all messages of the other."""
        return self.filters in ((), other.filters) and self.where in (None, other.where)


class Transformation(NamedTuple):
    """Changes to messages: `FILE.py:FUNCTION`, and the two sides of a subject transform."""

    transform: str | None = None
    subject_transform: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"transform {self.transform}"] if self.transform else []
        parts += (
            [f"subject_transform {' to '.join(self.subject_transform)}"]
            if self.subject_transform
            else []
        )
        return " and ".join(parts) or "no transform"


class ArchiveFile(Struct, frozen=True):
    """One Parquet file of an archive.

    `name` is relative to the archive, times are ns, and `content` is the total size of subjects,
    headers and payloads in bytes.
    """

    name: DayFile
    rows: Count
    bytes: Count
    sha256: Sha256
    first_seq: Int63
    last_seq: Int63
    first_time: TimeNs
    last_time: TimeNs
    content: Count = 0


class Commit(Struct):
    """Messages that one run added of one origin.

    The run read the `spans` (of `first` to `last`, the pinned range), and `files` have the
    messages found there. `attempt` names the folder that the files come from. `origins` are all of
    the entry. `lost` are missing files that are replaced. `where` is the SQL condition;
    `transform` and `subject_transform` are the applied changes.
    """

    entry: str
    origin: StoredOrigin
    first: Int63
    last: Int63
    filters: list[str]
    spans: list[SeqBounds]
    attempt: AttemptName
    at: str
    files: list[ArchiveFile]
    gaps: list[SeqBounds]
    gap_messages: Count
    origins: list[str]
    lost: list[DayFile]
    where: str | None = None
    transform: str | None = None
    subject_transform: list[str] | None = None

    @property
    def selection(self) -> Selection:
        """Selection of the run."""
        return Selection(tuple(sorted(self.filters)), self.where)

    @property
    def transformation(self) -> Transformation:
        """Changes that the run applied."""
        return Transformation(self.transform, tuple(self.subject_transform or ()))

    def __post_init__(self) -> None:
        origin: Any = self.origin
        if isinstance(origin, dict):  # read from the document
            self.origin = ArchivedOrigin(*(origin[name] for name in ArchivedOrigin._fields))

    def to_json(self) -> dict[str, Any]:
        """Convert to the document of the log."""
        rows = sum(file.rows for file in self.files)
        more = {"origin": self.origin._asdict(), "rows": rows}
        return {"format": FORMAT, **plain(self), **more}


class AttemptMark(TypedDict):
    """The marker of an attempt; `origin` is JSON."""

    entry: str
    hash: str
    origin: str


class Receipt(TypedDict):
    """A finished chunk of an attempt."""

    span: SeqBounds
    rows: Count
    bytes: Count
    files: list[ArchiveFile]


class Archive(Struct, frozen=True):
    """Current content of an archive."""

    store: ArchiveStore
    commits: tuple[Commit, ...] = ()

    @classmethod
    def read(cls, store: ArchiveStore) -> Archive:
        """Read the log. A place that does not exist is an empty archive. Raises ArchiveError."""
        log = store.below(LOG_FOLDER)
        with _explain_errors(store, "read"):
            names = [*log.list()]
            if not names and log.is_empty() and not store.is_empty():
                raise ArchiveError(
                    f"{store} is not empty, and is not an archive of jsplan",
                    hint="Name an empty folder.",
                )
        commits = sorted(name for name in names if _COMMIT_NAME.fullmatch(name))
        return cls(
            store,
            tuple(_read_document(log, name, Commit) for name in commits),
        )

    @property
    def files(self) -> dict[str, tuple[Commit, ArchiveFile]]:
        """Files of the archive, by name, each with its commit."""
        found: dict[str, tuple[Commit, ArchiveFile]] = {}
        for commit in self.commits:
            for name in commit.lost:
                found.pop(name, None)
            found |= {file.name: (commit, file) for file in commit.files}
        return found

    def files_of(self, origin: ArchivedOrigin) -> list[ArchiveFile]:
        """Return the files of one origin, in order."""
        files = [file for commit, file in self.files.values() if commit.origin == origin]
        return sorted(files, key=lambda file: (file.first_seq, file.last_seq))

    @property
    def origins(self) -> dict[ArchivedOrigin, list[Commit]]:
        """Origins of the archive, in order of their first commit, with their commits."""
        found: dict[ArchivedOrigin, list[Commit]] = {}
        for commit in self.commits:
            found.setdefault(commit.origin, []).append(commit)
        return found

    def begin_attempt(self, attempt: str, mark: dict[str, str]) -> ArchiveStore:
        """Create the place of an attempt. Raises ArchiveError."""
        place = self.attempt_place(attempt)
        with _explain_errors(place, "write to"):
            place.begin(ATTEMPT_FILE, encode_document(mark))
        return place

    def attempt_place(self, attempt: str) -> ArchiveStore:
        """Return the place of the files of an attempt."""
        return self.store.below(_attempt_folder(attempt))

    def list_attempts(self, entry: str) -> Iterator[tuple[str, dict[str, str], ArchiveStore]]:
        """Yield the remaining attempts of an entry: name, mark and place.

        One that was interrupted before it had a mark is skipped. Raises ArchiveError.
        """
        for attempt, has_mark in self._find_attempts().items():
            place = self.attempt_place(attempt)
            try:
                mark = parse(
                    place.read(ATTEMPT_FILE, MAX_BYTES) if has_mark else b"",
                    place.locate(ATTEMPT_FILE),
                    "",
                )
            except (OSError, ArchiveError, DocumentError):
                continue
            if (
                find_flaw(mark, AttemptMark) is None
                and mark["entry"] == entry
                and parse_origin(mark) is not None
            ):
                yield attempt, mark, place

    def move_chunk(self, piece: dict[str, Any], attempt: str, other: str) -> None:
        """Move a finished chunk to another attempt: its files first, because a receipt is trusted.

        A chunk whose files were only partly moved before is skipped. Raises ArchiveError.
        """
        old, new = _attempt_folder(attempt), _attempt_folder(other)
        receipt = receipt_name(SeqRange(*piece["span"]))
        names = [file["name"] for file in piece["files"]]
        with _explain_errors(self.store, "move files in"):
            if self.store.below(old).list().keys() >= {*names}:
                for name in (*names, receipt):  # `read_receipts` has checked the names
                    self.store.move(f"{old}/{name}", f"{new}/{name}")

    def commit(self, commit: Commit) -> Archive:
        """Add to the log, and move the files to their days.

        Raises ApiError when another process committed first, and ArchiveError.
        """
        name = f"{LOG_FOLDER}/{_COMMIT_PREFIX}{len(self.commits) + 1:06}.json"
        draft = f"{_attempt_folder(commit.attempt)}/commit"
        try:
            self.store.delete(SUCCESS_FILE)
            self.store.write(draft, encode_document(commit.to_json()))
            self.store.link(draft, name)
        except FileExistsError:
            raise ApiError(
                f"another process wrote to the archive {self.store} at the same time",
                hint="Run the backfill again.",
            ) from None
        except OSError as error:
            raise ArchiveError(
                f"cannot write {self.store.locate(name)}: {error.strerror}",
                hint=self.store.link_hint,
            ) from None
        done = Archive(self.store, (*self.commits, commit))
        done.finish_commits()
        return done

    def finish_commits(self) -> None:
        """Move committed files that an interrupted run did not move, and update `_SUCCESS`.

        Raises ArchiveError.
        """
        if not self.commits:
            return
        with _explain_errors(self.store, "move files in"):
            present = self.store.list()
            if missing := {
                name: commit for name, (commit, _) in self.files.items() if name not in present
            }:
                for name, commit in missing.items():
                    with contextlib.suppress(FileNotFoundError):  # lost, or moved by another
                        self.store.move(f"{_attempt_folder(commit.attempt)}/{name}", name)
                present = self.store.list()
            if not all(name in present for name in self.files):
                self.store.delete(SUCCESS_FILE)
            elif missing or SUCCESS_FILE not in present:
                self.store.write(SUCCESS_FILE, b"")

    def find_missing_files(self) -> list[str]:
        """Return the files that are missing.

        Raises ArchiveError for a file of another size, and for a file that is not in the log.
        """
        with _explain_errors(self.store, "read"):
            present = self.store.list()
        files = self.files
        for name, (_, file) in files.items():
            if present.get(name, file.bytes) != file.bytes:
                raise ArchiveError(
                    f"{self.store.locate(name)} has {present[name]:,} bytes, "
                    f"and {file.bytes:,} were written",
                    hint=DAMAGED_HINT,
                )
        unknown = next(
            (name for name in present if _DAY_FILE.fullmatch(name) and name not in files), None
        )
        if unknown is not None:
            raise ArchiveError(
                f"{self.store.locate(unknown)} is not in the log of the archive",
                hint="Every reader of the archive would read it. Remove it.",
            )
        return [name for name in files if name not in present]

    def require_complete(self) -> None:
        """Raise ArchiveError for a place that has no complete archive."""
        if not self.commits:
            raise ArchiveError(f"{self.store} is not an archive, or it is still empty")
        if missing_files := self.find_missing_files():
            with _explain_errors(self.store, "read"):
                present = self.store.list()
            staged = (
                f"{_attempt_folder(self.files[name][0].attempt)}/{name}" for name in missing_files
            )
            why = (
                "has not been moved to its place yet"
                if any(name in present for name in staged)
                else "is missing"
            )
            raise ArchiveError(
                f"the archive {self.store} is not complete: {missing_files[0]} {why}",
                hint="Run the backfill that writes it. It repairs the archive.",
            )
        present_origins = {f"{origin.domain}/{origin.stream}" for origin in self.origins}
        if missing := sorted(
            {name for commit in self.commits for name in commit.origins} - present_origins
        ):
            raise ArchiveError(
                f"the archive {self.store} is not complete: it has no message of {missing[0]} yet",
                hint="Run the backfill that writes it.",
            )

    def drop_attempt(self, attempt: str) -> None:
        """Delete the files of an attempt, its mark first: then no run takes over a part of it."""
        place = self.attempt_place(attempt)
        with contextlib.suppress(OSError):
            place.delete(ATTEMPT_FILE)
            place.drop()

    def drop_unmarked_attempts(self) -> None:
        """Delete what is left of attempts that were deleted in part, or written to later.

        An attempt begins with its mark, so it has ended if it has other files alone.
        """
        for attempt, has_mark in self._find_attempts().items():
            if not has_mark:
                self.drop_attempt(attempt)

    def _find_attempts(self) -> dict[str, bool]:
        """Return the attempts that have files, and whether each has a mark."""
        with _explain_errors(self.store, "read"):
            names = self.store.below(LOG_FOLDER).list()
        found: dict[str, bool] = {}
        for folder, mark, name in sorted(name.partition("/") for name in names):
            if mark and folder.startswith(_ATTEMPT_PREFIX):
                attempt = folder.removeprefix(_ATTEMPT_PREFIX)
                found[attempt] = found.get(attempt, False) or name == ATTEMPT_FILE
        return found


def merge_gaps(commits: Iterable[Commit]) -> tuple[list[list[int]], int]:
    """Return the gaps of all commits: the first ranges, and the number of messages.

    Gaps are messages that were deleted before they could be archived. Sequences that were read
    twice, because a file was lost, count once.
    """
    all_commits = [*commits]
    listed = merge_ranges(sorted(SeqRange(*gap) for commit in all_commits for gap in commit.gaps))
    unlisted = sum(
        commit.gap_messages - count_sequences(SeqRange(*gap) for gap in commit.gaps)
        for commit in all_commits
    )
    return [list(gap) for gap in listed[:MAX_LISTED_RANGES]], count_sequences(listed) + unlisted


def read_receipts(
    place: ArchiveStore, known: dict[str, dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the receipts of finished pieces of an attempt, in order.

    Those in `known` are not read again; the others are added to it. Raises ArchiveError and
    DocumentError for a damaged one.
    """
    found = {} if known is None else known
    with _explain_errors(place, "read"):
        names = [name for name in place.list() if _RECEIPT_NAME.fullmatch(name)]
    found |= {
        name: plain(_read_document(place, name, Receipt)) for name in names if name not in found
    }
    return sorted((found[name] for name in names), key=lambda piece: list(piece["span"]))


def receipt_name(span: SeqRange) -> str:
    """Return the name of the receipt of a chunk."""
    return f"piece-{span.first}-{span.last}.json"


def parse_origin(mark: dict[str, str]) -> ArchivedOrigin | None:
    """Parse the origin of an attempt. Returns None where its mark has none."""
    try:
        names = parse(mark["origin"].encode(), "it", "")
    except DocumentError:
        return None
    is_origin = (
        isinstance(names, list)
        and len(names) == len(ArchivedOrigin._fields)
        and all(isinstance(name, str) for name in names)
    )
    return ArchivedOrigin(*names) if is_origin else None


def find_covered_ranges(
    commits: Iterable[Commit], wanted: Selection, lost: Iterable[ArchiveFile]
) -> tuple[list[SeqRange], list[SeqRange]]:
    """Return the ranges that were read with the wanted selection, and those of lost files.

    Both are sorted, without overlaps.
    """
    spans = sorted(
        SeqRange(*span)
        for commit in commits
        if commit.selection.covers(wanted)
        for span in commit.spans
    )
    return merge_ranges(spans), merge_ranges(
        sorted(SeqRange(file.first_seq, file.last_seq) for file in lost)
    )


def merge_ranges(spans: Iterable[SeqRange]) -> list[SeqRange]:
    """Merge sorted ranges that overlap or touch."""
    found: list[SeqRange] = []
    for span in spans:
        if found and span.first <= found[-1].last + 1:
            found[-1] = SeqRange(found[-1].first, max(found[-1].last, span.last))
        else:
            found.append(span)
    return found


def encode_document(document: dict[str, Any]) -> bytes:
    """Encode a document of the log."""
    return json.dumps(document).encode()


def _attempt_folder(attempt: str) -> str:
    return f"{LOG_FOLDER}/{_ATTEMPT_PREFIX}{attempt}"


def _read_document(place: ArchiveStore, name: str, kind: type[T]) -> T:
    """Read a valid file of the log.

    Raises ArchiveError where it cannot be read, and DocumentError where it is not valid.
    """
    path = place.locate(name)
    try:
        data = place.read(name, MAX_BYTES)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror}", hint=place.hint) from None
    hint = "The archive was not changed. Restore the file, or name another place and archive again."
    found: Any = parse(data, path, hint)
    if kind is Commit and isinstance(found, dict) and found.get("format") != FORMAT:
        raise ArchiveError(
            f"{path} has another format. This release of jsplan reads {FORMAT}",
            hint="Use the release of jsplan that wrote it.",
        )
    return decode(kind, found, path, hint)


@contextlib.contextmanager
def _explain_errors(place: ArchiveStore, verb: str) -> Iterator[None]:
    """Translate OSError to ArchiveError."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"cannot {verb} {place}: {error.strerror or error}", hint=place.hint
        ) from None
