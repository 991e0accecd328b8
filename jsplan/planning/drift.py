"""Changes made outside jsplan: live against last applied, independent of the files."""

from __future__ import annotations

from jsplan.address import Address
from jsplan.documents.plan import Change, FieldChange, ResourceChange
from jsplan.documents.step_kinds import Severity
from jsplan.planning.decide import table_of
from jsplan.planning.diff import field_changes, with_bucket_names
from jsplan.planning.model import PlanInputs
from jsplan.planning.pauses import without_expired_pause
from jsplan.resources.fields import Config, Table
from jsplan.state.document import Entry

#: Fields that affect neither data nor delivery.
COSMETIC = ("description", "metadata")
#: Fields whose change can make the server delete messages.
DESTRUCTIVE = (
    "max_age",
    "max_msgs",
    "max_bytes",
    "max_msgs_per_subject",
    "retention",
    "discard",
    "created",
)


def detect_drift(inputs: PlanInputs, address: Address) -> ResourceChange | None:
    """Return the drift of one managed resource, or None.

    Its `ignore_changes` are left out. A pause that has expired at `inputs.now` is no drift.
    """
    entry, live, now = inputs.entries[address], inputs.live.get(address), inputs.now
    if live is None:
        gone = Change(["delete"], entry.config, None)
        return ResourceChange.of(address, gone, "drift_missing", severity="destructive")
    if live.created == entry.created and live.config == entry.config:
        return None
    table, declared = table_of(address), inputs.workspace.resources.get(address)
    ignore = declared.lifecycle.ignore_changes if declared else ()
    configs = (table.compact(entry.config), live.compact)
    before, after = (
        without_expired_pause(_comparable(table, entry, config, ignore), now) for config in configs
    )
    fields = field_changes(table, before, after, inputs.level(address))
    if live.created != entry.created:
        fields.insert(0, FieldChange("created", entry.created, live.created, "replace"))
    if not fields:
        return None
    change = Change(["update"], entry.config, live.config, with_bucket_names(address, fields))
    return ResourceChange.of(
        address,
        change,
        "drift_recreated" if fields[0].path == "created" else "drift_changed",
        fingerprint=live.fingerprint,
        severity=drift_severity(fields),
    )


def _comparable(table: Table, entry: Entry, config: Config, ignore: tuple[str, ...]) -> Config:
    """Remove fields that are no drift: operational ones, and those that a newer server echoes."""
    out = {}
    for name, value in config.items():
        row = table.by_name.get(name)
        operational = row is not None and row.operational and name not in entry.declared
        if name not in ignore and not operational and (row is not None or name in entry.config):
            out[name] = value
    return out


def drift_severity(fields: list[FieldChange]) -> Severity:
    """Return the highest severity of the changed fields."""
    names = {field.path.split(".")[0].split("[")[0] for field in fields}
    if names & set(DESTRUCTIVE):
        return "destructive"
    return "cosmetic" if names <= set(COSMETIC) else "functional"
