from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pip_cache() -> Path:
    """Return the developer's cache of pip, since each test has a home of its own."""
    return Path.home() / ".cache" / "pip"
