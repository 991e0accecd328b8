"""One moment of one flow, as both of its servers showed it. Plain data; reading it is left to `reading`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jsplan.facts.live import LiveObject
from jsplan.facts.replication.flows import Flow
from jsplan.resources.nested import origin_key


@dataclass(frozen=True, slots=True)
class OriginSample:
    """The origin's side: what it holds, whether a message is gone once somebody has had it, and what it stores (empty: not known)."""

    created: str
    first: int
    last: int
    messages: int
    first_ts: str
    workqueue: bool
    subjects: tuple[str, ...] = ()

    @classmethod
    def from_live(cls, found: LiveObject) -> OriginSample:
        """From its INFO."""
        state = found.state
        subjects = (
            () if found.raw.get("subject_transform") else tuple(found.raw.get("subjects") or ())
        )
        return cls(
            found.created,
            state["first_seq"],
            state["last_seq"],
            state["messages"],
            str(state.get("first_ts", "")),
            found.raw.get("retention") == "workqueue",
            subjects,
        )


@dataclass(frozen=True, slots=True)
class ReplicationSample:
    """A flow at the time `at` (seconds of a clock that never goes back).

    `origin` None: its server says that there is no such stream, or `unread` says why it could not be asked. `position` is the last
    sequence of the origin that the copy is known to have had, None where nobody can tell. `lag` and `active` are what the copy's server
    says: messages, and ns since it last heard of the origin (-1: never since it began to listen); `error` is its error. `stored` (its last
    sequence), `first`, `messages` and `first_ts` are the copy's own state. `waiting`: the origin holds a message that passes and that the
    copy had not at the look before (None: not asked). `answers`: the origin's API answers where the copy is (None: not asked, or it
    proves nothing). `apart`: a link may be between the two. `searched`: the position was looked for in the copy's messages.
    """

    at: float
    origin: OriginSample | None
    created: str
    stored: int
    first: int
    messages: int
    first_ts: str
    lag: int
    active: int
    position: int | None
    error: dict[str, Any] = field(default_factory=dict)
    waiting: bool | None = None
    answers: bool | None = None
    apart: bool = True
    unread: str = ""
    searched: bool = False


def build_sample(
    flow: Flow, copy: LiveObject, origin: LiveObject | None, at: float, **more: Any
) -> ReplicationSample:
    """What two INFOs show. The position of a source is there since 2.15 only; `more` are fields that were asked for besides."""
    state, told = copy.state, _flow_info(flow, copy)
    fields: dict[str, Any] = {"position": _known_position(flow, copy, told)} | more
    return ReplicationSample(
        at,
        OriginSample.from_live(origin) if origin is not None else None,
        copy.created,
        state["last_seq"],
        state["first_seq"],
        state["messages"],
        str(state.get("first_ts", "")),
        int(told.get("lag") or 0),
        int(told.get("active", -1)),
        error=told.get("error") or {},
        **fields,
    )


def _flow_info(flow: Flow, copy: LiveObject) -> dict[str, Any]:
    """What INFO says of just this mirror or source; servers list sources in any order."""
    if flow.kind == "mirror":
        return next(iter(copy.flows), {})
    alike = [told for told in copy.flows if _is_info_of(told, flow)]
    return next(
        (
            told
            for told in alike
            if _key_without_consumer(told) == _key_without_consumer(flow.config)
        ),
        alike[0] if alike else {},
    )


def _is_info_of(told: dict[str, Any], flow: Flow) -> bool:
    return told.get("name") == flow.name and (told.get("external") or {}).get("api") == flow.api


def _key_without_consumer(config: Any) -> str:
    """What tells it from others, without its consumer: INFO does not name that."""
    return origin_key({name: value for name, value in config.items() if name != "consumer"})


def _known_position(flow: Flow, copy: LiveObject, told: dict[str, Any]) -> int | None:
    last = int(copy.state["last_seq"])
    if flow.kind == "mirror":
        return last
    return 0 if last == 0 else told.get("seq")
