"""Run Rego policies in their own process, so that a crash of the engine fails one test.

`python rego.py` reads {"modules": {name: text}, "data", "input", "query"} and prints the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def ask(query: str, document: Any, data: dict[str, Any], modules: dict[str, str]) -> Any:
    """Return the value of a query; raise AssertionError with the error of the engine."""
    query_input = json.dumps({"query": query, "input": document, "data": data, "modules": modules})
    completed = subprocess.run(
        [sys.executable, __file__], input=query_input, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, (
        f"{query}: {completed.returncode} {completed.stdout} {completed.stderr}"
    )
    return json.loads(completed.stdout)["expressions"][0]


def main() -> None:
    """Answer one query."""
    from regopy import Interpreter  # noqa: PLC0415 - not in the process of the tests

    query_input = json.load(sys.stdin)
    rego = Interpreter()
    for name, text in query_input["modules"].items():
        rego.add_module(name, text)
    rego.add_data(query_input["data"])
    rego.set_input(query_input["input"])
    sys.stdout.write(str(rego.query(query_input["query"])))


if __name__ == "__main__":
    main()
