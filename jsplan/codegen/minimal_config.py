"""What the files must say of one resource: the fewest fields that give exactly its configuration.

What a body gives is asked of `planning.merge`, which is what the next plan asks as well; origins keep their `external` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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
from jsplan.resources.consumer import CONSUMER
from jsplan.resources.fields import ABSENT, Config, Field, Table
from jsplan.resources.nested import ORIGIN

#: What the files name otherwise, or not at all.
_NAMES: Final = frozenset({"name", "durable_name"})
#: Rounds until a body says what it should: a field that is added may bring others with it.
_MAX_ROUNDS: Final = 4


@dataclass(slots=True)
class MinimalConfig:
    """The fields of one resource in the files' words and API units, in no order, and `x_raw` beside them.

    `inexpressible` are fields of the server that cannot be said and have to be left as they are; `notes` are sentences.
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
    """The body of one resource; `there` are the configurations of all streams that are known, by address."""
    return _Minimizer(resource, context, known_streams).minimize()


class _Minimizer:
    """Looks for the body of one resource."""

    def __init__(
        self,
        found: ResourceToWrite,
        context: CodegenContext,
        there: Mapping[Address, Mapping[str, Any]],
    ) -> None:
        self.address = found.address
        self.kind = found.address.kind
        self.table: Table = CONSUMER if self.kind == "consumer" else BACKING_TABLES[self.kind]
        self.level = context.level(self.address.domain)
        self.inherited = _inherited_settings(found, context, there)
        self.notes: list[str] = []
        self.config = _without_unknown_fields(self.table, found.config, "", self.notes)
        self.target = self.table.compact(self.config) if found.complete else self._expand_config()
        self._drop_past_pause(context.now)

    def _expand_config(self) -> Config:
        """What a server makes of a configuration that says less than a server shows."""
        name = self.address.consumer if self.kind == "consumer" else self.address.stream
        return expected_new(self.table, {"name": name} | self.config, self.level, self.inherited)

    def _drop_past_pause(self, now: str) -> None:
        pause = self.target.get("pause_until")
        if pause is not None and now and pause <= now:
            del self.target["pause_until"]

    def minimize(self) -> MinimalConfig:
        """The fewest fields; what makes no difference is taken out again, since others may bring it.

        A consumer says its `ack_policy` also where it is the server's default: left out, lint takes it for forgotten (JS240).
        """
        said = {name: self.target[name] for name in _NAMES if name in self.target}
        said.setdefault(
            "name", self.address.consumer if self.kind == "consumer" else self.address.stream
        )
        self.target.setdefault("name", said["name"])
        for _ in range(_MAX_ROUNDS):
            different = self._find_differences(said)
            if not different:
                break
            said |= {
                name: self.target[name] if name in self.target else self._default(name)
                for name in different
            }
        kept = self._find_differences(said)
        for name in [name for name in said if name not in _NAMES]:
            without = {key: value for key, value in said.items() if key != name}
            if self._find_differences(without) == kept:
                said = without
        if self.kind == "consumer":
            said.setdefault("ack_policy", "none")
        return self._build_result(said, kept)

    def _find_differences(self, said: Config) -> list[str]:
        expected = expected_new(self.table, self._create_payload(said), self.level, self.inherited)
        return [
            name
            for name in {**self.target, **expected}
            if expected.get(name) != self.target.get(name)
        ]

    def _create_payload(self, said: Config) -> Config:
        """What a create sends: for a bucket, what every client gives it besides."""
        if not is_bucket(self.kind):
            return said
        lowered = lower(self.address, dict(self._to_file_fields(said)))
        return {"name": said["name"]} | lowered | client_defaults(self.kind, lowered)

    def _default(self, name: str) -> Any:
        row = self.table.by_name.get(name)
        if row is None or row.default is None:
            return 0 if row is not None and row.type in ("int", "duration", "size") else None
        if row.default is not ABSENT:
            return row.default
        return False if row.type == "bool" else None

    # --- words -----------------------------------------------------------------------------------------------

    def _to_file_fields(self, said: Config) -> list[tuple[str, Any]]:
        """The fields as the files call them; an automatic transform of a bucket's source is left out."""
        pairs = (
            (name, lift_change(self.kind, self.address.name, name, value, None)[1])
            for name, value in said.items()
            if name != "name"
        )
        return [(alias_of(self.kind, name), value) for name, value in pairs]

    def _build_result(self, said: Config, kept: list[str]) -> MinimalConfig:
        said = {name: self._restore_order(name, value) for name, value in said.items()}
        words = (
            dict(self._to_file_fields(said))
            if is_bucket(self.kind)
            else {k: v for k, v in said.items() if k not in _NAMES}
        )
        rows = TABLES[self.kind].by_name
        raw = {name: value for name, value in words.items() if name not in rows}
        for name, value in list(words.items()):
            if name in rows and not _accepts(rows[name], value):
                raw[resolve_alias(self.kind, name)] = value
        fields = {
            name: value
            for name, value in words.items()
            if name not in raw and resolve_alias(self.kind, name) not in raw
        }
        if self.kind == "consumer" and not self.target.get("durable_name"):
            fields |= {
                "durable_name": None,
                "inactive_threshold": self.target.get("inactive_threshold"),
            }
        return MinimalConfig(fields, raw, [name for name in kept if name not in _NAMES], self.notes)

    def _restore_order(self, name: str, value: Any) -> Any:
        """Sets in the order that somebody once chose; compact forms have their own."""
        row, given = self.table.by_name.get(name), self.config.get(name)
        if row is None or not given or not row.unordered:
            return value
        order = [row.table.compact(item) for item in given] if row.table else list(given)
        return sorted(value, key=order.index) if all(item in order for item in value) else value


def _accepts(row: Field, value: Any) -> bool:
    """Whether the files may say the value in this row: `history` of a bucket ends at 64, its stream's does not."""
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
    """The configuration without fields inside of objects that no row knows: the files cannot say them."""
    out: Config = {}
    for name, value in config.items():
        row = table.by_name.get(name)
        if row is None and path and not (table is ORIGIN and name in REFERENCE_KEYS):
            notes.append(
                f"{path}{name} is not known to this release: it stays on the server, and is not in the file"
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


# --- what the server takes from elsewhere ---------------------------------------------------------------------


def _inherited_settings(
    resource: ResourceToWrite,
    context: CodegenContext,
    known_streams: Mapping[Address, Mapping[str, Any]],
) -> Config:
    """A consumer's limits from its stream and account; a mirror's `mirror_direct` from its origin in the same JetStream."""
    address, parent = resource.address, resource.address.parent
    if parent is not None:
        stream = known_streams.get(parent, {})
        copies = resource.config.get("num_replicas") or stream.get("num_replicas") or 1
        most = int(
            account_limits(context.account_infos.get(address.domain, {}), copies).get(
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
