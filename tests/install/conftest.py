from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pip_cache() -> Path:
    """Where pip keeps what it has downloaded: that of the developer, since each test has a home of its own."""
    return Path.home() / ".cache" / "pip"
