"""The steps of a replacement that keeps a stream's messages. Carrying them out is left to `applying.preserve`.

At every moment all messages are in one stream that was compared with the one before: the old one, the stand-in, the new one.
Before the first of them is touched, a probe without messages shows whether the server accepts what the new one is to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.documents.plan import Op
from jsplan.planning.merge import as_created
from jsplan.planning.order import Draft
from jsplan.planning.preserve.capacity import more_bytes, staging_of, with_room
from jsplan.planning.preserve.standins import bare, identity, probe_of, probed, stand_in_of, stopped
from jsplan.planning.preserve.ways import way_of
from jsplan.planning.verdict import Verdict, table_of

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.inputs import Inputs
    from jsplan.resources.fields import Config

#: The steps in order, by the last part of their keys. The one that ends it has the key of an update: whoever waits for the
#: stream waits for that.
ORDER: Final = ("probe", "stop", "hold", "copy", "compare", "retire", "refill", "recompare", "resume", "update", "clear")
OPS: Final[Mapping[str, Op]] = {
    "probe": "stream.probe", "stop": "stream.quiesce", "hold": "stream.pause_consumers",
    "copy": "stream.copy", "compare": "stream.compare", "retire": "stream.delete_old",
    "refill": "stream.copy", "recompare": "stream.compare", "resume": "stream.resume_consumers",
    "update": "stream.activate", "clear": "stream.delete_staging",
}  # fmt: skip
#: What is left to do for a replacement that the files do not want any more, while the old stream is still there.
GIVEN_UP: Final = ("update", "resume", "clear")


def carried_over(inputs: Inputs, verdict: Verdict, final: Draft, consumers: Mapping[str, Any]) -> Iterable[Draft]:
    """The steps of one stream; `final` is the call that would create it, with what is to be recorded.

    `consumers` says of those that the files name how they come back: `{address, config, record}`, or None where they do not.
    """
    address, old = verdict.address, verdict.live
    assert old is not None
    under_way = inputs.under_way.get(address)
    kinds = ORDER if under_way is None or under_way.begin == "clear" else ORDER[ORDER.index(under_way.begin) :]
    yield from _chain(inputs, verdict, final, kinds, consumers)


def given_up(inputs: Inputs, verdict: Verdict, final: Draft, consumers: Mapping[str, Any]) -> Iterable[Draft]:
    """The steps that give a stopped old stream back what it had; `final` is the update to what the files say."""
    yield from _chain(inputs, verdict, final, GIVEN_UP, consumers)


def cleared(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterable[Draft]:
    """Stand-ins of streams that are back whole: the apply that brought them back died just before it took those away."""
    for address, found in inputs.under_way.items():
        if found.begin != "clear" or address not in verdicts or inputs.request.refresh_only or inputs.request.imports:
            continue
        stand = Address.parse(found.record["staging"])
        request = {"api": f"STREAM.DELETE.{stand.stream}", "payload": None}
        params = {"state_address": found.record["address"]}
        yield Draft((address, "cleared"), "stream.delete_staging", f"delete {stand.stream}", request, "", touches=stand, params=params)


def _chain(inputs: Inputs, verdict: Verdict, final: Draft, kinds: tuple[str, ...], consumers: Mapping[str, Any]) -> Iterable[Draft]:
    """One after the other. What the first of them finds under the stream's name must be what planning found."""
    under_way, before = inputs.under_way.get(verdict.address), None
    if under_way is not None and under_way.begin == "clear":
        under_way = None  # that one is over; what is left of it is cleared before
    looks = next(kind for kind in kinds if kind != "probe")
    for kind in kinds:
        draft = _draft(inputs, verdict, final, kind)
        if kind == "resume":
            draft.params = (draft.params or {}) | {"consumers": dict(consumers)}
        draft.after |= {before.key} if before is not None else set()
        if kind == looks and under_way is not None:
            draft.precondition = under_way.fingerprint_of(draft.touches or verdict.address)
        before = draft
        yield draft


def _draft(inputs: Inputs, verdict: Verdict, final: Draft, kind: str) -> Draft:
    address, old = verdict.address, verdict.live
    assert old is not None
    stand = stand_in_of(address, old.created)
    touches = {"probe": probe_of(stand), "copy": stand, "compare": stand, "clear": stand}.get(kind, address)
    draft = Draft(
        (address, kind), OPS[kind], _title(verdict, kind, stand), _request(inputs, verdict, final, kind), "",
        touches=touches, params=_params(inputs, verdict, kind, stand),
    )  # fmt: skip
    if kind == "stop":
        draft.precondition, draft.frees = old.fingerprint, list(old.compact.get("subjects", []))
    if kind == "update":
        draft.expect, draft.record, draft.takes, draft.touches = final.expect, final.record, final.takes, None
    return draft


def _title(verdict: Verdict, kind: str, stand: Address) -> str:
    what, place = f"{verdict.address.kind} {verdict.address.name} in {verdict.address.domain}", stand.stream
    return {
        "probe": f"try the new configuration of {what} on {probe_of(stand).stream}",
        "stop": f"quiesce {what}: no message is added or removed",
        "hold": f"pause the consumers of {what} and record their positions",
        "copy": f"copy {what} into {place}",
        "compare": f"compare {place} with {what}",
        "retire": f"delete the old {what}",
        "refill": f"recreate {what} with the messages of {place}",
        "recompare": f"compare {what} with {place}",
        "resume": f"resume the consumers of {what}",
        "update": f"activate {what}: set its subjects and limits",
        "clear": f"delete {place}",
    }[kind]


def _request(inputs: Inputs, verdict: Verdict, final: Draft, kind: str) -> Config | None:
    address, old = verdict.address, verdict.live
    assert old is not None
    match kind:
        case "probe":
            assert final.request is not None
            name = probe_of(stand_in_of(address, old.created)).stream
            most = more_bytes(old, final.request["payload"], _account(inputs, address))
            config = probed(name, identity(address, old.created), final.request["payload"], most_bytes=most)
            return {"api": f"STREAM.UPDATE.{name}", "payload": config}
        case "stop":
            calm = stopped(address, old, inputs.level(address))
            return {"api": f"STREAM.UPDATE.{address.stream}", "payload": calm} if calm else None
        case "copy":
            return {"api": f"STREAM.RESTORE.{stand_in_of(address, old.created).stream}", "payload": staging_of(inputs, address, old)}
        case "refill":
            return {"api": f"STREAM.RESTORE.{address.stream}", "payload": _bare(inputs, address, old)}
        case "update":
            assert final.request is not None
            return {"api": f"STREAM.UPDATE.{address.stream}", "payload": final.request["payload"]}
        case "retire":
            return {"api": f"STREAM.DELETE.{address.stream}", "payload": None}
        case "clear":
            return {"api": f"STREAM.DELETE.{stand_in_of(address, old.created).stream}", "payload": None}
        case _:
            return None


def _account(inputs: Inputs, address: Address) -> Mapping[str, Any]:
    """What the account of the domain has and may have, as `API.INFO` shows it."""
    return inputs.live.domains[address.domain].info


def _bare(inputs: Inputs, address: Address, old: LiveObject) -> Config:
    return with_room(bare_of(inputs, address, old), old, _account(inputs, address).get("limits") or {})


def bare_of(inputs: Inputs, address: Address, old: LiveObject) -> Config:
    """The new stream as it is first, for what the files say now."""
    level = inputs.level(address)
    creation = as_created(table_of(address), inputs.creation(address), level)
    return bare(address, old, creation, mirrors=way_of(level) == "snapshot")


def _params(inputs: Inputs, verdict: Verdict, kind: str, stand: Address) -> dict[str, Any]:
    """What the steps need besides the request. `state_address` is the address under which state has the replacement."""
    address, old = verdict.address, verdict.live
    assert old is not None
    out: dict[str, Any] = {"state_address": str(inputs.moved_from.get(address, address)), "api_level": inputs.level(address)}
    way = way_of(inputs.level(address))
    if kind in ("probe", "stop"):
        ident = identity(address, old.created)
        out["replacement"] = {"id": ident, "staging": str(stand), "method": way, "old": {"config": old.raw, "created": old.created}}
    if kind == "probe":
        config = bare_of(inputs, address, old)
        required = bool((_account(inputs, address).get("limits") or {}).get("max_bytes_required"))
        out["initial_config"] = probed(probe_of(stand).stream, ident, config, most_bytes=int(required))
    if kind in ("copy", "compare", "refill", "recompare"):
        new = kind in ("refill", "recompare")
        out |= {"from": str(stand if new else address), "method": way, "into_new": new}
        out["may_grow"] = new and way == "snapshot" and bool((verdict.after or {}).get("mirror"))
        out["consumers"] = way == "snapshot" and not (new and verdict.renews)
        out["may_shrink"] = bool(not new and (old.raw.get("allow_msg_ttl") or old.raw.get("retention") == "workqueue"))
    return out
