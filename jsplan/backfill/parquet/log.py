"""Folder of an archive: Parquet files by day, and a log of commits that lists its files.

An attempt writes its files into its own folder. The name of that folder begins with `_`, so
readers of the archive skip it. A commit is one new file of the log, created in one step that fails
if another process was first. The committer, or the next run, then moves the committed files to
their days. `_SUCCESS` exists only once all of them are moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from jsplan.backfill.seq_ranges import count_sequences
from jsplan.disk import read_regular
from jsplan.documents.base import MAX_BYTES, DocumentError, known_fields, parse
from jsplan.documents.safe_paths import resolve_inside
from jsplan.documents.validation import find_flaw, require_valid
from jsplan.errors import ApiError, JsplanError
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, SeqRange

FORMAT: Final = "jsplan-archive/1"
DAMAGED_HINT: Final = (
    "Remove the file and run the backfill that wrote the archive. It copies the missing messages."
)
LOG_FOLDER, SUCCESS_FILE, ATTEMPT_FILE = "_jsplan", "_SUCCESS", "attempt.json"
_ATTEMPT_PREFIX, _COMMIT_PREFIX = "attempt-", "commit-"


class ArchiveError(JsplanError):
    """Error for a folder that is not an archive, or does not match its log."""


class ArchivedOrigin(NamedTuple):
    """Origin of archived messages: domain as in `Jsplan-Origin`, stream, and its creation time."""

    domain: str
    stream: str
    created: str


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


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file of an archive.

    `name` is relative to the archive, times are ns, and `content` is the total size of subjects,
    headers and payloads in bytes.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    first_seq: int
    last_seq: int
    first_time: int
    last_time: int
    content: int = 0


@dataclass(slots=True)
class Commit:
    """Messages that one run added of one origin.

    The run read the `spans` (of `first` to `last`, the pinned range), and `files` have the
    messages found there. `attempt` names the folder that the files come from. `origins` are all of
    the entry. `lost` are missing files that are replaced. `where` is the SQL condition;
    `transform` and `subject_transform` are the applied changes.
    """

    entry: str
    origin: ArchivedOrigin
    first: int
    last: int
    filters: list[str]
    spans: list[list[int]]
    attempt: str
    at: str
    files: list[ArchiveFile] = field(default_factory=list)
    gaps: list[list[int]] = field(default_factory=list)
    gap_messages: int = 0
    origins: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
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

    def to_json(self) -> dict[str, Any]:
        """Convert to the document of the log."""
        document = (
            {"format": FORMAT}
            | asdict(self)
            | {"origin": self.origin._asdict(), "rows": sum(file.rows for file in self.files)}
        )
        document["files"] = [asdict(file) for file in self.files]
        return document

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Commit:
        """Create a commit from a valid document of the log."""
        origin = ArchivedOrigin(*(raw["origin"][name] for name in ArchivedOrigin._fields))
        return cls(
            **known_fields(cls, raw)
            | {
                "origin": origin,
                "files": [ArchiveFile(**known_fields(ArchiveFile, file)) for file in raw["files"]],
            }
        )


@dataclass(frozen=True, slots=True)
class Archive:
    """Current content of an archive."""

    folder: Path
    commits: tuple[Commit, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Archive:
        """Read the log. A folder that does not exist is an empty archive. Raises ArchiveError."""
        log = _resolve_inside(folder, LOG_FOLDER)
        paths = sorted(log.glob(f"{_COMMIT_PREFIX}*.json")) if log.is_dir() else []
        if not log.is_dir() and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ArchiveError(
                f"{folder} is not empty, and is not an archive of jsplan",
                hint="Name an empty folder.",
            )
        return cls(folder, tuple(_read_commit(path) for path in paths))

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

    def begin_attempt(self, attempt: str, mark: dict[str, str]) -> Path:
        """Create the folder of an attempt. Raises ArchiveError."""
        place = self.folder / LOG_FOLDER / f"{_ATTEMPT_PREFIX}{attempt}"
        try:
            place.mkdir(parents=True)
            (place / ATTEMPT_FILE).write_text(json.dumps(mark), "utf-8")
        except OSError as error:
            raise ArchiveError(f"cannot write to {place}: {error.strerror}") from None
        return place

    def list_attempts(self, entry: str) -> Iterator[tuple[str, dict[str, str], Path]]:
        """Yield the remaining attempts of an entry: name, mark and folder.

        An attempt that was interrupted before it had a mark is skipped.
        """
        for place in sorted((self.folder / LOG_FOLDER).glob(f"{_ATTEMPT_PREFIX}*")):
            try:
                mark = parse(
                    read_regular(resolve_inside(place.parent, place.name, ATTEMPT_FILE), MAX_BYTES),
                    str(place / ATTEMPT_FILE),
                    "",
                )
            except (OSError, ValueError, DocumentError):
                continue
            if (
                find_flaw(mark, "attempt") is None
                and mark["entry"] == entry
                and parse_origin(mark) is not None
            ):
                yield place.name.removeprefix(_ATTEMPT_PREFIX), mark, place

    def commit(self, commit: Commit) -> Archive:
        """Add to the log, and move the files to their days.

        Raises ApiError when another process committed first, and ArchiveError.
        """
        log = self.folder / LOG_FOLDER
        with contextlib.suppress(FileNotFoundError):
            (self.folder / SUCCESS_FILE).unlink()
        beside, path = (
            log / f"{_ATTEMPT_PREFIX}{commit.attempt}" / "commit",
            log / f"{_COMMIT_PREFIX}{len(self.commits) + 1:06}.json",
        )
        try:
            write_document(beside, commit.to_json())
            os.link(beside, path)  # fails where there is one: a rename would replace it
            sync_folder(log)
        except FileExistsError:
            raise ApiError(
                f"another process wrote to the archive {self.folder} at the same time",
                hint="Run the backfill again.",
            ) from None
        except OSError as error:
            raise ArchiveError(
                f"cannot write {path}: {error.strerror}",
                hint="Use a file system with hard links. A mounted object store has none.",
            ) from None
        done = Archive(self.folder, (*self.commits, commit))
        done.finish_commits()
        return done

    def finish_commits(self) -> None:
        """Move committed files that an interrupted run did not move, and update `_SUCCESS`.

        Raises ArchiveError.
        """
        if not self.commits:
            return
        days = set()
        for name, (commit, _) in self.files.items():
            path, staged = (
                _resolve_inside(self.folder, name),
                _resolve_inside(
                    self.folder, LOG_FOLDER, f"{_ATTEMPT_PREFIX}{commit.attempt}", name
                ),
            )
            if path.exists() or not staged.exists():
                continue
            try:
                path.parent.mkdir(exist_ok=True)
                staged.rename(path)
            except OSError as error:
                if path.exists():  # another process moved it
                    continue
                raise ArchiveError(f"cannot move {staged} to {path}: {error.strerror}") from None
            days.add(path.parent)
        for day in days:
            sync_folder(day)
        if not all((self.folder / name).exists() for name in self.files):
            (self.folder / SUCCESS_FILE).unlink(missing_ok=True)
        elif days or not (self.folder / SUCCESS_FILE).exists():
            (self.folder / SUCCESS_FILE).touch()
            sync_folder(self.folder)

    def find_missing_files(self) -> list[str]:
        """Return the files that are missing.

        Raises ArchiveError for a file of another size, and for a file that is not in the log.
        """
        files, missing = self.files, []
        for name, (_, file) in files.items():
            try:
                size = (self.folder / name).stat().st_size
            except FileNotFoundError:
                missing.append(name)
            else:
                if size != file.bytes:
                    raise ArchiveError(
                        f"{self.folder / name} has {size:,} bytes, and {file.bytes:,} were written",
                        hint=DAMAGED_HINT,
                    )
        unknown = next(
            (
                path
                for path in self.folder.glob("day=*/*.parquet")
                if str(path.relative_to(self.folder)) not in files
            ),
            None,
        )
        if unknown is not None:
            raise ArchiveError(
                f"{unknown} is not in the log of the archive",
                hint="Every reader of the folder would read it. Remove it.",
            )
        return missing

    def require_complete(self) -> None:
        """Raise ArchiveError for a folder that is not a complete archive."""
        if not self.commits:
            raise ArchiveError(f"{self.folder} is not an archive, or it is still empty")
        if missing_files := self.find_missing_files():
            staged = (
                staged_path(self.folder, self.files[name][0].attempt, name)
                for name in missing_files
            )
            why = (
                "has not been moved to its place yet"
                if any(path.exists() for path in staged)
                else "is missing"
            )
            raise ArchiveError(
                f"the archive {self.folder} is not complete: {missing_files[0]} {why}",
                hint="Run the backfill that writes it. It repairs the archive.",
            )
        present = {f"{origin.domain}/{origin.stream}" for origin in self.origins}
        if missing := sorted(
            {name for commit in self.commits for name in commit.origins} - present
        ):
            raise ArchiveError(
                f"the archive {self.folder} is not complete: it has no message of {missing[0]} yet",
                hint="Run the backfill that writes it.",
            )

    def drop_attempt(self, attempt: str) -> None:
        """Delete the folder of an attempt."""
        shutil.rmtree(self.folder / LOG_FOLDER / f"{_ATTEMPT_PREFIX}{attempt}", ignore_errors=True)


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


def staged_path(folder: Path, attempt: str, name: str) -> Path:
    """Return the path of a file before it is moved."""
    return folder / LOG_FOLDER / f"{_ATTEMPT_PREFIX}{attempt}" / name


def read_receipts(place: Path) -> list[dict[str, Any]]:
    """Return the receipts of finished pieces of an attempt, in order.

    Raises ArchiveError and DocumentError for a damaged one.
    """
    found = [(path.parent, _read_document(path, "piece")) for path in place.glob("piece-*.json")]
    for folder, piece in found:
        for file in piece["files"]:
            _resolve_inside(folder, file["name"])
    return sorted((piece for _, piece in found), key=lambda piece: list(piece["span"]))


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


def _read_commit(path: Path) -> Commit:
    return Commit.from_json(_read_document(path, "commit"))


def _read_document(path: Path, name: str) -> dict[str, Any]:
    """Read a valid file of the log.

    Raises ArchiveError where it cannot be read, and DocumentError where it is not valid.
    """
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ArchiveError(
            f"{path} cannot be read: {error.strerror}", hint="Check its permissions."
        ) from None
    hint = (
        "The archive was not changed. Restore the file, or name another folder and archive again."
    )
    found: Any = parse(data, str(path), hint)
    if name == "commit" and isinstance(found, dict) and found.get("format") != FORMAT:
        raise ArchiveError(
            f"{path} has another format. This release of jsplan reads {FORMAT}",
            hint="Use the release of jsplan that wrote it.",
        )
    require_valid(found, name, str(path), hint)
    return dict(found)


def _resolve_inside(folder: Path, *names: str) -> Path:
    try:
        return resolve_inside(folder, *names)
    except ValueError as error:
        raise ArchiveError(
            f"{error}, which an archive may not have",
            hint="Nothing was moved or written there.",
        ) from None


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document atomically and durably. Raises OSError."""
    beside = path.with_name(f"{path.name}.part")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
