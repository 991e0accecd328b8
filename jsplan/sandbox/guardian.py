"""A guardian that ends all embedded servers with this process, however it ends.

A small shell in a session of its own reads from a pipe which programs run. When this process is
gone, even by kill -9, the pipe ends. The shell then kills the remaining programs and removes the
temporary folders. A parent-death signal does not exist on macOS, and on Linux it fires when the
*thread* that started the server ends.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# `+ PID`, `- PID`, `d FOLDER` and `x FOLDER` change two lists. The newline-separated lists are
# walked with IFS set to a newline, so that spaces in a folder's name are kept.
_GUARD_SCRIPT = r"""
trap '' HUP INT TERM
pids= ; folders= ; nl='
'
without() { list=$1; out= ; IFS=$nl
  for item in $list; do [ "$item" = "$2" ] || out="$out$item$nl"; done; unset IFS; }
while read -r op what; do
    case $op in
        +) pids="$pids$what$nl" ;;
        -) without "$pids" "$what"; pids=$out ;;
        d) folders="$folders$what$nl" ;;
        x) without "$folders" "$what"; folders=$out ;;
    esac
done
[ -z "$pids" ] || kill -9 $pids 2>/dev/null
[ -z "$folders" ] || { IFS=$nl
  for folder in $folders; do
    rm -rf -- "$folder" 2>/dev/null || { sleep 1; rm -rf -- "$folder"; }
  done; }
"""
# Started with the pipe as its input, the program registers itself before it becomes the server
# and closes the pipe: it never runs unregistered.
_LAUNCH_SCRIPT = 'echo "+ $$" >&0; exec "$@" </dev/null'


class Guardian:
    """The guardian shell of one process."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """Return the shell's process id."""
        return self._shell.pid

    def launch(self, command: Sequence[str | Path], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program that ends with this process; both its outputs go to `log`.

        It is in a session of its own: Ctrl-C at the terminal reaches jsplan, which stops it in
        order.
        """
        launcher = ["/bin/sh", "-c", _LAUNCH_SCRIPT, "launch", *command]
        return subprocess.Popen(
            launcher, stdin=self._pipe(), stdout=log, stderr=log, start_new_session=True
        )

    def forget_process(self, pid: int) -> None:
        """Forget a program that has ended; its process id may be reused."""
        self._send(f"- {pid}")

    def register_folder(self, folder: Path) -> None:
        """Remove this folder if the process ends before `unregister_folder`."""
        self._send(f"d {folder}")

    def unregister_folder(self, folder: Path) -> None:
        """Do not remove this folder any more."""
        self._send(f"x {folder}")

    def close(self) -> None:
        """Kill all registered programs; called at exit.

        A forked child does nothing: the servers belong to its parent.
        """
        if os.getpid() == self._owner and self._shell.poll() is None:
            self._pipe().close()
            self._shell.wait()

    def _send(self, line: str) -> None:
        with self._lock:
            self._pipe().write(line.encode() + b"\n")

    def _pipe(self) -> IO[bytes]:
        assert self._shell.stdin is not None
        return self._shell.stdin


_by_process: dict[int, Guardian] = {}
_starting = threading.Lock()


def get_guardian() -> Guardian:
    """Return the guardian of this process, started at its first use.

    A forked child gets one of its own.
    """
    with _starting:
        if os.getpid() not in _by_process:
            _by_process[os.getpid()] = Guardian()
        return _by_process[os.getpid()]
