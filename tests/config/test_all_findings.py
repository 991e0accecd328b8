"""One run reports every mistake: none hides another one, and none is reported twice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

from jsplan.config import load
from jsplan.errors import ConfigError
from tests.config.conftest import Loader

#: What another mistake explains: `domian` the missing domain, a wrong domain its variables.
_EXPECTED: Final = {"the domain is missing, and there are several", "${domain.size} does not exist"}
_REMOVED: Final = object()
_BASE: Final[dict[str, Any]] = {
    "jsplan": 1,
    "workspace": "shop",
    "connections": {"n": {"url": "nats://h:4222"}},
    "domains": {"hub": {"connection": "n"}, "leaf": {"connection": "n"}},
    "environments": {"dev": {}, "prod": {}},
}
#: What places an element in a workspace, a right element, and mistakes: keys with wrong values.
#: Each mistake gives one finding.
_Case = tuple[Callable[[dict[str, Any]], dict[str, Any]], dict[str, Any], list[dict[str, Any]]]
_SETTINGS: Final[list[dict[str, Any]]] = [
    {"domain": _REMOVED},
    {"domain": "loaf"},
    {"domain": ["hub", "loaf"]},
    {"domain": 5},
    {"domain": "${var.none}"},
    {"domian": "hub"},
    {"environments": ["prdo"]},
    {"lifecycle": {"prevent_delete": True}},
    {"lifecycle": {"allow_hazards": [{"code": "DELETES", "reason": "r"}]}},
    {"lifecycle": {"allow_hazards": [{"code": "DELETES_MESSAGES", "reason": "r", "until": "now"}]}},
    {"lint": {"ignore": [{"code": "JS201"}]}},
    {"lint": {"ignore": [{"code": "x", "reason": "r"}]}},
    {"depends_on": ["nothing"]},
    {"x_raw": 5},
    {"metadata": {"a": "${domain.size}"}},
    {"config_file": "none.json"},
]
_STREAM: Final = {
    "name": "S",
    "domain": "hub",
    "environments": ["dev"],
    "subjects": ["${domain}.s.>"],
}
_STREAM_MISTAKES: Final[list[dict[str, Any]]] = [
    *_SETTINGS,
    {"name": _REMOVED},
    {"name": "bad name"},
    {"name": 5},
    {"name": "KV_X"},
    {"name": "$MQTT_X"},
    {"name": "${var.none}"},
    {"max_age": "30 dayz"},
    {"storage": "disk"},
    {"subjects": ["a..b"]},
    {"sources": [{"stream": "O"}]},
    {"sources": [{"name": "O", "domain": "loaf"}]},
    {"copy_of": "nothing"},
    {"consumers": [{"name": "bad name"}]},
    {"consumers": [{"name": "C", "ack_policy": "some"}]},
    {"consumers": [{"durable": "C", "name": "C"}]},
    {"consumers": [{"name": "C", "environments": ["prdo"]}]},
    {"consumers": [{"name": "C", "position": {"seq": 1, "time": "now", "once": "a"}}]},
    {"consumers": {"name": "C"}},
]
_CONSUMER_MISTAKES: Final[list[dict[str, Any]]] = [
    *_SETTINGS,
    {"name": _REMOVED},
    {"name": "bad name"},
    {"name": "JS_SRC_X"},
    {"stream": _REMOVED},
    {"stream": "bad name"},
    {"stream": "${var.none}"},
    {"ack_policy": "some"},
    {"ack_wait": "1 minute"},
    {"filter_subject": "a..b"},
    {"position": {"seq": 1}},
    {"deliver_group": 5},
]
_BUCKET_MISTAKES: Final[list[dict[str, Any]]] = [
    *_SETTINGS,
    {"bucket": _REMOVED},
    {"bucket": "bad name"},
    {"ttl": "1 hour"},
    {"storage": "disk"},
]
_KV_MISTAKES: Final[list[dict[str, Any]]] = [
    *_BUCKET_MISTAKES,
    {"history": 65},
    {"entries": {"a b": 1}},
    {"entries": {"a": None}},
    {"entries": {"a": {"value": 1, "time": "1h"}}},
    {"entries": {"a": "${var.none}"}},
    {"entries_from": [{"dir": "none"}]},
    {"entries_from": [{"prefix": "a.", "prune": True}]},
]
_OBJECT_MISTAKES: Final[list[dict[str, Any]]] = [
    *_BUCKET_MISTAKES,
    {"objects": {"a": {"file": "none"}}},
    {"objects": {"a": "text"}},
    {"objects_from": {"dir": "none"}},
]
_BUCKET: Final = {"bucket": "B", "domain": "hub"}
_CASES: Final[list[_Case]] = [
    (lambda e: {"streams": [e]}, _STREAM, _STREAM_MISTAKES),
    (
        lambda e: {"consumers": [e]},
        {"name": "C", "stream": "S", "domain": "hub"},
        _CONSUMER_MISTAKES,
    ),
    (lambda e: {"kv": [e]}, _BUCKET, _KV_MISTAKES),
    (lambda e: {"object_stores": [e]}, _BUCKET, _OBJECT_MISTAKES),
    (
        lambda e: {
            "streams": [_STREAM | {"allow_msg_schedules": True, "schedules": {"hub.s.a": e}}]
        },
        {"every": "1h", "target": "hub.s.b", "payload": "p"},
        [
            {"every": _REMOVED},
            {"every": "1 hour"},
            {"target": _REMOVED},
            {"target": "other"},
            {"paylod": "p"},
            {"file": "none"},
            {"lifecycle": {"prevent_delete": True}},
            {"ttl": "one"},
        ],
    ),
    (
        lambda e: {"kv": [_BUCKET | {"entries": {"a": e}}]},
        {"value": 1},
        [{"vale": 1}, {"file": "none"}, {"ttl": "1 hour"}, {"sensitive": "x"}, {"lifecycle": 5}],
    ),
    (
        lambda e: {"kv": [_BUCKET | {"entries_from": e}]},
        {"dir": "."},
        [{"dir": _REMOVED}, {"dir": "none"}, {"prefix": "a"}, {"purne": True}, {"prune": "x"}],
    ),
    (
        lambda e: {"object_stores": [_BUCKET | {"objects": {"a": e}}]},
        {"file": "jsplan.yaml"},
        [{"file": "none"}, {"fiel": "a"}, {"lifecycle": 5}],
    ),
    (
        lambda e: {"object_stores": [_BUCKET | {"objects_from": e}]},
        {"dir": "."},
        [{"dir": _REMOVED}, {"dir": "none"}, {"prefix": "a"}, {"purne": True}, {"prune": "x"}],
    ),
    (
        lambda e: {"streams": [_STREAM | {"consumers": [e]}]},
        {"name": "C"},
        [
            {"name": _REMOVED},
            {"name": "bad name"},
            {"name": "JS_SRC_X"},
            {"nam": "C", "name": _REMOVED},
            {"domain": "hub"},
            {"environments": ["prdo"]},
            {"ack_policy": "some"},
            {"ack_wait": "1 minute"},
            {"config_file": "none.json"},
            {"position": {"seq": 1}},
            {"position": {"sequ": 1, "once": "a"}},
            {"lifecycle": 5},
        ],
    ),
    (
        lambda e: {"connections": _BASE["connections"] | {"m": e}},
        {"url": "nats://h:4222"},
        [
            {"url": "h:x"},
            {"context": "c"},
            {"usr": "u"},
            {"password": "p"},
            {"timeout": "1"},
            {"tls": {"cert": "c"}},
            {"tls": {"cart": "c"}},
            {"inbox_prefix": "a b"},
        ],
    ),
    (
        lambda e: {"domains": _BASE["domains"] | {"edge": e}},
        {"connection": "n"},
        [
            {"connection": "none"},
            {"connection": 5},
            {"conection": "n"},
            {"js_domain": "a b"},
            {"labels": 5},
            {"may_be_offline": "long"},
            {"same_as": "none"},
            {"vars": 5},
        ],
    ),
    (
        lambda e: {"backfills": [e]},
        {
            "name": "b",
            "from": {"domain": "leaf", "stream": "A"},
            "to": {"domain": "hub", "stream": "B"},
        },
        [
            {"name": _REMOVED},
            {"name": "bad name"},
            {"nam": "b", "name": _REMOVED},
            {"environments": ["prdo"]},
            {"from": _REMOVED},
            {"from": {"stream": "A"}},
            {"from": {"domain": "loaf", "stream": "A"}},
            {"from": {"domain": "leaf"}},
            {"from": {"domain": "leaf", "stream": "A", "start_seq": 0}},
            {"to": {"domain": "hub"}},
            {"to": {"domain": "loaf", "stream": "B"}},
            {"too": {}, "to": _REMOVED},
            {"order": "any"},
            {"rate": "fast"},
            {"subject_transform": {"src": "a"}},
        ],
    ),
    (
        lambda e: {"moved": [e]},
        {"from": "leaf/stream/A", "to": "hub/stream/A"},
        [
            {"from": _REMOVED},
            {"fro": "leaf/stream/A", "from": _REMOVED},
            {"from": "A"},
            {"to": "A"},
            {"to": "loaf/stream/A"},
            {"extra": 1},
        ],
    ),
    (
        lambda e: {"removed": [e]},
        {"address": "hub/stream/A", "destroy": False},
        [
            {"address": _REMOVED},
            {"address": "A"},
            {"destroy": _REMOVED},
            {"destroi": True, "destroy": _REMOVED},
            {"destroy": "x"},
            {"prevent_destroy": "x"},
            {"extra": 1},
        ],
    ),
    (
        lambda e: {"relocate": [e], "streams": [_STREAM | {"name": "T"}]},
        {"from": "leaf/stream/A", "to": "hub/stream/T"},
        [
            {"from": _REMOVED},
            {"from": "A"},
            {"from": "loaf/stream/A"},
            {"to": "hub/stream/U"},
            {"extra": 1},
        ],
    ),
    (
        lambda e: {"imports": [e]},
        {"from": "leaf", "into": "hub", "api": "JS.l.API"},
        [
            {"from": _REMOVED},
            {"from": "loaf"},
            {"into": 5},
            {"api": _REMOVED},
            {"api": "a b"},
            {"deliver": "a b"},
            {"consumers": ["C"]},
            {"apis": "a", "api": _REMOVED},
        ],
    ),
    (
        lambda e: {"overrides": [e], "streams": [_STREAM | {"name": "T"}]},
        {"address": "hub/stream/T"},
        [
            {"address": address, "max_age": value}
            for address, value in ((_REMOVED, 1), ("T", 1), ("hub/stream/U", 1))
        ],
    ),
    (
        lambda e: {"overrides": [e], "streams": [_STREAM | {"name": "T"}]},
        {"address": "hub/stream/T"},
        [{"max_age": "long"}, {"maxage": "1h"}, {"name": "T"}, {"lifecycle": 5}],
    ),
    (
        lambda e: {"defaults": {"stream": e}, "streams": [_STREAM]},
        {"max_age": "1h"},
        [{"max_age": "long"}, {"maxage": "1h"}, {"storage": "disk"}, {"name": "A"}, {"lint": 5}],
    ),
    (
        lambda e: {"lint": e},
        {"JS201": "error"},
        [{"JS201": "off"}, {"JS2": "error"}, {"JS299": "error"}],
    ),
    (
        lambda e: {"drift": {"mute": [e]}},
        {"address": "hub/stream/T", "reason": "r", "owner": "o"},
        [
            {"address": _REMOVED},
            {"address": "T"},
            {"reason": _REMOVED},
            {"owner": 5},
            {"until": "now"},
            {"field": "a"},
        ],
    ),
    (
        lambda e: {"drift": {"sinks": [e]}},
        {"subject": "a.b", "domain": "hub"},
        [{"subject": "$JS"}, {"domain": "loaf"}, {"domian": "hub"}],
    ),
    (
        lambda e: {"drift": {"sinks": [{"webhook": e}]}},
        {"url": "https://h"},
        [{"url": "h"}, {"headers": {"a b": "c"}}, {"header": 5}],
    ),
    (
        lambda e: {"drift": e},
        {},
        [
            {"ignore": ["T"]},
            {"mute": [{"address": "T", "reason": "r", "owner": "o"}]},
            {"sinks": [{}]},
            {"sink": []},
        ],
    ),
    (
        lambda e: {"backend": {"kv": e}},
        {"domain": "hub", "bucket": "B"},
        [
            {"domain": "loaf"},
            {"domain": _REMOVED},
            {"domian": "hub", "domain": _REMOVED},
            {"bucket": "a b"},
            {"bucket": _REMOVED},
            {"lock_ttl": "1ms"},
            {"path": "x"},
        ],
    ),
    (
        lambda e: {"environments": _BASE["environments"] | {"dev": e}},
        {},
        [{"streams": []}, {"vars": 5}, {"domains": 5}, {"connections": {"n": 5}}],
    ),
    (lambda e: {"vars": e}, {}, [{"a": None}, {"b": "${var.a}"}]),
]


def test_no_mistake_hides_or_repeats_another(workspace: Loader) -> None:
    """Two mistakes in one entry give the findings of each of them, and nothing else."""
    wrong = list[str]()
    for place, entry, mistakes in _CASES:
        alone = [(mistake, _load(workspace, place, entry, [mistake])) for mistake in mistakes]
        wrong += [f"{mistake}: {sorted(found)}" for mistake, found in alone if len(found) != 1]
        for (a, first), (b, second) in itertools.combinations(alone, 2):
            if not a.keys().isdisjoint(b):
                continue
            found, both = _load(workspace, place, entry, [a, b]), first | second
            hidden = {text for _, text in both - found} - _EXPECTED
            if hidden or found - both:
                wrong.append(f"{a} {b}: hidden {hidden}, more {sorted(found - both)}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)


_SEVERAL: Final[list[tuple[dict[str, Any], list[str]]]] = [
    ({"domains": {}, "streams": [_STREAM, _STREAM | {"name": "T", "domain": "leaf"}]}, ["JS126"]),
    ({"connections": {"n": "nats://h:4222"}}, ["JS104"]),
    ({"connections": {"n": {"urls": ["nats://h:4222"]}}}, ["JS105"]),
    ({"streams": [{"name": "A", "domian": "hub"}]}, ["JS105"]),
    ({"streams": [{"nam": "A", "domain": "hub"}]}, ["JS105"]),
    ({"streams": [{"name": "A"}, {"name": "A"}]}, ["JS127"]),
    (
        {
            "streams": [
                {"name": "A"},
                _STREAM | {"depends_on": ["hub/stream/A"]},
                _STREAM | {"name": "T", "copy_of": "hub/stream/A"},
            ],
            "relocate": [{"from": "leaf/stream/B", "to": "hub/stream/A"}],
            "overrides": [{"address": "hub/stream/A", "max_age": "1h"}],
        },
        ["JS127"],
    ),
    (
        {
            "streams": [
                _STREAM | {"name": "a b", "subjects": ["${domain.size}"]},
                {"name": "B", "domain": "loaf", "subjects": ["${domain.size}"]},
            ],
            "overrides": [{"address": "*/stream/A", "max_age": "1h"}],
        },
        ["JS122", "JS131", "JS111"],
    ),
    (
        {
            "streams": [
                {
                    "name": "A",
                    "subjects": ["${domain}.>"],
                    "allow_msg_schedules": True,
                    "schedules": {"hub.a.>": {"evry": "1h", "target": "hub.b"}},
                }
            ]
        },
        ["JS105", "JS127", "JS131"],
    ),
    (
        {
            "domains": {"hub": {"connection": "n"}},
            "kv": [{"bucket": "a b", "entries": {"x y": 1, "a": None}}],
            "object_stores": [
                {"bucket": "O", "domain": "loaf", "objects": {"a": {"file": "none"}}}
            ],
        },
        ["JS100", "JS104", "JS122", "JS131", "JS131"],
    ),
    (
        {
            "streams": [
                _STREAM
                | {"discard": "nww", "discard_new_per_subject": True, "max_msgs_per_subject": 1}
            ]
        },
        ["JS130"],
    ),
    ({"streams": [_STREAM | {"config_file": "x", "discard_new_per_subject": True}]}, ["JS100"]),
]


def test_a_cause_in_one_entry_is_not_reported_in_others(workspace: Loader) -> None:
    """A mistake of one entry has one finding, also where other entries refer to it."""
    wrong = list[str]()
    for document, codes in _SEVERAL:
        found = _load(workspace, dict, document, [])
        if sorted(codes) != sorted(code for code, _ in found):
            wrong.append(f"{document}: {sorted(found)}")
    assert not wrong, "\n".join(wrong)


def _load(
    workspace: Loader,
    place: Callable[[dict[str, Any]], dict[str, Any]],
    entry: dict[str, Any],
    mistakes: list[dict[str, Any]],
) -> set[tuple[str, str]]:
    """Return code and text of each finding."""
    element = dict(entry)
    for mistake in mistakes:
        element |= mistake
    element = {key: value for key, value in element.items() if value is not _REMOVED}
    workspace.write({"jsplan.yaml": json.dumps(_BASE | place(element))})
    try:
        found = load(workspace.options(environment="dev")).diagnostics
    except ConfigError as error:
        found = error.diagnostics
    return {(each.code, each.summary) for each in found}
