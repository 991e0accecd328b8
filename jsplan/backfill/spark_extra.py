"""The check that the extra `spark` is installed, before anything of it is imported."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from jsplan.errors import NotAvailableError
from jsplan.extras import install_command

_REQUIRED_PACKAGES: Final = ("pyspark", "pyarrow", "numpy")


def require_spark() -> None:
    """Raise NotAvailableError with the package to install if one is missing."""
    if missing := list_missing_packages():
        raise NotAvailableError(
            f"backfill needs {missing[0]}, which is not installed",
            hint=f"Install it: {install_command('spark')}",
        )


def list_missing_packages() -> list[str]:
    """List the packages of the extra that are not installed."""
    return [name for name in _REQUIRED_PACKAGES if find_spec(name) is None]
