from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_site_is_complete_without_a_network(tmp_path: Path) -> None:
    """`mkdocs build --strict` has no warning, and no page loads anything from the network."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert (0, "") == (built.returncode, built.stdout + built.stderr)
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]*src="https?://|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="https?://'
    )
    assert [] == [
        page.name
        for page in tmp_path.rglob("*.html")
        if loads.search(page.read_text(encoding="utf-8"))
    ]
    assert "@font-face" not in (tmp_path / "images" / "demo.svg").read_text(encoding="utf-8")
