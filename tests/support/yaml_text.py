"""YAML as tests read it, by the parser in C: hundreds of files are read by each worker before the first test begins."""

from __future__ import annotations

from typing import Any

import yaml


def read_yaml(text: str | bytes) -> Any:
    """The one document of a text."""
    return yaml.load(text, yaml.CSafeLoader)
