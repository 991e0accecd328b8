"""Connections, `nats` contexts and the JetStream JSON API of each domain, as raw dicts."""

from __future__ import annotations

from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.pool import Pool

__all__ = ["DomainApi", "Pool"]
