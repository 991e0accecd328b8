"""The smallest body of one resource: the fewest fields that give exactly its configuration.

`planning.merge` computes the effect of a body, as it does for the next plan. Origins keep their
`external` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.codegen.model import CodegenContext, ResourceToWrite
from jsplan.config.body import REFERENCE_KEYS
from jsplan.facts.live import account_limits
from jsplan.planning.merge import expected_new
from jsplan.resources import TABLES
from jsplan.resources.buckets import (
    BACKING_TABLES,
    alias_of,
    client_defaults,
    is_bucket,
    lift_change,
    lower,
    resolve_alias,
)
from jsplan.resources.consumer import CONSUMER, EVERY_SUBJECT, filters_of
from jsplan.resources.fields import ABSENT, Config, Field, Table
from jsplan.resources.nested import ORIGIN

#: Fields that have another name in the files, or none.
_NAMES: Final = frozenset({"name", "durable_name"})
#: Rounds until a body has all it needs: an added field may bring others with it.
_MAX_ROUNDS: Final = 4


class MinimalConfig(Struct):
    """The fields of one resource in the files' names and API units, unordered, and `x_raw`.

    `inexpressible` are fields of the server that the files cannot express and that stay unchanged;
    `notes` are sentences.
    """

    fields: dict[str, Any]
    raw: dict[str, Any] = field(default_factory=dict)
    inexpressible: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def minimize_config(
    resource: ResourceToWrite,
    context: CodegenContext,
    known_streams: Mapping[Address, Mapping[str, Any]],
) -> MinimalConfig:
    """Return the body of one resource.

    `known_streams` are the configurations of all known streams, by address.
    """
    return _Minimizer(resource, context, known_streams).minimize()


class _Minimizer:
    """Finds the body of one resource."""

    def __init__(
        self,
        resource: ResourceToWrite,
        context: CodegenContext,
        known_streams: Mapping[Address, Mapping[str, Any]],
    ) -> None:
        self.address = resource.address
        self.kind = resource.address.kind
        self.table: Table = CONSUMER if self.kind == "consumer" else BACKING_TABLES[self.kind]
        self.level = context.level(self.address.domain)
        self.inherited = _inherited_settings(resource, context, known_streams)
        self.notes: list[str] = []
        self.config = _without_unknown_fields(self.table, resource.config, "", self.notes)
        self.target = (
            self.table.compact(self.config) if resource.complete else self._expand_config()
        )
        self._drop_past_pause(context.now)

    def _expand_config(self) -> Config:
        """Return the configuration with all that a server would add to it."""
        name = self.address.consumer if self.kind == "consumer" else self.address.stream
        return expected_new(self.table, {"name": name} | self.config, self.level, self.inherited)

    def _drop_past_pause(self, now: str) -> None:
        pause = self.target.get("pause_until")
        if pause is not None and now and pause <= now:
            del self.target["pause_until"]

    def minimize(self) -> MinimalConfig:
        """Find the fewest fields. A field that makes no difference is removed again.

        A consumer always has its `ack_policy`: lint would report it as forgotten (JS240). With
        `last_per_subject` it has a filter: a server refuses it without one (10094).
        """
        body = {name: self.target[name] for name in _NAMES if name in self.target}
        body.setdefault(
            "name", self.address.consumer if self.kind == "consumer" else self.address.stream
        )
        self.target.setdefault("name", body["name"])
        remaining = self._find_differences(body)
        for _ in range(_MAX_ROUNDS):
            if not remaining:
                break
            body |= {
                name: self.target[name] if name in self.target else self._default(name)
                for name in remaining
            }
            remaining = self._find_differences(body)
        for name in [name for name in body if name not in _NAMES]:
            without = {key: value for key, value in body.items() if key != name}
            if self._find_differences(without) == remaining:
                body = without
        if self.kind == "consumer":
            body.setdefault("ack_policy", "none")
            if body.get("deliver_policy") == "last_per_subject" and not filters_of(body):
                body["filter_subject"] = EVERY_SUBJECT
        return self._build_result(body, remaining)

    def _find_differences(self, body: Config) -> list[str]:
        expected = expected_new(self.table, self._create_payload(body), self.level, self.inherited)
        return [
            name
            for name in {**self.target, **expected}
            if expected.get(name) != self.target.get(name)
        ]

    def _create_payload(self, body: Config) -> Config:
        """Return the payload of a create: for a bucket, with what every client adds."""
        if not is_bucket(self.kind):
            return body
        lowered = lower(self.address, dict(self._to_file_fields(body)))
        return {"name": body["name"]} | lowered | client_defaults(self.kind, lowered)

    def _default(self, name: str) -> Any:
        row = self.table.by_name.get(name)
        if row is None or row.default is None:
            return 0 if row is not None and row.type in ("int", "duration", "size") else None
        if row.default is not ABSENT:
            return row.default
        return False if row.type == "bool" else None

    # --- names in the files -----------------------------------------------------------------------

    def _to_file_fields(self, body: Config) -> list[tuple[str, Any]]:
        """Return the fields by their names in the files.

        An automatic transform of a bucket's source is omitted.
        """
        pairs = (
            (name, lift_change(self.kind, self.address.name, name, value, None)[1])
            for name, value in body.items()
            if name != "name"
        )
        return [(alias_of(self.kind, name), value) for name, value in pairs]

    def _build_result(self, body: Config, remaining: list[str]) -> MinimalConfig:
        body = {name: self._restore_order(name, value) for name, value in body.items()}
        named = (
            dict(self._to_file_fields(body))
            if is_bucket(self.kind)
            else {k: v for k, v in body.items() if k not in _NAMES}
        )
        rows = TABLES[self.kind].by_name
        raw = {name: value for name, value in named.items() if name not in rows}
        for name, value in list(named.items()):
            if name in rows and not _accepts(rows[name], value):
                raw[resolve_alias(self.kind, name)] = value
        fields = {
            name: value
            for name, value in named.items()
            if name not in raw and resolve_alias(self.kind, name) not in raw
        }
        if self.kind == "consumer" and not self.target.get("durable_name"):
            fields |= {
                "durable_name": None,
                "inactive_threshold": self.target.get("inactive_threshold"),
            }
        return MinimalConfig(
            fields, raw, [name for name in remaining if name not in _NAMES], self.notes
        )

    def _restore_order(self, name: str, value: Any) -> Any:
        """Restore the given order of sets; compact forms have their own."""
        row, given = self.table.by_name.get(name), self.config.get(name)
        if row is None or not given or not row.unordered:
            return value
        order = [row.table.compact(item) for item in given] if row.table else list(given)
        return sorted(value, key=order.index) if all(item in order for item in value) else value


def _accepts(row: Field, value: Any) -> bool:
    """Check whether the files accept the value: `history` of a bucket ends at 64."""
    if row.table is not None or value is None:
        return True
    try:
        row.parse(value)
    except ValueError:
        return False
    return True


def _without_unknown_fields(
    table: Table, config: Mapping[str, Any], path: str, notes: list[str]
) -> Config:
    """Return the configuration without nested fields that no row knows: no file can have them."""
    out: Config = {}
    for name, value in config.items():
        row = table.by_name.get(name)
        if row is None and path and not (table is ORIGIN and name in REFERENCE_KEYS):
            notes.append(
                f"{path}{name} is not known to this release:"
                " it stays on the server, and is not in the file"
            )
        elif row is not None and row.table is not None and isinstance(value, dict):
            out[name] = _without_unknown_fields(row.table, value, f"{path}{name}.", notes)
        elif row is not None and row.table is not None and isinstance(value, list):
            out[name] = [
                _without_unknown_fields(row.table, item, f"{path}{name}.", notes) for item in value
            ]
        else:
            out[name] = value
    return out


# --- settings that the server takes from elsewhere ------------------------------------------------


def _inherited_settings(
    resource: ResourceToWrite,
    context: CodegenContext,
    known_streams: Mapping[Address, Mapping[str, Any]],
) -> Config:
    """Return inherited settings: a consumer's limits, and `mirror_direct` of a mirror.

    A consumer inherits from its stream and account, a mirror from its origin in the same JetStream.
    """
    address, parent = resource.address, resource.address.parent
    if parent is not None:
        stream = known_streams.get(parent, {})
        replicas = resource.config.get("num_replicas") or stream.get("num_replicas") or 1
        most = int(
            account_limits(context.account_infos.get(address.domain, {}), replicas).get(
                "max_ack_pending"
            )
            or 0
        )
        limits = (
            BACKING_TABLES["stream"]
            .compact({"consumer_limits": stream.get("consumer_limits") or {}})
            .get("consumer_limits", {})
        )
        return {**limits, **({"account_max_ack_pending": most} if most > 0 else {})}
    mirror = resource.config.get("mirror") or {}
    local = (
        bool(mirror)
        and not mirror.get("external")
        and mirror.get("domain", address.domain) == address.domain
    )
    origin = known_streams.get(Address.of_stream(address.domain, mirror["name"])) if local else None
    return {"mirror_direct": bool(origin.get("allow_direct"))} if origin is not None else {}
