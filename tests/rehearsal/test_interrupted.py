from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsplan.sandbox import versions
from tests.conftest import PROGRAM
from tests.rehearsal.tampered_plans import leftover_files
from tests.support.api_audit import audit_requests, writes
from tests.support.process import start_process
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox import Sandbox

#: A program that prints its version like a nats-server, and otherwise never answers.
HANGS = f"""\
#!/bin/sh
[ "$1" = --version ] && exec "{PROGRAM}" --version
exec tail -f "$2"
"""


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def start_rehearsal(
    folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, program: Path
) -> subprocess.Popen[bytes]:
    """Start `jsplan plan --rehearse` and wait for its embedded server."""
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv(versions.BINARY_VARIABLE, str(program))
    process = start_process(folder, "plan", "--rehearse")
    wait_for(
        lambda: (
            any(".conf" in leftover for leftover in leftover_files(temporary))
            or process.poll() is not None
        ),
        "no server is started",
    )
    return process


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    program = tmp_path / "nats-server"
    program.write_text(HANGS, encoding="utf-8")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_nothing_is_left_of_a_rehearsal_that_is_killed_at_its_start(
    clean_hub_leaf: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hanging: Path,
    number: signal.Signals,
    code: int,
) -> None:
    """No process, folder or write to the real servers is left after a signal or SIGKILL."""
    hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[{"name": "A", "domain": "hub"}, {"name": "B", "domain": "leaf"}]
    )

    with audit_requests(clean_hub_leaf) as seen:
        process = start_rehearsal(tmp_path, tmp_path / "tmp", monkeypatch, hanging)
        os.kill(process.pid, number)
        process.communicate(timeout=30)

    assert process.returncode == code
    wait_for(
        lambda: leftover_files(tmp_path / "tmp") == [],
        f"left behind: {leftover_files(tmp_path / 'tmp')}",
    )
    assert writes(seen) == []


def test_nothing_is_left_after_ctrl_c(
    clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a rehearsal leaves nothing, and the command ends as interrupted or done."""
    hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[{"name": f"S{n}", "domain": "hub"} for n in range(50)]
    )

    with audit_requests(clean_hub_leaf) as seen:
        process = start_rehearsal(tmp_path, tmp_path / "tmp", monkeypatch, PROGRAM)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=30)

    assert process.returncode in {0, 130}
    wait_for(
        lambda: leftover_files(tmp_path / "tmp") == [],
        f"left behind: {leftover_files(tmp_path / 'tmp')}",
    )
    assert writes(seen) == []
