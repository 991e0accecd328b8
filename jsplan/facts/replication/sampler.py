"""Looks again at flows: both ends, where the copy stands, what still waits, whether the way is open. Never writes.

All of it is one round trip for any number of flows: what one question needs of another's answer it takes from the look before.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import (
    OFFLINE_ERRORS,
    ApiError,
    ConnectError,
    NotPermittedError,
    ServerRefusedError,
)
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object
from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample, build_sample
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.resources.nested import source_header
from jsplan.topology.replication_graph import map_subjects

#: Seconds to wait for the origin's API where the copy is: a link that is half dead says nothing.
ORIGIN_TIMEOUT: Final = 2.0
#: A source's header of a message: `Nats-Stream-Source: <stream>[:<hash>] <sequence> <filters> <destinations> …`.
_HEADER: Final = b"Nats-Stream-Source: "
#: Why an origin was not read whose domain nobody could ask.
_NOT_ASKED: Final = "it was not asked"


@dataclass
class ReplicationSampler:
    """Looks at flows over open connections. `offline` are domains that did not answer, with the reason: they are not asked twice."""

    pool: Pool
    domains: Mapping[str, Domain]
    offline: dict[str, str] = field(default_factory=dict)

    async def take_samples(
        self, flows: Collection[Flow], before: Mapping[Flow, ReplicationSample]
    ) -> dict[Flow, ReplicationSample]:
        """A look at each flow whose two ends can be read. `before` are the looks before this one, as far as there are any."""
        await self.pool.open(self.domains[key].connection for key in self._domain_keys(flows))
        found, more = await asyncio.gather(
            self._read_streams(flows), self._read_details(flows, before)
        )
        at = time.monotonic()
        looks = {}
        for flow in flows:
            copy, origin = found.get(flow.downstream), found.get(flow.origin or flow, _NOT_ASKED)
            if isinstance(copy, LiveObject) and self.offline_domain(flow) is None:
                unread = origin if isinstance(origin, str) else ""
                seen = build_sample(
                    flow,
                    copy,
                    origin if isinstance(origin, LiveObject) else None,
                    at,
                    unread=unread,
                )
                looks[flow] = _with_details(seen, more[flow], before.get(flow))
        return looks

    def offline_domain(self, flow: Flow) -> str | None:
        """The domain of one of its ends that does not answer; the copy's comes first."""
        return next(
            (
                a.domain
                for a in (flow.downstream, flow.origin)
                if a is not None and a.domain in self.offline
            ),
            None,
        )

    def _domain_keys(self, flows: Iterable[Flow]) -> list[str]:
        return [
            address.domain
            for flow in flows
            for address in (flow.downstream, flow.origin)
            if address is not None
        ]

    # --- both ends -------------------------------------------------------------------------------------------

    async def _read_streams(
        self, flows: Iterable[Flow]
    ) -> dict[Address | Flow, LiveObject | str | None]:
        """The streams at both ends, each once; an origin in no domain of ours under its flow. Text says why one could not be read."""
        wanted: dict[Address | Flow, DomainApi] = {}
        for flow in flows:
            for address in (flow.downstream, flow.origin):
                if (
                    address is not None
                    and address.domain not in self.offline
                    and (api := self._open_api(address.domain)) is not None
                ):
                    wanted[address] = api
            if flow.origin is None and (api := self._api_by_prefix(flow)) is not None:
                wanted[flow] = api
        found = await asyncio.gather(*(self._read_stream(api, key) for key, api in wanted.items()))
        return dict(zip(wanted, found, strict=True))

    async def _read_stream(self, api: DomainApi, key: Address | Flow) -> LiveObject | str | None:
        address = (
            key if isinstance(key, Address) else Address.of_stream(key.downstream.domain, key.name)
        )
        try:
            return await read_object(api, address)
        except OFFLINE_ERRORS as error:
            if isinstance(key, Address):
                self.offline[key.domain] = str(error)
            return str(error)
        except (
            ServerRefusedError,
            NotPermittedError,
        ) as error:  # offline on its server, or not for us to see
            return str(error)

    def _open_api(self, key: str) -> DomainApi | None:
        try:
            return self.pool.api(self.domains[key])
        except ConnectError as error:
            self.offline[key] = str(error)
            return None

    def _api_by_prefix(self, flow: Flow) -> DomainApi | None:
        """The origin's API as the copy's account knows it."""
        own = self._open_api(flow.downstream.domain)
        if own is None or flow.api is None:
            return own
        domain = Domain(flow.api, own.domain.connection, None, flow.api)
        return DomainApi(domain, own.connection, read_only=True)

    # --- what else is asked ----------------------------------------------------------------------------------

    async def _read_details(
        self, flows: Collection[Flow], before: Mapping[Flow, ReplicationSample]
    ) -> dict[Flow, dict[str, Any]]:
        """Position, what waits, and the way, of each flow."""

        async def one(flow: Flow) -> dict[str, Any]:
            seen = before.get(flow)
            asked = (
                self._find_position(flow, seen),
                self._has_more(flow, seen),
                self._origin_answers(flow),
            )
            held, waiting, answers = await asyncio.gather(
                *(_answer_or_none(work) for work in asked)
            )
            return {
                "held": held,
                "waiting": waiting,
                "answers": answers,
                "apart": self._crosses_link(flow),
            }

        return dict(zip(flows, await asyncio.gather(*map(one, flows)), strict=True))

    async def _find_position(self, flow: Flow, seen: ReplicationSample | None) -> int | None:
        """The origin's sequence of the newest message that the copy holds of this source: servers before 2.15 say it nowhere else."""
        told = seen is not None and seen.position is not None and not seen.searched
        if flow.kind == "mirror" or told or flow.downstream.domain in self.offline:
            return None
        api = self._open_api(flow.downstream.domain)
        subjects = (
            seen.origin.subjects if seen is not None and seen.origin is not None else ()
        ) or (">",)
        stored = map_subjects(subjects, flow.config) if api is not None else []
        found = (
            await asyncio.gather(*(_last_sourced_seq(api, flow, subject) for subject in stored))
            if api is not None
            else []
        )
        return max((sequence for sequence in found if sequence is not None), default=None)

    async def _has_more(self, flow: Flow, seen: ReplicationSample | None) -> bool | None:
        """Whether the origin holds a message that passes, beyond what the copy had at the last look."""
        if (
            seen is None
            or seen.position is None
            or (flow.origin is not None and flow.origin.domain in self.offline)
        ):
            return None
        api = (
            self._open_api(flow.origin.domain)
            if flow.origin is not None
            else self._api_by_prefix(flow)
        )
        if api is None:
            return None
        start = max(seen.position + 1, flow.start)
        return any(
            await asyncio.gather(
                *(_has_message(api, flow, start, subject) for subject in flow.filters)
            )
        )

    async def _origin_answers(self, flow: Flow) -> bool | None:
        """Whether the origin's API answers over the copy's connection. Of an import silence proves nothing: it may not be exported."""
        api = self._api_by_prefix(flow)
        if api is None or flow.api is None:
            return None if api is None else True
        if (
            flow.origin is not None
            and self.domains[flow.origin.domain].connection == api.domain.connection
        ):
            return flow.origin.domain not in self.offline
        try:
            await api.request(
                f"STREAM.INFO.{flow.name}",
                timeout=min(api.connection.settings.timeout, ORIGIN_TIMEOUT),
            )
        except ServerRefusedError:
            return True
        except OFFLINE_ERRORS:
            return None if flow.imported and flow.origin is not None else False
        return True

    def _crosses_link(self, flow: Flow) -> bool:
        """Whether a leafnode link may be between the two ends: not between servers that are one, or of one cluster."""
        if flow.origin is None:
            return True
        links = [
            self.pool.connections.get(self.domains[address.domain].connection)
            for address in (flow.downstream, flow.origin)
        ]
        if any(link is None for link in links):
            return True
        one, other = (link.server for link in links if link is not None)
        own = all(
            (link.server.get("domain") or None) == self.domains[a.domain].js_domain
            for link, a in zip(links, (flow.downstream, flow.origin), strict=True)
            if link is not None
        )
        same = one.get("server_id") == other.get("server_id") or (
            one.get("cluster") and one.get("cluster") == other.get("cluster")
        )
        return not (same and own)


async def _answer_or_none(work: Any) -> Any:
    """An answer, or None where a question beside the main ones is not answered."""
    try:
        return await work
    except (ApiError, ConnectError):
        return None


def _with_details(
    look: ReplicationSample, more: dict[str, Any], before: ReplicationSample | None
) -> ReplicationSample:
    """The look with what was asked besides. Only who knew what the origin stores has searched where its messages would be."""
    position = look.position if look.position is not None else more["held"]
    searched = look.position is None and (
        position is not None or (before is not None and before.origin is not None)
    )
    return replace(
        look,
        position=position,
        searched=searched,
        waiting=more["waiting"],
        answers=more["answers"],
        apart=more["apart"],
    )


async def _last_sourced_seq(api: DomainApi, flow: Flow, subject: str) -> int | None:
    """The sequence in the header of the newest message on the subject, if it came by just this source."""
    message = await _get_message(api, flow.downstream.stream, {"last_by_subj": subject})
    if message is None:
        return None
    head = base64.b64decode(message.get("hdrs") or "")
    line = next((line for line in head.split(b"\r\n") if line.startswith(_HEADER)), b"")
    words = line.removeprefix(_HEADER).decode("utf-8", "replace").split(" ")
    name, sources, destinations = source_header(dict(flow.config))
    told = (words[0], *words[2:4])
    ours = told == (name, sources, destinations) or (
        len(words) < 4 and words[0].split(":")[0] == flow.name
    )
    return int(words[1]) if ours and len(words) > 1 and words[1].isdigit() else None


async def _has_message(api: DomainApi, flow: Flow, start: int, subject: str) -> bool:
    """Whether there is a message from this sequence on, and not from before the time at which the flow begins."""
    message = await _get_message(api, flow.name, {"seq": start, "next_by_subj": subject})
    since = flow.config.get("opt_start_time")
    if (
        message is None
        or not since
        or start > flow.start
        or str(message.get("time", "")) >= str(since)
    ):
        return message is not None
    newest = await _get_message(api, flow.name, {"last_by_subj": subject})
    return newest is not None and str(newest.get("time", "")) >= str(since)


async def _get_message(api: DomainApi, stream: str, which: dict[str, Any]) -> dict[str, Any] | None:
    try:
        answer = await api.request(f"STREAM.MSG.GET.{stream}", which)
    except ServerRefusedError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    found = answer.get("message")
    return found if isinstance(found, dict) else None
