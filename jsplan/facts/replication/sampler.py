"""Samples of flows: both ends, position, waiting messages, and reachability of the origin.

All of it is one round trip for any number of flows. What a request needs of another's answer comes
from the sample before.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import (
    OFFLINE_ERRORS,
    ApiError,
    ConnectError,
    NotPermittedError,
    ServerRefusedError,
)
from jsplan.facts.limit_trimming import stored_size
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object
from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample, build_sample
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.api import message_headers
from jsplan.resources.source_header import measure_headers, parse_source_header, source_name
from jsplan.topology.replication_graph import map_subjects
from jsplan.units import parse_instant

#: Seconds to wait for the origin's API over the downstream connection: a bad link stays silent.
ORIGIN_TIMEOUT: Final = 2.0
#: Reason for an origin whose domain could not be asked.
_NOT_ASKED: Final = "it was not asked"


class ReplicationSampler(Struct):
    """Samples flows over open connections.

    `offline` are domains that did not answer, with the reason. They are not asked again.
    """

    pool: Pool
    domains: Mapping[str, Domain]
    offline: dict[str, str] = field(default_factory=dict)

    async def take_samples(
        self, flows: Collection[Flow], before: Mapping[Flow, ReplicationSample]
    ) -> dict[Flow, ReplicationSample]:
        """Sample each flow whose two ends can be read. `before` are the previous samples."""
        await self.pool.open(self.domains[key].connection for key in self._domain_keys(flows))
        streams, details = await asyncio.gather(
            self._read_streams(flows), self._read_details(flows, before)
        )
        at = time.monotonic()
        samples = {}
        for flow in flows:
            downstream = streams.get(flow.downstream)
            origin = streams.get(flow.origin or flow, _NOT_ASKED)
            if isinstance(downstream, LiveObject) and self.offline_domain(flow) is None:
                unread = origin if isinstance(origin, str) else ""
                sample = build_sample(
                    flow,
                    downstream,
                    origin if isinstance(origin, LiveObject) else None,
                    at,
                    unread=unread,
                )
                samples[flow] = _with_details(sample, details[flow], before.get(flow))
        return samples

    def offline_domain(self, flow: Flow) -> str | None:
        """Return the domain of one of its ends that does not answer; the downstream one first."""
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

    # --- both ends -------------------------------------------------------------------------------

    async def _read_streams(
        self, flows: Iterable[Flow]
    ) -> dict[Address | Flow, LiveObject | str | None]:
        """Read the streams at both ends, each once. Text is the reason for an unreadable one.

        An origin in no domain of the workspace is under its flow.
        """
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
        streams = await asyncio.gather(
            *(self._read_stream(api, key) for key, api in wanted.items())
        )
        return dict(zip(wanted, streams, strict=True))

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
        # Offline on its server, or without permission for us.
        except (ServerRefusedError, NotPermittedError) as error:
            return str(error)

    def _open_api(self, key: str) -> DomainApi | None:
        try:
            return self.pool.api(self.domains[key])
        except ConnectError as error:
            self.offline[key] = str(error)
            return None

    def _api_by_prefix(self, flow: Flow) -> DomainApi | None:
        """Return the origin's API as the downstream account knows it."""
        own = self._open_api(flow.downstream.domain)
        if own is None or flow.api is None:
            return own
        domain = Domain(flow.api, own.domain.connection, None, flow.api)
        return DomainApi(domain, own.connection, read_only=True)

    # --- details ---------------------------------------------------------------------------------

    async def _read_details(
        self, flows: Collection[Flow], before: Mapping[Flow, ReplicationSample]
    ) -> dict[Flow, dict[str, Any]]:
        """Read position, waiting messages and reachability of each flow."""

        async def read(flow: Flow) -> dict[str, Any]:
            previous = before.get(flow)
            requests = (
                self._find_position(flow, previous),
                self._find_waiting(flow, previous),
                self._origin_answers(flow),
            )
            position, waiting, answers = await asyncio.gather(
                *(_answer_or_none(request) for request in requests)
            )
            return {
                "position": position,
                "answers": answers,
                "apart": self._crosses_link(flow),
            } | (waiting or {"waiting": None})

        return dict(zip(flows, await asyncio.gather(*map(read, flows)), strict=True))

    async def _find_position(self, flow: Flow, previous: ReplicationSample | None) -> int | None:
        """Find the origin's sequence of the newest sourced message: before 2.15 only there."""
        is_reported = (
            previous is not None and previous.position is not None and not previous.searched
        )
        if flow.kind == "mirror" or is_reported or flow.downstream.domain in self.offline:
            return None
        api = self._open_api(flow.downstream.domain)
        subjects = (
            previous.origin.subjects if previous is not None and previous.origin is not None else ()
        ) or (">",)
        stored = map_subjects(subjects, flow.config) if api is not None else []
        seqs = (
            await asyncio.gather(*(_last_sourced_seq(api, flow, subject) for subject in stored))
            if api is not None
            else []
        )
        return max((seq for seq in seqs if seq is not None), default=None)

    async def _find_waiting(
        self, flow: Flow, previous: ReplicationSample | None
    ) -> dict[str, Any] | None:
        """Return whether the origin has a message that passes, beyond the previous position."""
        if (
            previous is None
            or previous.position is None
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
        start = max(previous.position + 1, flow.start)
        found = await asyncio.gather(
            *(_next_message(api, flow, start, subject) for subject in flow.filters)
        )
        messages = [message for message in found if message is not None]
        if not messages:
            return {"waiting": False}
        first = min(messages, key=lambda message: int(message["seq"]))
        headers, payload = _measure_copy(flow, first)
        subject, storage = str(first["subject"]), previous.config.get("storage", "file")
        return {
            "waiting": True,
            "next_seq": int(first["seq"]),
            "next_size": headers + payload,
            "next_stored": stored_size(storage, len(subject.encode()), headers, payload),
            "next_alike": await self._count_alike(flow, previous, subject),
        }

    async def _count_alike(self, flow: Flow, previous: ReplicationSample, subject: str) -> int:
        """Count the messages of a subject of the origin that the downstream stream has."""
        api = self._open_api(flow.downstream.domain)
        if not previous.config.get("discard_new_per_subject") or api is None:
            return 0
        stored = next(iter(map_subjects((subject,), flow.config)), subject)
        verb = f"STREAM.INFO.{flow.downstream.stream}"
        info = await api.request(verb, {"subjects_filter": stored})
        return int((info["state"].get("subjects") or {}).get(stored, 0))

    async def _origin_answers(self, flow: Flow) -> bool | None:
        """Check the origin's API over the downstream connection; None if that proves nothing.

        Silence of an import proves nothing: it may not be exported.
        """
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
        """Return False for two ends on one server or cluster; True if a leafnode may be between."""
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


async def _answer_or_none(request: Any) -> Any:
    """Return the answer, or None where it fails: details are optional."""
    try:
        return await request
    except (ApiError, ConnectError):
        return None


def _with_details(
    sample: ReplicationSample, details: dict[str, Any], before: ReplicationSample | None
) -> ReplicationSample:
    """Return the sample with details. It counts as searched if the origin's subjects were known."""
    position = sample.position if sample.position is not None else details["position"]
    searched = sample.position is None and (
        position is not None or (before is not None and before.origin is not None)
    )
    return replace(
        sample,
        position=position,
        searched=searched,
        **{name: value for name, value in details.items() if name != "position"},
    )


async def _last_sourced_seq(api: DomainApi, flow: Flow, subject: str) -> int | None:
    """Return the origin sequence of the newest message on the subject, if of just this source."""
    message = await api.get_message(flow.downstream.stream, {"last_by_subj": subject})
    if message is None:
        return None
    header = parse_source_header(message_headers(message))
    if header is None:
        return None
    is_ours = header.source == source_name(dict(flow.config)) or (
        not header.source.destinations and header.source.stream.split(":")[0] == flow.name
    )
    return header.seq if is_ours else None


def _measure_copy(flow: Flow, message: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes of headers and payload of a message of the origin in its copy."""
    headers = message_headers(message)
    copied = (
        measure_headers(headers, dict(flow.config), int(message["seq"]), str(message["subject"]))
        if flow.kind == "source"
        else len(headers)
    )
    return copied, len(base64.b64decode(message.get("data") or ""))


async def _next_message(
    api: DomainApi, flow: Flow, start: int, subject: str
) -> dict[str, Any] | None:
    """Return a message from this sequence on, and not before the flow's start time."""
    message = await api.get_message(flow.name, {"seq": start, "next_by_subj": subject})
    since = flow.config.get("opt_start_time")
    if (
        message is None
        or not since
        or start > flow.start
        or parse_instant(message["time"]) >= parse_instant(since)
    ):
        return message
    newest = await api.get_message(flow.name, {"last_by_subj": subject})
    is_late = newest is not None and parse_instant(newest["time"]) >= parse_instant(since)
    return newest if is_late else None
