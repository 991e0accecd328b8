"""Files of the `nats` CLI: account backups, `info --json`, and plain configurations in JSON.

Every document holds the whole configuration, so no default is added. Consumers may have the keys of
the Technical Preview of 2020.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, Kind
from jsplan.config.body import parse
from jsplan.config.findings import Findings
from jsplan.config.hints import field_hint
from jsplan.config.node import Node, from_plain, make_mapping, to_plain
from jsplan.config.read import parse_document
from jsplan.converting.field_map import STARTS
from jsplan.converting.model import Conversion, ConvertedResource, NoteWriter, Owner
from jsplan.resources import TABLES
from jsplan.resources.consumer import CONSUMER
from jsplan.resources.stream import STREAM

#: Keys of a request that are no part of a configuration, and of a stream that a template made.
_REQUEST_KEYS: Final = ("action", "pedantic", "stream_name", "type", "template_owner")
#: Keys of consumers in the Technical Preview, and Go's zero time: not set.
_PREVIEW_KEYS: Final = {
    "delivery_subject": "deliver_subject", "sampling": "sample_freq",
    "stream_seq": "opt_start_seq", "start_time": "opt_start_time",
}  # fmt: skip
_PREVIEW_FLAGS: Final = ("deliver_all", "deliver_last")
_UNSET: Final = (None, "", 0, "0001-01-01T00:00:00Z")
#: Fields of streams only, and of consumers only. They identify a bare configuration.
_STREAM_ONLY: Final = frozenset(STREAM.by_name) - frozenset(CONSUMER.by_name)
_CONSUMER_ONLY: Final = frozenset({*CONSUMER.by_name, *_PREVIEW_KEYS, *_PREVIEW_FLAGS}) - frozenset(
    STREAM.by_name
)
_SAVE: Final = "Save it: nats stream info NAME --json, or nats consumer info STREAM NAME --json."
_SAVE_AGAIN: Final = f"The file was damaged or changed. {_SAVE}"
#: The finding of a key that a newer server may know.
_UNKNOWN_KEY: Final = "JS105"


def convert_nats(found: Iterable[Node], out: Conversion) -> None:
    """Add all streams and consumers of the documents; note streams with missing consumers."""
    reader = _DocumentReader(out)
    for node in found:
        reader.read_document(node)
    reader.assign_consumers()
    reader.report_missing_consumers()


class _DocumentReader(Struct):
    out: Conversion
    #: How many consumers a stream had when its document was made, and how many were found.
    expected_consumers: dict[tuple[Owner, str], tuple[int, Node]] = field(default_factory=dict)
    found_consumers: dict[tuple[Owner, str], int] = field(default_factory=dict)
    unassigned_consumers: list[Node] = field(default_factory=list)

    def read_document(self, node: Node) -> None:
        """Read one document, or a list of them."""
        inner = node.get("configuration")
        lists = [node.get_value(key) for key in ("streams", "consumers")]
        if isinstance(node.value, list):
            for item in node.value:
                self.read_document(item)
        elif inner is not None and isinstance(inner.value, str):
            self._read_backup_entry(node, inner)
        elif inner is not None and isinstance(inner.value, dict):
            self.read_document(inner)
        elif node.get("config") is None and any(isinstance(items, list) for items in lists):
            for items in lists:
                for item in items or ():
                    self.read_document(item)
        else:
            self._read_info(node)

    def _read_backup_entry(self, node: Node, text: Node) -> None:
        """Read a file of `nats backup`: the configuration as JSON in base64, with its SHA-256."""
        try:
            data = base64.b64decode(text.value, validate=True)
        except ValueError:
            self._leave_out(text, "`configuration` is not base64", _SAVE_AGAIN)
            return
        checksum = node.get_value("checksum")
        if checksum is not None and hashlib.sha256(data).hexdigest() != checksum:
            what = "`configuration` does not have the checksum that the file says"
            self._leave_out(text, what, _SAVE_AGAIN)
            return
        inner = parse_document(text.place[0], data, Findings())
        if inner is None or not isinstance(inner.value, dict):
            self._leave_out(text, "`configuration` is not a JSON object", _SAVE_AGAIN)
            return
        body = from_plain(to_plain(inner), text.place)
        kind, config, stream = node.get_value("type"), body.get("config"), body.get_value("stream")
        if kind == "stream" and body.get_value("name"):
            self._add_stream(body, body, Owner())
        elif kind == "consumer" and stream and config and isinstance(config.value, dict):
            self._add_consumer(config, Owner(), str(stream), body.get_value("name"))
        else:
            self._leave_out(node)

    def _read_info(self, node: Node) -> None:
        config = node.get("config") or node
        owner = Owner(js_domain=str(node.get_value("domain") or "") or None)
        stream = node.get_value("stream_name")
        keys = config.value.keys() if isinstance(config.value, dict) else frozenset()
        streams, consumers = (len(keys & fields) for fields in (_STREAM_ONLY, _CONSUMER_ONLY))
        if stream and keys:
            self._add_consumer(config, owner, str(stream), node.get_value("name"))
        elif consumers > streams:
            self.unassigned_consumers.append(config)
        elif config.get_value("name") and (config is not node or streams > consumers):
            self._add_stream(node, config, owner)
        else:
            self._leave_out(node)

    def _leave_out(
        self, node: Node, what: str = "neither a stream nor a consumer", advice: str = _SAVE
    ) -> None:
        self.out.general_notes.not_converted(node, f"{what}: left out", advice)

    # --- streams and consumers --------------------------------------------------------------------

    def _add_stream(self, node: Node, config: Node, owner: Owner) -> None:
        name = str(config.get_value("name"))
        notes = self.out.notes_about("stream", name, owner)
        if name.startswith("$MQTT_"):
            what = "belongs to the server's MQTT"
            notes.not_converted(config, what, "The server makes it by itself.")
            return
        body = _read_body("stream", config, notes)
        self.out.resources.append(ConvertedResource("stream", name, body, config.place, owner))
        state = node.get("state") or node.get("stats")  # `stats` in the first tutorials
        count = state.get_value("consumer_count") if state is not None else 0
        if isinstance(count, int) and count:
            self.expected_consumers[owner, name] = (count, config)

    def _add_consumer(self, config: Node, owner: Owner, stream: str, called: Any) -> None:
        name = config.get_value("durable_name") or config.get_value("name") or called
        self.found_consumers[owner, stream] = self.found_consumers.get((owner, stream), 0) + 1
        is_internal = any(config.get_value(key) for key in ("direct", "sourcing"))
        if not name or is_internal or str(name).startswith(INTERNAL_CONSUMER_PREFIXES):
            what = f"an ephemeral consumer of {stream} is left out"
            advice = "Its server or client created it and will remove it."
            self.out.general_notes.info(config, what, advice)
            return
        path = f"{stream}/{name}"
        notes = self.out.notes_about("consumer", path, owner)
        body = {"name": name} | _read_body("consumer", _upgrade_consumer(config, notes), notes)
        self.out.resources.append(ConvertedResource("consumer", path, body, config.place, owner))

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
                what = f"consumer {name} does not say its stream"
                self._leave_out(config, what, "Name the file STREAM_CONSUMER.json.")
            else:
                self._add_consumer(config, match[1], match[0], name)

    def report_missing_consumers(self) -> None:
        """Note streams that had more consumers than were found: backups archive them."""
        for (owner, stream), (count, config) in self.expected_consumers.items():
            missing = count - self.found_consumers.get((owner, stream), 0)
            if missing > 0:
                notes = self.out.notes_about("stream", stream, owner)
                what = f"no file that was read has {missing} of its {count} consumers"
                advice = f"Save each with: nats consumer info {stream} NAME --json"
                notes.not_converted(config, what, f"A backup keeps them in its archive. {advice}")


def _read_body(kind: Kind, config: Node, notes: NoteWriter) -> dict[str, Any]:
    """Return the configuration; warn of keys that only a newer server could know.

    A wrong value is an error.
    """
    known, scratch = TABLES[kind].by_name, Findings()
    parse(TABLES[kind], config.value, scratch)
    for found in scratch.sorted():
        if found.code != _UNKNOWN_KEY:
            findings = notes.conversion.findings
            findings.error(found.code, found.range, found.summary, found.detail)
    body: dict[str, Any] = {
        key: item for key, item in to_plain(config).items() if key not in _REQUEST_KEYS
    }
    for name in body.keys() - known.keys():
        what = f'"{name}" is not a field of a {kind}: it is written under x_raw'
        advice = field_hint(kind, name, known) or "Remove it if the server does not know it either."
        notes.warning(config.key_place(name), what, advice)
    return body


def _upgrade_consumer(config: Node, notes: NoteWriter) -> Node:
    """Return the configuration in today's keys; unchanged if it has none of the old keys."""
    if config.value.keys().isdisjoint({*_PREVIEW_KEYS, *_PREVIEW_FLAGS}):
        return config
    advice = "They are translated: `delivery_subject`, `deliver_all` and similar keys."
    notes.info(config, "written with the keys of the Technical Preview", advice)
    values = {
        _PREVIEW_KEYS.get(name, name): item
        for name, item in config.value.items()
        if name not in _PREVIEW_FLAGS and (name not in _PREVIEW_KEYS or item.value not in _UNSET)
    }
    usual = "last" if config.get_value("deliver_last") else "all"
    policy = next((policy for name, policy in STARTS.items() if name in values), usual)
    values["deliver_policy"] = Node(config.place, policy)
    return make_mapping(config.place, values, config.keys)
