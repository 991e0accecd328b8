"""The folder of an archive: Parquet files by day, and a log of commits that says which files it has. Writing messages is left to
`archiving`, reading them to `archived`.

Files are written into a folder of their attempt, whose name begins with `_`, so that nobody takes them for a part of the archive. A commit
is one new file of the log, made in one step that fails if somebody else was first; what it names is moved to its day then, by the
committer or by whoever comes next. Until all of it is moved there is no `_SUCCESS`.
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

from jsplan.backfill.seq_ranges import MAX_LISTED_RANGES, SeqRange, count_sequences
from jsplan.disk import read_regular
from jsplan.documents.base import MAX_BYTES, DocumentError, known_fields, parse
from jsplan.documents.safe_paths import resolve_inside
from jsplan.documents.validation import find_flaw, require_valid
from jsplan.errors import ApiError, JsplanError

FORMAT: Final = "jsplan-archive/1"
LOG_FOLDER, SUCCESS_FILE, ATTEMPT_FILE = "_jsplan", "_SUCCESS", "attempt.json"
_ATTEMPT_PREFIX, _COMMIT_PREFIX = "attempt-", "commit-"
#: All that is ever written: names in a log that are others were never ours.


class ArchiveError(JsplanError):
    """A folder is no archive, or not what its log says."""


class ArchivedOrigin(NamedTuple):
    """Which stream messages are of: what its domain is called in `Jsplan-Origin`, its name, and when it was made."""

    domain: str
    stream: str
    created: str


class Selection(NamedTuple):
    """Which messages of a range are wanted: those of these subjects, sorted (none: all), for which the SQL is true."""

    filters: tuple[str, ...] = ()
    where: str | None = None

    def covers(self, other: Selection) -> bool:
        """Whether whatever the other wants is wanted."""
        return self.filters in ((), other.filters) and self.where in (None, other.where)


class Transformation(NamedTuple):
    """What becomes of messages on their way: `FILE.py:FUNCTION`, and the two sides of a subject transform."""

    transform: str | None = None
    subject_transform: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"transform {self.transform}"] if self.transform else []
        said += (
            [f"subject_transform {' to '.join(self.subject_transform)}"]
            if self.subject_transform
            else []
        )
        return " and ".join(said) or "nothing that changes them"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file. `name` is relative to the archive; times are ns; `content` is the size of subjects, headers and payloads."""

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
    """What one run added of one origin: it read the `spans` (of `first` to `last`, the pinned range) and found there what is in `files`.

    `attempt` names the folder that the files come from, `origins` all of the entry; `lost` are files that were gone and are replaced.
    `where` chose among the messages; `transform` and `subject_transform` are what they went through.
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
        """Which messages it wanted."""
        return Selection(tuple(sorted(self.filters)), self.where)

    @property
    def transformation(self) -> Transformation:
        """What became of them."""
        return Transformation(self.transform, tuple(self.subject_transform or ()))

    def to_json(self) -> dict[str, Any]:
        """The file of the log."""
        said = (
            {"format": FORMAT}
            | asdict(self)
            | {"origin": self.origin._asdict(), "rows": sum(file.rows for file in self.files)}
        )
        said["files"] = [asdict(file) for file in self.files]
        return said

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Commit:
        """Make a commit of `to_json`, which is as its schema says."""
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
    """An archive as it is now."""

    folder: Path
    commits: tuple[Commit, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Archive:
        """What the log says; a folder that is not there is an archive without anything. Raises ArchiveError."""
        log = _resolve_inside(folder, LOG_FOLDER)
        paths = sorted(log.glob(f"{_COMMIT_PREFIX}*.json")) if log.is_dir() else []
        if not log.is_dir() and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ArchiveError(
                f"{folder} is not empty, and no archive that jsplan wrote",
                hint="Name a folder of its own.",
            )
        return cls(folder, tuple(_read_commit(path) for path in paths))

    @property
    def files(self) -> dict[str, tuple[Commit, ArchiveFile]]:
        """Every file that belongs to it, by name."""
        found: dict[str, tuple[Commit, ArchiveFile]] = {}
        for commit in self.commits:
            for name in commit.lost:
                found.pop(name, None)
            found |= {file.name: (commit, file) for file in commit.files}
        return found

    def files_of(self, origin: ArchivedOrigin) -> list[ArchiveFile]:
        """The files of one origin, in its order."""
        mine = [file for commit, file in self.files.values() if commit.origin == origin]
        return sorted(mine, key=lambda file: (file.first_seq, file.last_seq))

    @property
    def origins(self) -> dict[ArchivedOrigin, list[Commit]]:
        """The streams that it has messages of, in the order in which they came."""
        found: dict[ArchivedOrigin, list[Commit]] = {}
        for commit in self.commits:
            found.setdefault(commit.origin, []).append(commit)
        return found

    def begin_attempt(self, attempt: str, mark: dict[str, str]) -> Path:
        """Make the folder of an attempt. Raises ArchiveError."""
        place = self.folder / LOG_FOLDER / f"{_ATTEMPT_PREFIX}{attempt}"
        try:
            place.mkdir(parents=True)
            (place / ATTEMPT_FILE).write_text(json.dumps(mark), "utf-8")
        except OSError as error:
            raise ArchiveError(f"cannot write to {place}: {error.strerror}") from None
        return place

    def list_attempts(self, entry: str) -> Iterator[tuple[str, dict[str, str], Path]]:
        """What attempts of an entry left behind: name, mark and folder. One that died before it was marked is everybody's."""
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
        """Add to the log and move the files to their days. Raises ApiError when somebody else did so first, and ArchiveError."""
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
                f"somebody else wrote to the archive {self.folder} meanwhile",
                hint="Run the backfill again.",
            ) from None
        except OSError as error:
            raise ArchiveError(
                f"cannot write {path}: {error.strerror}",
                hint="It takes a file system with hard links: a mounted object store has none.",
            ) from None
        done = Archive(self.folder, (*self.commits, commit))
        done.finish_commits()
        return done

    def finish_commits(self) -> None:
        """Move whatever a commit names and its writer did not come to, and say whether all is there. Raises ArchiveError."""
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
                if path.exists():  # somebody else was about to do the same
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
        """Files that are not there any more. Raises ArchiveError for one that is another than was written, and one that nobody knows."""
        files, found = self.files, []
        for name, (_, file) in files.items():
            try:
                size = (self.folder / name).stat().st_size
            except FileNotFoundError:
                found.append(name)
            else:
                if size != file.bytes:
                    raise ArchiveError(
                        f"{self.folder / name} has {size:,} bytes, and {file.bytes:,} were written",
                        hint="Take it away and run the backfill that wrote the archive: it copies what is missing.",
                    )
        strange = next(
            (
                path
                for path in self.folder.glob("day=*/*.parquet")
                if str(path.relative_to(self.folder)) not in files
            ),
            None,
        )
        if strange is not None:
            raise ArchiveError(
                f"{strange} is not in the log of the archive",
                hint="Whoever reads the folder reads it, too: take it away.",
            )
        return found

    def require_complete(self) -> None:
        """Raise ArchiveError for a folder that is no archive, or does not have all of it."""
        if not self.commits:
            raise ArchiveError(
                f"{self.folder} is no archive, or one that nothing has been written to yet"
            )
        if gone := self.find_missing_files():
            staged = (staged_path(self.folder, self.files[name][0].attempt, name) for name in gone)
            why = (
                "has not been moved to its place yet"
                if any(path.exists() for path in staged)
                else "is gone"
            )
            raise ArchiveError(
                f"the archive {self.folder} is not whole: {gone[0]} {why}",
                hint="Run the backfill that writes it: it puts that right.",
            )
        there = {f"{origin.domain}/{origin.stream}" for origin in self.origins}
        if missing := sorted({name for commit in self.commits for name in commit.origins} - there):
            raise ArchiveError(
                f"the archive {self.folder} is not whole: it has nothing of {missing[0]} yet",
                hint="Run the backfill that writes it.",
            )

    def drop_attempt(self, attempt: str) -> None:
        """Leave nothing of an attempt whose files are all committed or of no use."""
        shutil.rmtree(self.folder / LOG_FOLDER / f"{_ATTEMPT_PREFIX}{attempt}", ignore_errors=True)


def merge_gaps(commits: Iterable[Commit]) -> tuple[list[list[int]], int]:
    """What was gone before it could be archived: the first ranges, and how many messages all of them have. What was read twice, because
    its file was lost, counts once.
    """
    every = [*commits]
    listed = merge_ranges(sorted(SeqRange(*gap) for commit in every for gap in commit.gaps))
    unlisted = sum(
        commit.gap_messages - count_sequences(SeqRange(*gap) for gap in commit.gaps)
        for commit in every
    )
    return [list(gap) for gap in listed[:MAX_LISTED_RANGES]], count_sequences(listed) + unlisted


def staged_path(folder: Path, attempt: str, name: str) -> Path:
    """Where a file is before it is moved."""
    return folder / LOG_FOLDER / f"{_ATTEMPT_PREFIX}{attempt}" / name


def read_receipts(place: Path) -> list[dict[str, Any]]:
    """The pieces that tasks of an attempt have finished, in order. Raises ArchiveError and DocumentError for a damaged one."""
    found = [(path.parent, _read_document(path, "piece")) for path in place.glob("piece-*.json")]
    for folder, piece in found:
        for file in piece["files"]:
            _resolve_inside(folder, file["name"])
    return sorted((piece for _, piece in found), key=lambda piece: list(piece["span"]))


def parse_origin(mark: dict[str, str]) -> ArchivedOrigin | None:
    """The stream that an attempt is of; None where its mark does not say."""
    try:
        said = parse(mark["origin"].encode(), "it", "")
    except DocumentError:
        return None
    is_origin = (
        isinstance(said, list)
        and len(said) == len(ArchivedOrigin._fields)
        and all(isinstance(word, str) for word in said)
    )
    return ArchivedOrigin(*said) if is_origin else None


def find_covered_ranges(
    commits: Iterable[Commit], wanted: Selection, lost: Iterable[ArchiveFile]
) -> tuple[list[SeqRange], list[SeqRange]]:
    """What was read already with all that is wanted, sorted and without overlaps, and what of it was in files that are lost."""
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
    """Sorted spans as the fewest that have the same sequences."""
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
    """A file of the log that is as its schema says. Raises ArchiveError where it cannot be read, else DocumentError."""
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ArchiveError(
            f"{path} cannot be read: {error.strerror}", hint="Check its permissions."
        ) from None
    hint = "Nothing of the archive was changed. Restore the file, or name another folder and archive again."
    found: Any = parse(data, str(path), hint)
    if name == "commit" and isinstance(found, dict) and found.get("format") != FORMAT:
        raise ArchiveError(
            f"{path} is of another format, and this jsplan reads {FORMAT}",
            hint="Use the release that wrote it.",
        )
    require_valid(found, name, str(path), hint)
    return dict(found)


def _resolve_inside(folder: Path, *names: str) -> Path:
    try:
        return resolve_inside(folder, *names)
    except ValueError as error:
        raise ArchiveError(
            f"{error}, and an archive has none", hint="Nothing was moved or written there."
        ) from None


def write_document(path: Path, document: dict[str, Any]) -> None:
    """A document that is there whole or not at all, also after a power failure. Raises OSError."""
    beside = path.with_name(f"{path.name}.part")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Names in a folder survive a power failure."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
