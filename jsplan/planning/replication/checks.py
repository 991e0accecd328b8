"""Which copies of a stream that is made anew have to follow the new one, and the steps that see whether they do. Pure.

Looking is left to `applying.draft_replication_checks`: servers take ten seconds and more until they copy from the new stream (measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import STAGING_PREFIX, Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import VERIFY_OP
from jsplan.planning.order import Draft, Drafts
from jsplan.planning.replication.impact import (
    ORIGIN_IDENTITY_LEVEL,
    can_continue_sequence,
    continue_sequence,
    managed_downstream,
    reads_origin,
)
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs
    from jsplan.resources.fields import Config

#: The calls of a stream that is made anew behind which it is there again, by the last part of their keys.
_RECREATE_KINDS: Final = ("create", "update")


def replaced_streams(verdicts: Mapping[Address, ResourceDecision]) -> Iterator[ResourceDecision]:
    """The streams that are replaced, with what they hold or without, and those whose replacement goes on."""
    for address, verdict in verdicts.items():
        if address.kind != "consumer" and (
            verdict.replaces or (verdict.live is None and "first_seq" in verdict.unknown)
        ):
            yield verdict


def draft_replication_checks(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[Draft]:
    """A step for each copy of them, other people's included, and for those at which an earlier apply did not come to look."""
    wanted: dict[Address, dict[str, dict[str, Any]]] = {}
    for verdict in replaced_streams(verdicts):
        for copy, kind, source in find_downstream(inputs, verdicts, verdict.address):
            wanted.setdefault(copy, {})[f"{verdict.address} {origin_key(source)}"] = _flow_params(
                inputs, verdict.address, copy, kind, source
            )
    for copy, flow in _unfinished_checks(inputs, verdicts):
        wanted.setdefault(copy, {}).setdefault(
            f"{flow['origin']} {origin_key(flow['config'])}", flow
        )
    for copy, flows in sorted(wanted.items()):
        yield _draft_check(inputs, copy, list(flows.values()))


def _unfinished_checks(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterator[tuple[Address, dict[str, Any]]]:
    """What an apply that died, or was not content with what it saw, has left to be looked at, as far as it is still copied."""
    names = {str(old): str(new) for new, old in inputs.moved_from.items()}
    for address, begun in inputs.unfinished_steps.items() if not is_state_only(inputs) else ():
        if (
            begun.get("op") != VERIFY_OP
            or inputs.live.get(address) is None
            or address not in inputs.selected
        ):
            continue
        copied = {origin_key(source) for _, source in _planned_origins(inputs, verdicts, address)}
        for flow in begun["params"]["flows"]:
            origin = names.get(flow["origin"], flow["origin"])
            if (
                origin_key(flow["config"]) in copied
                and Address.parse(origin).domain in inputs.workspace.domains
            ):
                yield address, flow | {"origin": origin}


def is_state_only(inputs: PlanInputs) -> bool:
    """Whether the plan only brings state up to date, and leaves what is under way to others."""
    return inputs.request.refresh_only or bool(inputs.request.imports)


def continue_sequence_for_unmanaged(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> None:
    """Let streams that only other people copy go on counting too, once those are read: their copies would wait, or lose what they have."""
    for verdict in replaced_streams(verdicts):
        if can_continue_sequence(inputs, verdict) and any(
            True for _ in find_downstream(inputs, verdicts, verdict.address)
        ):
            continue_sequence(verdict)


def order_replication_checks(drafts: Drafts, checks: Iterable[Draft]) -> None:
    """Add the steps to the others: each waits until its origins are back and nothing more is done to the copy."""
    for look in checks:
        origins = {Address.parse(flow["origin"]) for flow in (look.params or {})["flows"]}
        look.depends_on |= {
            (origin, kind) for origin in origins for kind in _RECREATE_KINDS
        } & drafts.keys()
        look.depends_on |= {key for key in drafts if key[0] == look.key[0]}
        drafts[look.key] = look


def find_downstream(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], origin: Address
) -> Iterator[tuple[Address, str, Config]]:
    """The streams that are there and copy the origin when the plan is carried out, each with the `mirror` or `source` that does.

    Those that nobody here manages are known as far as they were read.
    """
    for address in sorted(inputs.live.objects):
        planned = verdicts.get(address)
        if (
            address.kind == "consumer"
            or address.domain not in inputs.workspace.domains
            or address.stream.startswith(STAGING_PREFIX)
        ):
            continue
        if (
            inputs.topology.find_declared(address) != address
        ):  # the files call it by another way to its domain
            continue
        if planned is None or planned.actions != ["delete"]:
            found = _planned_origins(inputs, verdicts, address)
            yield from (
                (address, kind, source)
                for kind, source in found
                if reads_origin(inputs, address, source, origin)
            )


def _planned_origins(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], downstream: Address
) -> list[tuple[str, Config]]:
    """The mirror or the sources that a stream has when the plan is carried out."""
    planned = verdicts.get(downstream)
    config = (
        inputs.live.objects[downstream].compact
        if planned is None or planned.after is None
        else planned.after
    )
    return (
        [("mirror", config["mirror"])]
        if config.get("mirror")
        else [("source", source) for source in config.get("sources") or ()]
    )


def _flow_params(
    inputs: PlanInputs, origin: Address, downstream: Address, kind: str, source: Config
) -> dict[str, Any]:
    """What the step has to know of one mirror or source; `from_start`: its server copies an origin that is another one from its start."""
    return {
        "origin": str(origin),
        "kind": kind,
        "config": source,
        "from_start": kind == "source" and inputs.level(downstream) >= ORIGIN_IDENTITY_LEVEL,
    }


def _draft_check(inputs: PlanInputs, downstream: Address, flows: list[dict[str, Any]]) -> Draft:
    origins = list(dict.fromkeys(flow["origin"] for flow in flows))
    names = " and ".join(
        f"{origin.kind} {origin.name} in {origin.domain}" for origin in map(Address.parse, origins)
    )
    title = f"check that {downstream.kind} {downstream.name} in {downstream.domain} follows {names} again"
    managed = downstream in inputs.entries or inputs.declared(downstream) is not None
    return Draft(
        (downstream, "verify"),
        VERIFY_OP,
        title,
        None,
        "",
        params={"flows": flows, "managed": managed},
    )


def check_unverified_downstream(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[Diagnostic]:
    """Copies that were not seen to follow, and those whose domain is away, so that nobody sees it."""
    for copy, flow in _unfinished_checks(inputs, verdicts):
        text = f"was not seen to follow {flow['origin']} since that was made anew"
        yield Diagnostic("info", "JS426", text, "An apply looks again.", str(copy))
    for verdict in replaced_streams(verdicts):
        away = sorted(
            c
            for c in managed_downstream(inputs, verdict.address)
            if c.domain in inputs.live.domains and not inputs.live.is_reachable(c.domain)
        )
        if away:
            declared = inputs.declared(verdict.address)
            many = f" and {len(away) - 5:,} more" if len(away) > 5 else ""
            text = f"whether {', '.join(map(str, away[:5]))}{many} will follow the new stream is not verified: out of reach"
            detail = "When they are back: jsplan drift shows whether they do."
            yield Diagnostic(
                "warning",
                "JS426",
                text,
                detail,
                str(verdict.address),
                declared.range if declared else None,
            )
