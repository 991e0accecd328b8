"""Whether mirrors and sources follow their origins, and if not, why. Pure: what the servers show is read in `facts.replication`."""

from __future__ import annotations

from jsplan.health.report import element
from jsplan.health.verdict import Verdict, judge

__all__ = ["Verdict", "element", "judge"]
