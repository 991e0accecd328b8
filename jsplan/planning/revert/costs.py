"""The losses that a revert does not undo: kept in the history, and shown by a revert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.plan import Hazard
from jsplan.resources.buckets import nouns_of
from jsplan.units import count_text

#: Hazards whose effect stays whatever the configuration is later, and the text for each.
_LOSS_TEXTS = {
    "DELETES_STREAM": "{messages} that were deleted with the {object} cannot be restored",
    "DELETES_MESSAGES": "{messages} that were deleted cannot be restored",
    "LOSES_CONSUMER_POSITION": "the position that the consumer had does not come back",
    "DELETES_CONSUMER": "the position that the consumer had does not come back",
    "DUPLICATES_MESSAGES": "messages that were stored or delivered twice stay so",
}


def permanent_cost(hazard: Hazard) -> dict[str, Any] | None:
    """Return what the history keeps of a hazard; None if a revert reverts its effect."""
    if hazard.code not in _LOSS_TEXTS:
        return None
    names = ("messages", "at_least", "at_most", "consumers")
    known = {name: value for name in names if (value := getattr(hazard, name))}
    return {"code": hazard.code} | known


def warn_of_losses(item: Mapping[str, Any], backup: str | None) -> Iterable[Diagnostic]:
    """Warn about the losses of one change, with the place where the messages may still be."""
    if "/consumer/" in item["address"] and item["actions"] in (["delete"], ["delete", "create"]):
        text = _LOSS_TEXTS["DELETES_CONSUMER"]
        yield Diagnostic("warning", "JS491", text, "", str(item["address"]))
        return
    nouns = nouns_of(Address.parse(item["address"]))
    for cost in (cost for cost in item.get("costs", ()) if _has_losses(cost)):
        detail = ""
        if backup and cost["code"] in ("DELETES_STREAM", "DELETES_MESSAGES"):
            kind, _, name = str(item["address"]).partition("/")[2].partition("/")
            word = quote_shell(item["address"])
            detail = (
                f"That apply saved the {kind} before. To restore its {nouns.content} too, "
                f"leave {name} out with --exclude {word} and run: "
                f"jsplan restore {quote_shell(backup)} --target {word}"
            )
        many = _format_messages(cost, nouns.message)
        text = _LOSS_TEXTS[cost["code"]].format(messages=many, object=nouns.object)
        yield Diagnostic("warning", "JS491", text, detail, str(item["address"]))


def _has_losses(cost: Mapping[str, Any]) -> bool:
    """Check whether anything was lost: a stream that was deleted empty lost nothing."""
    return not cost["code"].startswith("DELETES_") or any(
        cost.get(name) for name in ("messages", "at_most", "at_least")
    )


def _format_messages(cost: Mapping[str, Any], noun: str) -> str:
    exact, most = cost.get("messages"), cost.get("at_most")
    count = most or exact or cost.get("at_least") or 0
    bound = "at most " if most and most != cost.get("at_least") else "" if exact else "at least "
    return f"{bound}{count_text(count, noun)}"
