"""The tables of the keys of a workspace file: reader, schema and page agree on each row."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import jsonschema

from jsplan.config.workspace_schema import all_sections, workspace_schema
from jsplan.errors import ConfigError
from jsplan.resources import TABLES
from tests.config.conftest import Loader

_VALIDATOR: Final = jsonschema.Draft202012Validator(workspace_schema())
_BASE: Final[dict[str, Any]] = {
    "jsplan": 1,
    "workspace": "shop",
    "connections": {"n": {"url": "nats://h:4222"}},
    "domains": {"hub": {"connection": "n"}, "leaf": {"connection": "n"}},
    "defaults": {"domain": "hub"},
}
_SIDE: Final = {"stream": "A"}
_GUARDED: Final = {"prevent_destroy": True}
_DEFAULTS: Final = {"lifecycle": _GUARDED, "lint": None, "x_raw": {"new": 1}}
_ENTRY: Final = _DEFAULTS | {
    "domain": "hub",
    "environments": "dev",
    "depends_on": ["hub/stream/B"],
}
_SCHEDULING: Final = {
    "name": "S",
    "subjects": ["s.>"],
    "allow_msg_schedules": True,
    "allow_msg_ttl": True,
}
#: What an application uses.
_OPERATOR: Final = {"connections": {"n": {}, "sys": {"operator_key": "o.nk"}}}
_ACCOUNT: Final = {"name": "A", "key": f"A{'A' * 55}", "connection": "sys"}
_USED: Final = {"streams": [{"name": "A", "consumers": [{"name": "C"}]}], "kv": [{"bucket": "B"}]}
_APP: Final = {"name": "a", "domain": "hub", "client": "py"}
#: What places a mapping in a workspace, and mappings of the table that together have each key.
_Example = tuple[Callable[[Any], dict[str, Any]], list[dict[str, Any]]]
_EXAMPLES: Final[dict[str, _Example]] = {
    "connection": (lambda it: {"connections": {"n": it}}, [
        {"url": "tls://h:4222", "user": "u", "password": "p", "tls": {"ca": "ca.pem"}},
        {"context": "shop", "timeout": "2s", "inbox_prefix": "_IN", "account": "ACC"},
        {"token": "t"},
        {"creds": "a.creds"},
        {"nkey": "n.nk", "operator_key": "o.nk"},
    ]),
    "tls": (lambda it: {"connections": {"n": {"url": "tls://h:4222", "tls": it}}}, [
        {"ca": "ca.pem", "cert": "c.pem", "key": "k.pem"},
        {"handshake_first": True},
    ]),
    "domain": (lambda it: {"domains": {"hub": {}, "leaf": it}}, [
        {"connection": "n", "js_domain": "edge", "labels": ["a"], "vars": {"size": 1}},
        {"api_prefix": "JS.leaf", "may_be_offline": "7d"},
        {"same_as": "hub", "labels": "a"},
        {"system": "n"},
    ]),
    "import": (lambda it: {"imports": [it]}, [{"from": "hub", "into": "leaf", "api": "JS.a", "deliver": "d", "consumers": ["S/C"]}]),
    "backend": (lambda it: {"backend": it}, [
        {"local": None},
        {"kv": {"bucket": "B"}},
    ]),
    "backend.local": (lambda it: {"backend": {"local": it}}, [{"path": "state.json"}]),
    "backend.kv": (lambda it: {"backend": {"kv": it}}, [{"domain": "leaf", "bucket": "B", "lock_ttl": "30s"}]),
    "moved": (lambda it: {"moved": [it]}, [{"from": "old/stream/A", "to": "hub/stream/A"}]),
    "relocate": (lambda it: {"streams": [{"name": "A"}], "relocate": [it]}, [{"from": "leaf/stream/A", "to": "hub/stream/A"}]),
    "removed": (lambda it: {"removed": [it]}, [{"address": "hub/stream/A", "destroy": True, "prevent_destroy": False}]),
    "backfill": (lambda it: {"environments": {"dev": None}, "backfills": [it]}, [
        {"name": "b", "from": [{"domain": "leaf", "stream": "A"}], "to": {"stream": "A"}, "order": "subject", "strategy": "spark",
         "mode": "exact", "oversize": "skip", "rate": "2MB/s", "where": "subject LIKE 'a.%'", "transform": "clean.py:run",
         "subject_transform": {"src": "a", "dest": "b"}, "environments": ["dev"]},
    ]),
    "backfill.from": (lambda it: {"backfills": [{"name": "b", "from": it, "to": {"stream": "B"}}]}, [
        {"domain": ["hub", "leaf"], "stream": "A", "start_seq": 2, "end_seq": 3},
        {"stream": "A", "start_time": "2026-01-01T00:00:00Z", "filter_subject": "a"},
        {"stream": "A", "end_time": "2026-01-01T00:00:00Z", "filter_subjects": ["a"]},
        {"parquet": "s3://b/a"},
    ]),
    "backfill.to": (lambda it: {"backfills": [{"name": "b", "from": {"stream": "A"}, "to": it}]}, [
        {"domain": "leaf", "stream": "A"},
        {"parquet": "archive"},
    ]),
    "backfill.subject_transform": (lambda it: {"backfills": [{"name": "b", "from": _SIDE, "to": {"stream": "B"},
         "subject_transform": it}]}, [
        {"src": "a", "dest": "b"},
    ]),
    "drift": (lambda it: {"drift": it}, [{"ignore": ["hub/**"], "mute": [], "sinks": [{"file": "d.jsonl"}], "watermarks": "w.json"}]),
    "drift.mute": (lambda it: {"drift": {"mute": [it]}}, [
        {"address": "hub/stream/A", "reason": "r", "owner": "o", "until": "2026-12-31", "fields": ["max_age"]},
    ]),
    "drift.sink.webhook": (lambda it: {"drift": {"sinks": [it]}}, [{"webhook": {"url": "https://h/x"}}]),
    "drift.sink.subject": (lambda it: {"drift": {"sinks": [it]}}, [{"subject": "ops.drift", "domain": "hub"}]),
    "drift.sink.file": (lambda it: {"drift": {"sinks": [it]}}, [{"file": "d.jsonl"}]),
    "drift.webhook": (lambda it: {"drift": {"sinks": [{"webhook": it}]}}, [
        {"url": "https://h/x", "headers": {"X-Key": "k"}, "format": "json"},
    ]),
    "app": (lambda it: _USED | {"apps": [it]}, [
        {"name": "a", "domain": "hub", "client": "py", "user": "u",
         "nkey": f"U{'A' * 55}", "role": f"A{'A' * 55}", "publishes": [], "consumes": [], "reads": [], "writes": []},
    ]),
    "account": (lambda it: _OPERATOR | {"accounts": [it]}, [_ACCOUNT | {"jetstream": {}}]),
    "account.jetstream": (lambda it: _OPERATOR | {"accounts": [_ACCOUNT | {"jetstream": it}]}, [
        {"memory": "unlimited", "disk": 1024, "streams": 5, "consumers": "unlimited"},
    ]),
    "app.publishes": (lambda it: _USED | {"apps": [_APP | {"publishes": [it]}]}, [
        {"stream": "hub/stream/A", "subjects": ["A"], "expects": ["max_msgs <= 0"]},
    ]),
    "app.consumes": (lambda it: _USED | {"apps": [_APP | {"consumes": [it]}]}, [
        {"consumer": "hub/consumer/A/C", "expects": ["ack_policy = none"]},
    ]),
    "app.reads": (lambda it: _USED | {"apps": [_APP | {"reads": [it]}]}, [{"bucket": "hub/kv/B", "keys": ["a"], "watch": True}]),
    "app.writes": (lambda it: _USED | {"apps": [_APP | {"writes": [it]}]}, [{"bucket": "hub/kv/B", "keys": ["a"]}]),
    "ownership": (lambda it: {"ownership": it}, [{"marker": True}]),
    "lifecycle": (lambda it: {"streams": [{"name": "A", "lifecycle": it}]}, [
        {"prevent_destroy": True, "ignore_changes": ["max_age"], "on_replace": "preserve",
         "allow_hazards": [{"code": "DELETES_MESSAGES", "reason": "r"}]},
    ]),
    "allowed_hazard": (lambda it: {"streams": [{"name": "A", "lifecycle": {"allow_hazards": [it]}}]}, [
        {"code": "DELETES_MESSAGES", "reason": "r", "until": "2026-12-31"},
    ]),
    "resource_lint": (lambda it: {"streams": [{"name": "A", "lint": it}]}, [{"ignore": [{"code": "JS201", "reason": "r"}]}]),
    "ignored_finding": (lambda it: {"streams": [{"name": "A", "lint": {"ignore": [it]}}]}, [{"code": "JS201", "reason": "r"}]),
    "position": (lambda it: {"consumers": [{"name": "C", "stream": "A", "position": it}]}, [
        {"seq": 5, "once": "a"},
        {"time": "2026-01-01T00:00:00Z", "once": "a"},
        {"new": True, "once": "a"},
    ]),
    "kv_value": (lambda it: {"kv": [{"bucket": "K", "limit_marker_ttl": "1h", "entries": {"a": it}}]}, [
        {"value": {"b": 1}, "ttl": "1m", "sensitive": True, "lifecycle": _GUARDED},
        {"file": "a.txt"},
    ]),
    "kv_folder": (lambda it: {"kv": [{"bucket": "K", "entries_from": it}]}, [
        {"dir": "folder", "prefix": "a.", "prune": True, "sensitive": True, "lifecycle": None},
    ]),
    "stored_object": (lambda it: {"object_stores": [{"bucket": "O", "objects": {"a": it}}]}, [{"file": "a.txt", "lifecycle": _GUARDED}]),
    "object_folder": (lambda it: {"object_stores": [{"bucket": "O", "objects_from": [it]}]}, [
        {"dir": "folder", "prefix": "a/", "prune": True, "lifecycle": _GUARDED},
    ]),
    "workspace": (lambda it: it, [
        {"jsplan": 1, "workspace": "shop", "include": [], "vars": {"a": 1}, "environments": {"dev": None}, "connections": {"n": None},
         "domains": {"hub": None}, "imports": [], "backend": None, "defaults": {}, "streams": [], "consumers": [], "kv": [],
         "object_stores": [], "overrides": [], "apps": [],
         "accounts": [], "account_files": "./accounts", "backfills": [], "moved": [], "relocate": [], "removed": [], "drift": None,
         "lint": {"JS201": "error"}, "ownership": None},
    ]),
    "environment": (lambda it: {"environments": {"dev": it}}, [
        {"vars": {"a": 1}, "connections": {"n": None}, "domains": None, "backend": None},
    ]),
    "defaults": (lambda it: {"defaults": it}, [{"domain": "hub", "stream": {}, "consumer": {}, "kv": None, "object_store": {}}]),
    "defaults.stream": (lambda it: {"defaults": {"domain": "hub", "stream": it}}, [_DEFAULTS]),
    "defaults.consumer": (lambda it: {"defaults": {"domain": "hub", "consumer": it}}, [_DEFAULTS]),
    "defaults.kv": (lambda it: {"defaults": {"domain": "hub", "kv": it}}, [_DEFAULTS]),
    "defaults.object_store": (lambda it: {"defaults": {"domain": "hub", "object_store": it}}, [_DEFAULTS]),
    "stream": (lambda it: {"environments": {"dev": None}, "streams": [it, {"name": "B"}]}, [
        _ENTRY | {"name": "A", "max_age": "1d", "subjects": ["a"], "allow_msg_schedules": True, "copy_of": "hub/stream/B",
         "consumers": [{"name": "C"}], "schedules": {}},
        {"name": "A", "config_file": "a.json"},
    ]),
    "consumer": (lambda it: {"environments": {"dev": None}, "consumers": [it]}, [
        _ENTRY | {"name": "A", "stream": "S", "position": {"seq": 1, "once": "a"}},
        {"durable_name": "A", "stream": "S", "config_file": "a.json"},
    ]),
    "nested_consumer": (lambda it: {"environments": {"dev": None}, "streams": [{"name": "A", "subjects": ["a"], "consumers": [it]}]}, [
        {key: value for key, value in _ENTRY.items() if key != "domain"} | {"name": "A", "position": {"seq": 1, "once": "a"}},
        {"name": "A", "config_file": "a.json"},
    ]),
    "kv": (lambda it: {"environments": {"dev": None}, "kv": [it]}, [
        _ENTRY | {"bucket": "A", "entries": {"a": 1}, "entries_from": {"dir": "folder"}},
        {"bucket": "A", "config_file": "a.json"},
    ]),
    "object_store": (lambda it: {"environments": {"dev": None}, "object_stores": [it]}, [
        _ENTRY | {"bucket": "A", "objects": {"a": {"file": "a.txt"}}, "objects_from": [{"dir": "folder"}]},
        {"bucket": "A", "config_file": "a.json"},
    ]),
    "override": (lambda it: {"overrides": [it], "consumers": [{"name": "A", "stream": "S"}]}, [
        _DEFAULTS | {"address": "hub/consumer/S/A", "position": {"seq": 1, "once": "a"}, "depends_on": ["hub/stream/S"]},
    ]),
    "schedule": (lambda it: {"streams": [_SCHEDULING | {"schedules": {"s.a": it}}]}, [
        {"at": "2030-01-01T00:00:00Z", "target": "s.t", "payload": "p", "sensitive": True},
        {"every": "1m", "target": "s.t", "file": "a.txt", "ttl": "1m", "lifecycle": _GUARDED},
        {"cron": "0 0 0 * * *", "time_zone": "Europe/Berlin", "target": "s.t"},
    ]),
}  # fmt: skip


def _is_read(workspace: Loader, document: dict[str, Any]) -> bool:
    try:
        chosen = next(iter(document.get("environments", {})), None)
        files = {"a.txt": "1", "folder/b": "2", "a.json": "{}"}
        workspace(json.dumps(document), head="", files=files, environment=chosen)
    except ConfigError:
        return False
    return True


def test_reader_and_schema_take_the_same_keys(workspace: Loader) -> None:
    """Both take each key of each table with a real value, and refuse any other key."""
    assert _EXAMPLES.keys() == all_sections().keys()
    for name, section in all_sections().items():
        place, examples = _EXAMPLES[name]
        given = {key for example in examples for key in example}
        assert (
            given - {row.name for kind in section.fields for row in TABLES[kind].rows}
            == section.by_name.keys()
        ), name
        for example in examples:
            document = _BASE | place(example)
            assert list(_VALIDATOR.iter_errors(document)) == [], (name, example)
            assert _is_read(workspace, document), (name, example)
            unknown = _BASE | place(example | {"no_such_key": 1})
            assert not _VALIDATOR.is_valid(unknown), (name, example)
            assert not _is_read(workspace, unknown), (name, example)


def test_reader_and_schema_require_the_same_keys(workspace: Loader) -> None:
    """Both refuse a mapping without one of its required keys."""
    for name, section in all_sections().items():
        place, examples = _EXAMPLES[name]
        for key in section.keys:
            if key.required:
                less = {given: value for given, value in examples[0].items() if given != key.name}
                document = _BASE | place(less)
                assert not _VALIDATOR.is_valid(document), (name, key.name)
                assert not _is_read(workspace, document), (name, key.name)
