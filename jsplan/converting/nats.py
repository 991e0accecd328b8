"""What the `nats` CLI keeps: account backups, `info --json` of streams and consumers, and plain configurations in JSON.

The Technical Preview's own words are in `preview`. Every document holds the whole configuration, so nothing is filled in.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from jsplan.address import OWN_CONSUMERS
from jsplan.config.findings import Findings
from jsplan.config.node import Node, Place, plain
from jsplan.config.read import parse
from jsplan.converting.model import Conversion, Owner, Resource
from jsplan.converting.preview import consumer_of_today
from jsplan.resources.consumer import CONSUMER
from jsplan.resources.stream import STREAM

#: Keys of a request that are no part of a configuration.
_REQUEST: Final = ("action", "pedantic", "stream_name", "type")
#: Fields that only streams, and only consumers have: what a bare configuration is told by.
_OF_STREAMS: Final = frozenset(STREAM.by_name) - frozenset(CONSUMER.by_name)
_OF_CONSUMERS: Final = (frozenset(CONSUMER.by_name) - frozenset(STREAM.by_name)) | {
    "delivery_subject",
    "deliver_all",
    "deliver_last",
    "stream_seq",
}
_LISTS: Final = ("streams", "consumers")
_WRAPPERS: Final = ("configuration",)


def convert_nats(found: Sequence[Node]) -> Conversion:
    """All streams and consumers of the documents; streams whose consumers are missing are told."""
    reader = _Reader(Conversion())
    for node in found:
        reader.document(node)
    reader.bare_consumers()
    reader.missing_consumers()
    return reader.out


@dataclass(slots=True)
class _Reader:
    out: Conversion
    #: How many consumers a stream had when its document was made, and which were found.
    counted: dict[tuple[Owner, str], tuple[int, Node]] = field(default_factory=dict)
    consumers: dict[tuple[Owner, str], int] = field(default_factory=dict)
    bare: list[Node] = field(default_factory=list)

    def document(self, node: Node) -> None:
        """One document, or a list of such."""
        if isinstance(node.value, list):
            for item in node.value:
                self.document(item)
            return
        if not isinstance(node.value, dict):
            self._unknown(node)
            return
        lists = [node.value[key] for key in _LISTS if isinstance(_value(node, key), list)]
        if isinstance(_value(node, "configuration"), str) and isinstance(_value(node, "type"), str):
            self._packed(node, node.value["configuration"])
            return
        inner = next((node.value[key] for key in _WRAPPERS if isinstance(_value(node, key), dict)), None)
        if lists and node.get("config") is None:
            for items in lists:
                for item in items.value:
                    self.document(item)
        elif inner is not None:
            self.document(inner)
        else:
            self._info(node)

    def _packed(self, node: Node, text: Node) -> None:
        """A file of `nats backup` from 2020 to today: the configuration as JSON in base64, with the SHA-256 of that."""
        try:
            data = base64.b64decode(text.value, validate=True)
        except ValueError:
            self._damaged(text, "`configuration` is not base64")
            return
        if (checksum := _value(node, "checksum")) is not None and hashlib.sha256(data).hexdigest() != checksum:
            self._damaged(text, "`configuration` does not have the checksum that the file says")
            return
        findings = Findings()
        inner = parse(text.place[0], data, findings)
        if inner is None or not isinstance(inner.value, dict):
            self._damaged(text, "`configuration` is not a JSON object")
            return
        _move(inner, text.place)
        kind, config = _value(node, "type"), inner.get("config")
        if kind == "stream" and _value(inner, "name"):
            self._stream(inner, inner, Owner())
        elif kind == "consumer" and config is not None and isinstance(config.value, dict) and _value(inner, "stream"):
            self._consumer(config, Owner(), str(_value(inner, "stream")), _value(inner, "name"))
        else:
            self._unknown(node)

    def _damaged(self, node: Node, what: str) -> None:
        self.out.general.lost(
            node,
            f"{what}: left out",
            "The file was damaged or changed. Save it again: nats account backup, or nats stream info NAME --json.",
        )

    def _info(self, node: Node) -> None:
        config = node.get("config") or node
        owner = Owner(js_domain=_value(node, "domain") or None)
        if not isinstance(config.value, dict):
            self._unknown(node)
        elif _value(node, "stream_name"):
            self._consumer(config, owner, str(_value(node, "stream_name")), _value(node, "name"))
        elif _looks_like(config, _OF_CONSUMERS, _OF_STREAMS):
            self.bare.append(config)
        elif _value(config, "name") and (config is not node or _looks_like(config, _OF_STREAMS, _OF_CONSUMERS)):
            self._stream(node, config, owner)
        else:
            self._unknown(node)

    def _unknown(self, node: Node) -> None:
        self.out.general.lost(
            node,
            "neither a stream nor a consumer: left out",
            "Save one with: nats stream info NAME --json, or nats consumer info STREAM NAME --json.",
        )

    # --- streams ---------------------------------------------------------------------------------------------

    def _stream(self, node: Node, config: Node, owner: Owner) -> None:
        name = str(config.value["name"].value)
        tell = self.out.teller("stream", name, owner)
        if name.startswith("$MQTT_"):
            tell.lost(config, "belongs to the server's MQTT", "The server makes it by itself.")
            return
        body = {key: value for key, value in plain(config).items() if key not in _REQUEST}
        if body.pop("template_owner", ""):
            tell.lost(config, "it was made from a template; servers since 2.14 have none", "The stream itself is carried over.")
        self.out.resources.append(Resource("stream", name, body, config.place, owner))
        state = node.get("state") or node.get("stats")  # as the first tutorials have it
        count = _value(state, "consumer_count") if state is not None else 0
        if isinstance(count, int) and count:
            self.counted[owner, name] = (count, config)

    # --- consumers -------------------------------------------------------------------------------------------

    def _consumer(self, config: Node, owner: Owner, stream: str, called: Any) -> None:
        body = {key: value for key, value in plain(config).items() if key not in _REQUEST}
        name = body.get("durable_name") or body.get("name") or called
        self.consumers[owner, stream] = self.consumers.get((owner, stream), 0) + 1
        if not name or str(name).startswith(OWN_CONSUMERS) or body.get("direct") or body.get("sourcing"):
            self.out.general.knows(
                config, f"a consumer of {stream} that its server or a client made for itself is left out", "It comes and goes by itself."
            )
            return
        tell = self.out.teller("consumer", f"{stream}/{name}", owner)
        body = consumer_of_today(body, config, tell)
        self.out.resources.append(Resource("consumer", f"{stream}/{name}", {"name": name} | body, config.place, owner))

    def bare_consumers(self) -> None:
        """Configurations of consumers that do not say their stream: the file's name or folder may."""
        streams = sorted({(item.name, item.owner) for item in self.out.resources if item.kind == "stream"}, key=lambda pair: -len(pair[0]))
        for config in self.bare:
            name = _value(config, "durable_name") or _value(config, "name")
            path = PurePath(config.place[0].shown)
            words = {path.parent.name, re.sub(rf"[._-]?{re.escape(str(name))}$", "", path.stem)}
            match = next(((stream, owner) for stream, owner in streams if stream in words), None)
            if match is None:
                self.out.general.lost(
                    config,
                    f"consumer {name} does not say its stream: left out",
                    'Write it as {"stream_name": "ORDERS", "config": {…}}, or name the file ORDERS_NEW.json.',
                )
            else:
                self._consumer(config, match[1], match[0], name)

    def missing_consumers(self) -> None:
        """Streams that had more consumers than were found: a backup keeps them inside of its archive."""
        for (owner, stream), (count, config) in self.counted.items():
            found = self.consumers.get((owner, stream), 0)
            if found < count:
                self.out.teller("stream", stream, owner).lost(
                    config,
                    f"{count - found} of its {count} consumers {'is' if count - found == 1 else 'are'} in no file that was read",
                    f"A backup keeps them in its archive. Save each with: nats consumer info {stream} NAME --json",
                )


def _value(node: Node, key: str) -> Any:
    found = node.get(key)
    return found.value if found is not None else None


def _move(node: Node, place: Place) -> None:
    """Put a value that was packed, and all in it, where the packed text stands in the file."""
    node.place, node.keys = place, {}
    inner = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    for one in inner:
        _move(one, place)


def _looks_like(config: Node, words: frozenset[str], others: frozenset[str]) -> bool:
    """Whether more of its words are of the one kind than of the other."""
    keys = set(config.value)
    return len(keys & words) > len(keys & others)
