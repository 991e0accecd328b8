"""Files to declared resources, with symbolic references between domains; resolving those is left to `topology`."""

from __future__ import annotations

from jsplan.config.load import load
from jsplan.config.model import LoadOptions, Workspace

__all__ = ["LoadOptions", "Workspace", "load"]
