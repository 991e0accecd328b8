"""Types that documents and answers are checked by."""

from __future__ import annotations

import subprocess
import sys

#: Types that were never used, each used first by six threads at once.
THREADS = """
import sys, threading
from msgspec import defstruct
from jsplan.documents.reading import fits
sys.setswitchinterval(1e-6)
for _ in range(60):
    expected = defstruct("Inner", [("a", str)])
    value = {"a": "a"}
    for _ in range(8):
        expected = defstruct("Outer", [("x", expected), ("y", str)])
        value = {"x": value, "y": "abc"}
    together, found = threading.Barrier(6), []
    def run():
        together.wait()
        found.append(fits(value, expected))
    threads = [threading.Thread(target=run) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [True] * 6
"""


def test_threads_that_use_a_type_first() -> None:
    """A type may be used first by several threads at once, as programs do that use `jsplan.api`."""
    done = subprocess.run([sys.executable, "-c", THREADS], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
