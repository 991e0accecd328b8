"""Files of the `nats` CLI: account backups, `info --json`, and plain configurations in JSON.

Every document holds the whole configuration, so no default is added. `tech_preview` has the keys of
the Technical Preview.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Kind
from jsplan.config.findings import Findings
from jsplan.config.hints import field_hint
from jsplan.config.node import Node, Place, to_plain
from jsplan.config.read import parse_document
from jsplan.converting.model import Conversion, ConvertedResource, NoteWriter, Owner
from jsplan.converting.tech_preview import upgrade_consumer
from jsplan.resources import TABLES
from jsplan.resources.consumer import CONSUMER
from jsplan.resources.stream import STREAM

#: Keys of a request that are no part of a configuration.
_REQUEST_KEYS: Final = ("action", "pedantic", "stream_name", "type")
#: Fields of streams only, and of consumers only. They identify a bare configuration.
_STREAM_ONLY_FIELDS: Final = frozenset(STREAM.by_name) - frozenset(CONSUMER.by_name)
_CONSUMER_ONLY_FIELDS: Final = (frozenset(CONSUMER.by_name) - frozenset(STREAM.by_name)) | {
    "delivery_subject",
    "deliver_all",
    "deliver_last",
    "stream_seq",
}
_LIST_KEYS: Final = ("streams", "consumers")
_WRAPPER_KEYS: Final = ("configuration",)


def convert_nats(found: Sequence[Node]) -> Conversion:
    """Convert all streams and consumers of the documents; note streams with missing consumers."""
    reader = _DocumentReader(Conversion())
    for node in found:
        reader.read_document(node)
    reader.assign_consumers()
    reader.report_missing_consumers()
    return reader.out


class _DocumentReader(Struct):
    out: Conversion
    #: How many consumers a stream had when its document was made, and how many were found.
    expected_consumers: dict[tuple[Owner, str], tuple[int, Node]] = field(default_factory=dict)
    found_consumers: dict[tuple[Owner, str], int] = field(default_factory=dict)
    unassigned_consumers: list[Node] = field(default_factory=list)

    def read_document(self, node: Node) -> None:
        """Read one document, or a list of them."""
        if isinstance(node.value, list):
            for item in node.value:
                self.read_document(item)
            return
        if not isinstance(node.value, dict):
            self._report_unknown(node)
            return
        lists = [node.value[key] for key in _LIST_KEYS if isinstance(node.get_value(key), list)]
        if isinstance(node.get_value("configuration"), str) and isinstance(
            node.get_value("type"), str
        ):
            self._read_backup_entry(node, node.value["configuration"])
            return
        inner = next(
            (node.value[key] for key in _WRAPPER_KEYS if isinstance(node.get_value(key), dict)),
            None,
        )
        if lists and node.get("config") is None:
            for items in lists:
                for item in items.value:
                    self.read_document(item)
        elif inner is not None:
            self.read_document(inner)
        else:
            self._read_info(node)

    def _read_backup_entry(self, node: Node, text: Node) -> None:
        """Read a file of `nats backup`: the configuration as JSON in base64, with its SHA-256."""
        try:
            data = base64.b64decode(text.value, validate=True)
        except ValueError:
            self._report_damaged(text, "`configuration` is not base64")
            return
        if (checksum := node.get_value("checksum")) is not None and hashlib.sha256(
            data
        ).hexdigest() != checksum:
            self._report_damaged(
                text, "`configuration` does not have the checksum that the file says"
            )
            return
        findings = Findings()
        inner = parse_document(text.place[0], data, findings)
        if inner is None or not isinstance(inner.value, dict):
            self._report_damaged(text, "`configuration` is not a JSON object")
            return
        _set_place(inner, text.place)
        kind, config = node.get_value("type"), inner.get("config")
        if kind == "stream" and inner.get_value("name"):
            self._add_stream(inner, inner, Owner())
        elif (
            kind == "consumer"
            and config is not None
            and isinstance(config.value, dict)
            and inner.get_value("stream")
        ):
            self._add_consumer(
                config, Owner(), str(inner.get_value("stream")), inner.get_value("name")
            )
        else:
            self._report_unknown(node)

    def _report_damaged(self, node: Node, what: str) -> None:
        self.out.general_notes.not_converted(
            node,
            f"{what}: left out",
            "The file was damaged or changed."
            " Save it again: nats account backup, or nats stream info NAME --json.",
        )

    def _read_info(self, node: Node) -> None:
        config = node.get("config") or node
        owner = Owner(js_domain=node.get_value("domain") or None)
        if not isinstance(config.value, dict):
            self._report_unknown(node)
        elif node.get_value("stream_name"):
            self._add_consumer(
                config, owner, str(node.get_value("stream_name")), node.get_value("name")
            )
        elif _looks_like(config, _CONSUMER_ONLY_FIELDS, _STREAM_ONLY_FIELDS):
            self.unassigned_consumers.append(config)
        elif config.get_value("name") and (
            config is not node or _looks_like(config, _STREAM_ONLY_FIELDS, _CONSUMER_ONLY_FIELDS)
        ):
            self._add_stream(node, config, owner)
        else:
            self._report_unknown(node)

    def _report_unknown(self, node: Node) -> None:
        self.out.general_notes.not_converted(
            node,
            "neither a stream nor a consumer: left out",
            "Save one: nats stream info NAME --json, or nats consumer info STREAM NAME --json.",
        )

    # --- streams ----------------------------------------------------------------------------------

    def _add_stream(self, node: Node, config: Node, owner: Owner) -> None:
        name = str(config.value["name"].value)
        notes = self.out.notes_about("stream", name, owner)
        if name.startswith("$MQTT_"):
            notes.not_converted(
                config, "belongs to the server's MQTT", "The server makes it by itself."
            )
            return
        body = {key: value for key, value in to_plain(config).items() if key not in _REQUEST_KEYS}
        if body.pop("template_owner", ""):
            notes.not_converted(
                config,
                "it was made from a template, and servers since 2.14 have no templates",
                "The stream itself is carried over.",
            )
        self.out.resources.append(ConvertedResource("stream", name, body, config.place, owner))
        _report_unknown_fields("stream", body, config, notes)
        state = node.get("state") or node.get("stats")  # `stats` in the first tutorials
        count = state.get_value("consumer_count") if state is not None else 0
        if isinstance(count, int) and count:
            self.expected_consumers[owner, name] = (count, config)

    # --- consumers --------------------------------------------------------------------------------

    def _add_consumer(self, config: Node, owner: Owner, stream: str, called: Any) -> None:
        body = {key: value for key, value in to_plain(config).items() if key not in _REQUEST_KEYS}
        name = body.get("durable_name") or body.get("name") or called
        self.found_consumers[owner, stream] = self.found_consumers.get((owner, stream), 0) + 1
        if (
            not name
            or str(name).startswith(INTERNAL_CONSUMER_PREFIXES)
            or body.get("direct")
            or body.get("sourcing")
        ):
            self.out.general_notes.info(
                config,
                f"an ephemeral consumer of {stream} is left out",
                "Its server or client created it and will remove it.",
            )
            return
        notes = self.out.notes_about("consumer", f"{stream}/{name}", owner)
        body = upgrade_consumer(body, config, notes)
        _report_unknown_fields("consumer", body, config, notes)
        self.out.resources.append(
            ConvertedResource(
                "consumer", f"{stream}/{name}", {"name": name} | body, config.place, owner
            )
        )

    def assign_consumers(self) -> None:
        """Find the streams of consumers that do not name theirs: by the file's name or folder."""
        streams = sorted(
            {(item.name, item.owner) for item in self.out.resources if item.kind == "stream"},
            key=lambda pair: -len(pair[0]),
        )
        for config in self.unassigned_consumers:
            name = config.get_value("durable_name") or config.get_value("name")
            path = PurePath(config.place[0].shown)
            names = {path.parent.name, re.sub(rf"[._-]?{re.escape(str(name))}$", "", path.stem)}
            match = next(((stream, owner) for stream, owner in streams if stream in names), None)
            if match is None:
                self.out.general_notes.not_converted(
                    config,
                    f"consumer {name} does not say its stream: left out",
                    'Write it as {"stream_name": "ORDERS", "config": {…}},'
                    " or name the file ORDERS_NEW.json.",
                )
            else:
                self._add_consumer(config, match[1], match[0], name)

    def report_missing_consumers(self) -> None:
        """Note streams that had more consumers than were found: backups archive them."""
        for (owner, stream), (count, config) in self.expected_consumers.items():
            found = self.found_consumers.get((owner, stream), 0)
            if found < count:
                self.out.notes_about("stream", stream, owner).not_converted(
                    config,
                    f"{count - found} of its {count} consumers"
                    f" {'is' if count - found == 1 else 'are'} in no file that was read",
                    "A backup keeps them in its archive."
                    f" Save each with: nats consumer info {stream} NAME --json",
                )


def _report_unknown_fields(
    kind: Kind, body: Mapping[str, Any], config: Node, notes: NoteWriter
) -> None:
    """Warn of the keys that only a server newer than this release could know."""
    known = TABLES[kind].by_name
    for name in body.keys() - known.keys():
        notes.warning(
            config.key_place(name),
            f'"{name}" is not a field of a {kind}: it is written under x_raw',
            field_hint(kind, name, known) or "Remove it if the server does not know it either.",
        )


def _set_place(node: Node, place: Place) -> None:
    """Set the place of a packed value, and of all in it, to that of the packed text."""
    node.place, node.keys = place, {}
    inner = (
        node.value.values()
        if isinstance(node.value, dict)
        else node.value
        if isinstance(node.value, list)
        else ()
    )
    for one in inner:
        _set_place(one, place)


def _looks_like(config: Node, fields: frozenset[str], others: frozenset[str]) -> bool:
    """Check whether it has more fields of one kind than of the other."""
    keys = set(config.value)
    return len(keys & fields) > len(keys & others)
