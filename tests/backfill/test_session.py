from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from jsplan.backfill.spark.session import MIN_JAVA_VERSION, find_java_home, read_java_version

if TYPE_CHECKING:
    from pathlib import Path


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
