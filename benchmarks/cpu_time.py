"""CPU time of servers, JVM and Python, by program, from the process table of Linux."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The programs of a copy.
PROGRAMS = ("server", "JVM", "Python")
_TICKS = os.sysconf("SC_CLK_TCK")


def read_cpu_seconds(servers: Iterable[int]) -> dict[str, float]:
    """Return the seconds used so far by the servers of these process ids, the JVM and Python.

    Python is this process and its descendants but the JVM. What a process has used counts after its
    end too, with its parent.
    """
    used = dict.fromkeys(PROGRAMS, 0.0)
    numbers = set(servers)
    for pid in numbers:
        used["server"] += _read_seconds(pid)
    for pid in _descend(os.getpid()):
        if pid not in numbers:
            used["JVM" if _read_name(pid) == "java" else "Python"] += _read_seconds(pid)
    return used


def _descend(pid: int) -> Iterator[int]:
    yield pid
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text("ascii").split()
        except OSError:
            continue
        for child in children:
            yield from _descend(int(child))


def _read_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except OSError:
        return ""


def _read_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of the children it has waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return 0.0
    # user, system, and the same of children: fields 14 to 17, after a name that may have spaces
    return sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS
