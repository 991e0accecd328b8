"""One moment of one flow, as both of its servers showed it. Plain data."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from jsplan.facts.live import LiveObject
from jsplan.facts.replication.flows import Flow
from jsplan.resources.fields import Config
from jsplan.resources.nested import key_in_info


class OriginSample(Struct, frozen=True):
    """The origin's side: its messages, its retention, and its subjects (empty: not known).

    `workqueue`: a message is deleted once a consumer has finished it.
    """

    created: str
    first: int
    last: int
    messages: int
    first_ts: str
    workqueue: bool
    subjects: tuple[str, ...] = ()

    @classmethod
    def from_live(cls, found: LiveObject) -> OriginSample:
        """Build it from the origin's INFO."""
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


class ReplicationSample(Struct, frozen=True):
    """A flow at the time `at` (seconds of a monotonic clock).

    `origin` None: its server reports that there is no such stream, or `unread` says why it could
    not be asked. `position` is the last sequence of the origin that is known to be copied, None
    where unknown. `lag` and `active` are from the downstream server: messages, and ns since it last
    heard of the origin (-1: never since it began to listen); `error` is its error. `stored` (its
    last sequence), `first`, `messages`, `first_ts` and `last_ts` are the downstream stream's own
    state. `waiting`: the origin has a message that passes and was not copied at the sample before
    (None: not asked). `answers`: the origin's API answers the downstream account (None: not asked,
    or it proves nothing). `apart`: a link may be between the two. `searched`: the position was
    looked for in the downstream messages. `next_seq`, `next_size` and `next_stored` are of the
    next message that waits: its sequence, its size with headers as it would be copied, and what it
    would take in a store (0: not known). `next_alike`: the messages of its subject that a
    downstream stream with `discard_new_per_subject` has. `config` and `size` are of that stream.
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
    last_ts: str = ""
    next_seq: int = 0
    next_size: int = 0
    next_stored: int = 0
    next_alike: int = 0
    config: Config = field(default_factory=dict)
    size: int = 0


def build_sample(
    flow: Flow,
    downstream: LiveObject,
    origin: LiveObject | None,
    at: float,
    **details: Any,
) -> ReplicationSample:
    """Build a sample from two INFOs, and from `details` that were read besides.

    INFO has the position of a source since 2.15.
    """
    state, info = downstream.state, _flow_info(flow, downstream)
    fields: dict[str, Any] = {"position": _known_position(flow, downstream, info)} | details
    return ReplicationSample(
        at,
        OriginSample.from_live(origin) if origin is not None else None,
        downstream.created,
        state["last_seq"],
        state["first_seq"],
        state["messages"],
        str(state.get("first_ts", "")),
        int(info.get("lag") or 0),
        int(info.get("active", -1)),
        error=info.get("error") or {},
        last_ts=str(state.get("last_ts", "")),
        config=downstream.raw,
        size=int(state.get("bytes") or 0),
        **fields,
    )


def _flow_info(flow: Flow, downstream: LiveObject) -> dict[str, Any]:
    """Return the part of INFO about this flow. Servers list sources in any order."""
    if flow.kind == "mirror":
        return next(iter(downstream.flows), {})
    alike = [info for info in downstream.flows if _is_info_of(info, flow)]
    return next(
        (info for info in alike if key_in_info(info) == key_in_info(flow.config)),
        alike[0] if alike else {},
    )


def _is_info_of(info: dict[str, Any], flow: Flow) -> bool:
    return info.get("name") == flow.name and (info.get("external") or {}).get("api") == flow.api


def _known_position(flow: Flow, downstream: LiveObject, info: dict[str, Any]) -> int | None:
    last = int(downstream.state["last_seq"])
    if flow.kind == "mirror":
        return last
    return 0 if last == 0 else info.get("seq")
