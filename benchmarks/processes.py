"""Runs whole processes and measures them; shared by the benchmarks."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from cpu_time import read_cpu_seconds

#: Adopts the processes that a command leaves (the JVM of Spark), and waits for them: they count.
_MEASURE = """
import ctypes, os, resource, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
begun = time.monotonic()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
seconds = time.monotonic() - begun
sys.stderr.buffer.write(done.stderr if done.returncode else b"")
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, done.returncode)
"""
Measured = dict[str, float]


def run(words: Sequence[str], folder: Path, servers: Collection[int] = ()) -> Measured:
    """Run one process, and return what it and these servers used meanwhile.

    `seconds` is wall time, `cpu` and `server_cpu` are CPU seconds, `mib` is peak resident memory.
    """
    before = read_cpu_seconds(servers)["server"]
    out = subprocess.run(
        [sys.executable, "-c", _MEASURE, *words], cwd=folder, check=True, stdout=subprocess.PIPE
    ).stdout.split()
    assert int(out[3]) == 0, f"{words} ended with {out[3].decode()}"
    return {
        "seconds": round(float(out[0]), 3),
        "cpu": round(float(out[1]), 2),
        "server_cpu": round(read_cpu_seconds(servers)["server"] - before, 2),
        "mib": round(float(out[2]), 1),
    }


def median(
    words: Sequence[str], folder: Path, repeat: int, servers: Collection[int] = ()
) -> Measured:
    """Return the medians of several runs."""
    runs = [run(words, folder, servers) for _ in range(repeat)]
    return {name: round(statistics.median(each[name] for each in runs), 3) for name in runs[0]}


def least(runs: Sequence[Measured]) -> Measured:
    """Return the least of each figure of several runs."""
    return {name: min(each[name] for each in runs) for name in runs[0]}


def ratio(of: Measured, base: Measured) -> Measured:
    """Compare wall time, and the CPU time of client and server together."""
    return {
        "wall": round(of["seconds"] / base["seconds"], 2),
        "cpu": round((of["cpu"] + of["server_cpu"]) / (base["cpu"] + base["server_cpu"]), 2),
    }
