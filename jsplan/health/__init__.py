"""Assessment of mirrors and sources: do they follow their origins, and if not, why. Pure."""

from __future__ import annotations

from jsplan.health.assessment import Assessment, assess
from jsplan.health.report import build_replication_element

__all__ = ["Assessment", "assess", "build_replication_element"]
