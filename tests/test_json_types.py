"""Types of JSON values."""

from __future__ import annotations

import subprocess
import sys

#: Types that were never used, each used first by six threads at once.
THREADS = """
import sys, threading
from jsplan.json_types import has_type, object_type, text_type
sys.setswitchinterval(1e-6)
for _ in range(60):
    expected = object_type({"a": str}, {}, may_have_others=True)
    value = {"a": "a"}
    for _ in range(8):
        expected = object_type({"x": expected, "y": text_type("^a")}, {}, may_have_others=True)
        value = {"x": value, "y": "abc"}
    together, found = threading.Barrier(6), []
    def run():
        together.wait()
        found.append(has_type(value, expected))
    threads = [threading.Thread(target=run) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [True] * 6
"""


def test_threads_that_use_a_type_first() -> None:
    """A type may be used first by several threads at once, as programs do that use `jsplan.api`."""
    done = subprocess.run([sys.executable, "-c", THREADS], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
