"""Unfinished work of an apply, in one wording for plan, drift and status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jsplan.address import Address, is_parked
from jsplan.diagnostics import Diagnostic
from jsplan.planning.interest import is_placeholder
from jsplan.planning.model import Findings, PlanInputs
from jsplan.planning.pauses import is_held, is_left_held
from jsplan.planning.replication.impact import source_names
from jsplan.planning.restore.interrupted import HOW_TO_FINISH, list_cut_restores
from jsplan.planning.transfer.progress import FINISH_HINT, is_transfer, list_unfinished
from jsplan.resources.nested import source_keys
from jsplan.subjects import is_covered

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject

#: The finding about an interrupted replacement.
INTERRUPTED = "JS424"
_HELD = "{} is paused: its clients get nothing, because an apply was interrupted"


def list_interruptions(
    inputs: PlanInputs, unmanaged: Iterable[LiveObject] = ()
) -> list[dict[str, Any]]:
    """List unfinished transfers and restores: `{address, rejected, summary, detail}`.

    Of `unmanaged` objects, consumers that an apply without a record holds.

    Those that reject publishers come first. `inputs.live` must include what they concern; what is
    in a domain that does not answer is left out, and so is a relocation that is prepared. While an
    apply is running there are none.
    """
    if inputs.interrupted.is_running:
        return []
    transfers = [*inputs.interrupted.streams.values(), *inputs.relocations.values()]
    found = list_unfinished(transfers)
    found += list(_list_others(inputs))
    for live in unmanaged:
        if live.address.kind == "consumer" and is_left_held(inputs, live):
            stream, name = live.address.stream, live.address.consumer
            hint = f"To resume it: nats consumer resume {stream} {name}"
            found.append(_item(live.address, _HELD.format(live.address.name), [], hint))
    return sorted(found, key=lambda item: not item["rejected"])


def _list_others(inputs: PlanInputs) -> Iterator[dict[str, Any]]:
    """Yield the interruptions that leave every message in its stream."""
    for address, record in sorted(inputs.interrupted.replacements.items()):
        is_ours = is_transfer(record) or is_placeholder(address)
        if is_ours or not inputs.live.is_reachable(address.domain):
            continue
        rejected = list[str]()
        if address.kind == "consumer":
            summary = _describe_consumer(inputs, address)
        elif "detached" in record:
            summary = _describe_detached(inputs, address, record)
        else:
            summary, rejected = _describe_recreated(inputs, address)
        if summary:
            yield _item(address, summary, rejected)

    yield from _list_parked(inputs)
    for address, text in list_cut_restores(inputs):
        yield _item(address, text, [], HOW_TO_FINISH)


def _item(
    address: Address, summary: str, rejected: list[str], detail: str = FINISH_HINT
) -> dict[str, Any]:
    return {"address": str(address), "rejected": rejected, "summary": summary, "detail": detail}


def _list_parked(inputs: PlanInputs) -> Iterator[dict[str, Any]]:
    """Yield what an apply has left without its subjects or filters, which others were to get."""
    reported = inputs.under_way
    for address in inputs.entries:
        live, name = inputs.live.get(address), address.name
        if live is None or address in reported:
            continue
        rejected = list[str]()
        if address.kind == "consumer" and is_parked(live.raw.get("filter_subject")):
            text = f"{name} is given nothing, because an apply was interrupted"
        elif address.kind == "consumer" and is_left_held(inputs, live):
            text = _HELD.format(name)
        elif address.is_stream and is_parked(live.raw.get("subjects")):
            rejected = _rejected_subjects(inputs, address)
            text = f"{name} is down: {_reject_text(rejected)}, because an apply was interrupted"
        else:
            continue
        yield _item(address, text, rejected)


def _rejected_subjects(inputs: PlanInputs, stream: Address) -> list[str]:
    """Return the old and the new subjects of a stream that no stream of its domain has now."""
    beside = (live for a, live in inputs.live.objects.items() if a.domain == stream.domain)
    now = [subject for live in beside for subject in live.raw.get("subjects") or ()]
    entry, declared = inputs.entries.get(stream), inputs.declared(stream)
    own = [*(entry.declared.get("subjects") or ())] if entry else []
    own += (declared.body.get("subjects") or ()) if declared else ()
    return [subject for subject in dict.fromkeys(own) if not is_covered(subject, now)]


def _reject_text(rejected: list[str]) -> str:
    return f"publishes to {', '.join(rejected)} are rejected" if rejected else "it takes nothing"


def _describe_consumer(inputs: PlanInputs, address: Address) -> str:
    live = inputs.live.get(address)
    if live is None:
        text = f"{address.name} does not exist: its clients get nothing"
    elif is_held(live.compact):
        text = f"{address.name} is paused: its clients get nothing"
    else:
        return f"the replacement of {address.name} was interrupted. Its position is kept"
    return f"{text}, because its replacement was interrupted. Its position is kept"


def _describe_recreated(inputs: PlanInputs, address: Address) -> tuple[str, list[str]]:
    """Describe a stream that is recreated, with the subjects that no stream takes meanwhile."""
    live, name = inputs.live.get(address), address.name
    if live is not None and not is_parked(live.raw.get("subjects")):
        return f"the replacement of {name} was interrupted", []
    rejected = _rejected_subjects(inputs, address)
    state = "does not exist" if live is None else "is down"
    text = f"{name} {state}: {_reject_text(rejected)}, because its replacement was interrupted"
    return text, rejected


def _describe_detached(inputs: PlanInputs, address: Address, record: dict[str, Any]) -> str:
    """Describe a stream whose sources are detached; empty if none is."""
    live = inputs.live.get(address)
    attached = source_keys(live.raw if live else {})
    entry = inputs.entries.get(address)
    known = source_keys(entry.config if entry else {})
    waiting = set(record["detached"]) & known - attached
    waiting |= inputs.interrupted.detached_sources.get(address, set())
    if not waiting or live is None:
        return ""
    return (
        f"{address.name} copies nothing from {source_names(waiting)}, "
        "because its replacement was interrupted"
    )


def note_others(inputs: PlanInputs) -> Findings:
    """Yield a warning for each selected resource with an interruption that moves no messages."""
    restored = {str(address) for address, _ in list_cut_restores(inputs)}
    for item in _list_others(inputs):
        text = item["address"]
        if Address.parse(text) in inputs.selected and text not in restored:
            yield Diagnostic("warning", INTERRUPTED, item["summary"], item["detail"], text)
