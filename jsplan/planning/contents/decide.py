"""Decisions about contents of buckets and streams, and the findings about them.

A content is decided as any other resource. What its bucket goes through decides the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from jsplan.address import Address, is_selected
from jsplan.config.model import DeclaredResource
from jsplan.diagnostics import Diagnostic
from jsplan.facts.live import Live
from jsplan.planning.decide import decide, planned_config
from jsplan.planning.field_levels import check_server_level
from jsplan.planning.guards import check_adoption, check_parent, check_prevent_destroy
from jsplan.planning.merge import expected_new
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.resources.contents import CONTENTS
from jsplan.resources.kv_entry import (
    TTL,
    VALUE,
    WRITE_HEADERS,
)
from jsplan.resources.message_schedule import is_over, next_times
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.state.document import Entry
from jsplan.units import SECOND, instant_of, parse_instant

PRUNED: Final = "delete_because_pruned"
EXPIRED: Final = "expired"
#: Difference in ns between the clocks of server and client that makes no expired value missing.
CLOCK_DIFFERENCE: Final = 5 * SECOND
WITH_BUCKET: Final = "replace_with_stream"
#: Why the entries of a bucket are left for a later plan.
REPLACEMENT_UNFINISHED: Final = "its bucket is in the middle of a replacement"

Decisions = dict[Address, ResourceDecision]


def with_owned_buckets(found: Live, inputs: PlanInputs, origins: Mapping[Address, Address]) -> Live:
    """Let each content in state keep its `created` while its bucket is the one in state.

    The `created` of a content is that of its bucket, which a replacement changes. `origins` are the
    places of the buckets that were read elsewhere.
    """
    for address, content in found.objects.items():
        entry, parent = inputs.entries.get(address), address.parent
        if entry is None or parent is None or entry.created == content.created:
            continue
        bucket = origins.get(parent, parent)
        known, there = inputs.entries.get(bucket), inputs.live.get(bucket)
        if known is not None and there is not None and known.created == there.created:
            content.created = entry.created
    return found


def deferral(inputs: PlanInputs, address: Address) -> str:
    """Return why a content cannot be planned now; empty if it can. Its domain answers."""
    if address.parent in inputs.interrupted.replacements and (
        address.parent not in inputs.relocations
    ):
        return REPLACEMENT_UNFINISHED
    return inputs.live.unreadable.get(address, "")


def decide_contents(
    inputs: PlanInputs, decisions: Decisions, addresses: Iterable[Address]
) -> Decisions:
    """Decide these contents, which can be planned, and each pruned one.

    What their buckets go through, by `decisions`, decides the rest.
    """
    found: Decisions = {}
    for address in addresses:
        if is_unknown(inputs.declared(address)):
            continue
        decision = _keep_expired(inputs, decisions, decide(inputs, address))
        if decision.reason != "not_managed":
            found[address] = decision
    found |= {d.address: d for d in _decide_pruned(inputs) if d.address not in found}
    return {
        address: _follow_bucket(inputs, decision, bucket_decision(inputs, decisions, address))
        for address, decision in sorted(found.items())
    }


def bucket_decision(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], address: Address
) -> ResourceDecision | None:
    """Return the decision about the bucket of a content, also under its name in the files."""
    bucket = address.parent
    if bucket is None:  # an account
        return None
    return decisions.get(bucket) or decisions.get(inputs.topology.find_declared(bucket))


def is_expired(entry: Entry | None, now: datetime) -> bool:
    """Check whether the server has deleted the value of an entry after its own `ttl`.

    `seen` is the server's time of the write that state knows. A schedule is gone after its `at`.
    """
    if entry is not None and is_over(entry.config, instant_of(now) + CLOCK_DIFFERENCE):
        return True
    ttl = int(entry.config.get(TTL) or 0) if entry is not None else 0
    if entry is None or not ttl or not entry.seen:
        return False
    return instant_of(now) + CLOCK_DIFFERENCE >= parse_instant(entry.seen) + ttl


def is_past(declared: DeclaredResource, now: datetime) -> bool:
    """Check whether the files have a schedule whose time has passed. It is not written any more."""
    return is_over(declared.body, instant_of(now))


def _keep_expired(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    decision: ResourceDecision,
) -> ResourceDecision:
    """Leave a value alone that expired as the files said: it is written again when they change."""
    address, entry, declared = decision.address, decision.entry, inputs.declared(decision.address)
    if decision.live is not None or declared is None:
        return decision
    expired = ResourceDecision(address, ["no-op"], EXPIRED, None, entry)
    if is_past(declared, inputs.now):
        return expired
    if entry is None or inputs.declared_fields(address) != entry.declared:
        return decision
    bucket = bucket_decision(inputs, decisions, address)
    stays = bucket is None or bucket.actions in (["no-op"], ["update"])
    return expired if stays and is_expired(entry, inputs.now) else decision


def is_unknown(declared: DeclaredResource | None) -> bool:
    """Check whether a declared value needs an environment variable that is not set."""
    return declared is not None and declared.body.get(VALUE, "") is None


def _decide_pruned(inputs: PlanInputs) -> Iterable[ResourceDecision]:
    """Decide the live keys below a pruned prefix that the files do not name."""
    options = inputs.options
    if options.destroy or options.refresh_only or options.imports:
        return
    for address, live in inputs.live.objects.items() if inputs.workspace.pruned else ():
        if (
            address.is_content
            and is_pruned(inputs, address)
            and CONTENTS[address.kind].is_name(address.key)
            and address not in inputs.workspace.resources
            and is_selected(address, options.targets, options.excludes)
            and not inputs.workspace.forgets(address)
            and not deferral(inputs, address)
        ):
            entry = inputs.entries.get(address)
            yield ResourceDecision(address, ["delete"], PRUNED, live, entry)


def is_pruned(inputs: PlanInputs, address: Address) -> bool:
    """Check whether only the files may have the key."""
    return any(
        address.parent == block.bucket and address.key.startswith(block.prefix)
        for block in inputs.workspace.pruned
    )


def _follow_bucket(
    inputs: PlanInputs, decision: ResourceDecision, bucket: ResourceDecision | None
) -> ResourceDecision:
    """Adapt the decision about an entry to that about its bucket."""
    if bucket is None:
        return decision
    if bucket.actions == ["forget"] and decision.actions == ["delete"]:
        return replace(decision, actions=["forget"], reason=bucket.reason)
    if not bucket.loses_content or decision.live is None or decision.actions == ["forget"]:
        return decision
    if decision.actions == ["delete"] or inputs.declared(decision.address) is None:
        return replace(decision, deleted_with=bucket.address)
    table = CONTENTS[decision.address.kind].table
    after = expected_new(table, inputs.body(decision.address), NEWEST_LEVEL, {})
    return replace(
        decision,
        actions=["delete", "create"],
        reason=WITH_BUCKET,
        after=after,
        fields=[],
        adopts=False,
        deleted_with=bucket.address,
        diagnostics=[],
    )


# --- findings -------------------------------------------------------------------------------------


def check_contents(
    inputs: PlanInputs, contents: Decisions, decisions: Decisions
) -> Iterable[Diagnostic]:
    """Yield the errors and refusals about contents. `decisions` are those about their buckets."""
    selected = (a for a in inputs.selected if a.is_content)
    for address in sorted(a for a in selected if is_unknown(inputs.declared(a))):
        yield Diagnostic(
            "error",
            "JS111",
            "its value needs an environment variable that is not set",
            "Set it before jsplan runs.",
            str(address),
            inputs.workspace.resources[address].range,
        )
    for decision in contents.values():
        yield from decision.diagnostics
        if decision.deletes and decision.deleted_with is None:
            yield from check_prevent_destroy(inputs, decision)
        yield from check_adoption(inputs, decision)
        yield from check_server_level(inputs, decision)
        yield from check_parent(inputs, decision, decisions)
    yield from _check_deleted_buckets(inputs, decisions)
    yield from _check_capacity(inputs, contents, decisions)
    yield from check_sizes(inputs, contents, decisions)
    yield from _announce_times(inputs, contents)


def _announce_times(inputs: PlanInputs, contents: Decisions) -> Iterable[Diagnostic]:
    """Say when each schedule that is written publishes next."""
    for address, decision in contents.items():
        writes = decision.actions in (["create"], ["update"], ["delete", "create"])
        if address.kind != "schedule" or not writes or decision.after is None:
            continue
        times = next_times(decision.after, inputs.now)
        text = f"publishes next at {', '.join(times)}" if times else "publishes at once"
        declared = inputs.declared(address)
        place = declared.range if declared is not None else None
        yield Diagnostic("info", "JS467", text, "", str(address), place)


def _check_capacity(
    inputs: PlanInputs, contents: Decisions, decisions: Decisions
) -> Iterable[Diagnostic]:
    """Refuse new entries that exceed the `max_bytes` of their bucket (10077).

    That is certain where the bucket has more already, or where nothing in it is replaced.
    """
    written: dict[Address, list[ResourceDecision]] = {}
    for decision in contents.values():
        parent = decision.address.parent
        if parent is not None and decision.after is not None and decision.actions != ["no-op"]:
            written.setdefault(parent, []).append(decision)
    for parent, writes in written.items():
        bucket = inputs.topology.find_declared(parent)
        planned, live = decisions.get(bucket), inputs.live.get(bucket)
        config = (planned.after if planned is not None else None) or (live.compact if live else {})
        limit = int(config.get("max_bytes") or 0)
        if limit <= 0 or config.get("discard") != "new":
            continue
        keeps = live is not None and not (planned is not None and planned.loses_content)
        held = int(live.state.get("bytes") or 0) if live is not None and keeps else 0
        added = sum(_least_size(inputs, decision) for decision in writes)
        if held <= limit and any("create" not in decision.actions for decision in writes):
            continue
        if held + added > limit:
            text = (
                f"its max_bytes is {limit:,}; it has {held:,} bytes, and this plan writes at least "
                f"{added:,}. The server refuses that (10077)"
            )
            declared = inputs.declared(bucket)
            place = declared.range if declared is not None else None
            detail = "Raise max_bytes, or remove entries first."
            yield Diagnostic("error", "JS484", text, detail, str(bucket), place)


def _least_size(inputs: PlanInputs, decision: ResourceDecision) -> int:
    """Return the bytes that a new entry adds at least: its value, without subject and headers."""
    declared = inputs.workspace.resources.get(decision.address)
    return len(declared.content or b"") if declared is not None else 0


def _check_deleted_buckets(inputs: PlanInputs, decisions: Decisions) -> Iterable[Diagnostic]:
    """Refuse to delete a bucket with a guarded entry, selected or not."""
    gone = {address for address, d in decisions.items() if d.loses_content}
    if not gone:
        return
    for address in sorted(a for a in inputs.entries if a.is_content):
        if address.parent in gone and address.domain in inputs.workspace.domains:
            decision = ResourceDecision(
                address, ["delete"], WITH_BUCKET, entry=inputs.entries[address]
            )
            yield from check_prevent_destroy(inputs, decision)


# --- values that are too large --------------------------------------------------------------------

TOO_LARGE = "JS138"


def check_sizes(
    inputs: PlanInputs,
    contents: Mapping[Address, ResourceDecision],
    decisions: Mapping[Address, ResourceDecision],
) -> Iterator[Diagnostic]:
    """Yield an error for each value that its stream (10054) or the server would refuse.

    `decisions` are those about the streams. An object is stored in chunks that fit.
    """
    limits: dict[Address | None, list[tuple[str, int, str]]] = {}
    for address, decision in contents.items():
        if decision.actions == ["no-op"] or decision.after is None:
            continue
        declared = inputs.declared(address)
        if declared is None or declared.content is None:
            continue
        size = len(declared.content)
        more = CONTENTS[address.kind].header_size(address.stream, decision.after)
        headers = WRITE_HEADERS + more
        if address.parent not in limits:
            limits[address.parent] = _list_limits(inputs, decisions, address)
        for holder, most, hint in limits[address.parent]:
            if 0 < most < size + headers:
                text = (
                    f"has {size:,} bytes; {holder} takes {most:,} in a message, of which a "
                    f"conditional write needs {headers} for headers"
                )
                yield Diagnostic("error", TOO_LARGE, text, hint, str(address), declared.range)
                break


def _list_limits(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], address: Address
) -> list[tuple[str, int, str]]:
    """List who limits a message, to how many bytes, and what to do about it."""
    parent, facts = address.parent, inputs.live.domains.get(address.domain)
    assert parent is not None
    config = planned_config(inputs, decisions, inputs.topology.find_declared(parent)) or {}
    word = "max_value_size" if parent.kind == "kv" else "max_msg_size"
    return [
        (str(parent), int(config.get("max_msg_size") or -1), f"Store less, or raise {word}."),
        (
            "the server",
            facts.max_payload if facts is not None else 0,
            "Store less, or raise max_payload of the server.",
        ),
    ]
