"""The plan document, which planning writes.

Views and the executor read only this document, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.base import (
    DocumentError,
    check_format,
    digest,
    digest_large,
    known_fields,
    plain,
)
from jsplan.documents.parts import Deferred
from jsplan.documents.plan_types import VERIFY_OP, Action, Effect, Op, Severity
from jsplan.documents.validation import require_valid

FORMAT_VERSION = "1.0"


class FieldChange(Struct):
    """One leaf that changes, by its dotted path.

    Elements of sets are named: `sources["SALES@$JS.leaf.API"]`.
    """

    path: str
    before: Any
    after: Any
    effect: Effect

    def to_json(self) -> dict[str, Any]:
        """The element of `change.fields`."""
        return {
            "path": self.path,
            "before": self.before,
            "after": self.after,
            "effect": self.effect,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FieldChange:
        """The reverse of `to_json`."""
        return cls(raw["path"], raw["before"], raw["after"], raw["effect"])


class Hazard(Struct):
    """A consequence of a change. A blocking one stops the apply until it is allowed.

    `messages`, `bytes` and `consumers` are counts, None if they do not apply. With `exact` false,
    `at_least` and `at_most` are bounds of the number of messages, and `messages` is the upper one.
    """

    code: str
    message: str
    blocking: bool = True
    allowed: bool = False
    flag: str = ""
    messages: int | None = None
    bytes: int | None = None
    consumers: int | None = None
    exact: bool | None = None
    at_least: int | None = None
    at_most: int | None = None
    as_of: dict[str, Any] | None = None
    causes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The element of `hazards`; counts that do not apply are left out."""
        out: dict[str, Any] = {
            "code": self.code,
            "blocking": self.blocking,
            "allowed": self.allowed,
            "flag": self.flag,
            "message": self.message,
        }
        for name in ("messages", "bytes", "consumers", "exact", "at_least", "at_most", "as_of"):
            if (value := getattr(self, name)) is not None:
                out[name] = value
        return out | ({"causes": self.causes} if self.causes else {})

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Hazard:
        """The reverse of `to_json`."""
        return cls(**known_fields(cls, raw))


class Change(Struct):
    """The full configurations of one resource before and after, without `_nats.*` metadata.

    Names and units are those of the API. `importing` is `{"id": address}` if the apply imports or
    adopts the resource. `unknown` are fields that are only known during the apply; `after` has
    their current values. `sensitive` are fields of which only digests are here.
    """

    actions: list[Action]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    fields: list[FieldChange] = field(default_factory=list)
    replace_paths: list[list[str]] = field(default_factory=list)
    importing: dict[str, str] | None = None
    unknown: list[str] = field(default_factory=list)
    sensitive: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The `change` of a resource."""
        return {
            "actions": self.actions,
            "before": self.before,
            "after": self.after,
            "after_unknown": dict.fromkeys(self.unknown, True),
            "before_sensitive": dict.fromkeys(self.sensitive, True) if self.before else {},
            "after_sensitive": dict.fromkeys(self.sensitive, True) if self.after else {},
            "fields": [f.to_json() for f in self.fields],
            "replace_paths": self.replace_paths,
            "importing": self.importing,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Change:
        """The reverse of `to_json`."""
        fields = [FieldChange.from_json(f) for f in raw["fields"]]
        unknown = sorted(raw.get("after_unknown") or ())
        sensitive = {*(raw.get("before_sensitive") or ()), *(raw.get("after_sensitive") or ())}
        return cls(
            raw["actions"],
            raw["before"],
            raw["after"],
            fields,
            raw["replace_paths"],
            raw["importing"],
            unknown,
            sorted(sensitive),
        )


class ResourceChange(Struct):
    """One resource of the plan. `previous_address` is set if a `moved` block renamed it.

    `relocated_from` and `relocated_to` are the other side of a relocation.

    `severity` is only set on elements of `resource_drift`. `fingerprint` is `sha256:…` over the
    live configuration, `created` and the domain, or `absent`.
    """

    address: str
    type: str
    domain: str
    name: str
    change: Change
    action_reason: str = ""
    hazards: list[Hazard] = field(default_factory=list)
    fingerprint: str = "absent"
    depends_on: list[str] = field(default_factory=list)
    previous_address: str | None = None
    severity: Severity | None = None
    relocated_from: str | None = None
    relocated_to: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The element of `resource_changes` or `resource_drift`."""
        out: dict[str, Any] = {
            "address": self.address,
            "mode": "managed",
            "type": self.type,
            "domain": self.domain,
            "name": self.name,
            "change": self.change.to_json(),
            "action_reason": self.action_reason,
            "hazards": [h.to_json() for h in self.hazards],
            "fingerprint": self.fingerprint,
            "depends_on": self.depends_on,
        }
        if self.previous_address is not None:
            out["previous_address"] = self.previous_address
        if self.severity is not None:
            out["severity"] = self.severity
        for name in ("relocated_from", "relocated_to"):
            if (other := getattr(self, name)) is not None:
                out[name] = other
        return out

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ResourceChange:
        """The reverse of `to_json`."""
        return cls(
            address=raw["address"],
            type=raw["type"],
            domain=raw["domain"],
            name=raw["name"],
            change=Change.from_json(raw["change"]),
            action_reason=raw["action_reason"],
            hazards=[Hazard.from_json(h) for h in raw["hazards"]],
            fingerprint=raw["fingerprint"],
            depends_on=raw["depends_on"],
            previous_address=raw.get("previous_address"),
            relocated_from=raw.get("relocated_from"),
            relocated_to=raw.get("relocated_to"),
            severity=raw.get("severity"),
        )


class Step(Struct):
    """One call of an apply, complete: the executor adds nothing of its own.

    `request` is `{"api": "STREAM.UPDATE.ORDERS", "payload": {…}}` below the domain's API prefix, or
    None for a step that only changes state. `object` is the address of the object that it changes
    if that is not the resource itself, such as a staging stream. `expect` is the configuration that
    the read-back must show, in compact form; None for a deletion. `record` is stored in state when
    the step is done. `depends_on` are step ids. `optional_if_offline` are those of them that the
    step does not wait for if their domain is offline: a source may be created before its origin.
    `params` are the parameters of a step of more than one request.
    """

    id: str
    address: str
    op: Op
    title: str
    request: dict[str, Any] | None
    precondition: dict[str, Any]
    depends_on: list[str] = field(default_factory=list)
    expect: dict[str, Any] | None = None
    record: dict[str, Any] | None = None
    object: str | None = None
    params: dict[str, Any] | None = None
    optional_if_offline: list[str] = field(default_factory=list)

    @property
    def target_address(self) -> Address:
        """The object on a server that the step is about."""
        return Address.parse(self.object or self.address)

    @property
    def domain(self) -> str:
        """The domain that the step is sent to."""
        return (self.object or self.address).partition("/")[0]

    @property
    def moves_in_cluster(self) -> bool:
        """True if a cluster moves or scales the stream after the call.

        Such a call waits for an earlier move of the same stream.
        """
        stable = self.precondition.get("wait_until_stable")
        return self.op == "stream.update" and stable == str(self.target_address)

    @property
    def required_domains(self) -> set[str]:
        """The domains that must answer: its own, and those of the origins that it checks.

        A step of a relocation needs both sides.
        """
        params = self.params or {}
        flows = params.get("flows", ()) if self.op == VERIFY_OP else ()
        sides = (params[side] for side in ("relocated", "target") if side in params)
        return {
            self.domain,
            *(Address.parse(flow["origin"]).domain for flow in flows),
            *(Address.parse(side).domain for side in sides),
        }

    def to_json(self) -> dict[str, Any]:
        """The element of `steps`."""
        out = {
            "id": self.id,
            "address": self.address,
            "op": self.op,
            "title": self.title,
            "request": self.request,
            "precondition": self.precondition,
            "depends_on": self.depends_on,
            "expect": self.expect,
            "record": self.record,
        }
        out |= {"object": self.object} if self.object else {}
        out |= {"optional_if_offline": self.optional_if_offline} if self.optional_if_offline else {}
        return out | ({"params": self.params} if self.params is not None else {})

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Step:
        """The reverse of `to_json`."""
        return cls(**known_fields(cls, raw))


def config_of_payload(payload: dict[str, Any]) -> Any:
    """Return the configuration in a request.

    For a stream it is the whole payload, which may have a field `config`; else that field.
    """
    return payload if "name" in payload or "config" not in payload else payload["config"]


class RehearsalServer(Struct):
    """The embedded server of one domain in a rehearsal.

    `version` is its version of nats-server, `domain_version` that of the domain if it is known.
    """

    domain: str
    version: str
    domain_version: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """The element of `rehearsal.servers`."""
        return {
            "domain": self.domain,
            "version": self.version,
            "domain_version": self.domain_version,
        }


class Rehearsal(Struct):
    """The result of the plan on embedded servers, in numbers of `steps`.

    `refused` were refused or not kept, `blocked` depend on a refused one, `not_tried` could not be
    tried. Warnings say why.
    """

    servers: list[RehearsalServer]
    steps: int
    refused: int = 0
    blocked: int = 0
    not_tried: int = 0

    def to_json(self) -> dict[str, Any]:
        """The value of `rehearsal`."""
        counts = {
            "steps": self.steps,
            "refused": self.refused,
            "blocked": self.blocked,
            "not_tried": self.not_tried,
        }
        return counts | {"servers": [server.to_json() for server in self.servers]}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Rehearsal:
        """The reverse of `to_json`."""
        return cls(
            [RehearsalServer(**known_fields(RehearsalServer, s)) for s in raw["servers"]],
            raw["steps"],
            raw["refused"],
            raw["blocked"],
            raw["not_tried"],
        )


class Plan(Struct):
    """The whole document. `domains` has the connection and the server of each domain key.

    `state` is `{"lineage", "serial"}` of the state that it was planned against (lineage null: there
    was none). `options` are the planning options. `mode` is `normal`, `destroy`, `refresh-only`,
    `restore` or `revert`. `rehearsal` is None unless it was tried on embedded servers. `sha256` is
    that of the document that it was read from; empty for a new plan.
    """

    jsplan_version: str
    workspace: str
    environment: str | None
    timestamp: str
    id: str
    state: dict[str, Any]
    config_hash: str
    variables: dict[str, Any]
    mode: str = "normal"
    targets: list[str] = field(default_factory=list)
    complete: bool = True
    applyable: bool = False
    errored: bool = False
    allowed_hazards: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    domains: dict[str, dict[str, Any]] = field(default_factory=dict)
    resource_changes: list[ResourceChange] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    resource_drift: list[ResourceChange] = field(default_factory=list)
    backfills: list[dict[str, Any]] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    rehearsal: Rehearsal | None = None
    sha256: str = ""

    @property
    def summary(self) -> dict[str, int]:
        """Counts per kind of change; `replace_deletes` are the replacements that delete data.

        `hazards` counts the blocking ones.
        """
        actions = [tuple(r.change.actions) for r in self.resource_changes]
        replaced = [r for r in self.resource_changes if len(r.change.actions) == 2]
        return {
            "import": sum(1 for r in self.resource_changes if r.change.importing),
            "add": actions.count(("create",)),
            "change": actions.count(("update",)),
            "replace": len(replaced),
            "replace_deletes": sum(1 for r in replaced if r.change.actions == ["delete", "create"]),
            "destroy": actions.count(("delete",)),
            "forget": actions.count(("forget",)),
            "backfill": len(self.backfills),
            "deferred": len(self.deferred),
            "hazards": sum(1 for r in self.resource_changes for h in r.hazards if h.blocking),
        }

    @property
    def has_changes(self) -> bool:
        """Check whether an apply has visible work: writes, imports, forgets or backfills.

        Steps that only update state are not shown, except in a refresh-only plan.
        """
        visible = [s for s in self.steps if s.op != "state.update" or self.mode == "refresh-only"]
        return bool(visible or self.summary["backfill"])

    def to_json(self) -> dict[str, Any]:
        """The document, with `sha256` over everything else in it."""
        out = {
            name: list(value) if isinstance(value, Iterator) else value
            for name, value in self._content().items()
        }
        return out | {"sha256": digest(out).removeprefix("sha256:")}

    def compute_sha256(self) -> str:
        """Return `sha256` of the document, which is not made: it may be tens of megabytes."""
        return digest_large(self._content()).removeprefix("sha256:")

    def _content(self) -> dict[str, Any]:
        """Return the document without `sha256`; iterators stand for long lists."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "plan",
            "jsplan_version": self.jsplan_version,
            "workspace": self.workspace,
            "environment": self.environment,
            "timestamp": self.timestamp,
            "id": self.id,
            "state": self.state,
            "config_hash": self.config_hash,
            "variables": self.variables,
            "mode": self.mode,
            "targets": self.targets,
            "complete": self.complete,
            "applyable": self.applyable,
            "errored": self.errored,
            "allowed_hazards": self.allowed_hazards,
            "options": self.options,
            "domains": self.domains,
            "resource_changes": (r.to_json() for r in self.resource_changes),
            "steps": (s.to_json() for s in self.steps),
            "resource_drift": (r.to_json() for r in self.resource_drift),
            "backfills": self.backfills,
            "deferred": plain(self.deferred),
            "diagnostics": [d.to_json() for d in self.diagnostics],
            "rehearsal": self.rehearsal.to_json() if self.rehearsal else None,
            "summary": self.summary,
        }

    @classmethod
    def from_json(cls, raw: Any, where: str) -> Plan:
        """Read a saved plan; `where` names it in errors.

        Raises DocumentError for another kind or major version, for a document that was edited by
        hand, and for one that does not fit its schema.
        """
        raw = check_format(raw, "plan", FORMAT_VERSION, where)
        body = {key: value for key, value in raw.items() if key != "sha256"}
        if digest(body) != f"sha256:{raw.get('sha256')}":
            raise DocumentError(
                f"{where} was changed after it was planned: its sha256 does not fit",
                hint="Plan again with: jsplan plan -o FILE",
            )
        require_valid(raw, "plan", where, "Plan again with: jsplan plan -o FILE")
        plain = {
            name: raw[name]
            for name in (
                "jsplan_version",
                "workspace",
                "environment",
                "timestamp",
                "id",
                "state",
                "config_hash",
                "variables",
                "mode",
                "targets",
                "complete",
                "applyable",
                "errored",
                "allowed_hazards",
                "options",
                "domains",
                "backfills",
            )
        }
        return cls(
            **plain,
            resource_changes=[ResourceChange.from_json(r) for r in raw["resource_changes"]],
            steps=[Step.from_json(s) for s in raw["steps"]],
            resource_drift=[ResourceChange.from_json(r) for r in raw["resource_drift"]],
            deferred=[Deferred(d["address"], d["reason"]) for d in raw["deferred"]],
            diagnostics=[Diagnostic.from_json(d) for d in raw["diagnostics"]],
            rehearsal=Rehearsal.from_json(raw["rehearsal"]) if raw.get("rehearsal") else None,
            sha256=raw["sha256"],
        )
