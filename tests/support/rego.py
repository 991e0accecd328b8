"""Asks Rego policies in a process of its own, so that a fault of the engine is a failed test and not the end of all of them.

`python rego.py` reads {"modules": {name: text}, "data", "input", "query"} and prints what the query gives.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def ask(query: str, document: Any, data: dict[str, Any], modules: dict[str, str]) -> Any:
    """The value of a query; raises AssertionError with the engine's words if there is none."""
    asked = json.dumps({"query": query, "input": document, "data": data, "modules": modules})
    done = subprocess.run(
        [sys.executable, __file__], input=asked, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{query}: {done.returncode} {done.stdout} {done.stderr}"
    return json.loads(done.stdout)["expressions"][0]


def main() -> None:
    """Answer one question."""
    from regopy import Interpreter  # noqa: PLC0415 - not in the process of the tests

    asked = json.load(sys.stdin)
    rego = Interpreter()
    for name, text in asked["modules"].items():
        rego.add_module(name, text)
    rego.add_data(asked["data"])
    rego.set_input(asked["input"])
    sys.stdout.write(str(rego.query(asked["query"])))


if __name__ == "__main__":
    main()
