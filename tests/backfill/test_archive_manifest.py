from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsplan.backfill.parquet.manifest import FORMAT, Archive, ArchivedOrigin, Chunk
from jsplan.backfill.parquet.store import ArchiveError, LocalFolder
from jsplan.backup.folder import find_damage
from jsplan.backup.manifest import StreamSnapshot as Saved
from jsplan.documents.base import DocumentError
from jsplan.documents.types import resolve_inside
from jsplan.errors import ApiError
from jsplan.planning.backfill.model import SeqRange

NAME = "s-S-000000000001-000000000001-0123456789ab.parquet"
HOSTILE: list[Any] = [
    "../home/authorized_keys", "/etc/x.parquet", "a/../../x.parquet", "..", "", None, 5, "a/b.parquet", "a\\..\\b.parquet", "b\n.parquet",
    "b.parquet\n", "_jsplan/manifest-000009.json", "_x.parquet", ".x.parquet",
]  # fmt: skip


def manifest(name: Any = NAME, **file: Any) -> dict[str, Any]:
    """Return a valid manifest with one file, which has this name and these changes."""
    entry = {
        "name": name, "rows": 1, "bytes": 4, "sha256": "0" * 64, "first_seq": 1, "last_seq": 1, "first_time": 1, "last_time": 1,
    }  # fmt: skip
    chunk = {"name": name, "first": 1, "last": 2, "file": entry | file}
    origin = {"domain": "hub", "stream": "S", "created": "then"}
    content = {"origin": origin, "chunks": [chunk], "gaps": [[2, 2]], "gap_messages": 1}
    return {"format": FORMAT, "id": "a", "expected": ["hub/S"], "origins": [content]}


def write_archive(folder: Path, document: Any) -> Path:
    """Write an archive with this manifest and one file."""
    log = folder / "archive" / "_jsplan"
    log.mkdir(parents=True)
    (log / "manifest-000001.json").write_text(json.dumps(document))
    (log.parent / NAME).write_text("data")
    return log.parent


def test_a_manifest_is_valid(tmp_path: Path) -> None:
    """The manifest that the other tests change is that of a complete archive."""
    Archive.read(LocalFolder(write_archive(tmp_path, manifest()))).require_complete()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_names_only_files_of_its_archive(tmp_path: Path, name: Any) -> None:
    """A manifest with a file name that jsplan never writes is refused."""
    folder = write_archive(tmp_path, manifest(name))
    with pytest.raises(DocumentError, match=r"manifest-000001\.json is damaged: .*name"):
        Archive.read(LocalFolder(folder))


@pytest.mark.parametrize(
    "file",
    [
        {"first_seq": 0},
        {"first_seq": 2},
        {"last_seq": 3},
        {"rows": -1},
        {"rows": 1 << 64},
        {"sha256": "0"},
        {"bytes": "4"},
    ],
)
def test_a_file_fits_its_chunk(tmp_path: Path, file: dict[str, Any]) -> None:
    """A file with messages outside of its range, or with invalid counts, is refused."""
    with pytest.raises(DocumentError, match="is damaged"):
        Archive.read(LocalFolder(write_archive(tmp_path, manifest(**file))))


@pytest.mark.parametrize("stream", ["..", "../../x", "/etc/x", "a\n", "é", "x" * 300, ""])
def test_the_name_of_a_stream_is_no_path(stream: str) -> None:
    """A file of any stream has a plain name that a manifest may have, and that is its own."""
    names = {
        ArchivedOrigin(domain, stream, created).name_chunk(span, text)
        for domain in ("a", "b")
        for created in ("then", "now")
        for span in (SeqRange(1, 5), SeqRange(1, 6))
        for text in ("", "0")
    }
    assert len(names) == 16
    for name in names:
        assert msgspec.convert({"name": name, "first": 1, "last": 1}, Chunk).name == name


@pytest.mark.parametrize("link", [NAME, "_jsplan/manifest-000001.json", "_jsplan"])
def test_no_symbolic_link_is_read_or_written(tmp_path: Path, link: str) -> None:
    """A symbolic link in the place of a file or folder of an archive is refused."""
    folder = write_archive(tmp_path, manifest())
    (folder / link).rename(tmp_path / "moved")
    (folder / link).symlink_to(tmp_path / "moved")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ArchiveError, match=r"is a symbolic link|is missing|is not an archive"):
        Archive.read(LocalFolder(folder)).require_complete()
    if link == "_jsplan":
        with pytest.raises(ArchiveError, match="is a symbolic link"):
            Archive(LocalFolder(folder)).save()
    assert sorted(tmp_path.rglob("*")) == before


JUNK = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.integers() | st.text(max_size=2), max_size=2)
)


@given(st.data())
def test_a_damaged_manifest_is_read_unchanged_or_refused(data: st.DataObject) -> None:
    """A manifest with any value in any field is read or refused."""
    document = manifest()
    content = document["origins"][0]
    chunk = content["chunks"][0]
    place: Any = data.draw(
        st.sampled_from(
            [document, content, content["origin"], chunk, chunk["file"], content["gaps"]]
        )
    )
    key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.just(0))
    place[key] = data.draw(JUNK | st.dictionaries(st.text(max_size=3), JUNK, max_size=2))
    with TemporaryDirectory() as folder, suppress(DocumentError, ArchiveError):
        found = Archive.read(LocalFolder(write_archive(Path(folder), document)))
        with suppress(ArchiveError):
            found.require_complete()


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
    folder = Path("/no/such/folder")
    try:
        path = resolve_inside(folder, name)
    except ValueError:
        return
    assert path.resolve().is_relative_to(folder)
    assert path != folder


def test_useless_files_are_deleted_and_no_others(tmp_path: Path) -> None:
    """A run deletes what its manifest has made useless, but nothing of another run."""
    later, gone = (NAME.replace("01-", f"0{digit}-") for digit in (5, 7))
    document = manifest()
    content = document["origins"][0]
    content["chunks"].append({"name": later, "first": 3, "last": 4, "file": None})
    document["dropped"] = [gone]
    folder = write_archive(tmp_path, document)
    useless = [f"part-{NAME}-0a", f"part-{gone}-0a", "draft-000001-0a", f"../{gone}"]
    kept = [f"part-{later}-0a", "part-other.parquet-0a", "draft-000002-0a"]
    for name in useless + kept:
        (folder / "_jsplan" / name).write_text("")
    archive = Archive.read(LocalFolder(folder))

    assert archive.find_missing_files() == []
    archive.clean()

    assert not [name for name in useless if (folder / "_jsplan" / name).exists()]
    assert all((folder / "_jsplan" / name).exists() for name in kept)
    assert (folder / NAME).exists()
    assert (folder / "_jsplan" / "manifest-000001.json").exists()


def test_a_writer_whose_draft_was_deleted_is_second(tmp_path: Path, monkeypatch: Any) -> None:
    """A process that slept while another one wrote its manifest, and cleaned, is refused."""
    archive = Archive.read(store := LocalFolder(write_archive(tmp_path, manifest())))
    link = LocalFolder.link

    def sleep(self: LocalFolder, name: str, new: str) -> None:
        monkeypatch.setattr(LocalFolder, "link", link)
        Archive.read(store).save().clean()
        link(self, name, new)

    monkeypatch.setattr(LocalFolder, "link", sleep)
    with pytest.raises(ApiError, match="another process wrote to the archive"):
        archive.save()
    assert Archive.read(store).number == 2
