"""Raw access to the two servers of a world: loads, snapshots, consumed consumers."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jsplan.sandbox.versions import parse_version
from tests.sequences.model import Config, ConsumerPosition, Message
from tests.support.raw import NoResponders, Raw, streams
from tests.support.stream_content import read_each
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.sandbox import Server

#: Seconds that a server may take for what follows without a request.
PATIENCE = 10.0
#: Seconds that a push consumer may hold a message back, as its replay_policy says: that it counts
#: neither as pending nor as delivered.
REPLAY_SECONDS = 5.0
#: Deliveries of one drain after which something is wrong.
MAX_BATCH = 500


class SetupError(Exception):
    """The world itself did not become what the case needs: nothing is said about jsplan."""


@dataclass
class Delivery:
    """One delivery."""

    message: Message
    reply: str


@dataclass
class Stream:
    """One stream now: `messages` by sequence, `consumers` by name as in CONSUMER.INFO."""

    config: Config
    state: dict[str, Any]
    created: str
    messages: dict[int, Message]
    consumers: dict[str, dict[str, Any]]

    @property
    def bodies(self) -> dict[bytes, Message]:
        """The messages by their unique body."""
        return {m.body: m for m in self.messages.values()}


class DomainClient:
    """One domain, over a connection of its own to its server."""

    def __init__(self, server: Server, domain: str) -> None:
        self._server = server
        self.domain, self.prefix = domain, f"$JS.{domain}.API"
        self.raw = self.connect()
        self._inbox = f"_INBOX.{os.urandom(9).hex()}"
        self.raw.subscribe(f"{self._inbox}.*", wait=False)

    def _reconnect(self) -> None:
        self.raw.close()
        self.raw = self.connect()
        self.raw.subscribe(f"{self._inbox}.*", wait=False)

    def connect(self) -> Raw:
        """One more connection to the same server."""
        return Raw(self._server.url, self._server.user, self._server.password)

    @property
    def version(self) -> tuple[int, ...]:
        """The version of the server, such as (2, 15, 1)."""
        return parse_version(str(self._server.info()["version"]))

    def close(self) -> None:
        """Hang up."""
        self.raw.close()

    def api(self, verb: str, payload: Any = None) -> dict[str, Any]:
        """One answer, errors included."""
        return self.raw.api(f"{self.prefix}.{verb}", payload)

    def api_ok(self, verb: str, payload: Any = None) -> dict[str, Any]:
        """One answer; an error ends the case."""
        answer = self.api(verb, payload)
        if "error" in answer:
            raise SetupError(f"{verb}: {answer['error']}")
        return answer

    # --- looking ----------------------------------------------------------------------------------

    def names(self, token: str) -> list[str]:
        """The streams of one world, and what jsplan made for them."""
        return [name for name in streams(self.raw, self.prefix) if token in name]

    def stream(self, name: str) -> Stream | None:
        """One stream with all messages and consumers; None where there is none."""
        info = self.api(f"STREAM.INFO.{name}")
        if "error" in info:
            return None
        answers = read_each(self.raw, name, self.prefix)
        stored = [answer["message"] for answer in answers if "message" in answer]
        messages = {
            m["seq"]: Message(m["seq"], m["subject"], base64.b64decode(m.get("data", "")))
            for m in stored
        }
        consumers = self.api_ok(f"CONSUMER.LIST.{name}", {}).get("consumers") or []
        hidden = ("JS_SRC_", "JS_MIRROR_")
        listed = {c["name"]: c for c in consumers if not c["name"].startswith(hidden)}
        return Stream(info["config"], info["state"], info["created"], messages, listed)

    def consumer(self, stream: str, name: str) -> dict[str, Any]:
        """Its CONSUMER.INFO."""
        return self.api_ok(f"CONSUMER.INFO.{stream}.{name}")

    def wait_for_acks(self, stream: str, name: str, out: int) -> None:
        """Wait until so many messages of a consumer are out."""
        wait_until(
            lambda: self.consumer(stream, name)["num_ack_pending"] == out,
            f"{stream}/{name}: {out} out",
            PATIENCE,
            SetupError,
        )

    # --- consuming --------------------------------------------------------------------------------

    def take(self, stream: str, name: str, count: int) -> list[Delivery]:
        """At most `count` messages of a consumer, as far as it has them now."""
        info = self.consumer(stream, name)
        config = info["config"]
        if config.get("deliver_subject"):
            return self._pushed(stream, name, ack=False)
        count = min(count, config.get("max_batch") or count)
        if (most := config.get("max_ack_pending") or 0) > 0:  # beyond it a request is not answered
            count = min(count, most - info["num_ack_pending"])
        return self._pulled(stream, name, count) if count > 0 else []

    def _pulled(self, stream: str, name: str, count: int) -> list[Delivery]:
        ask = json.dumps({"batch": count, "no_wait": True}).encode()
        verb = f"{self.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"
        self.raw.publish(verb, ask, reply=f"{self._inbox}.pull")
        found: list[Delivery] = []
        while len(found) < count:
            try:
                subject, reply, headers, body = self.raw.next_with_reply()
            except TimeoutError:  # up to 2.11 not every request is answered where the server miscounts what is pending
                self._reconnect()
                break
            if not reply:
                assert "Status" in headers, (subject, headers)
                break
            found.append(parse_delivery(subject, reply, body))
        return found

    def _pushed(self, stream: str, name: str, *, ack: bool) -> list[Delivery]:
        """Return what a push consumer sends: with `ack` all, else until it waits for one."""
        found: list[Delivery] = []
        info = self.consumer(stream, name)
        before, config = info["delivered"]["consumer_seq"], info["config"]
        most = config.get("max_ack_pending") or 0
        received = 0

        def settled() -> bool:
            nonlocal received
            info = self.consumer(stream, name)
            while received < info["delivered"]["consumer_seq"] - before:
                subject, reply, headers, body = raw.next_with_reply()
                if "Status" not in headers:
                    received += 1
                    found.append(parse_delivery(subject, reply, body))
                    if ack:
                        self.raw.request(reply, b"+ACK")
            if ack:
                return not info["num_pending"] and not info["num_ack_pending"]
            return not info["num_pending"] or 0 < most <= info["num_ack_pending"]

        with self.connect() as raw:  # messages may come before the answer of a flush would
            raw.subscribe(config["deliver_subject"], wait=False)
            if ack:  # where it never ends, what came is judged
                replays = config.get("replay_policy") == "original"
                begin = time.monotonic()
                earliest = begin + (REPLAY_SECONDS if replays else 0)
                while time.monotonic() < begin + PATIENCE:
                    if settled() and time.monotonic() >= earliest:
                        break
                    time.sleep(0.01)
            else:
                wait_until(settled, f"{stream}/{name} to push", PATIENCE, SetupError)
                raw.unsubscribe()
        return found

    def drain(self, stream: str, name: str, old: Iterable[str]) -> list[Delivery]:
        """Consume to the end: what is out comes again at once, everything is acknowledged."""
        for reply in old:
            with contextlib.suppress(NoResponders):  # a new consumer may take none
                self.raw.request(reply, b"-NAK")
        config = self.consumer(stream, name)["config"]
        none = config.get("ack_policy", "none") == "none"
        if config.get("deliver_subject"):
            return self._pushed(stream, name, ack=not none)
        found: list[Delivery] = []
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and len(found) < MAX_BATCH:
            more = self.take(stream, name, 50)
            found += more
            for one in more if not none else ():
                self.raw.request(one.reply, b"+ACK")
            info = self.consumer(stream, name)
            if not more and not info["num_pending"] and (none or not info["num_ack_pending"]):
                return found
            if not more:
                time.sleep(0.02)
        return found

    # --- doing ------------------------------------------------------------------------------------

    def is_connected(self, stream: str, origin: str) -> bool:
        """Return True if the mirror or source has heard from its origin."""
        info = self.api_ok(f"STREAM.INFO.{stream}")
        flows = [info["mirror"]] if info.get("mirror") else info.get("sources") or ()
        return all(f.get("active", -1) >= 0 for f in flows if f["name"] == origin)

    def wait_until_notified(self, stream: str, consumer: str, seq: int) -> None:
        """Wait until a consumer counts messages as pending, or was given the message."""

        def notified() -> bool:
            info = self.consumer(stream, consumer)
            return bool(info["num_pending"]) or info["delivered"]["stream_seq"] >= seq

        what = f"{stream}/{consumer} to be notified of message {seq}"
        wait_until(notified, what, PATIENCE, SetupError)

    def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> tuple[str, int] | None:
        """The stream that took the message and its sequence there; None where none did."""
        try:
            answer = json.loads(self.raw.request(subject, body, headers)[1])
        except NoResponders:
            return None
        return None if "error" in answer else (str(answer["stream"]), int(answer["seq"]))


@dataclass
class ConsumerLog:
    """Deliveries of the load to one consumer: reply subjects, and what is outstanding."""

    replies: dict[int, str] = field(default_factory=dict)
    position: ConsumerPosition = field(default_factory=lambda: ConsumerPosition(set(), set()))

    def record(self, taken: list[Delivery], acks: Iterable[int], policy: str) -> list[str]:
        """Note the deliveries; the reply subjects that have to be acknowledged."""
        order = [one.message.seq for one in taken]
        self.replies |= {one.message.seq: one.reply for one in taken}
        self.position.delivered |= set(order)
        if policy == "none":
            return []
        self.position.outstanding |= set(order)
        chosen = [order[place] for place in sorted(set(acks)) if place < len(order)]
        for seq in chosen:
            out = self.position.outstanding
            out -= {s for s in out if s <= seq} if policy == "all" else {seq}
        return [self.replies[seq] for seq in chosen]

    @property
    def unacknowledged(self) -> list[str]:
        """Reply subjects of what workers have now."""
        return [self.replies[seq] for seq in sorted(self.position.outstanding)]


def parse_delivery(subject: str, reply: str, body: bytes) -> Delivery:
    """A delivery from its reply subject, with or without the domain in it."""
    return Delivery(Message(int(reply.split(".")[-4]), subject, body), reply)
