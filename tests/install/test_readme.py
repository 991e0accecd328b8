"""README's first five minutes, in the environment that README sets up."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.page_reader import PageReader, play_page
from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)  # seconds: a package index may be slow

UP = "jsplan sandbox up"
README = "README.md"


@contextmanager
def servers(variables: dict[str, str]) -> Iterator[dict[str, str]]:
    """Keep `jsplan sandbox up` running on free ports; give the URL of each server."""
    command = [*UP.split(), "--free-ports"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=variables, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = list(iter(process.stdout.readline, "Running. Ctrl-C ends it.\n"))
            yield {
                found[1]: found[2]
                for line in said
                if (found := re.match(r"(\w+): (nats://\S+), domain", line))
            }
        finally:
            process.terminate()


def test_the_first_five_minutes(pip_cache: Path, tmp_path: Path) -> None:
    """README's installation is enough for every command that it shows, with the shown output."""
    home = tmp_path / "home"
    home.mkdir()

    # Run what README says before its first `jsplan`; return the lines and the variables.
    (block,) = [
        block for block in blocks(ROOT / README) if block.language == "shell" and UP in block.text
    ]
    lines = [line.partition("#")[0].strip() for line in block.text.splitlines()]
    variables = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PIP_CACHE_DIR": str(pip_cache),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_QUIET": "1",
        "PIP_NO_COMPILE": "1",  # Python compiles what it imports
    }
    script = "\n".join(["set -eu", *(line for line in lines if line != UP), 'echo "$PATH"'])
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=ROOT,
        env=variables,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
    )
    variables |= {"PATH": done.stdout.splitlines()[-1]}

    assert UP in lines
    program = home / "jsplan-venv" / "bin" / "jsplan"
    assert variables["PATH"].startswith(str(program.parent))
    with servers(variables) as urls:
        play_page(PageReader(tmp_path, urls, jsplan=program, environment=variables), README)
