from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from jsplan.backfill.spark.session import (
    MAX_AGE,
    MIN_JAVA_VERSION,
    find_archive,
    find_java_home,
    read_java_version,
)


def fake_java(folder: Path, says: str) -> Path:
    """Write a program that answers `-version` as some Java does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return program


VERSIONS = [
    ('openjdk version "17.0.15" 2025-04-15', 17), ('openjdk version "25-ea" 2025-09-16', 25), ('java version "1.8.0_392"', 8),
    ("no version", 0), ('openjdk version "21"', 21),
]  # fmt: skip


@pytest.mark.parametrize(("says", "release"), VERSIONS)
def test_read_java_version(tmp_path: Path, says: str, release: int) -> None:
    """The feature release is read from both forms that `java -version` prints."""
    assert read_java_version(fake_java(tmp_path, says)) == release


def test_a_missing_java_has_version_zero(tmp_path: Path) -> None:
    """A missing program has version 0."""
    assert read_java_version(tmp_path / "java") == 0


def test_a_release_file_is_read_instead_of_running_java(tmp_path: Path) -> None:
    """The version comes from the file `release` beside a Java; without a number it is run."""
    java = fake_java(tmp_path, 'openjdk version "17.0.1"')
    release = tmp_path / "release"
    for text, version in (
        ('OS="Linux"\nJAVA_VERSION="25.0.2"\n', 25),
        ('JAVA_VERSION="1.8.0_392"\n', 17),
        ("", 17),
    ):
        release.write_text(text, "utf-8")
        assert read_java_version(java) == version


def test_the_second_jvm_starts_from_the_classes_of_the_first(tmp_path: Path) -> None:
    """A JVM makes an archive when it ends, the next one uses it, and an old one is deleted."""
    java, spark = Path(shutil.which("java") or ""), Path(__file__).parent
    folder = tmp_path / "a folder"

    def start(*words: str) -> str:
        archive = find_archive(java, spark, folder, {})
        assert archive is not None
        options = shlex.split(archive.options)
        done = subprocess.run([java, *options, *words, "-version"], capture_output=True, check=True)
        assert done.stdout == b""
        return options[-1]

    assert start().startswith("-XX:ArchiveClassesAtExit=")
    (archive,) = folder.glob("*.jsa")
    assert start("-Xshare:on") == f"-XX:SharedArchiveFile={archive}"
    old = archive.stat().st_mtime - MAX_AGE - 60
    os.utime(archive, (old, old))
    assert start().startswith("-XX:ArchiveClassesAtExit=")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_spark_starts_without_a_damaged_archive(tmp_path: Path) -> None:
    """A JVM that crashes with a truncated archive is started again, its report in the cache."""
    home = find_java_home(os.environ, tmp_path)
    archive = find_archive(home / "bin/java", Path(pyspark.__file__).parent, tmp_path / "spark", {})
    assert archive is not None
    subprocess.run(
        [home / "bin/java", *shlex.split(archive.options), "-version"],
        capture_output=True,
        check=True,
    )
    archive.path.chmod(0o600)
    os.truncate(archive.path, 5000)
    program = (
        "import pathlib, sys; from jsplan.backfill.spark.session import start_session\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "session = start_session('x', cache=folder, log=folder / 'log')\n"
        "assert session.sparkContext.parallelize([1]).collect() == [1]\n"
        "assert not [*folder.rglob('*.jsa')]\n"
        "assert [*(folder / 'spark').glob('hs_err_pid*.log')]\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    here = tmp_path / "here"
    here.mkdir()
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=here, env=environ, check=True)
    assert not [*here.glob("hs_err*")]


@pytest.mark.parametrize(
    ("folder", "environ"),
    [
        ('a"b', {}),
        ("a", {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=mine.jsa"}),
        ("a", {"JAVA_TOOL_OPTIONS": "-XX:ArchiveClassesAtExit=mine.jsa"}),
        ("file", {}),
    ],
)
def test_no_archive_is_made(tmp_path: Path, folder: str, environ: dict[str, str]) -> None:
    """An archive of the user's is kept, and a folder that cannot be used is no error."""
    (tmp_path / "file").write_text("", "utf-8")

    assert find_archive(Path("java"), tmp_path, tmp_path / folder, environ) is None


def test_the_java_of_the_machine_is_used(tmp_path: Path) -> None:
    """`JAVA_HOME` is preferred to PATH, and a Java that is too old is skipped."""
    new, old = (
        fake_java(tmp_path / "new", f'openjdk version "{MIN_JAVA_VERSION}.0.1"'),
        fake_java(tmp_path / "old", 'openjdk version "11.0.1"'),
    )

    assert (
        find_java_home({"JAVA_HOME": str(new.parent.parent), "PATH": str(old.parent)}, tmp_path)
        == tmp_path / "new"
    )
    assert (
        find_java_home({"JAVA_HOME": str(old.parent.parent), "PATH": str(new.parent)}, tmp_path)
        == tmp_path / "new"
    )
    assert (
        find_java_home({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(new.parent)}, tmp_path)
        == tmp_path / "new"
    )


@pytest.mark.timeout(120)
def test_a_machine_without_java(tmp_path: Path) -> None:
    """Without a Java of the machine the wheel's is used, without the module that it lacks."""
    home = find_java_home({"PATH": str(tmp_path)}, tmp_path / "cache")
    program = home / "bin" / "java"

    assert read_java_version(program) >= MIN_JAVA_VERSION
    asked: list[str | Path] = [
        program,
        "-Da=b c",
        "--add-modules=jdk.incubator.vector",
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert "a = b c" in done.stderr
    assert find_java_home({"PATH": str(tmp_path)}, tmp_path / "cache") == home


_AFTER_AN_ERROR = """
import contextlib, sys
from pathlib import Path
from jsplan.backfill.spark.executors import SourceError, plain_errors
from jsplan.backfill.spark.session import start_session
from jsplan.errors import UsageError

with contextlib.suppress(SourceError), plain_errors():
    raise UsageError("an option is wrong")
session = start_session("test", cache=Path(sys.argv[1]), log=Path(sys.argv[2]))
print(session._jvm.System.getenv("SPARK_HIDE_TRACEBACK"))
"""


@pytest.mark.soak
def test_an_error_of_a_table_hides_no_error_of_a_later_jvm(tmp_path: Path) -> None:
    """A session that begins after it says where a function of a user fails."""
    words = [sys.executable, "-c", _AFTER_AN_ERROR, str(tmp_path), str(tmp_path / "log")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
