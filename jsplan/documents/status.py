"""The document of `jsplan status`: the live objects and their health."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from jsplan.diagnostics import Diagnostic

FORMAT_VERSION = "1.0"


class Status(Struct):
    """The whole document, sorted by address.

    `domains`, `streams`, `consumers` and `replication` are plain data, described in
    `documents.schema`. `managed` is true for the streams and consumers of this workspace,
    null where the state cannot be read.
    `interrupted` are replacements and relocations that an apply did not finish. A stream is `down`
    while one rejects its publishers; it is listed even while it does not exist.
    `relocations` have begun and are not finished: `lag` is the messages that the copy has not yet.
    `thresholds` of a stream or consumer are those in its metadata that are exceeded, and
    `peer-expect` where a cluster has it without a leader or without a replica.
    """

    jsplan_version: str
    workspace: str
    environment: str | None
    timestamp: str
    id: str
    domains: list[dict[str, Any]] = field(default_factory=list)
    interrupted: list[dict[str, Any]] = field(default_factory=list)
    relocations: list[dict[str, Any]] = field(default_factory=list)
    streams: list[dict[str, Any]] = field(default_factory=list)
    consumers: list[dict[str, Any]] = field(default_factory=list)
    replication: list[dict[str, Any]] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, int]:
        """Counts of domains, streams, consumers, messages, bytes and flows."""
        health = [flow["healthy"] for flow in self.replication]
        return {
            "domains": len(self.domains),
            "offline": sum(1 for d in self.domains if not d["reachable"]),
            "streams": len(self.streams),
            "down": sum(1 for s in self.streams if s["down"]),
            "consumers": len(self.consumers),
            "messages": sum(s["messages"] for s in self.streams),
            "bytes": sum(s["bytes"] for s in self.streams),
            "flows": len(health),
            "unhealthy": health.count(False),
            "unknown": health.count(None),
            "breached": sum(1 for o in (*self.streams, *self.consumers) if o["thresholds"]),
        }

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "status",
            "jsplan_version": self.jsplan_version,
            "workspace": self.workspace,
            "environment": self.environment,
            "timestamp": self.timestamp,
            "id": self.id,
            "domains": self.domains,
            "interrupted": self.interrupted,
            "relocations": self.relocations,
            "streams": self.streams,
            "consumers": self.consumers,
            "replication": self.replication,
            "diagnostics": [d.to_json() for d in self.diagnostics],
            "summary": self.summary,
        }
