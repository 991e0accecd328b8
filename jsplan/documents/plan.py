"""The plan document, which planning writes.

Views and the executor read only this document, so they cannot disagree.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address, Kind
from jsplan.diagnostics import Diagnostic
from jsplan.documents.base import (
    Document,
    DocumentError,
    check_format,
    digest,
    digest_large,
    plain,
)
from jsplan.documents.configs import AnyRecord, Config
from jsplan.documents.deletions import PlannedDeletion, UncopiedFlow
from jsplan.documents.plan_parts import (
    Actions,
    AsOf,
    HazardCode,
    Importing,
    Params,
    PlannedBackfill,
    PlannedDomain,
    PlannedState,
    PlanningOptions,
    PlanSummary,
    Precondition,
    Request,
)
from jsplan.documents.reading import decode
from jsplan.documents.step_kinds import STEP_KINDS, VERIFY_OP, Effect, Op, Severity, StepKind
from jsplan.documents.types import (
    AnyAddress,
    Count,
    Deferred,
    Fingerprint,
    Sha256,
    Time,
    UInt64,
    written,
)


def _none() -> None:
    return None


class FieldChange(Struct):
    """One leaf that changes, by its dotted path.

    Elements of sets are named: `sources["SALES@$JS.leaf.API"]`.
    """

    path: str
    before: Any
    after: Any
    effect: Effect


class Hazard(Struct, omit_defaults=True):
    """A consequence of a change. A blocking one stops the apply until it is allowed.

    `messages`, `bytes` and `consumers` are counts, None if they do not apply. With `exact` false,
    `at_least` and `at_most` are bounds of the number of messages, and `messages` is the upper one.
    """

    code: HazardCode
    message: str
    blocking: bool = written(lambda: True)
    allowed: bool = written(bool)
    flag: str = written(str)
    messages: UInt64 | None = None
    bytes: UInt64 | None = None
    consumers: UInt64 | None = None
    exact: bool | None = None
    at_least: UInt64 | None = None
    at_most: UInt64 | None = None
    as_of: AsOf | None = None
    causes: list[str] = field(default_factory=list)


class Change(Struct):
    """The full configurations of one resource before and after, without `_nats.*` metadata.

    Names and units are those of the API. `importing` is `{"id": address}` if the apply imports or
    adopts the resource. `after_unknown` are fields that are only known during the apply; `after`
    has their current values. Of sensitive fields only digests are here.
    """

    actions: Actions
    before: Config | None
    after: Config | None
    fields: list[FieldChange] = field(default_factory=list)
    replace_paths: list[list[str]] = field(default_factory=list)
    importing: Importing | None = None
    after_unknown: dict[str, Any] = field(default_factory=dict)
    before_sensitive: dict[str, Any] = field(default_factory=dict)
    after_sensitive: dict[str, Any] = field(default_factory=dict)


class ResourceChange(Struct, omit_defaults=True):
    """One resource of the plan. `previous_address` is set if a `moved` block renamed it.

    `relocated_from` and `relocated_to` are the other side of a relocation.

    `severity` is only set on elements of `resource_drift`. `fingerprint` is `sha256:…` over the
    live configuration, `created` and the domain, or `absent`.
    """

    address: AnyAddress
    type: Kind
    domain: str
    name: str
    change: Change
    action_reason: str = written(str)
    hazards: list[Hazard] = written(list)
    fingerprint: Fingerprint = written(lambda: "absent")
    depends_on: list[str] = written(list)
    previous_address: AnyAddress | None = None
    severity: Severity | None = None
    relocated_from: AnyAddress | None = None
    relocated_to: AnyAddress | None = None
    mode: Literal["managed"] = written(lambda: "managed")

    @classmethod
    def of(cls, address: Address, change: Change, reason: str, **more: Any) -> Self:
        """Return the change of the resource at an address; `more` are its other fields."""
        text, kind, domain, name = str(address), address.kind, address.domain, address.name
        return cls(text, kind, domain, name, change, reason, **more)


class Step(Struct, omit_defaults=True):
    """One call of an apply, complete: the executor adds nothing of its own.

    `request` is `{"api": "STREAM.UPDATE.ORDERS", "payload": {…}}` below the domain's API prefix, or
    None for a step that only changes state. `object` is the address of the object that it changes
    if that is not the resource itself, such as a staging stream. `expect` is the configuration that
    the read-back must show, in compact form; None for a deletion. `record` is stored in state when
    the step is done. `depends_on` are step ids. `optional_if_offline` are those of them that the
    step does not wait for if their domain is offline: a source may be created before its origin.
    `params` are the parameters of a step of more than one request. `deletions` and
    `uncopied` are the counts of what it deletes or leaves behind, which are repeated before it is
    sent.
    """

    id: str
    address: AnyAddress
    op: Op
    title: str
    request: Request | None
    precondition: Precondition
    depends_on: list[str] = written(list)
    expect: Config | None = written(_none)
    record: AnyRecord | None = written(_none)
    object: AnyAddress | None = None
    params: Params | None = None
    optional_if_offline: list[str] = field(default_factory=list)
    deletions: list[PlannedDeletion] = field(default_factory=list)
    uncopied: list[UncopiedFlow] = field(default_factory=list)

    @property
    def kind(self) -> StepKind:
        """The row of its operation."""
        return STEP_KINDS[self.op]

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

        A step of a transfer needs both sides.
        """
        params = self.params or {}
        flows = params.get("flows", ()) if self.op == VERIFY_OP else ()
        sides = (params[side] for side in ("from", "to") if side in params)
        return {
            self.domain,
            *(Address.parse(flow["origin"]).domain for flow in flows),
            *(Address.parse(side).domain for side in sides),
        }


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


class Rehearsal(Struct):
    """The result of the plan on embedded servers, in numbers of `steps`.

    `refused` were refused or not kept, `blocked` depend on a refused one, `not_tried` could not be
    tried. Warnings say why.
    """

    servers: list[RehearsalServer]
    steps: Count
    refused: Count = 0
    blocked: Count = 0
    not_tried: Count = 0


class Plan(Document, tag="plan"):
    """The whole document. `domains` has the connection and the server of each domain key.

    `state` is `{"lineage", "serial"}` of the state that it was planned against (lineage null: there
    was none). `options` are the planning options. `mode` is `normal`, `destroy`, `refresh-only`,
    `restore` or `revert`. `rehearsal` is None unless it was tried on embedded servers. `sha256` is
    that of the document that it was read from; empty for a new plan.
    """

    COMPUTED = ("summary",)

    jsplan_version: str
    workspace: str
    environment: str | None
    timestamp: Time
    id: str
    state: PlannedState
    config_hash: str
    variables: dict[str, str]
    mode: Literal["normal", "destroy", "refresh-only", "restore", "revert"] = "normal"
    targets: list[str] = field(default_factory=list)
    complete: bool = True
    applyable: bool = False
    errored: bool = False
    allowed_hazards: list[str] = field(default_factory=list)
    options: PlanningOptions = field(default_factory=dict)
    domains: dict[str, PlannedDomain] = field(default_factory=dict)
    resource_changes: list[ResourceChange] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    resource_drift: list[ResourceChange] = field(default_factory=list)
    backfills: list[PlannedBackfill] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    rehearsal: Rehearsal | None = None
    sha256: Sha256 = ""

    @property
    def summary(self) -> PlanSummary:
        """Counts per kind of change; `replace_deletes` are the replacements that delete data.

        What a relocated stream had is in another one. `hazards` counts the blocking ones.
        """
        actions = [tuple(r.change.actions) for r in self.resource_changes]
        replaced = [r for r in self.resource_changes if len(r.change.actions) == 2]
        return {
            "import": sum(1 for r in self.resource_changes if r.change.importing),
            "add": actions.count(("create",)),
            "change": actions.count(("update",)),
            "replace": len(replaced),
            "replace_deletes": sum(
                r.change.actions == ["delete", "create"] and not r.relocated_to for r in replaced
            ),
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
        out = Document.to_json(self)
        del out["sha256"]
        return out | {"sha256": digest(out).removeprefix("sha256:")}

    def compute_sha256(self) -> str:
        """Return `sha256` of the document, which is not made: it may be tens of megabytes."""
        large = {
            name: getattr(self, name) for name in ("resource_changes", "steps", "resource_drift")
        }
        out = Document.to_json(replace(self, **{name: [] for name in large}))
        del out["sha256"]
        out |= {name: map(plain, values) for name, values in large.items()}
        return digest_large(out | {"summary": self.summary}).removeprefix("sha256:")

    @classmethod
    def from_json(cls, raw: Any, where: str) -> Plan:
        """Read a saved plan; `where` names it in errors.

        Raises DocumentError for another kind or major version, for a document that was edited by
        hand, and for one that does not fit.
        """
        hint = "Plan again with: jsplan plan -o FILE"
        raw = check_format(raw, "plan", cls.FORMAT_VERSION, where)
        body = {key: value for key, value in raw.items() if key != "sha256"}
        if digest(body) != f"sha256:{raw.get('sha256')}":
            raise DocumentError(
                f"{where} was changed after it was planned: its sha256 does not fit", hint=hint
            )
        return decode(cls, raw, where, hint)
