"""The check that the extra `spark` is installed, before anything of it is imported."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from jsplan.errors import NotAvailableError
from jsplan.extras import install_command

_REQUIRED_PACKAGES: Final = ("pyspark", "pyarrow", "numpy")


def require_spark() -> None:
    """Raise NotAvailableError with the package to install if one is missing."""
    missing = [name for name in _REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        raise NotAvailableError(
            f"backfill needs {missing[0]}, which is not installed",
            hint=f"Install it: {install_command('spark')}",
        )
