"""Assessment of mirrors, sources and thresholds: is something wrong, and if so, why. Pure."""

from __future__ import annotations

from jsplan.health.assessment import Assessment, assess
from jsplan.health.report import build_replication_element
from jsplan.health.thresholds import find_breaches

__all__ = ["Assessment", "assess", "build_replication_element", "find_breaches"]
