from __future__ import annotations

import copy
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsplan.backfill.parquet.log import FORMAT, Archive, Commit, read_receipts
from jsplan.backfill.parquet.store import ArchiveError, LocalFolder
from jsplan.backup.folder import find_damage
from jsplan.backup.manifest import StreamSnapshot as Saved
from jsplan.documents.base import DocumentError
from jsplan.documents.reading import decode
from jsplan.documents.safe_paths import resolve_inside

if TYPE_CHECKING:
    from pathlib import Path

NAME = "day=2026-01-01/S-000000000001-a.parquet"
FILE = {
    "name": NAME,
    "rows": 1,
    "bytes": 4,
    "sha256": "0" * 64,
    "first_seq": 1,
    "last_seq": 1,
    "first_time": 1,
    "last_time": 1,
}
COMMIT: dict[str, Any] = {
    "format": FORMAT, "entry": "w/x", "origin": {"domain": "hub", "stream": "S", "created": "then"}, "first": 1, "last": 1, "filters": [],
    "spans": [[1, 1]], "attempt": "a", "at": "then", "files": [FILE], "gaps": [[2, 3]], "gap_messages": 2, "origins": ["hub/S"], "lost": [],
    "where": None, "transform": None, "subject_transform": None,
}  # fmt: skip
NAMES = [
    "../home/authorized_keys", "/etc/x.parquet", "day=2026-01-01/../../x.parquet", "day=2026-01-01/..", "x.parquet", "", None, 5,
    "day=2026-01-01/a/b.parquet", "day=2026-01-01\\..\\b.parquet", "day=2026-01-01/b\n.parquet", "_jsplan/commit-000009.json",
]  # fmt: skip


def write_archive(folder: Path, commit: Any, staged: str = NAME) -> Path:
    """Write an archive with this commit in its log, and one file that its attempt left."""
    log = folder / "archive" / "_jsplan"
    log.mkdir(parents=True)
    (log / "commit-000001.json").write_text(json.dumps(commit))
    (log / "attempt-a" / staged).parent.mkdir(parents=True)
    (log / "attempt-a" / staged).write_text("data")
    return log.parent


def test_a_committed_file_is_moved_to_its_day(tmp_path: Path) -> None:
    """The log that the other tests change is valid: its file is moved to its day."""
    folder = write_archive(tmp_path, COMMIT)
    Archive.read(LocalFolder(folder)).finish_commits()

    assert (folder / NAME).read_text() == "data"
    assert (folder / "_SUCCESS").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_log_names_nothing_outside_of_its_archive(tmp_path: Path, name: Any) -> None:
    """A log with a file name that jsplan never writes is refused, and no file is moved."""
    folder = write_archive(
        tmp_path, COMMIT | {"files": [FILE | {"name": name}]}, "../home/authorized_keys"
    )
    before = sorted(path for path in tmp_path.rglob("*"))

    with pytest.raises(
        DocumentError,
        match=r"commit-000001\.json is damaged: expected .* at \$\.files\[0\]\.name",
    ):
        Archive.read(LocalFolder(folder)).finish_commits()
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("attempt", ["../../..", "a/../..", "", "a\n", 5, None])
def test_an_attempt_is_a_plain_name(tmp_path: Path, attempt: Any) -> None:
    """An attempt whose name leads out of the folder of the log is refused."""
    with pytest.raises(DocumentError, match=r"expected .* at \$\.attempt"):
        Archive.read(LocalFolder(write_archive(tmp_path, COMMIT | {"attempt": attempt})))


@pytest.mark.parametrize(
    "link",
    ["day=2026-01-01", "_jsplan/attempt-a/day=2026-01-01", f"_jsplan/attempt-a/{NAME}", NAME],
)
def test_no_file_is_moved_over_a_symbolic_link(tmp_path: Path, link: str) -> None:
    """A symbolic link in the archive is refused, and no file is changed."""
    folder, outside = write_archive(tmp_path, COMMIT), tmp_path / "outside"
    outside.mkdir()
    place = folder / link
    place.parent.mkdir(exist_ok=True)
    if place.is_dir():
        place.rename(outside / "moved")
    place.unlink(missing_ok=True)
    place.symlink_to(outside / "moved" if (outside / "moved").exists() else outside)
    before = sorted(path for path in outside.rglob("*"))

    with pytest.raises(ArchiveError, match="is a symbolic link"):
        Archive.read(LocalFolder(folder)).finish_commits()
    assert sorted(path for path in outside.rglob("*")) == before


def test_a_log_is_no_symbolic_link(tmp_path: Path) -> None:
    """A log that is a symbolic link is refused, since a run would write to its target."""
    folder = write_archive(tmp_path, COMMIT)
    (folder / "_jsplan").rename(tmp_path / "log")
    (folder / "_jsplan").symlink_to(tmp_path / "log")

    with pytest.raises(ArchiveError, match="is a symbolic link"):
        Archive.read(LocalFolder(folder))


@pytest.mark.parametrize(
    "receipt",
    [
        "[", "[]", "{}", json.dumps({"span": [1], "rows": 1, "bytes": 1, "files": []}),
        json.dumps({"span": [1, 1], "rows": 1, "bytes": 1, "files": [FILE | {"name": "../../x.parquet"}]}),
        json.dumps({"span": [1, 1], "rows": 1, "bytes": 1, "files": [{"name": NAME}]}),
    ],
)  # fmt: skip
def test_a_receipt_is_checked_like_a_commit(tmp_path: Path, receipt: str) -> None:
    """A damaged receipt is refused, since the next attempt moves the files that it names."""
    (tmp_path / "piece-1-1.json").write_text(receipt)
    with pytest.raises(DocumentError, match="piece-1-1"):
        read_receipts(LocalFolder(tmp_path))


def test_an_attempt_with_a_damaged_mark_is_ignored(tmp_path: Path) -> None:
    """An attempt whose mark is another document, or a link to one, is ignored."""
    folder = write_archive(tmp_path, COMMIT)
    good = {"entry": "w/x", "hash": "t", "origin": json.dumps(["hub", "S", "then"])}
    for number, mark in enumerate(
        ["[]", "5", '{"entry": "w/x"}', json.dumps(good | {"origin": "{}"}), json.dumps(good)]
    ):
        (folder / "_jsplan" / f"attempt-{number}").mkdir()
        (folder / "_jsplan" / f"attempt-{number}" / "attempt.json").write_text(mark)
    (folder / "_jsplan" / "attempt-link").symlink_to(folder / "_jsplan" / "attempt-4")

    assert [name for name, _, _ in Archive.read(LocalFolder(folder)).list_attempts("w/x")] == ["4"]


JUNK = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.integers() | st.text(max_size=2), max_size=2)
)


@given(st.data())
def test_a_damaged_commit_is_read_unchanged_or_refused(data: st.DataObject) -> None:
    """A commit with any value in any field is read unchanged or refused."""
    document = copy.deepcopy(COMMIT)
    place: Any = data.draw(
        st.sampled_from(
            [
                document,
                document["origin"],
                document["files"][0],
                document["spans"],
                document["gaps"],
            ]
        )
    )
    key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.just(0))
    place[key] = data.draw(JUNK | st.dictionaries(st.text(max_size=3), JUNK, max_size=2))
    try:
        commit = decode(Commit, document, "a commit", "")
    except DocumentError:
        return
    assert {
        name: value
        for name, value in commit.to_json().items()
        if name not in ("format", "rows", "files")
    } == {name: value for name, value in document.items() if name not in ("format", "files")}


@pytest.mark.parametrize(
    "name", ["../x.snap", "/etc/x.snap", "..", ".", "", "a/b.snap", "link.snap", 5]
)
def test_a_backup_names_only_files_beside_its_manifest(tmp_path: Path, name: Any) -> None:
    """A manifest that names a file in another folder is refused, whatever the checksum."""
    for path in (tmp_path / "x.snap", tmp_path / "b" / "a" / "b.snap"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("data")
    (tmp_path / "b" / "link.snap").symlink_to(tmp_path / "x.snap")
    saved = Saved(name, hashlib.sha256(b"data").hexdigest(), 4, "tar")

    assert any(
        words in str(find_damage(tmp_path / "b", saved))
        for words in ("not a file name", "not a plain file name", "symbolic link")
    )


@pytest.mark.parametrize("name", ["pipe.snap", "zero.snap", "folder.snap", f"{'x' * 300}.snap"])
def test_special_files_are_not_read(tmp_path: Path, name: str) -> None:
    """Pipes, devices and folders in place of saved data are refused without being read."""
    os.mkfifo(tmp_path / "pipe.snap")
    (tmp_path / "folder.snap").mkdir()
    (tmp_path / "zero.snap").symlink_to("/dev/zero")

    assert "link" in str(
        found := find_damage(tmp_path, Saved(name, "0" * 64, 4, "tar"))
    ) or "cannot be read" in str(found)


@given(st.text(max_size=20))
def test_a_name_stays_inside(name: str) -> None:
    """A path that is not refused is below the folder."""
    from pathlib import Path  # noqa: PLC0415 - for types alone elsewhere

    folder = Path("/no/such/folder")
    try:
        path = resolve_inside(folder, name)
    except ValueError:
        return
    assert path.resolve().is_relative_to(folder)
    assert path != folder
