"""Workspace files parsed to declared resources; references between domains stay symbolic."""

from __future__ import annotations

from jsplan.config.load import load
from jsplan.config.model import LoadOptions, Workspace

__all__ = ["LoadOptions", "Workspace", "load"]
