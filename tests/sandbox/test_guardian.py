from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = """
    import sys, time
    from jsplan.sandbox import Sandbox
    from jsplan.sandbox.guardian import get_guardian
    sandbox = Sandbox.hub_and_leaf()
    sandbox.start()
    print(get_guardian().pid, *(server.pid for server in sandbox.servers.values()), sandbox.folder, flush=True)
"""


def start(then: str) -> tuple[subprocess.Popen[str], list[int], Path]:
    """Start a process that runs a hub and a leaf; return it, its children and its folder."""
    source = textwrap.dedent(PROGRAM) + then
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    *pids, folder = process.stdout.readline().split()
    process.stdout.close()
    return process, [int(pid) for pid in pids], Path(folder)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where no process reaps orphans, a killed process stays in the table as a zombie.
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text(encoding="utf-8").rsplit(") ", 1)[1][0] != "Z"


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true; the limit only ends a test that fails."""
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_nothing_is_left_after_kill_9() -> None:
    """Servers, guardian and temporary folder of a killed Python process are removed too."""
    process, pids, folder = start("time.sleep(60)")
    assert all(alive(pid) for pid in pids)

    process.kill()
    process.wait()

    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert eventually(lambda: not folder.exists())


def test_nothing_is_left_after_the_whole_process_group_is_killed() -> None:
    """A killed process group leaves the guardian running until it has removed everything."""
    process, pids, folder = start("time.sleep(60)")

    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    assert eventually(lambda: not any(alive(pid) for pid in pids))
    assert eventually(lambda: not folder.exists())


def test_a_paused_server_does_not_survive_either() -> None:
    """A server that is paused when its owner is killed ends too."""
    process, pids, _ = start(
        "sandbox['leaf'].pause(); print('paused', file=sys.stderr); time.sleep(60)"
    )

    process.kill()
    process.wait()

    assert eventually(lambda: not any(alive(pid) for pid in pids))


def test_a_program_that_forgets_its_sandbox_leaves_nothing() -> None:
    """A process that ends normally stops its servers."""
    process, pids, folder = start("sys.exit(3)")

    assert process.wait() == 3
    assert not any(alive(pid) for pid in pids)
    assert not folder.exists()


def test_a_server_outlives_the_thread_that_started_it() -> None:
    """A server that a worker thread started stays up after the thread ended."""
    sandbox = Sandbox.single()
    worker = threading.Thread(target=sandbox.start)
    worker.start()
    worker.join()

    with sandbox:
        assert sandbox["server"].info()["server_name"] == "server-server"


def test_a_forked_child_does_not_stop_the_servers_of_its_parent() -> None:
    """The end of a forked child leaves the sandbox alone."""
    source = textwrap.dedent(PROGRAM) + textwrap.dedent("""
        import os
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        assert all(server.is_running and server.info() for server in sandbox.servers.values())
        sandbox.close()
    """)

    done = subprocess.run(
        [sys.executable, "-c", source], check=False, timeout=60, capture_output=True, text=True
    )

    assert (0, "") == (done.returncode, done.stderr)
