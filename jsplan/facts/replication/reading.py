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
from jsplan.errors import OFFLINE, ApiError, ConnectError, NotPermittedError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.looks import Look, first_look
from jsplan.facts.survey import read_object
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.resources.nested import header_of
from jsplan.topology.flows import through

#: Seconds to wait for the origin's API where the copy is: a link that is half dead says nothing.
ASKING: Final = 2.0
#: A source's header of a message: `Nats-Stream-Source: <stream>[:<hash>] <sequence> <filters> <destinations> …`.
_HEADER: Final = b"Nats-Stream-Source: "
#: Why an origin was not read whose domain nobody could ask.
_UNREAD: Final = "it was not asked"


@dataclass
class Reading:
    """Looks at flows over open connections. `away` are domains that did not answer, with the reason: they are not asked twice."""

    pool: Pool
    domains: Mapping[str, Domain]
    away: dict[str, str] = field(default_factory=dict)

    async def look(self, flows: Collection[Flow], before: Mapping[Flow, Look]) -> dict[Flow, Look]:
        """A look at each flow whose two ends can be read. `before` are the looks before this one, as far as there are any."""
        await self.pool.open(self.domains[key].connection for key in self._keys(flows))
        found, more = await asyncio.gather(self._objects(flows), self._more(flows, before))
        at = time.monotonic()
        looks = {}
        for flow in flows:
            copy, origin = found.get(flow.copy), found.get(flow.origin or flow, _UNREAD)
            if isinstance(copy, LiveObject) and self.silent(flow) is None:
                unread = origin if isinstance(origin, str) else ""
                seen = first_look(flow, copy, origin if isinstance(origin, LiveObject) else None, at, unread=unread)
                looks[flow] = _known(seen, more[flow], before.get(flow))
        return looks

    def silent(self, flow: Flow) -> str | None:
        """The domain of one of its ends that does not answer; the copy's comes first."""
        return next((a.domain for a in (flow.copy, flow.origin) if a is not None and a.domain in self.away), None)

    def _keys(self, flows: Iterable[Flow]) -> list[str]:
        return [address.domain for flow in flows for address in (flow.copy, flow.origin) if address is not None]

    # --- both ends -------------------------------------------------------------------------------------------

    async def _objects(self, flows: Iterable[Flow]) -> dict[Address | Flow, LiveObject | str | None]:
        """The streams at both ends, each once; an origin in no domain of ours under its flow. Text says why one could not be read."""
        wanted: dict[Address | Flow, DomainApi] = {}
        for flow in flows:
            for address in (flow.copy, flow.origin):
                if address is not None and address.domain not in self.away and (api := self._api(address.domain)) is not None:
                    wanted[address] = api
            if flow.origin is None and (api := self._by_prefix(flow)) is not None:
                wanted[flow] = api
        found = await asyncio.gather(*(self._object(api, key) for key, api in wanted.items()))
        return dict(zip(wanted, found, strict=True))

    async def _object(self, api: DomainApi, key: Address | Flow) -> LiveObject | str | None:
        address = key if isinstance(key, Address) else Address.of_stream(key.copy.domain, key.name)
        try:
            return await read_object(api, address)
        except OFFLINE as error:
            if isinstance(key, Address):
                self.away[key.domain] = str(error)
            return str(error)
        except (ServerRefusedError, NotPermittedError) as error:  # offline on its server, or not for us to see
            return str(error)

    def _api(self, key: str) -> DomainApi | None:
        try:
            return self.pool.api(self.domains[key])
        except ConnectError as error:
            self.away[key] = str(error)
            return None

    def _by_prefix(self, flow: Flow) -> DomainApi | None:
        """The origin's API as the copy's account knows it."""
        own = self._api(flow.copy.domain)
        if own is None or flow.api is None:
            return own
        domain = Domain(flow.api, own.domain.connection, None, flow.api)
        return DomainApi(domain, own.link, read_only=True)

    # --- what else is asked ----------------------------------------------------------------------------------

    async def _more(self, flows: Collection[Flow], before: Mapping[Flow, Look]) -> dict[Flow, dict[str, Any]]:
        """Position, what waits, and the way, of each flow."""

        async def one(flow: Flow) -> dict[str, Any]:
            seen = before.get(flow)
            asked = (self._held(flow, seen), self._waiting(flow, seen), self._answers(flow))
            held, waiting, answers = await asyncio.gather(*(_quietly(work) for work in asked))
            return {"held": held, "waiting": waiting, "answers": answers, "apart": self._apart(flow)}

        return dict(zip(flows, await asyncio.gather(*map(one, flows)), strict=True))

    async def _held(self, flow: Flow, seen: Look | None) -> int | None:
        """The origin's sequence of the newest message that the copy holds of this source: servers before 2.15 say it nowhere else."""
        told = seen is not None and seen.position is not None and not seen.searched
        if flow.kind == "mirror" or told or flow.copy.domain in self.away:
            return None
        api = self._api(flow.copy.domain)
        subjects = (seen.origin.subjects if seen is not None and seen.origin is not None else ()) or (">",)
        stored = through(subjects, flow.config) if api is not None else []
        found = await asyncio.gather(*(_last_from(api, flow, subject) for subject in stored)) if api is not None else []
        return max((sequence for sequence in found if sequence is not None), default=None)

    async def _waiting(self, flow: Flow, seen: Look | None) -> bool | None:
        """Whether the origin holds a message that passes, beyond what the copy had at the last look."""
        if seen is None or seen.position is None or (flow.origin is not None and flow.origin.domain in self.away):
            return None
        api = self._api(flow.origin.domain) if flow.origin is not None else self._by_prefix(flow)
        if api is None:
            return None
        start = max(seen.position + 1, flow.start)
        return any(await asyncio.gather(*(_holds(api, flow, start, subject) for subject in flow.filters)))

    async def _answers(self, flow: Flow) -> bool | None:
        """Whether the origin's API answers over the copy's connection. Of an import silence proves nothing: it may not be exported."""
        api = self._by_prefix(flow)
        if api is None or flow.api is None:
            return None if api is None else True
        if flow.origin is not None and self.domains[flow.origin.domain].connection == api.domain.connection:
            return flow.origin.domain not in self.away
        try:
            await api.request(f"STREAM.INFO.{flow.name}", timeout=min(api.link.target.timeout, ASKING))
        except ServerRefusedError:
            return True
        except OFFLINE:
            return None if flow.imported and flow.origin is not None else False
        return True

    def _apart(self, flow: Flow) -> bool:
        """Whether a leafnode link may be between the two ends: not between servers that are one, or of one cluster."""
        if flow.origin is None:
            return True
        links = [self.pool.links.get(self.domains[address.domain].connection) for address in (flow.copy, flow.origin)]
        if any(link is None for link in links):
            return True
        one, other = (link.server for link in links if link is not None)
        own = all((link.server.get("domain") or None) == self.domains[a.domain].js_domain
                  for link, a in zip(links, (flow.copy, flow.origin), strict=True) if link is not None)  # fmt: skip
        same = one.get("server_id") == other.get("server_id") or (one.get("cluster") and one.get("cluster") == other.get("cluster"))
        return not (same and own)


async def _quietly(work: Any) -> Any:
    """An answer, or None where a question beside the main ones is not answered."""
    try:
        return await work
    except (ApiError, ConnectError):
        return None


def _known(look: Look, more: dict[str, Any], before: Look | None) -> Look:
    """The look with what was asked besides. Only who knew what the origin stores has searched where its messages would be."""
    position = look.position if look.position is not None else more["held"]
    searched = look.position is None and (position is not None or (before is not None and before.origin is not None))
    return replace(look, position=position, searched=searched, waiting=more["waiting"], answers=more["answers"], apart=more["apart"])


async def _last_from(api: DomainApi, flow: Flow, subject: str) -> int | None:
    """The sequence in the header of the newest message on the subject, if it came by just this source."""
    message = await _message(api, flow.copy.stream, {"last_by_subj": subject})
    if message is None:
        return None
    head = base64.b64decode(message.get("hdrs") or "")
    line = next((line for line in head.split(b"\r\n") if line.startswith(_HEADER)), b"")
    words = line.removeprefix(_HEADER).decode("utf-8", "replace").split(" ")
    name, sources, destinations = header_of(dict(flow.config))
    told = (words[0], *words[2:4])
    ours = told == (name, sources, destinations) or (len(words) < 4 and words[0].split(":")[0] == flow.name)
    return int(words[1]) if ours and len(words) > 1 and words[1].isdigit() else None


async def _holds(api: DomainApi, flow: Flow, start: int, subject: str) -> bool:
    """Whether there is a message from this sequence on, and not from before the time at which the flow begins."""
    message = await _message(api, flow.name, {"seq": start, "next_by_subj": subject})
    since = flow.config.get("opt_start_time")
    if message is None or not since or start > flow.start or str(message.get("time", "")) >= str(since):
        return message is not None
    newest = await _message(api, flow.name, {"last_by_subj": subject})
    return newest is not None and str(newest.get("time", "")) >= str(since)


async def _message(api: DomainApi, stream: str, which: dict[str, Any]) -> dict[str, Any] | None:
    try:
        answer = await api.request(f"STREAM.MSG.GET.{stream}", which)
    except ServerRefusedError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    found = answer.get("message")
    return found if isinstance(found, dict) else None
