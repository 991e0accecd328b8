"""Contents in a plan and in drift: changes, hazards, and what is shown of a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.config.model import AccountFiles
from jsplan.documents.plan import Change, FieldChange, Hazard, ResourceChange
from jsplan.facts.live import LiveObject
from jsplan.planning.contents.decide import is_expired
from jsplan.planning.contents.kinds import CONTENT_KINDS
from jsplan.planning.drift import detect_drift
from jsplan.planning.hazards import with_permissions
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.resources.account import EXPORTS, IMPORTS, JETSTREAM, ROLES
from jsplan.resources.account_file import variable_of
from jsplan.resources.fields import Config
from jsplan.resources.kv_entry import (
    VALUE,
    describe_value,
    readable_text,
)
from jsplan.units import count_text


def assess_content(inputs: PlanInputs, decision: ResourceDecision) -> list[Hazard]:
    """Return the hazards of one content. That of its bucket counts what is deleted with it."""
    live = decision.live
    if decision.address.kind == "account":
        return assess_account(inputs, decision)
    if decision.actions != ["delete"] or decision.deleted_with is not None or live is None:
        return []
    size = int(live.state["size"])
    found = Hazard(
        "DELETES_MESSAGES",
        f"deletes {CONTENT_KINDS[decision.address.kind].value} ({size:,} bytes)",
        messages=max(1, live.state.get("chunks", 1)),
        bytes=size,
        exact=True,
        as_of={"last_seq": live.state["revision"], "time": None},
    )
    return with_permissions(inputs, decision.address, [found])


def build_content_change(inputs: PlanInputs, decision: ResourceDecision) -> Change:
    """Build the change of one content, with texts in place of digests where allowed."""
    address, live = decision.address, decision.live
    before = _shown(inputs, address, live.raw, live) if live is not None else None
    after = None
    if decision.after is not None and decision.actions not in (["delete"], ["forget"]):
        same = live is not None and live.raw == decision.after
        after = before if same else _shown(inputs, address, decision.after, live)
    return Change(
        actions=decision.actions,
        before=before,
        after=after,
        fields=[_shown_field(field, before or {}, after or {}) for field in decision.fields],
        importing={"id": str(address)} if decision.adopts and not decision.deletes else None,
        before_sensitive=_hidden(inputs, address, before),
        after_sensitive=_hidden(inputs, address, after),
    )


def _hidden(
    inputs: PlanInputs, address: Address, shown: Mapping[str, object] | None
) -> dict[str, object]:
    """Return the fields of one side of which only digests are shown."""
    return {VALUE: True} if shown and VALUE in shown and not may_show(inputs, address) else {}


def _shown_field(
    field: FieldChange, before: Mapping[str, object], after: Mapping[str, object]
) -> FieldChange:
    """Return a changed field with the value as both sides show it."""
    if field.path != VALUE:
        return field
    return FieldChange(VALUE, before.get(VALUE), after.get(VALUE), "in_place")


def may_show(inputs: PlanInputs, address: Address) -> bool:
    """Check whether values of a key may be shown, by the files and by the last apply.

    Of a key that is in no file, or not managed yet, only the digest is shown: it may be a secret,
    and each pull request could ask for it.
    """
    declared, entry = inputs.workspace.resources.get(address), inputs.entries.get(address)
    if declared is None or declared.sensitive:
        return False
    return not entry.sensitive if entry is not None else inputs.live.get(address) is None


def shown_text(inputs: PlanInputs, address: Address) -> str | None:
    """Return the declared value as text; None if a plan may or can not show it."""
    declared = inputs.workspace.resources.get(address)
    if declared is None or declared.sensitive or declared.content is None:
        return None
    return readable_text(declared.content)


def _shown(
    inputs: PlanInputs, address: Address, config: Mapping[str, object], live: LiveObject | None
) -> dict[str, object]:
    """Return a configuration with the text of its value, or with digest and size."""
    digest, content = config.get(VALUE), None
    if VALUE not in config:
        return dict(config)
    declared = inputs.workspace.resources.get(address)
    if live is not None and live.raw[VALUE] == digest:
        content = live.content
    elif declared is not None and declared.body[VALUE] == digest:
        content = declared.content
    if content is None:
        described = _describe_object(inputs, address, config, live)
        return {**config, VALUE: described} if described else dict(config)
    text = readable_text(content) if _may_show_content(inputs, address, content) else None
    shown = describe_value(config, len(content)) if text is None else text
    return {**config, VALUE: shown}


def _describe_object(
    inputs: PlanInputs, address: Address, config: Mapping[str, object], live: LiveObject | None
) -> str:
    """Describe the content of an object as far as its size and file are known; empty if not."""
    digest, declared = config.get(VALUE), inputs.workspace.resources.get(address)
    if declared is not None and declared.file is not None and declared.body[VALUE] == digest:
        return f"{describe_value(config, declared.file.size)} of {declared.file.shown}"
    if live is not None and live.raw[VALUE] == digest:
        return describe_value(config, int(live.state["size"]))
    return ""


def _may_show_content(inputs: PlanInputs, address: Address, content: bytes) -> bool:
    """Check whether this value may be shown. A new value may be plain where the old was secret."""
    declared = inputs.workspace.resources.get(address)
    if may_show(inputs, address):
        return True
    return declared is not None and not declared.sensitive and declared.content == content


def detect_content_drift(inputs: PlanInputs, address: Address) -> ResourceChange | None:
    """Return the drift of one managed content, or None. State has only digests of values."""
    entry, live = inputs.entries[address], inputs.live.get(address)
    if address in inputs.moved_from or (live is None and is_expired(entry, inputs.now)):
        return None
    found = detect_drift(inputs, address)
    if found is None:
        return None
    found.change.before = _shown(inputs, address, entry.config, live)
    found.change.after = _shown(inputs, address, live.raw, live) if live is not None else None
    for change in found.change.fields:
        if change.path == VALUE:
            change.before = found.change.before[VALUE]
            change.after = found.change.after[VALUE] if found.change.after else None
    found.change.before_sensitive = _hidden(inputs, address, found.change.before)
    found.change.after_sensitive = _hidden(inputs, address, found.change.after)
    return found


# --- the hazards of an account --------------------------------------------------------------------


def assess_account(inputs: PlanInputs, decision: ResourceDecision) -> list[Hazard]:
    """Return the hazard of an account that is deleted, or that loses a permission."""
    live = decision.live
    if live is None or decision.actions not in (["update"], ["delete"]):
        return []
    place = inputs.workspace.domains[decision.address.domain].accounts
    in_file = isinstance(place, AccountFiles)
    if decision.deletes and in_file:
        text = "servers whose configuration includes the file neither reload nor start without it"
    elif decision.deletes:
        text = "cuts off every user of the account, and nothing reaches its streams any more"
    else:
        after = decision.after or {}
        text = ", ".join(_list_losses(live.raw, after))
        if in_file and (gone := sorted(_list_apps(live.raw) - _list_apps(after))):
            names = ", ".join(f"${variable_of(app)}" for app in gone)
            text += f"; servers neither reload nor start while a user has {names}"
    found = [Hazard("REVOKES_ACCESS", text)] if text else []
    return with_permissions(inputs, decision.address, found)


def _list_apps(config: Config) -> set[str]:
    return {line.split(" ", 1)[0] for line in config.get(ROLES) or ()}


def _list_losses(before: Config, after: Config) -> Iterator[str]:
    """Yield who loses how much; the changed lines show what."""
    lost = {
        name: [line for line in before.get(name) or () if line not in (after.get(name) or ())]
        for name in (ROLES, EXPORTS, IMPORTS)
    }
    for app, count in Counter(line.split(" ", 1)[0] for line in lost[ROLES]).items():
        yield f"{app} loses {count_text(count, 'permission')}"
    if lost[EXPORTS]:
        yield f"other accounts lose {count_text(len(lost[EXPORTS]), 'export')} of it"
    if lost[IMPORTS]:
        yield f"it loses {count_text(len(lost[IMPORTS]), 'import')}"
    had: dict[str, Any] = before.get(JETSTREAM) or {}
    has: dict[str, Any] = after.get(JETSTREAM) or {}
    for store in ("memory", "disk"):
        if had.get(store) and not has.get(store):
            yield f"it may have no streams in {store} any more"
