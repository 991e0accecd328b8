"""Commands that install an extra, from where this jsplan was installed: no index has it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_NAME = "jsplan"


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the Python that runs."""
    words = [sys.executable or "python3", "-m", "pip", "install"]
    return " ".join(map(shlex.quote, (*words, *_find_requirements(extra))))


def _find_requirements(extra: str) -> list[str]:
    """Return what pip is to install: jsplan from where it came, else the packages themselves."""
    try:
        found = Distribution.from_name(_NAME)
    except PackageNotFoundError:
        return [f"{Path(__file__).parents[1]}[{extra}]"]  # a clone that is not installed
    origin: dict[str, Any] = json.loads(found.read_text("direct_url.json") or "{}")
    url, vcs = str(origin.get("url", "")), origin.get("vcs_info")
    if url.startswith("file:"):
        path = Path(unquote(urlsplit(url).path))
        if path.exists():
            editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
            return [*editable, f"{path}[{extra}]"]
    elif url:
        url = re.sub("//[^/]*@", "//", url)
        if vcs:
            url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        folder = origin.get("subdirectory")
        return [f"{_NAME}[{extra}] @ {url}{f'#subdirectory={folder}' if folder else ''}"]
    return [
        requirement.replace(" ", "")
        for requirement, _, marker in (text.partition(";") for text in found.requires or ())
        if re.search(f"extra == ['\"]{extra}['\"]", marker)
    ]
